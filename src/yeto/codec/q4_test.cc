// SPDX-License-Identifier: Apache-2.0
// Goal: q4 images have the documented bytes on every machine, lose as little as the levels allow,
// and bad ones are refused. Method: given vectors, a reference written value by value, random
// vectors from printed seeds.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/codec/codec.h"
#include "yeto/tensor/bf16.h"
#include "yeto/tensor/image.h"
#include "yeto/tensor/kernels.h"

namespace yeto::codec {
namespace {

using Values = std::vector<float>;

Bytes image_of(const Values& values) {
  Bytes image(encoded_bytes(CodecId::kQ4, values.size()));
  EXPECT_TRUE(encode(CodecId::kQ4, values, image));
  return image;
}

Values values_of(ByteView image, std::size_t count) {
  Values out(count);
  EXPECT_TRUE(decode(CodecId::kQ4, image, out));
  return out;
}

// Magnitudes over many powers of two, some zeros.
Values random_values(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  Values out(count);
  for (float& value : out) {
    const double sign = rng.below(2) == 0 ? -1.0 : 1.0;
    const double magnitude = std::ldexp(rng.uniform(), -static_cast<int>(rng.below(12)));
    value = rng.below(10) == 0 ? 0.0F : static_cast<float>(sign * magnitude);
  }
  return out;
}

// The nibble of x by comparing its ratio with each midpoint.
std::uint8_t nibble_of(float x, float scale) {
  constexpr float kHalfStep = 0x1.6a09e6p-1F;  // 2^−½ as f32
  const float ratio = std::fabs(x) / scale;
  int level = 0;
  for (int k = 0; k < 7; ++k) {
    level += ratio >= std::ldexp(kHalfStep, k - 6) ? 1 : 0;
  }
  return static_cast<std::uint8_t>(level == 0 ? 0 : level + (std::signbit(x) ? 8 : 0));
}

TEST(Q4, GivenVectors) {
  const Bytes one = image_of({1.0F, -0.5F, 0.25F, 0.0F});
  EXPECT_EQ(hex(ByteView(one).first(6)), "0000803fe705");
  const Bytes two = image_of({3.0F, -3.0F, 1.5F, 0.75F, -0.375F, 0.1875F, 0.09375F, 0.046875F});
  EXPECT_EQ(hex(ByteView(two).first(8)), "00004040f7563c12");
  Values long_one(300);
  long_one[0] = 2.0F;
  long_one[256] = -2.0F;
  const Bytes image = image_of(long_one);
  ASSERT_EQ(image.size(), 264U);
  EXPECT_EQ(hex(ByteView(image).first(5)), "0000004007");
  EXPECT_EQ(hex(ByteView(image).subspan(132, 5)), "000000400f");
  EXPECT_EQ(values_of(image, 300), long_one);
}

TEST(Q4, LevelsChangeExactlyAtTheMidpoints) {
  for (int k = -7; k <= -1; ++k) {
    const float midpoint = std::ldexp(0x1.6a09e6p+0F, k);  // 2^(k+½)
    const float below = std::nextafter(midpoint, 0.0F);
    const Bytes image = image_of({1.0F, midpoint, -midpoint, below, -below});
    const int level = k + 8;
    EXPECT_EQ(image[4] >> 4, level) << "the upper level begins at 2^" << k << "+1/2";
    EXPECT_EQ(image[5] & 15, level + 8);
    EXPECT_EQ(image[5] >> 4, level - 1);
    EXPECT_EQ(image[6] & 15, level == 1 ? 0 : level - 1 + 8) << "level 0 carries no sign";
  }
}

TEST(Q4, EqualsAReferenceWrittenValueByValue) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    const std::size_t count = 1 + Rng(seed).below(1200);
    const Values values = random_values(count, seed);
    const Bytes image = image_of(values);
    for (std::size_t first = 0; first < count; first += kQ4BlockValues) {
      const std::size_t end = std::min(count, first + kQ4BlockValues);
      float scale = 0.0F;
      for (std::size_t i = first; i < end; ++i) {
        scale = std::max(scale, std::fabs(values[i]));
      }
      const std::uint8_t* block = image.data() + first / kQ4BlockValues * kQ4BlockBytes;
      ASSERT_EQ(std::memcmp(block, &scale, 4), 0);
      for (std::size_t i = first; i < first + kQ4BlockValues; ++i) {
        const std::size_t in_block = i - first;
        const int nibble = (block[4 + in_block / 2] >> (in_block % 2 * 4)) & 15;
        const bool nothing = i >= end || scale == 0.0F;
        ASSERT_EQ(nibble, nothing ? 0 : nibble_of(values[i], scale)) << "value " << i;
      }
    }
  }
}

TEST(Q4, WhatIsLostIsBounded) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    const std::size_t count = 1 + Rng(seed).below(2000);
    const Values values = random_values(count, seed);
    const Values back = values_of(image_of(values), count);
    for (std::size_t first = 0; first < count; first += kQ4BlockValues) {
      const std::size_t end = std::min(count, first + kQ4BlockValues);
      float scale = 0.0F;
      for (std::size_t i = first; i < end; ++i) {
        scale = std::max(scale, std::fabs(values[i]));
      }
      for (std::size_t i = first; i < end; ++i) {
        // At a midpoint, √2 off; below the least of them, the whole value.
        const double x = std::fabs(values[i]);
        const double bound = x < std::exp2(-6.5) * scale ? x : (std::sqrt(2.0) - 1.0) * x;
        ASSERT_LE(std::fabs(static_cast<double>(values[i]) - back[i]), bound * (1 + 1e-6)) << i;
      }
    }
  }
}

