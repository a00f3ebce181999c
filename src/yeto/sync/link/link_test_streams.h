// SPDX-License-Identifier: Apache-2.0
// Real loopback sockets for the tests of this room: both ends live in one loop.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <utility>

#include "yeto/net/connection.h"
#include "yeto/net/loop.h"

namespace yeto::sync {

inline constexpr Nanos kTestLimit = 60 * kSecond;

class LoopbackTest : public ::testing::Test {
 protected:
  using Ends = std::pair<std::unique_ptr<net::Connection>, std::unique_ptr<net::Connection>>;

  LoopbackTest() {
    auto opened = net::Listener::open(
        loop, {"127.0.0.1", 0},
        [this](std::unique_ptr<net::Connection> c) { accepted_.push_back(std::move(c)); });
    EXPECT_TRUE(opened) << opened.error().text();
    listener_ = std::move(*opened);
  }

  bool wait(const std::function<bool()>& done) { return loop.run_until(done, kTestLimit); }

  net::Address address() const { return listener_->address(); }

  // The connecting and the accepting end; `to` leads to the listener.
  Ends connect() { return connect(address()); }
  Ends connect(const net::Address& to) {
    Ends ends;
    const auto connecting = net::connect(
        loop, to, kTestLimit,
        [&](Result<std::unique_ptr<net::Connection>> c) { ends.first = std::move(*c); });
    EXPECT_TRUE(wait([&] { return ends.first != nullptr && !accepted_.empty(); }));
    ends.second = std::move(accepted_.front());
    accepted_.pop_front();
    return ends;
  }

  // Lets everything that is due now run.
  void settle() {
    for (int turn = 0; turn < 16; ++turn) {
      bool ran = false;
      loop.post([&] { ran = true; });
      EXPECT_TRUE(wait([&] { return ran; }));
    }
  }

  static void write(net::Connection& connection, Bytes bytes) {
    const auto owner = std::make_shared<const Bytes>(std::move(bytes));
    const ByteView part(*owner);
    connection.write({&part, 1}, owner);
  }

  net::Loop loop;

 private:
  std::unique_ptr<net::Listener> listener_;
  std::deque<std::unique_ptr<net::Connection>> accepted_;
};

}  // namespace yeto::sync
