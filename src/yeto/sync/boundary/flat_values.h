// SPDX-License-Identifier: Apache-2.0
// FlatValues: the values of one fragment as one flat vector of f32 or bf16, immutable and shared.
// A received image becomes the anchor without a copy; a worker may read a snapshot while training
// goes on. Thread-safe for reading.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "yeto/base/bytes.h"
#include "yeto/tensor/dtype.h"

namespace yeto::sync::client {

// Work on fragments goes by tiles of at most this many values, so that decoded bf16 stays in cache.
inline constexpr std::size_t kTileValues = 4096;
using Tile = std::array<float, kTileValues>;

// Calls f(first, count) for all tiles of `values` values.
template <class F>
void each_tile(std::uint64_t values, F&& f) {
  for (std::uint64_t first = 0; first < values; first += kTileValues) {
    f(first, static_cast<std::size_t>(std::min<std::uint64_t>(kTileValues, values - first)));
  }
}

class FlatValues {
 public:
  FlatValues() = default;
  // `dtype` is kF32 or kBf16; whole values.
  FlatValues(std::shared_ptr<const Bytes> bytes, DType dtype)
      : bytes_(std::move(bytes)), dtype_(dtype) {}

  explicit operator bool() const { return bytes_ != nullptr; }
  DType dtype() const { return dtype_; }
  std::uint64_t size() const { return bytes_->size() / dtype_bytes(dtype_); }
  ByteView bytes() const { return *bytes_; }
  const std::shared_ptr<const Bytes>& share() const { return bytes_; }

  // All values; only of kF32.
  std::span<const float> f32() const;
  // All values as bits; only of kBf16.
  std::span<const std::uint16_t> bf16() const;
  // Values [first, first + count) as f32: the memory itself, or decoded into `scratch`.
  std::span<const float> tile(std::uint64_t first, std::size_t count, Tile& scratch) const;
  bool all_finite() const;

 private:
  std::shared_ptr<const Bytes> bytes_;
  DType dtype_ = DType::kF32;
};

// Bytes that hold f32 or bf16 values, as such.
std::span<float> as_f32(Bytes& bytes);
std::span<std::uint16_t> as_bf16(Bytes& bytes);

}  // namespace yeto::sync::client
