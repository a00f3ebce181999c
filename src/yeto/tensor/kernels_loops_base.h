// SPDX-License-Identifier: Apache-2.0
// What all loops share. See kernels_loops.h.
#pragma once

#include "yeto/tensor/bf16.h"
#include "yeto/tensor/kernels.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace yeto {
namespace {

#define YETO_INLINE [[gnu::always_inline]] inline
#define YETO_ALWAYS __attribute__((always_inline))

// A step works on so many values at a time: few enough that they stay in the first-level cache next
// to one line of each of a dozen streams, whatever the streams' addresses are.
constexpr std::size_t kMini = 64;
constexpr std::size_t kLineBytes = 64;

YETO_INLINE std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }
YETO_INLINE float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

constexpr std::uint32_t kExponent = 0x7f800000U;
// 1 if the value is an infinity or NaN.
YETO_INLINE std::uint32_t not_finite(float value) {
  return (bits_of(value) & kExponent) == kExponent ? 1U : 0U;
}
YETO_INLINE std::uint32_t not_finite(std::uint16_t value) {
  return (value & 0x7f80U) == 0x7f80U ? 1U : 0U;
}

YETO_INLINE float as_f32(float value) { return value; }
YETO_INLINE float as_f32(std::uint16_t value) { return f32_from_bf16(value); }

}  // namespace
}  // namespace yeto
