// SPDX-License-Identifier: Apache-2.0
#include "yeto/wire/utf8.h"

#include <cstdint>

namespace yeto::wire {
namespace {

bool continues(std::string_view text, std::size_t at) {
  return at < text.size() && (static_cast<std::uint8_t>(text[at]) & 0xc0U) == 0x80U;
}

}  // namespace

std::size_t utf8_character(std::string_view text) {
  if (text.empty()) {
    return 0;
  }
  const auto first = static_cast<std::uint8_t>(text[0]);
  if (first < 0x80) {
    return 1;
  }
  const std::size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) {
    return 0;
  }
  for (std::size_t at = 1; at < bytes; ++at) {
    if (!continues(text, at)) {
      return 0;
    }
  }
  const auto second = static_cast<std::uint8_t>(text[1]);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool surrogate = first == 0xed && second >= 0xa0;
  const bool too_large = first == 0xf4 && second >= 0x90;
  return overlong || surrogate || too_large ? 0 : bytes;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = utf8_character(text);
    if (bytes == 0) {
      return false;
    }
    text.remove_prefix(bytes);
  }
  return true;
}

std::string utf8_fit(std::string_view text, std::size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    const std::size_t bytes = utf8_character(text);
    const std::size_t taken = bytes == 0 ? 1 : bytes;
    if (out.size() + taken > max_bytes) {
      break;
    }
    out += bytes == 0 ? std::string_view("?") : text.substr(0, bytes);
    text.remove_prefix(taken);
  }
  return out;
}

}  // namespace yeto::wire
