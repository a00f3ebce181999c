// SPDX-License-Identifier: Apache-2.0
// Goal: the rate of a stream follows what it delivers, and the bounds follow the rate; a CRC that
// several links need is computed for each body as it is. Method: invented clocks and bytes.
#include "yeto/sync/link/pace.h"

#include <gtest/gtest.h>

#include "yeto/base/digest.h"
#include "yeto/sync/link/chunk_crcs.h"

namespace yeto::sync {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

// Delivers at `rate` for `time`, always with something left.
void run(Pace& pace, Nanos& now, std::uint64_t& delivered, double rate, Nanos time) {
  for (const Nanos end = now + time; now < end;) {
    now += 50 * kMillisecond;
    delivered += static_cast<std::uint64_t>(rate * 0.05);
    pace.sample(now, delivered, kMiB);
  }
}

TEST(Pace, RateFollowsWhatIsDelivered) {
  Pace pace;
  Nanos now = kSecond;
  std::uint64_t delivered = 0;
  EXPECT_EQ(pace.rate(), 0.0) << "unknown";
  pace.wake(now, delivered);
  run(pace, now, delivered, 20e6, kSecond);
  EXPECT_NEAR(pace.rate(), 20e6, 1e5);
  run(pace, now, delivered, 1e6, kSecond);
  EXPECT_NEAR(pace.rate(), 1e6, 1e5);
  run(pace, now, delivered, 0.0, 5 * kSecond);
  EXPECT_EQ(pace.rate(), 1.0) << "known to stand still";
}

TEST(Pace, IdleTimeIsNoSlowness) {
  Pace pace;
  Nanos now = kSecond;
  std::uint64_t delivered = 0;
  pace.wake(now, delivered);
  run(pace, now, delivered, 20e6, kSecond);
  now += 50 * kMillisecond;
  pace.sample(now, delivered, 0);
  now += 5 * kSecond;
  pace.sample(now, delivered, 0);
  EXPECT_NEAR(pace.rate(), 20e6, 1e5);
  EXPECT_EQ(pace.stalled_for(now), 0);
  now += 3600 * kSecond;
  pace.wake(now, delivered);
  EXPECT_EQ(pace.rate(), 0.0) << "a path of an hour ago says nothing";
}

TEST(Pace, BoundsFollowTheRate) {
  Pace pace;
  Nanos now = kSecond;
  std::uint64_t delivered = 0;
  EXPECT_EQ(pace.queue_limit(), 64u << 10);
  EXPECT_EQ(pace.unacknowledged_limit(0), 0u);
  pace.wake(now, delivered);
  run(pace, now, delivered, 1e6, 2 * kSecond);
  EXPECT_NEAR(static_cast<double>(pace.queue_limit()), 200e3, 2e3);
  EXPECT_NEAR(static_cast<double>(pace.unacknowledged_limit(0)), 200e3, 2e3);
  EXPECT_NEAR(static_cast<double>(pace.unacknowledged_limit(300 * kMillisecond)), 500e3, 5e3);
  run(pace, now, delivered, 1e3, 2 * kSecond);
  EXPECT_EQ(pace.queue_limit(), 64u << 10);
  EXPECT_EQ(pace.unacknowledged_limit(0), 64u << 10);
  run(pace, now, delivered, 1e9, 2 * kSecond);
  EXPECT_EQ(pace.queue_limit(), kMiB);
  EXPECT_EQ(pace.unacknowledged_limit(0), 0u) << "a fast path needs no limit";
}

TEST(Pace, StallCountsFromTheLastByteThatArrived) {
  Pace pace;
  Nanos now = kSecond;
  pace.wake(now, 0);
  pace.sample(now + kSecond, 10, 5);
  EXPECT_EQ(pace.stalled_for(now + kSecond), 0);
  pace.sample(now + 3 * kSecond, 10, 5);
  EXPECT_EQ(pace.stalled_for(now + 3 * kSecond), 2 * kSecond);
  pace.sample(now + 4 * kSecond, 11, 4);
  EXPECT_EQ(pace.stalled_for(now + 4 * kSecond), 0);
  pace.sample(now + 5 * kSecond, 15, 0);
  EXPECT_EQ(pace.stalled_for(now + 9 * kSecond), 0) << "nothing waits";
  EXPECT_EQ(pace.idle_for(now + 9 * kSecond), 4 * kSecond);
  pace.sample(now + 30 * kSecond, 15, 40);
  EXPECT_EQ(pace.stalled_for(now + 30 * kSecond), 0) << "it has only begun to wait";
  EXPECT_EQ(pace.idle_for(now + 30 * kSecond), 0);
}

TEST(ChunkCrcs, AreOfTheBodyThatIsThereNow) {
  ChunkCrcs crcs;
  const wire::ChunkPlan plan{250, 100};
  auto body = std::make_shared<Bytes>(250, std::uint8_t{7});
  const ByteView view(*body);
  for (int twice = 0; twice < 2; ++twice) {
    EXPECT_EQ(crcs.of(body, view, plan, 0), crc32c(view.first(100)));
    EXPECT_EQ(crcs.of(body, view, plan, 2), crc32c(view.subspan(200, 50)));
  }
  EXPECT_EQ(crcs.bodies(), 1u);
  // The memory is used again for another body: a new owner.
  Bytes memory = std::move(*body);
  body.reset();
  memory.assign(250, std::uint8_t{9});
  const auto next = std::make_shared<const Bytes>(std::move(memory));
  EXPECT_EQ(crcs.of(next, ByteView(*next), plan, 0), crc32c(ByteView(*next).first(100)));
  EXPECT_EQ(crcs.bodies(), 1u) << "what nobody owns any more is forgotten";
}

}  // namespace
}  // namespace yeto::sync
