// SPDX-License-Identifier: Apache-2.0
// Goal: rules about members: who is live, who may join, whose word counts. Method: a small healthy
// run with one kind of fault, and the same run with purposely broken glue, which must be noticed.
#include "yeto/sync/sim/testing.h"

namespace yeto::sync::sim {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

TEST(SimMembers, DeadMemberExpires) {
  Plan plan = healthy(3);
  plan.faults = {fault(FaultKind::kCrashIsland, 2, 10, 0)};
  expect_good(plan);
  EXPECT_EQ(run(plan).totals.lost, 1u);
  expect_broken(plan, Breakage::kNoExpiry);
}

// Commits between two times of a plan.
std::uint64_t commits_between(const Plan& plan, Nanos from, Nanos to) {
  World world(plan);
  world.run_until(from);
  const std::uint64_t before = world.checks().totals().commits;
  world.run_until(to);
  EXPECT_EQ(world.checks().violation(), "");
  return world.checks().totals().commits - before;
}

TEST(SimMembers, HungMemberDoesNotHoldAQuorum) {
  Plan plan = healthy(2);
  plan.core.total_steps = 100000;
  plan.settle = 10000 * kSecond;
  plan.faults = {fault(FaultKind::kHangIsland, 1, 10, 5000)};
  // Its stall limit is 60 s; the round timeout would be 900 s.
  EXPECT_GT(commits_between(plan, 80 * kSecond, 600 * kSecond), 300u);
  plan.breakage = Breakage::kHungCountsAsLive;
  EXPECT_LT(commits_between(plan, 80 * kSecond, 600 * kSecond), 3u);
}

TEST(SimMembers, ClocksMayDifferByAMinuteEitherWay) {
  Plan plan = healthy(4);
  plan.syncer_clock.offset = 60 * kSecond;
  for (std::uint32_t i = 0; i < 4; ++i) {
    plan.islands[i].clock = {from_seconds(40.0 * i), static_cast<std::int64_t>(100 * i)};
  }
  plan.faults = {fault(FaultKind::kClockJump, 1, 12, 60)};
  expect_good(plan);
  EXPECT_EQ(run(plan).totals.lost, 0u);
  plan.faults.clear();
  const Outcome broken = run_broken(plan, Breakage::kLearnersClock);
  EXPECT_TRUE(!broken.good() || broken.totals.lost > 0);
}

TEST(SimMembers, TenMegabitLinksCauseNoFalseDeaths) {
  Plan plan = phantom(3, 2, 4'000'000);
  plan.core.total_steps = 8;
  plan.settle = 3600 * kSecond;
  for (IslandShape& island : plan.islands) {
    island.link.bytes_per_s = 1.25e6;
    island.link.one_way = from_millis(40);
  }
  expect_good(plan);
  EXPECT_EQ(run(plan).totals.lost, 0u);
  const Outcome broken = run_broken(plan, Breakage::kHeartbeatsBehindData);
  EXPECT_TRUE(!broken.good() || broken.totals.lost > 0);
}

TEST(SimMembers, IdleFlowDroppedAfterAMinuteIsSurvived) {
  Plan plan = healthy(2, 1);
  plan.core.sync_interval_steps = 100;
  plan.core.total_steps = 4;
  for (IslandShape& island : plan.islands) {
    island.link.idle_drop = 60 * kSecond;
  }
  plan.settle = 2500 * kSecond;
  expect_good(plan);
  expect_broken(plan, Breakage::kNoKeepalive);
}

TEST(SimMembers, SameSeatRejoinsAHundredTimes) {
  Plan plan = healthy(3);
  plan.core.total_steps = 600;
  for (int i = 0; i < 100; ++i) {
    plan.faults.push_back(fault(FaultKind::kKillIsland, 1, 5 + 4.0 * i, 1));
  }
  expect_good(plan);
  EXPECT_GE(run(plan).totals.joins, 103u);
  // A syncer that is not told of the end of a connection keeps the seat until the lease is over.
  plan.breakage = Breakage::kDeadIsHeard;
  World broken(plan);
  broken.run_until(410 * kSecond);
  EXPECT_LT(broken.checks().totals().joins, 103u);
}

TEST(SimMembers, SixtyFourJoinAtOnce) {
  Plan plan = healthy(64);
  plan.core.learners = 8;
  plan.core.total_steps = 60;
  for (std::uint32_t i = 0; i < 64; ++i) {
    plan.islands[i].starts_at = i < 8 ? 0 : 15 * kSecond;
    plan.islands[i].step = kSecond + from_millis(i);
  }
  expect_good(plan);
  EXPECT_EQ(run(plan).totals.joins, 64u);
  expect_broken(plan, Breakage::kOverwriteSkipped);
}

TEST(SimMembers, JoinAtEveryStepOffset) {
  for (int eighth = 0; eighth < 32; ++eighth) {
    Plan plan = healthy(3);
    plan.core.learners = 2;
    plan.islands[2].starts_at = 10 * kSecond + from_millis(125.0 * eighth);
    expect_good(plan);
    expect_broken(plan, Breakage::kOverwriteSkipped);
  }
}

TEST(SimMembers, TwoRunsOnOnePortNeverMix) {
  Plan plan = healthy(3);
  plan.core.learners = 2;
  plan.islands[2].run_id = "another";
  World world(plan);
  const Outcome outcome = world.run();
  EXPECT_TRUE(outcome.good()) << outcome.violation;
  EXPECT_EQ(outcome.totals.joins, 2u);
  EXPECT_EQ(world.island(2).state(), Island::State::kOver);
  EXPECT_NE(world.island(2).end_reason().find("another"), std::string::npos);
  expect_broken(plan, Breakage::kAnyRun);
}

double participation(const Plan& plan) {
  const Outcome outcome = run(plan);
  EXPECT_TRUE(outcome.good()) << outcome.violation;
  return static_cast<double>(outcome.totals.responded) /
         static_cast<double>(std::max<std::uint64_t>(1, outcome.totals.expected));
}

TEST(SimMembers, ParticipationOfAHealthyFleetIsNinetyNinePercent) {
  for (const double step_s : {0.1, 0.3, 1.0, 3.0, 10.0, 30.0}) {
    Plan plan = healthy(8, 4);
    plan.core.sync_interval_steps = 24;
    plan.core.total_steps = 200;
    plan.core.start_quorum = 8;
    plan.settle = from_seconds(4000 * step_s + 600);
    for (std::uint32_t i = 0; i < 8; ++i) {
      plan.islands[i].step = from_seconds(step_s * (1.0 + 0.005 * i));
      plan.islands[i].step_jitter = 0.1;
      plan.islands[i].link.bytes_per_s = 1e6;
    }
    EXPECT_GE(participation(plan), 0.99) << "step time " << step_s << " s";
    // Without the window of grace the round does not wait for those a little later.
    plan.core.grace_cap = 0;
    EXPECT_LT(participation(plan), 0.99) << "step time " << step_s << " s";
  }
}

}  // namespace
}  // namespace yeto::sync::sim
