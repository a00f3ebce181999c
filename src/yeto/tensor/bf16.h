// SPDX-License-Identifier: Apache-2.0
// f32 ↔ bf16: round to nearest even, NaN stays NaN (quiet, sign kept), infinities and signed zeros
// stay. The only place that rounds to bf16; integer arithmetic, so the same bits on every machine.
// Thread-safe. Always inlined: loops compiled for one instruction set must not share a function
// with others.
#pragma once

#include <cstddef>
#include <cstdint>

namespace yeto {

[[gnu::always_inline]] constexpr std::uint16_t bf16_from_f32(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t quiet_nan = (bits >> 16) | 0x40U;
  return static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet_nan : rounded);
}

[[gnu::always_inline]] constexpr float f32_from_bf16(std::uint16_t value) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(value) << 16);
}

// `count` values; `in` and `out` do not overlap.
void bf16_from_f32(const float* in, std::uint16_t* out, std::size_t count);
void f32_from_bf16(const std::uint16_t* in, float* out, std::size_t count);

}  // namespace yeto
