// SPDX-License-Identifier: Apache-2.0
#include "yeto/codec/codec.h"

#include <array>
#include <cstring>

#include "yeto/base/format.h"
#include "yeto/tensor/bf16.h"

namespace yeto::codec {
namespace {

constexpr std::uint64_t kQ4BlockValues = 256;
constexpr std::uint64_t kQ4BlockBytes = 4 + kQ4BlockValues / 2;

// Indexed by CodecId.
constexpr std::array<std::string_view, 3> kNames{"f32", "bf16", "q4"};

// A buffer may begin anywhere, so bf16 values are moved through an aligned block of this many.
constexpr std::size_t kBlock = 1024;

void encode_bf16(std::span<const float> values, std::uint8_t* image) {
  std::uint16_t block[kBlock];
  for (std::size_t first = 0; first < values.size(); first += kBlock) {
    const std::size_t count = std::min(kBlock, values.size() - first);
    bf16_from_f32(values.data() + first, block, count);
    std::memcpy(image + 2 * first, block, 2 * count);
  }
}

void decode_bf16(const std::uint8_t* image, std::span<float> values) {
  std::uint16_t block[kBlock];
  for (std::size_t first = 0; first < values.size(); first += kBlock) {
    const std::size_t count = std::min(kBlock, values.size() - first);
    std::memcpy(block, image + 2 * first, 2 * count);
    f32_from_bf16(block, values.data() + first, count);
  }
}

}  // namespace

CodecId default_codec(std::uint64_t trainable_values) {
  return trainable_values < kBf16FromValues ? CodecId::kF32 : CodecId::kBf16;
}

std::string_view codec_name(CodecId codec) {
  const auto index = static_cast<std::size_t>(codec);
  return index < kNames.size() ? kNames[index] : "unknown";
}

Result<CodecId> codec_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) {
      const auto codec = static_cast<CodecId>(i);
      YETO_TRY(check_codec(codec));
      return codec;
    }
  }
  return fail(ErrorCode::kType, strf("no codec is called {}", name), "codec", "use f32 or bf16");
}

Status check_codec(CodecId codec) {
  if (codec == CodecId::kF32 || codec == CodecId::kBf16) {
    return Unit{};
  }
  return fail(ErrorCode::kNotInBuild, strf("the codec {} is not in this build", codec_name(codec)),
              "codec", "use f32 or bf16");
}

std::uint64_t encoded_bytes(CodecId codec, std::uint64_t values) {
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

Status encode(CodecId codec, std::span<const float> values, MutableByteView image) {
  YETO_TRY(check_codec(codec));
  const std::uint64_t wanted = encoded_bytes(codec, values.size());
  if (image.size() != wanted) {
    return fail(ErrorCode::kInternal,
                strf("the image of {} values needs {} bytes, the buffer has {}", values.size(),
                     wanted, image.size()),
                "codec");
  }
  if (codec == CodecId::kBf16) {
    encode_bf16(values, image.data());
  } else if (!values.empty()) {
    std::memcpy(image.data(), values.data(), image.size());
  }
  return Unit{};
}

Status decode(CodecId codec, ByteView image, std::span<float> values) {
  YETO_TRY(check_codec(codec));
  const std::uint64_t wanted = encoded_bytes(codec, values.size());
  if (image.size() != wanted) {
    return fail(ErrorCode::kData,
                strf("{} bytes are no {} image of {} values, which has {}", image.size(),
                     codec_name(codec), values.size(), wanted),
                "codec");
  }
  if (codec == CodecId::kBf16) {
    decode_bf16(image.data(), values);
  } else if (!values.empty()) {
    std::memcpy(values.data(), image.data(), image.size());
  }
  return Unit{};
}

DType anchor_dtype(CodecId codec) { return codec == CodecId::kF32 ? DType::kF32 : DType::kBf16; }

Xxh128 public_digest(ByteView image) { return xxh3_128(image); }

}  // namespace yeto::codec