TEST(Q4, EncodingWhatWasDecodedGivesTheImageAgain) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    const std::size_t count = 1 + Rng(seed).below(2000);
    const Bytes image = image_of(random_values(count, seed));
    ASSERT_EQ(image_of(values_of(image, count)), image);
  }
}

TEST(Q4, ExtremeScalesComeBack) {
  const float least = std::numeric_limits<float>::denorm_min();
  const float most = std::numeric_limits<float>::max();
  EXPECT_EQ(values_of(image_of({least, -least, 0.0F}), 3), (Values{least, -least, 0.0F}));
  EXPECT_EQ(values_of(image_of({most, -most / 2, least}), 3), (Values{most, -most / 2, 0.0F}));
  EXPECT_EQ(values_of(image_of(Values(256)), 256), Values(256));
  EXPECT_TRUE(image_of({}).empty());
}

TEST(Q4, RangesOfAnImageAreItsValues) {
  const Values values = random_values(1500, 5);
  const Bytes image = image_of(values);
  const Values all = values_of(image, values.size());
  Rng rng(5);
  for (int turn = 0; turn < 300; ++turn) {
    const std::size_t first = rng.below(values.size());
    const std::size_t count = 1 + rng.below(values.size() - first);
    Values some(count);
    decode_q4_values(image, first, some);
    ASSERT_EQ(some, Values(all.begin() + static_cast<long>(first),
                           all.begin() + static_cast<long>(first + count)))
        << first << " " << count;
  }
}

TEST(Q4, BadImagesAreRefused) {
  const Bytes good = image_of(random_values(300, 1));
  Values out(300);
  EXPECT_EQ(decode(CodecId::kQ4, ByteView(good).first(263), out).error().code, ErrorCode::kData);
  EXPECT_EQ(decode(CodecId::kQ4, ByteView(good).first(132), out).error().code, ErrorCode::kData);
  for (const float scale : {-1.0F, -0.0F, std::nanf(""), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
    Bytes bad = good;
    std::memcpy(bad.data() + 132, &scale, 4);
    const Status refused = decode(CodecId::kQ4, bad, out);
    ASSERT_FALSE(refused) << scale;
    EXPECT_EQ(refused.error().code, ErrorCode::kData);
    EXPECT_NE(refused.error().what.find("block 1"), std::string::npos) << refused.error().what;
    EXPECT_EQ(q4_scales_finite(bad), std::isfinite(scale));
    Bytes before(600);
    Bytes after(600);
    EXPECT_EQ(apply_q4(bad, before, after).error().code, ErrorCode::kData);
  }
  EXPECT_TRUE(q4_scales_finite(good));
  Bytes small(263);
  EXPECT_EQ(encode(CodecId::kQ4, out, small).error().code, ErrorCode::kInternal);
}

TEST(Q4, AnImageOfWhatIsNotFiniteSaysSo) {
  for (const float bad : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
    Values values = random_values(600, 2);
    values[300] = bad;
    const Bytes image = image_of(values);
    EXPECT_FALSE(q4_scales_finite(image));
    EXPECT_FALSE(check_image(CodecId::kQ4, image, 600));
  }
}

TEST(Q4, FeedbackKeepsWhatWasNotSent) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    const std::size_t count = 1 + Rng(seed).below(1000);
    Values residual(count);
    std::vector<double> given(count);
    std::vector<double> sent(count);
    for (int turn = 0; turn < 8; ++turn) {
      const Values delta = random_values(count, 100 * seed + static_cast<std::uint64_t>(turn));
      const Values before = residual;
      Bytes image(encoded_bytes(CodecId::kQ4, count));
      ASSERT_TRUE(encode_q4_feedback(delta, residual, image));
      const Values out = values_of(image, count);
      for (std::size_t i = 0; i < count; ++i) {
        const float wanted = delta[i] + before[i];
        ASSERT_EQ(residual[i], wanted - out[i]);
        given[i] += delta[i];
        sent[i] += out[i];
      }
    }
    // Nothing is lost over time: what was sent and what is kept make up what was given.
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_NEAR(sent[i] + residual[i], given[i], 1e-5);
    }
  }
  Values residual(3);
  Bytes image(132);
  EXPECT_EQ(encode_q4_feedback(Values(4), residual, image).error().code, ErrorCode::kInternal);
}

TEST(Q4, ApplyingAChangeRoundsEachValueOnce) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    const std::size_t count = 1 + Rng(seed).below(1000);
    const Values start = random_values(count, seed);
    const Bytes image = image_of(random_values(count, seed + 1000));
    const Values change = values_of(image, count);
    std::vector<std::uint16_t> before(count);
    std::vector<std::uint16_t> after(count);
    bf16_from_f32(start.data(), before.data(), count);
    const auto bytes = [&](std::vector<std::uint16_t>& v) {
      return MutableByteView(reinterpret_cast<std::uint8_t*>(v.data()), 2 * count);
    };
    ASSERT_TRUE(apply_q4(image, bytes(before), bytes(after)));
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(after[i], bf16_from_f32(f32_from_bf16(before[i]) + change[i]));
    }
    ASSERT_TRUE(apply_q4(image, bytes(before), bytes(before))) << "in place";
    EXPECT_EQ(before, after);
  }
}

TEST(Q4, AChangeThatLeavesBf16IsRefused) {
  const Bytes image = image_of({std::numeric_limits<float>::max()});
  std::vector<std::uint16_t> value{bf16_from_f32(3e38F)};
  const MutableByteView bytes(reinterpret_cast<std::uint8_t*>(value.data()), 2);
  EXPECT_EQ(apply_q4(image, bytes, bytes).error().code, ErrorCode::kData);
  Bytes other(4);
  EXPECT_EQ(apply_q4(image, bytes, other).error().code, ErrorCode::kInternal);
}

}  // namespace
}  // namespace yeto::codec
