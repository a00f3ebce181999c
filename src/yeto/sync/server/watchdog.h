// SPDX-License-Identifier: Apache-2.0
// Watchdog: reports a loop that has not come round for a while, from a thread of its own.
#pragma once

#include <atomic>
#include <functional>

#include "yeto/base/clock.h"
#include "yeto/base/thread.h"

namespace yeto::sync {

class Watchdog {
 public:
  // `report` is called on the watchdog's thread: once when the loop has been silent for `limit`,
  // and once with `over` true and the whole length when it came back.
  using Report = std::function<void(Nanos silent, bool over)>;
  Watchdog(Nanos limit, Report report);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The loop is alive. Any thread; to be called well within `limit`.
  void beat() { last_beat_.store(monotonic_now(), std::memory_order_relaxed); }
  // How long ago the loop was last alive. Any thread.
  Nanos silence() const { return monotonic_now() - last_beat_.load(std::memory_order_relaxed); }
  Nanos limit() const { return limit_; }

 private:
  void watch();

  const Nanos limit_;
  const Report report_;
  std::atomic<Nanos> last_beat_;
  Mutex mutex_;
  ConditionVariable changed_;
  bool closed_ YETO_GUARDED_BY(mutex_) = false;
  JoiningThread thread_;
};

}  // namespace yeto::sync
