// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/link/pace.h"

#include <algorithm>
#include <cmath>

namespace yeto::sync {
namespace {

constexpr double kQueueSeconds = 0.2;
constexpr double kQueueLeast = 64 << 10;
constexpr double kQueueMost = 1 << 20;
constexpr double kFast = 8 << 20;  // bytes per second
constexpr double kMemory = 0.15;   // s, of the moving mean
// A rate that old says nothing about the path now.
constexpr Nanos kForgetAfter = 10 * kSecond;

}  // namespace

void Pace::sample(Nanos now, std::uint64_t delivered, std::uint64_t waiting) {
  delivered = std::max(delivered, delivered_);  // acknowledgements of little things may be missing
  const Nanos interval = now - sampled_at_;
  const bool was_busy = waiting_ > 0;
  if (delivered > delivered_ || (waiting > 0) != was_busy) {
    moved_at_ = now;
  }
  if (was_busy && interval > 0) {
    const double measured = static_cast<double>(delivered - delivered_) / seconds(interval);
    if (!known_ || (waiting == 0 && measured > rate_)) {
      rate_ = measured;
      known_ = measured > 0.0;
    } else if (waiting > 0) {
      // Nothing left means that the stream may have been idle for a part of the interval.
      rate_ += (1.0 - std::exp(-seconds(interval) / kMemory)) * (measured - rate_);
    }
  } else if (!was_busy && interval > kForgetAfter) {
    known_ = false;
  }
  if (was_busy || waiting > 0) {
    sampled_at_ = now;
  }
  delivered_ = delivered;
  waiting_ = waiting;
}

void Pace::wake(Nanos now, std::uint64_t delivered) {
  if (waiting_ == 0) {
    sample(now, delivered, 1);
    moved_at_ = now;
  }
}

std::size_t Pace::queue_limit() const {
  return static_cast<std::size_t>(std::clamp(rate() * kQueueSeconds, kQueueLeast, kQueueMost));
}

std::size_t Pace::unacknowledged_limit(Nanos round_trip) const {
  if (!known_ || rate() >= kFast) {
    return 0;
  }
  return static_cast<std::size_t>(
      std::max(rate() * (kQueueSeconds + seconds(round_trip)), kQueueLeast));
}

}  // namespace yeto::sync
