// SPDX-License-Identifier: Apache-2.0
// Inside of Loop, for the .cc files of this room only.
#pragma once

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <memory>
#include <thread>
#include <unordered_map>

#include "yeto/net/loop.h"

namespace yeto::net {

struct Loop::Impl {
  // Outlives `io`, whose end destroys callbacks; what they own may still cancel a timer. Each timer
  // is owned by its own callback.
  std::unordered_map<TimerId, std::weak_ptr<asio::steady_timer>> timers;
  TimerId last_timer = 0;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::atomic<std::thread::id> runner;
};

}  // namespace yeto::net
