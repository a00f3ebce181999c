// SPDX-License-Identifier: Apache-2.0
// The one logger: lines on stderr, "2026-01-31T12:00:00.123Z info syncer: text". Thread-safe.
// Levels come from YETO_LOG (debug, info, warn, error; default info).
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "yeto/base/format.h"

namespace yeto {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

// Writes one line if the level is on.
void log_line(LogLevel level, std::string_view who, std::string_view text);
bool log_enabled(LogLevel level);
void set_log_level(LogLevel level);

template <class... Args>
void log(LogLevel level, std::string_view who, fmt::format_string<Args...> text, Args&&... args) {
  if (log_enabled(level)) {
    log_line(level, who, ::yeto::vformat(text, fmt::make_format_args(args...)));
  }
}

}  // namespace yeto
