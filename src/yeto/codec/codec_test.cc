// SPDX-License-Identifier: Apache-2.0
// Goal: images have the documented bytes, come back as documented, and wrong ones are refused.
#include "yeto/codec/codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "yeto/base/rng.h"
#include "yeto/tensor/bf16.h"

namespace yeto::codec {
namespace {

std::vector<float> random_bits(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = std::bit_cast<float>(static_cast<std::uint32_t>(rng.next()));
  }
  return values;
}

TEST(Codec, SizesPerValue) {
  EXPECT_EQ(encoded_bytes(CodecId::kF32, 300), 1200U);
  EXPECT_EQ(encoded_bytes(CodecId::kBf16, 300), 600U);
  EXPECT_EQ(encoded_bytes(CodecId::kQ4, 300), 264U);
  EXPECT_EQ(encoded_bytes(CodecId::kQ4, 256), 132U);
  EXPECT_EQ(encoded_bytes(CodecId::kF32, 0), 0U);
}

TEST(Codec, GoldenImages) {
  const std::vector<float> values{1.0F, -2.5F, std::bit_cast<float>(0x3f808001U)};
  Bytes image(12);
  ASSERT_TRUE(encode(CodecId::kF32, values, image));
  EXPECT_EQ(hex(image), "0000803f000020c00180803f");
  image.resize(6);
  ASSERT_TRUE(encode(CodecId::kBf16, values, image));
  EXPECT_EQ(hex(image), "803f20c0813f");
}

TEST(Codec, EveryBitPatternComesBackUnderF32AndRoundedOnceUnderBf16) {
  for (const std::size_t count : {0UL, 1UL, 1023UL, 1024UL, 5000UL}) {
    const auto values = random_bits(count, count + 1);
    for (const CodecId codec : {CodecId::kF32, CodecId::kBf16}) {
      // One byte off, so that nothing may rely on alignment.
      Bytes room(encoded_bytes(codec, count) + 1);
      const MutableByteView image = MutableByteView(room).subspan(1);
      ASSERT_TRUE(encode(codec, values, image));
      std::vector<float> back(count);
      ASSERT_TRUE(decode(codec, image, back));
      for (std::size_t i = 0; i < count; ++i) {
        const float want =
            codec == CodecId::kF32 ? values[i] : f32_from_bf16(bf16_from_f32(values[i]));
        ASSERT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::bit_cast<std::uint32_t>(want));
      }
      Bytes again(encoded_bytes(codec, count));
      ASSERT_TRUE(encode(codec, back, again));
      EXPECT_TRUE(std::equal(again.begin(), again.end(), image.begin())) << "encoding is stable";
      EXPECT_EQ(public_digest(image), xxh3_128(again));
    }
  }
}

TEST(Codec, WrongSizesAreRefused) {
  std::vector<float> values(4);
  Bytes image(15);
  EXPECT_EQ(decode(CodecId::kF32, image, values).error().code, ErrorCode::kData);
  EXPECT_EQ(decode(CodecId::kBf16, image, values).error().code, ErrorCode::kData);
  EXPECT_EQ(encode(CodecId::kF32, values, image).error().code, ErrorCode::kInternal);
}

TEST(Codec, NamesComeBack) {
  for (const CodecId codec : {CodecId::kF32, CodecId::kBf16, CodecId::kQ4}) {
    EXPECT_EQ(*codec_from_name(codec_name(codec)), codec);
    EXPECT_TRUE(check_codec(codec));
  }
  EXPECT_EQ(codec_from_name("f16").error().code, ErrorCode::kType);
  EXPECT_EQ(check_codec(static_cast<CodecId>(3)).error().code, ErrorCode::kType);
}

TEST(Codec, LargeTrainablesTravelAsBf16) {
  EXPECT_EQ(default_codec(kBf16FromValues - 1), CodecId::kF32);
  EXPECT_EQ(default_codec(kBf16FromValues), CodecId::kBf16);
  EXPECT_EQ(anchor_dtype(CodecId::kF32), DType::kF32);
  EXPECT_EQ(anchor_dtype(CodecId::kBf16), DType::kBf16);
  EXPECT_EQ(anchor_dtype(CodecId::kQ4), DType::kBf16);
}

}  // namespace
}  // namespace yeto::codec
