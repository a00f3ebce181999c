// SPDX-License-Identifier: Apache-2.0
#include "yeto/base/clock.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>

namespace yeto {

Nanos monotonic_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double wall_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string utc_text(double wall_seconds) {
  const double whole = std::floor(wall_seconds);
  const std::time_t time = static_cast<std::time_t>(whole);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char head[32];
  std::strftime(head, sizeof head, "%Y-%m-%dT%H:%M:%S", &parts);
  char out[48];
  std::snprintf(out, sizeof out, "%s.%03dZ", head, static_cast<int>((wall_seconds - whole) * 1000));
  return out;
}

}  // namespace yeto
