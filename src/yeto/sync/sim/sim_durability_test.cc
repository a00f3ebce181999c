// SPDX-License-Identifier: Apache-2.0
// Goal: what is durable stays, whatever dies when; a restart goes on from exactly that. Method:
// kills of the syncer at many moments, failing and slow disks, a shadow that is never restarted;
// each with a purposely broken variant.
#include "yeto/sync/sim/testing.h"

namespace yeto::sync::sim {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

Plan killed_at(double at_s, Durability durability) {
  Plan plan = healthy(3);
  // What of a write in progress is left is drawn from the seed.
  plan.seed = static_cast<std::uint64_t>(at_s * 1000.0);
  plan.core.durability = durability;
  plan.core.checkpoint_every = 3 * kSecond;
  plan.disk_latency = from_millis(120);
  plan.faults = {fault(FaultKind::kKillSyncer, kSyncerItself, at_s, 1),
                 fault(FaultKind::kKillSyncer, kSyncerItself, at_s + 9, 1)};
  return plan;
}

TEST(SimDurability, NoTwoTermsCommit) {
  const Plan plan = killed_at(12, Durability::kCommit);
  expect_good(plan);
  expect_broken(plan, Breakage::kTermNotRaised);
}

TEST(SimDurability, RestartUnderIntervalDurabilityReissuesNoVersion) {
  for (int i = 0; i < 40; ++i) {
    const Plan plan = killed_at(6 + 0.13 * i, Durability::kInterval);
    expect_good(plan);
    if (i % 10 == 0) {
      expect_broken(plan, Breakage::kTermNotRaised);
    }
  }
}

TEST(SimDurability, NothingDurableIsLost) {
  std::uint64_t stale = 0;
  for (int i = 0; i < 40; ++i) {
    Plan plan = killed_at(6 + 0.13 * i, Durability::kCommit);
    plan.disk_latency = from_millis(500);  // most kills come in the middle of a write
    expect_good(plan);
    stale += run_broken(plan, Breakage::kStaleCheckpoint).good() ? 0 : 1;
  }
  EXPECT_GT(stale, 5u);
}

// A write that dies half way leaves the object of before. A store that left half of the new one
// would be refused at the restart, or bring back other values.
TEST(SimDurability, AKilledWriteLeavesNothingHalf) {
  std::uint64_t torn = 0;
  for (int i = 0; i < 40; ++i) {
    Plan plan = killed_at(6 + 0.13 * i, Durability::kCommit);
    plan.disk_latency = from_millis(500);  // most kills come in the middle of a write
    expect_good(plan);
    torn += run_broken(plan, Breakage::kTornCheckpoint).good() ? 0 : 1;
  }
  EXPECT_GT(torn, 0u) << "half a manifest was never noticed";
}

TEST(SimDurability, NothingIsBroadcastBeforeItIsDurable) {
  Plan plan = healthy(3);
  plan.disk_latency = from_millis(300);
  plan.faults = {fault(FaultKind::kDiskFails, kSyncerItself, 10, 4),
                 fault(FaultKind::kDiskSlow, kSyncerItself, 18, 4)};
  expect_good(plan);
  expect_broken(plan, Breakage::kBroadcastBeforeSave);
}

TEST(SimDurability, ResumeIsEqualToTheBit) {
  for (const CodecId codec : {CodecId::kF32, CodecId::kBf16, CodecId::kQ4}) {
    Plan plan = killed_at(12.9, Durability::kCommit);
    plan.core.push_codec = codec;
    plan.core.broadcast_codec = codec;
    plan.shadow = true;
    World world(plan);
    const Outcome outcome = world.run();
    EXPECT_TRUE(outcome.good()) << outcome.violation;
    EXPECT_EQ(world.syncer().lives(), 3u);
    EXPECT_GT(world.syncer().shadow_merges(), 30u);
    EXPECT_EQ(world.syncer().shadow_differences(), 0u);
    plan.breakage = Breakage::kOtherOuter;
    World broken(plan);
    broken.run();
    EXPECT_TRUE(broken.syncer().shadow_differences() > 0 || !broken.checks().violation().empty());
  }
}

// Learners that have stopped for the last sweep say LIMIT to a syncer that has lost it.
TEST(SimDurability, SyncerRestartedDuringTheSweepStillEnds) {
  for (int i = 0; i < 20; ++i) {
    Plan plan = healthy(2);
    plan.core.total_steps = 10;
    plan.core.durability = Durability::kInterval;
    plan.faults = {fault(FaultKind::kKillSyncer, kSyncerItself, 10.5 + 0.1 * i, 1)};
    expect_good(plan);
  }
}

}  // namespace
}  // namespace yeto::sync::sim
