// SPDX-License-Identifier: Apache-2.0
// Goal: the callback rules of net hold on real sockets. Method: both ends in one loop on loopback,
// port 0; every wait is a bounded wait on a condition.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <numeric>
#include <thread>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/net/address.h"
#include "yeto/net/connection.h"
#include "yeto/net/loop.h"

namespace yeto::net {
namespace {

constexpr Nanos kLimit = 20 * kSecond;

struct Pair {
  std::unique_ptr<Connection> here;
  std::unique_ptr<Connection> there;
};

class NetTest : public ::testing::Test {
 protected:
  bool wait(const std::function<bool()>& done) { return loop.run_until(done, kLimit); }

  Pair connected() {
    Pair pair;
    auto listener = Listener::open(
        loop, {"127.0.0.1", 0}, [&](std::unique_ptr<Connection> c) { pair.there = std::move(c); });
    EXPECT_TRUE(listener) << listener.error().text();
    const auto connecting =
        connect(loop, (*listener)->address(), kLimit, [&](Result<std::unique_ptr<Connection>> c) {
          EXPECT_TRUE(c) << c.error().text();
          pair.here = std::move(*c);
        });
    EXPECT_TRUE(wait([&] { return pair.here && pair.there; }));
    return pair;
  }

  // Lets everything that is due now run.
  void settle() {
    for (int turn = 0; turn < 8; ++turn) {
      bool ran = false;
      loop.post([&] { ran = true; });
      EXPECT_TRUE(wait([&] { return ran; }));
    }
  }

  Loop loop;
};

void write(Connection& connection, std::string_view text, std::function<void()> sent = {}) {
  auto owner = std::make_shared<const std::string>(text);
  const ByteView part = as_bytes_view(*owner);
  connection.write({&part, 1}, owner, std::move(sent));
}

TEST(Address, ParsesHostAndPort) {
  EXPECT_EQ(*parse_address("127.0.0.1:29400"), (Address{"127.0.0.1", 29400}));
  EXPECT_EQ(*parse_address("[::1]:0"), (Address{"::1", 0}));
  EXPECT_EQ(*parse_address("a.example:65535"), (Address{"a.example", 65535}));
  EXPECT_EQ(parse_address("[::1]:7")->text(), "[::1]:7");
  EXPECT_EQ(parse_address("h:7")->text(), "h:7");
}

TEST(Address, ErrorsNameThePosition) {
  const auto where = [](std::string_view text) {
    const auto got = parse_address(text);
    return got ? "accepted" : got.error().what + " @ " + got.error().where;
  };
  EXPECT_EQ(where("host"), "the port is missing @ \"host\" position 5");
  EXPECT_EQ(where("host:"), "the port is not a number from 0 to 65535 @ \"host:\" position 6");
  EXPECT_EQ(where("host:65536"),
            "the port is not a number from 0 to 65535 @ \"host:65536\" position 6");
  EXPECT_EQ(where("host:1x"), "the port is not a number from 0 to 65535 @ \"host:1x\" position 6");
  EXPECT_EQ(where(":1"), "the host is missing @ \":1\" position 1");
  EXPECT_EQ(where("::1:5"), "more than one colon outside brackets @ \"::1:5\" position 1");
  EXPECT_EQ(where("[::1"), "the bracket of an IPv6 address is not closed @ \"[::1\" position 1");
  EXPECT_EQ(where("[::1]"), "the port is missing @ \"[::1]\" position 6");
  EXPECT_EQ(where("[x]:1"), "not an IPv6 address in the brackets @ \"[x]:1\" position 2");
  EXPECT_EQ(where(""), "the host is missing @ \"\" position 1");
}

TEST(Address, LoopbackIsRecognised) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost"}) {
    EXPECT_TRUE(is_loopback({host, 1})) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "localhost.example"}) {
    EXPECT_FALSE(is_loopback({host, 1})) << host;
  }
}

