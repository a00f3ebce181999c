// SPDX-License-Identifier: Apache-2.0
// strf("{} of {}", a, b): checked at compile time, compiled once (std::format is absent in g++ 12).
#pragma once

#include <fmt/core.h>

#include <string>

namespace yeto {

std::string vformat(fmt::string_view text, fmt::format_args args);

template <class... Args>
std::string strf(fmt::format_string<Args...> text, Args&&... args) {
  return ::yeto::vformat(text, fmt::make_format_args(args...));
}

// "12.3 MB" (powers of 1000) for a count of bytes.
std::string human_bytes(double bytes);
// "1h02m", "3m05s", "4.2s" for a duration in seconds.
std::string human_seconds(double seconds);

}  // namespace yeto
