// SPDX-License-Identifier: Apache-2.0
// Any bytes as images of every codec, and as a chain of q4 images over a public value: what is
// refused leaves a reason, what is taken has the size that was announced and, encoded again, says
// the same; every link of a chain leads to finite values.
#include <algorithm>
#include <cmath>
#include <vector>

#include "yeto/base/fuzz_testing.h"
#include "yeto/codec/codec.h"
#include "yeto/tensor/image.h"

namespace {

using namespace yeto;

constexpr std::size_t kMostLinks = 8;

std::vector<float> floats_of(ByteView bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::copy_n(bytes.begin(), values.size() * sizeof(float),
              reinterpret_cast<std::uint8_t*>(values.data()));
  return values;
}

Bytes example(Rng& rng) {
  const std::size_t count = 1 + rng.below(300);
  const auto codec = static_cast<CodecId>(rng.below(3));
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(rng.uniform() - 0.5);
  }
  Bytes image(codec::encoded_bytes(codec, count));
  YETO_CHECK(codec::encode(codec, values, image), "an image that fits");
  Bytes out{static_cast<std::uint8_t>(codec), static_cast<std::uint8_t>(count),
            static_cast<std::uint8_t>(count >> 8U)};
  out.insert(out.end(), image.begin(), image.end());
  return out;
}

void decode_one(CodecId codec, std::size_t count, ByteView image) {
  std::vector<float> values(count);
  const Status decoded = codec::decode(codec, image, values);
  YETO_CHECK(decoded.has_value() == check_image(codec, image, count).has_value(),
             "two opinions of one image");
  if (!decoded) {
    YETO_CHECK(!decoded.error().what.empty(), "a refusal without a reason");
    return;
  }
  YETO_CHECK(image.size() == codec::encoded_bytes(codec, count), "an image of another size");
  Bytes again(image.size());
  std::vector<float> same(count);
  YETO_CHECK(codec::encode(codec, values, again) && codec::decode(codec, again, same),
             "what was decoded can be encoded");
  for (std::size_t i = 0; i < count; ++i) {
    YETO_CHECK(values[i] == same[i] || (std::isnan(values[i]) && std::isnan(same[i])),
               "an image that says something else the second time");
  }
}

// What a learner does that is a few versions behind.
void apply_chain(fuzz::Input& in, std::size_t count) {
  std::vector<std::uint16_t> shown(count, 0x3f80);
  const MutableByteView bytes(reinterpret_cast<std::uint8_t*>(shown.data()), 2 * count);
  for (std::size_t link = 0; link < kMostLinks && !in.empty(); ++link) {
    std::vector<std::uint16_t> aligned(count);
    const MutableByteView target(reinterpret_cast<std::uint8_t*>(aligned.data()), 2 * count);
    if (!codec::apply_q4(in.take(codec::encoded_bytes(CodecId::kQ4, count)), bytes, target)) {
      continue;
    }
    shown = aligned;
    std::vector<float> values(count);
    YETO_CHECK(codec::decode(CodecId::kBf16, bytes, values), "a public value is a bf16 image");
    YETO_CHECK(std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); }),
               "a public value that is not finite");
  }
}

// Error feedback: what is sent and what is kept back are together what there was.
void feed_back(ByteView bytes) {
  std::vector<float> delta = floats_of(bytes);
  for (float& value : delta) {
    value = std::isfinite(value) ? std::clamp(value, -1e6F, 1e6F) : 0.0F;
  }
  std::vector<float> residual(delta.size());
  Bytes image(codec::encoded_bytes(CodecId::kQ4, delta.size()));
  YETO_CHECK(codec::encode_q4_feedback(delta, residual, image), "an image that fits");
  std::vector<float> sent(delta.size());
  YETO_CHECK(codec::decode(CodecId::kQ4, image, sent), "an image of finite values");
  for (std::size_t i = 0; i < delta.size(); ++i) {
    YETO_CHECK(residual[i] == delta[i] - sent[i], "a residual that is something else");
  }
}

}  // namespace

YETO_FUZZ_EXAMPLES(example)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  const std::uint8_t what = in.byte();
  const std::size_t count = in.number<std::uint16_t>() % 2048U;
  if (what % 8 < 3) {
    decode_one(static_cast<CodecId>(what % 8), count, in.rest());
  } else if (what % 8 < 6) {
    apply_chain(in, count);
  } else {
    feed_back(in.rest());
  }
  return 0;
}
