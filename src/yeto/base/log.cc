// SPDX-License-Identifier: Apache-2.0
// The one file that compiles spdlog.
#define FMT_HEADER_ONLY
#include "yeto/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdlib>

#include "yeto/base/clock.h"

namespace yeto {
namespace {

LogLevel level_from_environment() {
  const char* text = std::getenv("YETO_LOG");
  const std::string_view name = text == nullptr ? "info" : text;
  if (name == "debug") {
    return LogLevel::kDebug;
  }
  if (name == "warn") {
    return LogLevel::kWarn;
  }
  return name == "error" ? LogLevel::kError : LogLevel::kInfo;
}

std::atomic<LogLevel>& level_cell() {
  static std::atomic<LogLevel> level{level_from_environment()};
  return level;
}

spdlog::logger& sink() {
  static auto logger = [] {
    auto made =
        std::make_shared<spdlog::logger>("yeto", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_level(spdlog::level::trace);
    made->set_pattern("%v");
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

}  // namespace

bool log_enabled(LogLevel level) { return level >= level_cell().load(std::memory_order_relaxed); }

void set_log_level(LogLevel level) { level_cell().store(level); }

void log_line(LogLevel level, std::string_view who, std::string_view text) {
  static constexpr const char* kNames[] = {"debug", "info", "warn", "error"};
  if (!log_enabled(level)) {
    return;
  }
  sink().info("{} {} {}: {}", utc_text(wall_now()), kNames[static_cast<int>(level)], who, text);
}

}  // namespace yeto