TEST_F(NetTest, PostedTasksKeepTheOrderOfTheirThreadAndRunOnTheLoop) {
  std::vector<int> seen;
  std::thread poster([&] {
    EXPECT_FALSE(loop.in_loop_thread());
    for (int i = 0; i < 100; ++i) {
      loop.post([&, i] {
        EXPECT_TRUE(loop.in_loop_thread());
        seen.push_back(i);
      });
    }
    loop.post([&] { loop.stop(); });
  });
  loop.run();
  poster.join();
  ASSERT_EQ(seen.size(), 100u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

TEST_F(NetTest, TimersRunInOrderAndCancelledOnesDoNot) {
  std::string order;
  loop.after(2 * kMillisecond, [&] { order += 'b'; });
  TimerId doomed = 0;
  loop.after(0, [&] {
    order += 'a';
    loop.cancel(doomed);
  });
  // Due at once too, but cancelled by the one before it.
  doomed = loop.after(0, [&] { order += 'x'; });
  loop.after(4 * kMillisecond, [&] { order += 'c'; });
  EXPECT_TRUE(wait([&] { return order.size() == 3; }));
  EXPECT_EQ(order, "abc");
  loop.cancel(0);
  loop.cancel(doomed);
}

TEST_F(NetTest, StopEndsTheNextRunAndTheLoopGoesOn) {
  loop.stop();
  loop.run();
  bool ran = false;
  loop.post([&] { ran = true; });
  EXPECT_TRUE(wait([&] { return ran; }));
  EXPECT_FALSE(loop.run_until([] { return false; }, kMillisecond));
}

TEST_F(NetTest, GatheredPartsArriveInOrder) {
  Pair pair = connected();
  Bytes expected;
  Rng rng(3);
  std::size_t sent = 0;
  for (int i = 0; i < 200; ++i) {
    auto owner = std::make_shared<Bytes>(rng.below(20'000));
    for (auto& byte : *owner) {
      byte = static_cast<std::uint8_t>(rng.next());
    }
    expected.insert(expected.end(), owner->begin(), owner->end());
    const std::size_t cut = owner->size() / 3;
    const ByteView parts[] = {ByteView(*owner).first(cut), ByteView(),
                              ByteView(*owner).subspan(cut)};
    pair.here->write(parts, owner, [&] { ++sent; });
  }
  Bytes got(expected.size());
  bool done = false;
  pair.there->read_exactly(got, [&] { done = true; });
  EXPECT_TRUE(wait([&] { return done && sent == 200; }));
  EXPECT_EQ(got, expected);
  EXPECT_EQ(pair.here->queued_bytes(), 0u);
  EXPECT_EQ(pair.here->bytes_out(), expected.size());
  EXPECT_EQ(pair.there->bytes_in(), expected.size());
}

TEST_F(NetTest, QueuedBytesCountWhatTheKernelDidNotTake) {
  Pair pair = connected();
  const auto owner = std::make_shared<const Bytes>(std::size_t{64} << 20);
  const ByteView part(*owner);
  pair.here->write({&part, 1}, owner);
  settle();
  EXPECT_GT(pair.here->queued_bytes(), std::size_t{16} << 20) << "nobody reads yet";
  Bytes got(owner->size());
  bool done = false;
  pair.there->read_exactly(got, [&] { done = true; });
  EXPECT_TRUE(wait([&] { return done && pair.here->queued_bytes() == 0; }));
}

TEST_F(NetTest, CallbacksMayCloseAndDestroyTheirConnection) {
  Pair pair = connected();
  bool closed = false;
  std::array<std::uint8_t, 4> buffer{};
  pair.here->set_close_handler([&](const Error&) { ADD_FAILURE() << "closed here, not lost"; });
  pair.here->read_some(buffer, [&](std::size_t) { pair.here.reset(); });
  pair.there->set_close_handler([&](const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kClosed);
    EXPECT_EQ(error.where.substr(0, 10), "127.0.0.1:");
    pair.there.reset();
    closed = true;
  });
  write(*pair.there, "ping");
  std::array<std::uint8_t, 4> never{};
  pair.there->read_exactly(never, [&] { ADD_FAILURE() << "nothing was sent"; });
  EXPECT_TRUE(wait([&] { return closed; }));
  settle();
}

TEST_F(NetTest, SentCallbackMayDestroyTheConnection) {
  Pair pair = connected();
  write(*pair.here, "one", [&] { pair.here.reset(); });
  write(*pair.here, "two", [&] { ADD_FAILURE() << "after the end"; });
  EXPECT_TRUE(wait([&] { return pair.here == nullptr; }));
  settle();
}

TEST_F(NetTest, NoCallbackAfterClose) {
  Pair pair = connected();
  std::array<std::uint8_t, 4> buffer{};
  pair.here->set_close_handler([&](const Error&) { ADD_FAILURE(); });
  pair.here->read_some(buffer, [&](std::size_t) { ADD_FAILURE(); });
  write(*pair.here, "x", [&] { ADD_FAILURE(); });
  write(*pair.there, "y");
  pair.here->close();
  EXPECT_FALSE(pair.here->is_open());
  settle();
}

TEST_F(NetTest, LossBeforeAHandlerIsSetIsToldLater) {
  Pair pair = connected();
  std::array<std::uint8_t, 4> buffer{};
  pair.here->read_some(buffer, [&](std::size_t) { ADD_FAILURE(); });
  pair.there.reset();
  EXPECT_TRUE(wait([&] { return !pair.here->is_open(); }));
  int told = 0;
  pair.here->set_close_handler([&](const Error&) { ++told; });
  EXPECT_EQ(told, 0) << "never inside the call";
  EXPECT_TRUE(wait([&] { return told == 1; }));
}

TEST_F(NetTest, GracefulCloseDeliversWhatIsQueuedAlthoughThePeerSends) {
  Pair pair = connected();
  // Unread input would turn a plain close into a reset that can overtake the farewell.
  write(*pair.there, std::string(100'000, 'x'));
  settle();
  const std::string farewell(3'000'000, 'g');
  bool flushed = false;
  std::array<std::uint8_t, 8> buffer{};
  pair.here->read_exactly(buffer, [] {});
  write(*pair.here, farewell);
  pair.here->close_gracefully(kLimit, [&] { flushed = true; });
  pair.here.reset();
  Bytes got(farewell.size());
  bool done = false;
  pair.there->read_exactly(got, [&] {
    done = true;
    pair.there.reset();
  });
  EXPECT_TRUE(wait([&] { return done && flushed; }));
  EXPECT_EQ(std::string(got.begin(), got.end()), farewell);
}

TEST_F(NetTest, GracefulCloseIsCutOffAtItsLimit) {
  Pair pair = connected();
  write(*pair.here, std::string(std::size_t{64} << 20, 'x'));
  bool ended = false;
  pair.here->close_gracefully(kMillisecond, [&] { ended = true; });
  EXPECT_TRUE(wait([&] { return ended; }));
}

TEST_F(NetTest, LastWordsOfThePeerAreReadAlthoughWritingFails) {
  Pair pair = connected();
  std::array<std::uint8_t, 4> buffer{};
  bool got = false;
  bool lost = false;
  write(*pair.there, "why?", [&] { pair.there.reset(); });
  EXPECT_TRUE(wait([&] { return pair.there == nullptr; }));
  write(*pair.here, "x");
  write(*pair.here, "y");
  pair.here->read_exactly(buffer, [&] {
    got = true;
    pair.here->read_exactly(buffer, [] { ADD_FAILURE(); });
  });
  pair.here->set_close_handler([&](const Error&) { lost = true; });
  EXPECT_TRUE(wait([&] { return lost; }));
  EXPECT_TRUE(got);
}

TEST_F(NetTest, PausedListenerLetsPeersWait) {
  std::vector<std::unique_ptr<Connection>> accepted;
  Result<std::unique_ptr<Listener>> listener;
  listener = Listener::open(loop, {"127.0.0.1", 0}, [&](std::unique_ptr<Connection> c) {
    accepted.push_back(std::move(c));
    (*listener)->pause();
  });
  ASSERT_TRUE(listener);
  std::vector<std::unique_ptr<Connecting>> connecting;
  std::vector<std::unique_ptr<Connection>> made;
  for (int i = 0; i < 3; ++i) {
    connecting.push_back(connect(loop, (*listener)->address(), kLimit, [&](auto c) {
      ASSERT_TRUE(c);
      made.push_back(std::move(*c));
    }));
  }
  EXPECT_TRUE(wait([&] { return made.size() == 3 && !accepted.empty(); }));
  settle();
  EXPECT_EQ(accepted.size(), 1u);
  for (std::size_t count = 2; count <= 3; ++count) {
    (*listener)->resume();
    EXPECT_TRUE(wait([&] { return accepted.size() == count; }));
    settle();
    EXPECT_EQ(accepted.size(), count);
  }
}

TEST_F(NetTest, ListenerMayBeDestroyedByItsHandler) {
  std::unique_ptr<Listener> listener;
  bool accepted = false;
  auto opened = Listener::open(loop, {"127.0.0.1", 0}, [&](std::unique_ptr<Connection>) {
    listener.reset();
    accepted = true;
  });
  ASSERT_TRUE(opened);
  listener = std::move(*opened);
  const auto connecting = connect(loop, listener->address(), kLimit, [](auto) {});
  EXPECT_TRUE(wait([&] { return accepted; }));
  settle();
}

TEST_F(NetTest, BusyPortNamesTheWayOut) {
  auto first = Listener::open(loop, {"127.0.0.1", 0}, [](auto) {});
  ASSERT_TRUE(first);
  const auto second = Listener::open(loop, (*first)->address(), [](auto) {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnreachable);
  EXPECT_NE(second.error().hint.find("choose another port"), std::string::npos);
  EXPECT_EQ(second.error().where, (*first)->address().text());
  EXPECT_EQ(Listener::open(loop, {"203.0.113.1", 0}, [](auto) {}).error().hint,
            "this machine has no such address");
}

TEST_F(NetTest, RefusedConnectNamesTheAddress) {
  Address address;
  {
    auto listener = Listener::open(loop, {"127.0.0.1", 0}, [](auto) {});
    ASSERT_TRUE(listener);
    address = (*listener)->address();
  }
  std::optional<Error> error;
  bool inside = true;
  const auto connecting = connect(loop, address, kLimit, [&](auto c) {
    EXPECT_FALSE(inside);
    ASSERT_FALSE(c);
    error = c.error();
  });
  inside = false;
  EXPECT_TRUE(wait([&] { return error.has_value(); }));
  EXPECT_EQ(error->code, ErrorCode::kUnreachable);
  EXPECT_EQ(error->where, address.text());
}

TEST_F(NetTest, ConnectGivesUpAtItsTimeout) {
  // Nobody accepts and the backlog is 1, so the kernel leaves further connects unanswered.
  const int full = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(::listen(full, 0), 0);
  sockaddr_in bound{};
  socklen_t size = sizeof(bound);
  ASSERT_EQ(::getsockname(full, reinterpret_cast<sockaddr*>(&bound), &size), 0);
  const Address address{"127.0.0.1", ntohs(bound.sin_port)};
  std::vector<std::unique_ptr<Connecting>> connecting;
  std::vector<std::unique_ptr<Connection>> made;
  std::optional<Error> error;
  for (int i = 0; i < 16; ++i) {
    connecting.push_back(connect(loop, address, 50 * kMillisecond, [&](auto c) {
      if (c) {
        made.push_back(std::move(*c));
      } else {
        error = c.error();
      }
    }));
  }
  EXPECT_TRUE(wait([&] { return error.has_value(); }));
  EXPECT_EQ(error->code, ErrorCode::kTimeout);
  EXPECT_EQ(error->where, address.text());
  ::close(full);
}

TEST_F(NetTest, DestroyedConnectingNeverAnswers) {
  auto listener = Listener::open(loop, {"127.0.0.1", 0}, [](auto) {});
  ASSERT_TRUE(listener);
  auto connecting = connect(loop, (*listener)->address(), kLimit, [](auto) { ADD_FAILURE(); });
  connecting.reset();
  settle();
}

TEST_F(NetTest, LocalhostResolvesAndConnects) {
  auto listener = Listener::open(loop, {"localhost", 0}, [](auto) {});
  ASSERT_TRUE(listener);
  bool connected = false;
  const auto connecting =
      connect(loop, {"localhost", (*listener)->address().port}, kLimit, [&](auto c) {
        ASSERT_TRUE(c) << c.error().text();
        connected = true;
      });
  EXPECT_TRUE(wait([&] { return connected; }));
  EXPECT_TRUE(is_loopback((*listener)->address()));
}

TEST_F(NetTest, PendingWorkIsDroppedWithTheLoop) {
  auto own = std::make_unique<Loop>();
  std::unique_ptr<Connection> there;
  std::unique_ptr<Connection> here;
  auto listener = Listener::open(*own, {"127.0.0.1", 0}, [&](auto c) { there = std::move(c); });
  ASSERT_TRUE(listener);
  auto connecting =
      connect(*own, (*listener)->address(), kLimit, [&](auto c) { here = std::move(*c); });
  ASSERT_TRUE(own->run_until([&] { return here && there; }, kLimit));
  write(*here, std::string(std::size_t{32} << 20, 'x'));
  here->close_gracefully(kLimit, [] { ADD_FAILURE(); });
  own->after(kLimit, [] { ADD_FAILURE(); });
  own->post([] { ADD_FAILURE(); });
  here.reset();
  there.reset();
  connecting.reset();
  listener->reset();
  own.reset();
}

}  // namespace
}  // namespace yeto::net
