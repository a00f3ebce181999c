// SPDX-License-Identifier: Apache-2.0
// Goal: what waits in a connection can be bounded and taken back, and nothing that stays is lost.
// Method: a connected pair in one loop, one end of which reads only when it is told to.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "yeto/net/connection.h"
#include "yeto/net/loop.h"

namespace yeto::net {
namespace {

constexpr Nanos kLimit = 60 * kSecond;
constexpr std::size_t kMiB = std::size_t{1} << 20;

class PressureTest : public ::testing::Test {
 protected:
  PressureTest() {
    const auto listener = Listener::open(
        loop, {"127.0.0.1", 0}, [this](std::unique_ptr<Connection> c) { reader = std::move(c); });
    EXPECT_TRUE(listener) << listener.error().text();
    const auto connecting =
        connect(loop, (*listener)->address(), kLimit,
                [this](Result<std::unique_ptr<Connection>> c) { writer = std::move(*c); });
    EXPECT_TRUE(wait([&] { return reader != nullptr && writer != nullptr; }));
  }
  bool wait(const std::function<bool()>& until) { return loop.run_until(until, kLimit); }
  // `count` writes of `size` bytes; write n consists of bytes n.
  void write(std::size_t count, std::size_t size) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto bytes = std::make_shared<const Bytes>(size, static_cast<std::uint8_t>(i));
      const ByteView part(*bytes);
      writer->write({&part, 1}, bytes, [this] { ++sent; });
    }
  }
  void read(std::size_t bytes) {
    target.assign(bytes, 0xff);
    done = false;
    reader->read_exactly(target, [this] { done = true; });
  }

  Loop loop;
  std::unique_ptr<Connection> reader;
  std::unique_ptr<Connection> writer;
  Bytes target;
  bool done = false;
  std::size_t sent = 0;
};

TEST_F(PressureTest, WritesThatWereTakenBackAreNotSentAndTheOthersAre) {
  write(100, kMiB);
  // Nobody reads: the kernel's buffers fill, the rest waits.
  EXPECT_TRUE(wait([&] { return writer->bytes_out() > 0; }));
  const std::size_t taken = writer->take_back();
  EXPECT_GE(taken, 50u);
  EXPECT_LT(taken, 100u) << "what was begun stays";
  EXPECT_EQ(writer->take_back(), 0u);
  const std::size_t kept = 100 - taken;
  read(kept * kMiB);
  EXPECT_TRUE(wait([&] { return done; }));
  for (std::size_t i = 0; i < kept; ++i) {
    EXPECT_EQ(target[i * kMiB], i);
    EXPECT_EQ(target[(i + 1) * kMiB - 1], i);
  }
  EXPECT_EQ(writer->queued_bytes(), 0u);
  EXPECT_TRUE(wait([&] { return sent == kept; }));
  write(1, 10);
  read(10);
  EXPECT_TRUE(wait([&] { return done; })) << "the queue goes on";
}

TEST_F(PressureTest, KernelHoldsNoMoreThanTheLimitAndAllArrives) {
  constexpr std::size_t kMost = 100'000;
  writer->set_unacknowledged_limit(kMost);
  std::size_t most = 0;
  write(16, kMiB / 2);
  read(8 * kMiB);
  EXPECT_TRUE(wait([&] {
    most = std::max(most, writer->unacknowledged_bytes());
    return done;
  }));
  EXPECT_LE(most, kMost);
  EXPECT_EQ(target[0], 0u);
  EXPECT_EQ(target.back(), 15u);
  writer->set_unacknowledged_limit(0);
  write(16, kMiB / 2);
  read(8 * kMiB);
  EXPECT_TRUE(wait([&] { return done; }));
}

TEST_F(PressureTest, ClosingWhileAWriteWaitsForAcknowledgementsIsQuiet) {
  writer->set_unacknowledged_limit(1);
  write(4, kMiB);
  EXPECT_TRUE(wait([&] { return writer->bytes_out() > 0; }));
  writer->close();
  EXPECT_EQ(writer->queued_bytes(), 0u);
  EXPECT_EQ(writer->take_back(), 0u);
  EXPECT_EQ(writer->unacknowledged_bytes(), 0u);
  bool lost = false;
  reader->set_close_handler([&](const Error&) { lost = true; });
  read(4 * kMiB);
  EXPECT_TRUE(wait([&] { return lost; }));
  EXPECT_EQ(sent, 0u);
}

#ifdef __linux__
TEST_F(PressureTest, LinuxSaysHowLongARoundTripTakes) {
  writer->set_liveness(20 * kSecond);
  write(1, 1000);
  read(1000);
  EXPECT_TRUE(wait([&] { return done; }));
  EXPECT_TRUE(wait([&] { return writer->unacknowledged_bytes() == 0; }));
  EXPECT_GT(writer->shortest_round_trip(), 0);
  EXPECT_LT(writer->shortest_round_trip(), kLimit);
}
#endif

}  // namespace
}  // namespace yeto::net
