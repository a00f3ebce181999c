// SPDX-License-Identifier: Apache-2.0
#include "yeto/fleet/run/ulid.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>

#include "yeto/base/clock.h"
#include "yeto/base/rng.h"

namespace yeto::fleet {

std::string make_ulid() {
  std::array<std::uint8_t, 16> bytes{};
  random_bytes(MutableByteView(bytes).subspan(6));
  auto millis = static_cast<std::uint64_t>(wall_now() * 1000);
  for (std::size_t i = 6; i-- > 0; millis >>= 8) {
    bytes[i] = static_cast<std::uint8_t>(millis & 255);
  }
  // 128 bits in 26 digits of 5 bits: the first digit holds the top 3 bits.
  std::string out(26, '0');
  for (std::size_t digit = 0; digit < 26; ++digit) {
    unsigned value = 0;
    for (std::size_t bit = 0; bit < 5; ++bit) {
      const std::size_t at = digit * 5 + bit;
      if (at >= 2) {
        const std::size_t index = at - 2;
        value |= ((bytes[index / 8] >> (7 - index % 8)) & 1U) << (4 - bit);
      }
    }
    out[digit] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"[value];
  }
  return out;
}

std::string run6(std::string_view run_id) {
  std::string out(run_id.substr(run_id.size() > 6 ? run_id.size() - 6 : 0));
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

}  // namespace yeto::fleet
