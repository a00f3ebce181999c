// SPDX-License-Identifier: Apache-2.0
// Blocks of q4 images. See kernels_loops.h.
#pragma once

#include "yeto/tensor/kernels_loops_base.h"

namespace yeto {
namespace {

constexpr std::size_t kBlock = kQ4BlockValues;
constexpr std::uint32_t kMagnitude = 0x7fffffffU;
// Levels change at 2^(k+½) in f32, k = −7 … −1: bits k+127 and 0x3504f3. Adding this carries into
// the exponent exactly there.
constexpr std::uint32_t kToNextLevel = 0x00800000U - 0x003504f3U;
constexpr std::int32_t kLevelZero = 127 - 7;

// max|x| of a block; infinite or NaN if a value is.
YETO_INLINE float block_scale(const float* x) {
  std::int32_t most[kLanes] = {};
  for (std::size_t i = 0; i < kBlock; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto bits = static_cast<std::int32_t>(bits_of(x[i + lane]) & kMagnitude);
      most[lane] = bits > most[lane] ? bits : most[lane];
    }
  }
  std::int32_t scale = 0;
  for (const std::int32_t bits : most) {
    scale = bits > scale ? bits : scale;
  }
  return float_of(static_cast<std::uint32_t>(scale));
}

// One block: scale and nibbles.
YETO_INLINE void encode_block(const float* x, std::uint8_t* image) {
  const float scale = block_scale(x);
  __builtin_memcpy(image, &scale, sizeof(scale));
  image += sizeof(scale);
  if (bits_of(scale) == 0 || not_finite(scale) != 0) {
    __builtin_memset(image, 0, kBlock / 2);
    return;
  }
  std::uint8_t nibbles[kBlock];
  for (std::size_t i = 0; i < kBlock; ++i) {
    const std::uint32_t bits = bits_of(x[i]);
    const std::uint32_t ratio = bits_of(float_of(bits & kMagnitude) / scale);
    const auto level = static_cast<std::int32_t>((ratio + kToNextLevel) >> 23) - kLevelZero;
    const auto signed_level = static_cast<std::uint32_t>(level) | ((bits >> 28) & 8U);
    nibbles[i] = static_cast<std::uint8_t>(level > 0 ? signed_level : 0U);
  }
  for (std::size_t i = 0; i < kBlock / 2; ++i) {
    image[i] = static_cast<std::uint8_t>(nibbles[2 * i] | (nibbles[2 * i + 1] << 4));
  }
}

YETO_INLINE void decode_block(const std::uint8_t* image, float* out) {
  float scale = 0.0F;
  __builtin_memcpy(&scale, image, sizeof(scale));
  image += sizeof(scale);
  std::uint8_t nibbles[kBlock];
  for (std::size_t i = 0; i < kBlock / 2; ++i) {
    nibbles[2 * i] = image[i] & 15U;
    nibbles[2 * i + 1] = image[i] >> 4;
  }
  for (std::size_t i = 0; i < kBlock; ++i) {
    const std::uint32_t nibble = nibbles[i];
    const std::uint32_t level = nibble & 7U;
    const std::uint32_t power = ((level + kLevelZero) << 23) | ((nibble & 8U) << 28);
    out[i] = float_of(level != 0 ? power : 0U) * scale;
  }
}

// Calls `whole(first)` for each whole block and `rest(first, count)` for what is left.
template <class Whole, class Rest>
YETO_INLINE void each_block(std::size_t count, Whole&& whole, Rest&& rest) {
  std::size_t first = 0;
  for (; first + kBlock <= count; first += kBlock) {
    whole(first);
  }
  if (first < count) {
    rest(first, count - first);
  }
}

// The block of a whole image that begins at value `first`.
YETO_INLINE std::size_t block_at(std::size_t first) { return first / kBlock * kQ4BlockBytes; }

void encode_q4(const float* x, std::uint8_t* image, std::size_t count) {
  each_block(
      count, [=](std::size_t first) { encode_block(x + first, image + block_at(first)); },
      [=](std::size_t first, std::size_t n) {
        float block[kBlock] = {};
        __builtin_memcpy(block, x + first, n * sizeof(float));
        encode_block(block, image + block_at(first));
      });
}

void decode_q4(const std::uint8_t* image, float* out, std::size_t count) {
  each_block(
      count, [=](std::size_t first) { decode_block(image + block_at(first), out + first); },
      [=](std::size_t first, std::size_t n) {
        float block[kBlock];
        decode_block(image + block_at(first), block);
        __builtin_memcpy(out + first, block, n * sizeof(float));
      });
}

YETO_INLINE void feedback_block(const float* x, float* residual, std::uint8_t* image,
                                std::size_t count) {
  float wanted[kBlock] = {};
  float sent[kBlock];
  for (std::size_t i = 0; i < count; ++i) {
    wanted[i] = x[i] + residual[i];
  }
  encode_block(wanted, image);
  decode_block(image, sent);
  for (std::size_t i = 0; i < count; ++i) {
    residual[i] = wanted[i] - sent[i];
  }
}

void encode_q4_feedback(const float* x, float* residual, std::uint8_t* image, std::size_t count) {
  each_block(
      count,
      [=](std::size_t first) {
        feedback_block(x + first, residual + first, image + block_at(first), kBlock);
      },
      [=](std::size_t first, std::size_t n) {
        feedback_block(x + first, residual + first, image + block_at(first), n);
      });
}

// after = bf16(before + dec(image)); 0 if all is finite.
YETO_INLINE std::uint32_t apply_block(const std::uint8_t* image, const std::uint16_t* before,
                                      std::uint16_t* after, std::size_t count) {
  float change[kBlock];
  std::uint16_t next[kBlock];
  decode_block(image, change);
  std::uint16_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    next[i] = bf16_from_f32(f32_from_bf16(before[i]) + change[i]);
    bad = static_cast<std::uint16_t>(bad | not_finite(next[i]));
  }
  __builtin_memcpy(after, next, count * sizeof(std::uint16_t));
  return bad;
}

bool apply_q4(const std::uint8_t* image, const std::uint16_t* before, std::uint16_t* after,
              std::size_t count) {
  std::uint32_t bad = 0;
  each_block(
      count,
      [=, &bad](std::size_t first) {
        bad |= apply_block(image + block_at(first), before + first, after + first, kBlock);
      },
      [=, &bad](std::size_t first, std::size_t n) {
        bad |= apply_block(image + block_at(first), before + first, after + first, n);
      });
  return bad == 0;
}

YETO_INLINE std::uint32_t change_block(const float* x, const std::uint16_t* before,
                                       std::uint16_t* after, std::uint8_t* image,
                                       std::size_t count) {
  float change[kBlock] = {};
  for (std::size_t i = 0; i < count; ++i) {
    change[i] = x[i] - f32_from_bf16(before[i]);
  }
  encode_block(change, image);
  return apply_block(image, before, after, count);
}

bool encode_q4_change(const float* x, const std::uint16_t* before, std::uint16_t* after,
                      std::uint8_t* image, std::size_t count) {
  std::uint32_t bad = 0;
  each_block(
      count,
      [=, &bad](std::size_t first) {
        bad |=
            change_block(x + first, before + first, after + first, image + block_at(first), kBlock);
      },
      [=, &bad](std::size_t first, std::size_t n) {
        bad |= change_block(x + first, before + first, after + first, image + block_at(first), n);
      });
  return bad == 0;
}

}  // namespace
}  // namespace yeto
