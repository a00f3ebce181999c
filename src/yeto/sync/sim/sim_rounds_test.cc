// SPDX-License-Identifier: Apache-2.0
// Goal: rules about work: counted once, in one order, finite, within the budget, the same bytes
// everywhere. Method: a small run with the faults in question, and purposely broken variants.
#include <malloc.h>

#include "yeto/sync/sim/testing.h"

namespace yeto::sync::sim {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

TEST(SimRounds, EveryTokenIsCountedOnce) {
  Plan plan = healthy(4);
  plan.faults = {fault(FaultKind::kKillIsland, 1, 8, 2), fault(FaultKind::kCutConnection, 2, 11, 0),
                 fault(FaultKind::kPartition, 3, 14, 7), fault(FaultKind::kKillIsland, 1, 20, 3)};
  expect_good(plan);
  expect_broken(plan, Breakage::kStaleTokens);
  expect_broken(plan, Breakage::kPushTwice);
}

TEST(SimRounds, ValuesThatAreNotFiniteSkipARound) {
  Plan plan = healthy(3);
  plan.faults = {fault(FaultKind::kBadValues, 1, 10.5, 0)};
  World world(plan);
  const Outcome outcome = world.run();
  EXPECT_TRUE(outcome.good()) << outcome.violation;
  EXPECT_GE(world.island(1).counters().nonfinite_pushes, 1u);
  expect_broken(plan, Breakage::kNanPasses);
}

// Nobody is left whose push could heal the others: each goes on from its own anchor.
TEST(SimRounds, AFleetWhoseValuesAreAllNotFiniteGoesOnFromItsAnchors) {
  for (const CodecId codec : {CodecId::kF32, CodecId::kQ4}) {
    Plan plan = healthy(3);
    plan.core.push_codec = codec;
    plan.core.broadcast_codec = codec;
    for (std::uint32_t who = 0; who < 3; ++who) {
      plan.faults.push_back(fault(FaultKind::kBadValues, who, 10.5, 0));
    }
    World world(plan);
    const Outcome outcome = world.run();
    EXPECT_TRUE(outcome.good()) << outcome.violation;
    EXPECT_TRUE(outcome.ended) << outcome.end_reason;
    for (std::uint32_t who = 0; who < 3; ++who) {
      EXPECT_EQ(world.island(who).counters().resets, 2u);
    }
    expect_broken(plan, Breakage::kResetSkipped);
  }
}

TEST(SimRounds, ALostDataStreamCostsPiecesAndNeitherTransfersNorSessions) {
  Plan plan = healthy(3, 1);
  plan.layout = layout_of(1, 4096);
  plan.pieces = 16;
  plan.core.total_steps = 12;
  for (IslandShape& island : plan.islands) {
    island.link.bytes_per_s = 16'000;  // a transfer takes a second
  }
  for (int i = 0; i < 40; ++i) {
    plan.faults.push_back(fault(FaultKind::kCutData, i % 3, 4.0 + 0.71 * i, 0));
  }
  World world(plan);
  const Outcome outcome = world.run();
  EXPECT_TRUE(outcome.good()) << outcome.violation;
  EXPECT_TRUE(outcome.ended) << outcome.end_reason;
  EXPECT_EQ(outcome.totals.joins, 3u);
  EXPECT_EQ(outcome.totals.dropped, 0u);
  expect_broken(plan, Breakage::kMissingNotSent);
}

TEST(SimRounds, TiesGoBySeat) {
  Plan plan = healthy(4);
  plan.core.lockstep = true;
  plan.core.total_steps = 12;
  const auto final_of = [](Plan changed, bool reversed, Breakage breakage) {
    for (std::uint32_t i = 0; i < 4; ++i) {
      changed.islands[i].link.one_way = from_millis(reversed ? 100 - 20.0 * i : 20 + 20.0 * i);
      changed.islands[i].starts_at = i * kSecond;  // seat 0 gives the initial values
    }
    changed.breakage = breakage;
    const Outcome outcome = run(changed);
    EXPECT_TRUE(breakage != Breakage::kNone || outcome.good()) << outcome.violation;
    EXPECT_NE(outcome.final_hash, 0u);
    return outcome.final_hash;
  };
  EXPECT_EQ(final_of(plan, false, Breakage::kNone), final_of(plan, true, Breakage::kNone));
  EXPECT_NE(final_of(plan, false, Breakage::kSeatsByArrival),
            final_of(plan, true, Breakage::kSeatsByArrival));
}

TEST(SimRounds, RecoveredLearnersHoldTheSameBytes) {
  for (const CodecId codec : {CodecId::kF32, CodecId::kBf16, CodecId::kQ4}) {
    Plan plan = healthy(3);
    plan.core.push_codec = codec;
    plan.core.broadcast_codec = codec;
    plan.faults = {fault(FaultKind::kKillIsland, 1, 9, 2), fault(FaultKind::kPartition, 2, 12, 9)};
    expect_good(plan);
    expect_broken(plan, Breakage::kDigestNotCompared);
  }
}

TEST(SimRounds, SlowReaderReturnsToQ4) {
  Plan plan = healthy(3, 1);
  plan.layout = layout_of(1, 4096);
  plan.core.broadcast_codec = CodecId::kQ4;
  plan.core.push_codec = CodecId::kQ4;
  plan.core.total_steps = 80;
  plan.core.sync_interval_steps = 1;
  for (IslandShape& island : plan.islands) {
    island.link.bytes_per_s = 1e6;
  }
  // Away for longer than the chain of images reaches.
  plan.faults = {fault(FaultKind::kPartition, 2, 20, 12)};
  World world(plan);
  const Outcome outcome = world.run();
  EXPECT_TRUE(outcome.good()) << outcome.violation;
  EXPECT_GT(world.checks().q4_after_whole(2), 10u);
  EXPECT_EQ(world.island(2).counters().damaged_images, 0u);
  // A reader that takes no q4 image gets whole ones for ever, at four times the bytes.
  plan.breakage = Breakage::kRefuseQ4;
  World broken(plan);
  broken.run();
  EXPECT_GT(broken.island(2).counters().bytes_received,
            2 * world.island(2).counters().bytes_received);
}

TEST(SimRounds, BudgetOfBuffersNeverDeadlocks) {
  Plan plan = healthy(4, 3);
  plan.core.sync_interval_steps = 3;
  plan.core.pipeline = 3;
  // Room for the pushes of one round of four and little more.
  const std::uint64_t push = 6 * sizeof(float);
  for (const std::uint64_t pushes : {5, 6, 8, 9, 12}) {
    plan.core.max_buffer = pushes * push + 4 * push;
    plan.faults = {fault(FaultKind::kPartition, 1, 9, 7), fault(FaultKind::kKillIsland, 2, 14, 3)};
    plan.islands[3].link.bytes_per_s = 30.0;
    expect_good(plan);
  }
  plan.breakage = Breakage::kForgetFree;
  World broken(plan);
  broken.run();
  plan.breakage = Breakage::kNone;
  World fine(plan);
  fine.run();
  EXPECT_GT(broken.syncer().buffer_bytes_most(), 3 * fine.syncer().buffer_bytes_most());
}

// Bytes of the heap in use.
std::size_t heap_bytes() { return ::mallinfo2().uordblks; }

TEST(SimRounds, MemoryDoesNotGrowOverAHundredThousandRounds) {
  Plan plan = phantom(2, 2, 1000);
  plan.core.total_steps = 100'000'000;
  plan.core.heartbeat = 10 * kSecond;
  plan.core.lease = 50 * kSecond;
  plan.core.durability = Durability::kInterval;
  plan.settle = Nanos{1} << 61;
  World world(plan);
  const auto grow = [&](std::uint64_t rounds) {
    while (world.checks().totals().commits < rounds && world.checks().violation().empty()) {
      world.run_until(world.now() + 100 * kSecond);
    }
    return heap_bytes();
  };
  const std::size_t early = grow(20'000 / kShare);
  const std::uint64_t buffers = world.syncer().buffer_bytes();
  const std::size_t late = grow(100'000 / kShare);
  EXPECT_EQ(world.checks().violation(), "");
  EXPECT_LE(late, early + 16'384);
  EXPECT_LE(world.syncer().buffer_bytes(), buffers + 8 * 4000);
  // Forgotten buffers are what such a slope looks like.
  plan.breakage = Breakage::kForgetFree;
  World broken(plan);
  broken.run_until(2000 * kSecond);
  EXPECT_GT(broken.syncer().buffer_bytes(), buffers + 100 * 4000);
}

}  // namespace
}  // namespace yeto::sync::sim
