// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/server/watchdog.h"

#include <chrono>
#include <utility>

namespace yeto::sync {

Watchdog::Watchdog(Nanos limit, Report report)
    : limit_(limit), report_(std::move(report)), last_beat_(monotonic_now()) {
  thread_ = JoiningThread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Watchdog::watch() {
  Nanos stalled_since = 0;  // the last beat before the stall; 0: none
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (!closed_) {
        changed_.wait_for(mutex_, std::chrono::nanoseconds(limit_ / 4));
      }
      if (closed_) {
        return;
      }
    }
    const Nanos last = last_beat_.load(std::memory_order_relaxed);
    if (stalled_since != 0 && last != stalled_since) {
      report_(last - stalled_since, true);
      stalled_since = 0;
    }
    const Nanos silent = monotonic_now() - last;
    if (stalled_since == 0 && silent >= limit_) {
      stalled_since = last;
      report_(silent, false);
    }
  }
}

}  // namespace yeto::sync
