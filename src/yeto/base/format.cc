// SPDX-License-Identifier: Apache-2.0
// The one file that compiles fmt, header-only.
#define FMT_HEADER_ONLY
#include "yeto/base/format.h"

#include <fmt/format.h>

#include <cmath>

namespace yeto {

std::string vformat(fmt::string_view text, fmt::format_args args) {
  return fmt::vformat(text, args);
}

std::string human_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  int unit = 0;
  while (bytes >= 1000.0 && unit < 5) {
    bytes /= 1000.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds < 60.0) {
    return fmt::format("{:.1f}s", seconds);
  }
  const long whole = std::lround(seconds);
  if (whole < 3600) {
    return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  }
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

}  // namespace yeto
