// SPDX-License-Identifier: Apache-2.0
#include "yeto/net/loop.h"

#include <asio/post.hpp>
#include <chrono>
#include <utility>

#include "yeto/base/result.h"
#include "yeto/net/loop_impl.h"

namespace yeto::net {
namespace {

// Names the running thread for the time of a run().
class Running {
 public:
  explicit Running(std::atomic<std::thread::id>& runner) : runner_(runner) {
    runner_ = std::this_thread::get_id();
  }
  ~Running() { runner_ = std::thread::id(); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  std::atomic<std::thread::id>& runner_;
};

}  // namespace

Loop::Loop() : impl_(std::make_unique<Impl>()) {}
Loop::~Loop() = default;

void Loop::run() {
  const Running running(impl_->runner);
  impl_->io.run();
  impl_->io.restart();
}

bool Loop::run_until(const std::function<bool()>& done, Nanos limit) {
  const Running running(impl_->runner);
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(limit);
  while (!done()) {
    if (impl_->io.run_one_until(end) == 0) {
      break;  // stopped, or the time is over
    }
  }
  if (impl_->io.stopped()) {
    impl_->io.restart();
  }
  return done();
}

void Loop::stop() { impl_->io.stop(); }

void Loop::post(std::function<void()> task) { asio::post(impl_->io, std::move(task)); }

bool Loop::in_loop_thread() const { return impl_->runner == std::this_thread::get_id(); }

TimerId Loop::after(Nanos delay, std::function<void()> task) {
  YETO_CHECK(delay >= 0, "a timer's delay is negative");
  const TimerId id = ++impl_->last_timer;
  auto timer = std::make_shared<asio::steady_timer>(impl_->io, std::chrono::nanoseconds(delay));
  impl_->timers.emplace(id, timer);
  timer->async_wait(
      [impl = impl_.get(), id, timer, run = std::move(task)](const asio::error_code&) {
        // A timer that is due when it is cancelled still comes here: the map decides.
        if (impl->timers.erase(id) == 1) {
          run();
        }
      });
  return id;
}

void Loop::cancel(TimerId timer) {
  const auto found = impl_->timers.find(timer);
  if (found == impl_->timers.end()) {
    return;
  }
  if (const auto running = found->second.lock()) {
    running->cancel();
  }
  impl_->timers.erase(found);
}

}  // namespace yeto::net
