// SPDX-License-Identifier: Apache-2.0
// Time. Decisions use monotonic nanoseconds; wall time is only ever printed.
// The sans-I/O rooms take Nanos as an argument and never call the functions below.
#pragma once

#include <cstdint>
#include <string>

namespace yeto {

using Nanos = std::int64_t;  // monotonic nanoseconds, or a duration in nanoseconds

inline constexpr Nanos kMicrosecond = 1'000;
inline constexpr Nanos kMillisecond = 1'000'000;
inline constexpr Nanos kSecond = 1'000'000'000;

constexpr double seconds(Nanos duration) { return static_cast<double>(duration) * 1e-9; }
constexpr Nanos from_seconds(double duration) { return static_cast<Nanos>(duration * 1e9); }
constexpr Nanos from_millis(double duration) { return static_cast<Nanos>(duration * 1e6); }

// Monotonic clock of this machine. Thread-safe.
Nanos monotonic_now();
// Wall clock in seconds since 1970. Thread-safe.
double wall_now();
// "2026-01-31T12:00:00.123Z" of a wall time in seconds.
std::string utc_text(double wall_seconds);

}  // namespace yeto
