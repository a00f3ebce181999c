// SPDX-License-Identifier: Apache-2.0
// Any bytes as a q4 image, then as a change of a public value: refused, or values that are finite
// and whose image says the same again.
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "yeto/codec/codec.h"
#include "yeto/tensor/image.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace yeto;
  if (size < 2) {
    return 0;
  }
  // The first two bytes say how many values the image is said to have.
  std::uint16_t count = 0;
  std::memcpy(&count, data, sizeof(count));
  count %= 2048;
  const ByteView image(data + 2, size - 2);
  std::vector<float> values(count);
  if (codec::decode(CodecId::kQ4, image, values)) {
    Bytes again(image.size());
    YETO_CHECK(codec::encode(CodecId::kQ4, values, again), "an image that fits");
    std::vector<float> same(count);
    YETO_CHECK(codec::decode(CodecId::kQ4, again, same), "an image of finite values");
    for (std::size_t i = 0; i < count; ++i) {
      YETO_CHECK(std::isfinite(values[i]), "a value of a good image that is not finite");
    }
    if (count > 0) {
      float part = 0.0F;
      decode_q4_values(image, count / 2U, {&part, 1});
      YETO_CHECK(
          std::bit_cast<std::uint32_t>(part) == std::bit_cast<std::uint32_t>(values[count / 2U]),
          "a value out of the middle that is another one");
    }
  }
  std::vector<std::uint16_t> before(count, 0x3f80);
  const MutableByteView bytes(reinterpret_cast<std::uint8_t*>(before.data()), 2U * count);
  static_cast<void>(codec::apply_q4(image, bytes, bytes));
  return 0;
}
