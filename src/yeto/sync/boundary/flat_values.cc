// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/boundary/flat_values.h"

#include "yeto/base/result.h"
#include "yeto/sync/client/values.h"
#include "yeto/tensor/bf16.h"

namespace yeto::sync::client {

// A vector's memory is aligned for any type, and values of f32 and bf16 have no other
// representation than their bytes.
std::span<float> as_f32(Bytes& bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

std::span<std::uint16_t> as_bf16(Bytes& bytes) {
  return {reinterpret_cast<std::uint16_t*>(bytes.data()), bytes.size() / sizeof(std::uint16_t)};
}

std::span<const float> FlatValues::f32() const {
  YETO_CHECK(dtype_ == DType::kF32, "these values are f32");
  return {reinterpret_cast<const float*>(bytes_->data()), bytes_->size() / sizeof(float)};
}

std::span<const std::uint16_t> FlatValues::bf16() const {
  YETO_CHECK(dtype_ == DType::kBf16, "these values are bf16");
  return {reinterpret_cast<const std::uint16_t*>(bytes_->data()),
          bytes_->size() / sizeof(std::uint16_t)};
}

std::span<const float> FlatValues::tile(std::uint64_t first, std::size_t count,
                                        Tile& scratch) const {
  if (dtype_ == DType::kF32) {
    return f32().subspan(first, count);
  }
  f32_from_bf16(bf16().data() + first, scratch.data(), count);
  return std::span<const float>(scratch).first(count);
}

bool FlatValues::all_finite() const {
  bool finite = true;
  Tile scratch;
  each_tile(size(), [&](std::uint64_t first, std::size_t count) {
    finite = client::all_finite(tile(first, count, scratch)) && finite;
  });
  return finite;
}

}  // namespace yeto::sync::client
