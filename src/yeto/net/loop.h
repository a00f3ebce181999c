// SPDX-License-Identifier: Apache-2.0
// Loop: one event loop, run by the thread that calls run() or run_until(). All callbacks of timers,
// listeners and connections of this loop run on that thread, one after the other.
//
// Threads: post(), stop() and in_loop_thread() may be called from any thread; everything else from
// the loop thread, or from any one thread while nobody runs the loop. Listeners, connections and
// timers must be destroyed on that thread too, and before the loop. A callback must not throw.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "yeto/base/clock.h"

namespace yeto::net {

using TimerId = std::uint64_t;  // 0: none

class Loop {
 public:
  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Runs callbacks until stop(). May be called again afterwards.
  void run();
  // Runs callbacks until `done()` (asked after each callback) is true, stop() was called or `limit`
  // has passed; the value of done() at the end.
  bool run_until(const std::function<bool()>& done, Nanos limit);
  // Ends the current run() or run_until() after the callback in progress, or the next one at its
  // start.
  void stop();
  // Calls `task` on the loop thread, never inside this call. Tasks of one thread keep their order.
  void post(std::function<void()> task);
  bool in_loop_thread() const;

  // Calls `task` once after `delay` (≥ 0) unless cancelled.
  TimerId after(Nanos delay, std::function<void()> task);
  // After this the task does not run. A timer that has fired, or 0, is ignored.
  void cancel(TimerId timer);

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace yeto::net
