// SPDX-License-Identifier: Apache-2.0
#include "yeto/tensor/image.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "yeto/base/format.h"
#include "yeto/tensor/kernels.h"

namespace yeto {
namespace {

// Indexed by CodecId.
constexpr std::array<std::string_view, 3> kNames{"f32", "bf16", "q4"};

std::uint32_t scale_bits(ByteView image, std::size_t at) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, image.data() + at, sizeof(bits));
  return bits;
}

constexpr std::uint32_t kInfinity = 0x7f800000U;

Status check_scales(ByteView image) {
  for (std::size_t at = 0; at < image.size(); at += kQ4BlockBytes) {
    // A sign makes the number larger than every finite scale.
    const std::uint32_t bits = scale_bits(image, at);
    if (bits >= kInfinity) {
      return fail(ErrorCode::kData,
                  strf("block {} of a q4 image has the scale {}: must be finite and not negative",
                       at / kQ4BlockBytes, std::bit_cast<float>(bits)),
                  "image");
    }
  }
  return Unit{};
}

}  // namespace

std::uint64_t image_bytes(CodecId codec, std::uint64_t values) {
  switch (codec) {
    case CodecId::kF32:
      return values * 4;
    case CodecId::kBf16:
      return values * 2;
    case CodecId::kQ4:
      return (values + kQ4BlockValues - 1) / kQ4BlockValues * kQ4BlockBytes;
  }
  YETO_CHECK(false, "a CodecId is not one of its enumerators");
}

Status check_image(CodecId codec, ByteView image, std::uint64_t values) {
  const std::uint64_t wanted = image_bytes(codec, values);
  if (image.size() != wanted) {
    return fail(ErrorCode::kData,
                strf("{} bytes are no {} image of {} values, which has {}", image.size(),
                     kNames[static_cast<std::size_t>(codec)], values, wanted),
                "image");
  }
  return codec == CodecId::kQ4 ? check_scales(image) : Unit{};
}

bool q4_scales_finite(ByteView image) {
  for (std::size_t at = 0; at < image.size(); at += kQ4BlockBytes) {
    if ((scale_bits(image, at) & kInfinity) == kInfinity) {
      return false;
    }
  }
  return true;
}

void decode_q4_values(ByteView image, std::uint64_t first, std::span<float> out) {
  const std::uint8_t* blocks = image.data() + first / kQ4BlockValues * kQ4BlockBytes;
  const std::size_t skipped = first % kQ4BlockValues;
  if (skipped > 0) {
    // What is left of the block in which the range begins.
    float block[kQ4BlockValues];
    kernels().decode_q4(blocks, block, kQ4BlockValues);
    const std::size_t count = std::min(out.size(), kQ4BlockValues - skipped);
    std::copy_n(block + skipped, count, out.data());
    out = out.subspan(count);
    blocks += kQ4BlockBytes;
  }
  if (!out.empty()) {
    kernels().decode_q4(blocks, out.data(), out.size());
  }
}

}  // namespace yeto
