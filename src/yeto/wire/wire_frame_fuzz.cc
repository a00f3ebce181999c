// SPDX-License-Identifier: Apache-2.0
// Any bytes as a frame: no crash, and what decodes survives another round trip. The first byte of
// the input chooses the direction; a right CRC is put in when its lowest bit but one is set, to get
// past that check. Examples are messages drawn from their declarations.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "yeto/base/digest.h"
#include "yeto/base/fuzz_testing.h"
#include "yeto/wire/codec.h"
#include "yeto/wire/frame.h"

namespace {

using namespace yeto;
using namespace yeto::wire;

Bytes example(Rng& rng) {
  const Direction direction = rng.below(2) == 0 ? Direction::kToSyncer : Direction::kToLearner;
  Type type = Type::kGoodbye;
  do {
    type = static_cast<Type>(1 + rng.below(22));
  } while (!type_allowed(type, direction));
  const Bytes payload = encode_message(random_message(rng, type, direction));
  const Bytes frame = encode_frame(type, rng.below(3), payload);
  Bytes out{static_cast<std::uint8_t>(direction == Direction::kToSyncer ? 3 : 2)};
  out.insert(out.end(), frame.begin(), frame.end());
  return out;
}

}  // namespace

YETO_FUZZ_EXAMPLES(example)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1 + kHeaderBytes) {
    return 0;
  }
  const Direction direction = (data[0] & 1U) != 0 ? Direction::kToSyncer : Direction::kToLearner;
  const ByteView payload(data + 1 + kHeaderBytes, size - 1 - kHeaderBytes);
  std::array<std::uint8_t, kHeaderBytes> header_bytes{};
  std::memcpy(header_bytes.data(), data + 1, kHeaderBytes);
  if ((data[0] & 2U) != 0) {
    const std::uint32_t crc = crc32c(payload);
    std::memcpy(header_bytes.data() + 12, &crc, sizeof(crc));
  }
  const auto header = parse_header(header_bytes, direction, 1U << 20);
  if (!header || !check_crc(*header, crc32c(payload))) {
    return 0;
  }
  const auto message = decode(header->type, direction, payload);
  if (message) {
    const Bytes again = encode_message(*message);
    const auto twice = decode(header->type, direction, again);
    // Bytes, not messages, are compared: NaN is not equal to itself.
    YETO_CHECK(twice && encode_message(*twice) == again,
               "a decoded message must survive a round trip");
    (void)to_text(*message);
  }
  return 0;
}
