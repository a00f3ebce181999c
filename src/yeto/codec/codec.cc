// SPDX-License-Identifier: Apache-2.0
#include "yeto/codec/codec.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "yeto/base/format.h"
#include "yeto/tensor/bf16.h"
#include "yeto/tensor/image.h"
#include "yeto/tensor/kernels.h"

namespace yeto::codec {
namespace {

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

Status check_room(CodecId codec, std::uint64_t values, std::size_t image_bytes) {
  const std::uint64_t wanted = encoded_bytes(codec, values);
  if (image_bytes != wanted) {
    return fail(ErrorCode::kInternal,
                strf("the image of {} values needs {} bytes, the buffer has {}", values, wanted,
                     image_bytes),
                "codec");
  }
  return Unit{};
}

bool even(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 2 == 0; }

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
      return static_cast<CodecId>(i);
    }
  }
  return fail(ErrorCode::kType, strf("no codec is called {}", name), "codec",
              "use f32, bf16 or q4");
}

Status check_codec(CodecId codec) {
  const auto number = static_cast<std::size_t>(codec);
  if (number < kNames.size()) {
    return Unit{};
  }
  return fail(ErrorCode::kType, strf("no codec has the number {}", number), "codec",
              "use f32, bf16 or q4");
}

std::uint64_t encoded_bytes(CodecId codec, std::uint64_t values) {
  return image_bytes(codec, values);
}

Status encode(CodecId codec, std::span<const float> values, MutableByteView image) {
  YETO_TRY(check_codec(codec));
  YETO_TRY(check_room(codec, values.size(), image.size()));
  if (values.empty()) {
    return Unit{};
  }
  switch (codec) {
    case CodecId::kF32:
      std::memcpy(image.data(), values.data(), image.size());
      break;
    case CodecId::kBf16:
      encode_bf16(values, image.data());
      break;
    case CodecId::kQ4:
      kernels().encode_q4(values.data(), image.data(), values.size());
      break;
  }
  return Unit{};
}

Status decode(CodecId codec, ByteView image, std::span<float> values) {
  YETO_TRY(check_image(codec, image, values.size()));
  if (values.empty()) {
    return Unit{};
  }
  switch (codec) {
    case CodecId::kF32:
      std::memcpy(values.data(), image.data(), image.size());
      break;
    case CodecId::kBf16:
      decode_bf16(image.data(), values);
      break;
    case CodecId::kQ4:
      kernels().decode_q4(image.data(), values.data(), values.size());
      break;
  }
  return Unit{};
}

Status encode_q4_feedback(std::span<const float> delta, std::span<float> residual,
                          MutableByteView image) {
  YETO_TRY(check_room(CodecId::kQ4, delta.size(), image.size()));
  if (residual.size() != delta.size()) {
    return fail(ErrorCode::kInternal,
                strf("a delta of {} values has a residual of {}", delta.size(), residual.size()),
                "codec");
  }
  if (!delta.empty()) {
    kernels().encode_q4_feedback(delta.data(), residual.data(), image.data(), delta.size());
  }
  return Unit{};
}

Status apply_q4(ByteView image, ByteView old_public, MutableByteView new_public) {
  if (old_public.size() != new_public.size() || old_public.size() % 2 != 0 ||
      !even(old_public.data()) || !even(new_public.data())) {
    return fail(ErrorCode::kInternal, "the public values of a change do not fit each other",
                "codec");
  }
  const std::size_t count = old_public.size() / 2;
  YETO_TRY(check_image(CodecId::kQ4, image, count));
  if (count > 0 &&
      !kernels().apply_q4(image.data(), reinterpret_cast<const std::uint16_t*>(old_public.data()),
                          reinterpret_cast<std::uint16_t*>(new_public.data()), count)) {
    return fail(ErrorCode::kData, "a change leads to a public value that is not finite", "codec");
  }
  return Unit{};
}

DType anchor_dtype(CodecId codec) { return codec == CodecId::kF32 ? DType::kF32 : DType::kBf16; }

Xxh128 public_digest(ByteView public_value) { return xxh3_128(public_value); }

}  // namespace yeto::codec
