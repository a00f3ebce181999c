// SPDX-License-Identifier: Apache-2.0
// Pace: how fast one stream drains, and what follows from it: how much is queued on it, how much of
// it may be unacknowledged, and whether it stands still. Pure; times are monotonic nanoseconds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "yeto/base/clock.h"

namespace yeto::sync {

class Pace {
 public:
  // What the stream has come to at `now`: `delivered` bytes since its start (acknowledged by the
  // peer's kernel), `waiting` bytes that are queued or not acknowledged.
  void sample(Nanos now, std::uint64_t delivered, std::uint64_t waiting);
  // The stream, idle until now, gets something to do.
  void wake(Nanos now, std::uint64_t delivered);

  bool due(Nanos now) const { return now - sampled_at_ >= 20 * kMillisecond; }
  // Bytes per second, of the last half second or so; 0: unknown.
  double rate() const { return known_ ? (rate_ > 1.0 ? rate_ : 1.0) : 0.0; }
  // With this much queued in the process the stream gets no further chunk: 200 ms of its rate,
  // 64 KiB … 1 MiB.
  std::size_t queue_limit() const;
  // On a slow stream (under 8 MiB/s) the kernel gets no more than 200 ms and a round trip of what
  // it delivers, at least 64 KiB; 0 on others: no limit.
  std::size_t unacknowledged_limit(Nanos round_trip) const;
  // For how long something has waited without any of it being delivered.
  Nanos stalled_for(Nanos now) const { return waiting_ > 0 ? now - moved_at_ : 0; }
  // For how long nothing has waited.
  Nanos idle_for(Nanos now) const { return waiting_ == 0 ? now - moved_at_ : 0; }

 private:
  bool known_ = false;
  double rate_ = 0.0;
  Nanos sampled_at_ = 0;
  Nanos moved_at_ = 0;
  std::uint64_t delivered_ = 0;
  std::uint64_t waiting_ = 0;
};

}  // namespace yeto::sync
