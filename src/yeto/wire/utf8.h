// SPDX-License-Identifier: Apache-2.0
// UTF-8 checks for texts on the wire: what is decoded ends in logs and JSON, which take nothing
// else. Pure, thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace yeto::wire {

// Bytes of the valid character at the start of `text` (1–4): no overlong form, no surrogate, at
// most U+10FFFF. 0 if there is none.
std::size_t utf8_character(std::string_view text);
bool is_utf8(std::string_view text);
// The text with every byte that belongs to no character as '?', cut at a character to at most
// `max_bytes`.
std::string utf8_fit(std::string_view text, std::size_t max_bytes);

}  // namespace yeto::wire
