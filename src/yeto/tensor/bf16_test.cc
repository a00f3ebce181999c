// SPDX-License-Identifier: Apache-2.0
// Goal: bf16 is the nearest neighbour, ties to even, and NaN survives. Method: known bits, and
// every bf16 interval's ends and middle against exact f64 arithmetic.
#include "yeto/tensor/bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "yeto/base/rng.h"

namespace yeto {
namespace {

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(Bf16, KnownBits) {
  EXPECT_EQ(bf16_from_f32(1.0F), 0x3f80);
  EXPECT_EQ(bf16_from_f32(-0.0F), 0x8000);
  EXPECT_EQ(bf16_from_f32(from_bits(0x3f80ffff)), 0x3f81) << "rounded, not cut off";
  EXPECT_EQ(bf16_from_f32(from_bits(0x3f808000)), 0x3f80) << "tie to even, down";
  EXPECT_EQ(bf16_from_f32(from_bits(0x3f818000)), 0x3f82) << "tie to even, up";
  EXPECT_EQ(bf16_from_f32(from_bits(0x7f800000)), 0x7f80);
  EXPECT_EQ(bf16_from_f32(from_bits(0x7f7fffff)), 0x7f80) << "beyond the largest bf16";
  EXPECT_EQ(bf16_from_f32(from_bits(0x00000001)), 0x0000);
}

TEST(Bf16, NanStaysNanWithItsSign) {
  for (const std::uint32_t bits : {0x7f800001U, 0x7fc00000U, 0xff80ffffU, 0xffffffffU}) {
    const std::uint16_t got = bf16_from_f32(from_bits(bits));
    EXPECT_TRUE(std::isnan(f32_from_bf16(got))) << std::hex << bits;
    EXPECT_EQ(got >> 15, bits >> 31) << std::hex << bits;
  }
}

TEST(Bf16, EveryFiniteValueComesBackAndNeighboursRoundToTheNearest) {
  for (std::uint32_t low = 0; low < 0x7f7f; ++low) {
    const double a = f32_from_bf16(static_cast<std::uint16_t>(low));
    const double b = f32_from_bf16(static_cast<std::uint16_t>(low + 1));
    EXPECT_EQ(bf16_from_f32(static_cast<float>(a)), low);
    for (const std::uint32_t part : {0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      const float value = from_bits((low << 16) | part);
      const double to_a = value - a;
      const double to_b = b - value;
      const bool up = to_b < to_a || (to_b == to_a && low % 2 == 1);
      ASSERT_EQ(bf16_from_f32(value), low + (up ? 1U : 0U)) << std::hex << low << " " << part;
    }
  }
}

TEST(Bf16, ArraysEqualTheScalarForm) {
  Rng rng(7);
  for (const std::size_t count : {0UL, 1UL, 7UL, 16UL, 1000UL}) {
    std::vector<float> values(count);
    for (float& value : values) {
      value = from_bits(static_cast<std::uint32_t>(rng.next()));
    }
    std::vector<std::uint16_t> rounded(count);
    std::vector<float> back(count);
    bf16_from_f32(values.data(), rounded.data(), count);
    f32_from_bf16(rounded.data(), back.data(), count);
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(rounded[i], bf16_from_f32(values[i]));
      EXPECT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::uint32_t{rounded[i]} << 16);
    }
  }
}

}  // namespace
}  // namespace yeto
