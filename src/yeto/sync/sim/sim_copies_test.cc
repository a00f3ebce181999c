// SPDX-License-Identifier: Apache-2.0
// Goal: what travels may break off anywhere. Method: kill the sender or the receiver at each
// twentieth of a copy, cut each connection at each frame and at each moment, slow links; each with
// a purposely broken variant.
#include "yeto/sync/sim/testing.h"

namespace yeto::sync::sim {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

Plan copy_plan() {
  Plan plan = healthy(3, 2);
  plan.core.total_steps = 12;
  plan.pieces = 20;
  for (IslandShape& island : plan.islands) {
    island.link.bytes_per_s = 40.0;  // a fragment takes more than half a second
  }
  return plan;
}

TEST(SimCopies, DonorMayDieAtEachTwentiethOfItsCopy) {
  for (std::uint32_t piece = 1; piece <= 40; ++piece) {
    Plan plan = copy_plan();
    plan.kill_in = wire::TransferKind::kInit;
    plan.kill_sender = true;
    plan.kill_at_piece = piece;
    expect_good(plan);
  }
  // A syncer that does not hear of its death waits for ever.
  Plan plan = copy_plan();
  plan.kill_in = wire::TransferKind::kInit;
  plan.kill_sender = true;
  plan.kill_at_piece = 10;
  plan.core.lease = 100000 * kSecond;
  plan.settle = 1000 * kSecond;
  expect_broken(plan, Breakage::kDeadIsHeard);
}

TEST(SimCopies, JoinerMayDieAtEachTwentiethOfItsCopy) {
  for (std::uint32_t piece = 1; piece <= 40; ++piece) {
    Plan plan = copy_plan();
    plan.core.learners = 2;
    plan.islands[2].starts_at = 8 * kSecond;
    plan.kill_island = 2;
    plan.kill_at_piece = piece;
    expect_good(plan);
    if (piece % 10 == 0) {
      expect_broken(plan, Breakage::kOverwriteSkipped);
    }
  }
}

TEST(SimCopies, AnInitNeverReplacesInitialisedState) {
  const Plan plan = healthy(3);
  expect_good(plan);
  expect_broken(plan, Breakage::kSecondInit);
}

TEST(SimCopies, TransfersHaveNoTotalTimeout) {
  Plan plan = phantom(2, 2, 1'000'000);
  plan.core.total_steps = 4;
  plan.settle = 1500 * kSecond;
  for (IslandShape& island : plan.islands) {
    island.link.bytes_per_s = 1e5;  // 40 s a fragment
  }
  expect_good(plan);
  expect_broken(plan, Breakage::kTotalTimeout);
}

TEST(SimCopies, EachControlMessageMayBeLostOnce) {
  Plan plan = healthy(2);
  plan.core.total_steps = 6;
  plan.settle = 400 * kSecond;
  std::uint64_t frames = 0;
  std::uint64_t noticed = 0;
  for (std::uint64_t frame = 1;; frame += kShare) {
    plan.cut_before_frame = frame;
    World world(plan);
    const Outcome outcome = world.run();
    ASSERT_TRUE(outcome.good()) << "frame " << frame << ": " << outcome.violation;
    if (world.network().frames_delivered() / 2 < frame && frame > 200) {
      break;
    }
    frames = frame;
    noticed += run_broken(plan, Breakage::kLoseFrame).good() ? 0 : 1;
    ASSERT_LT(frame, 5000u);
  }
  EXPECT_GT(frames, 60u);
  EXPECT_GT(noticed, 0u) << "frames that vanish were never noticed";
}

TEST(SimCopies, ALinkMayBeCutAtEachMoment) {
  std::uint64_t noticed = 0;
  // Moments that the broken variant is tried at are in every build's share.
  for (std::uint64_t moment = 0; moment < 240; moment += kShare == 1 ? 1 : 12) {
    Plan plan = copy_plan();
    plan.faults = {fault(FaultKind::kCutConnection, static_cast<std::uint32_t>(moment % 3),
                         0.1 * static_cast<double>(moment), 0)};
    expect_good(plan);
    if (moment % 12 == 0) {
      plan.core.lease = 100000 * kSecond;
      plan.settle = 700 * kSecond;
      noticed += run_broken(plan, Breakage::kDeadIsHeard).good() ? 0 : 1;
    }
  }
  EXPECT_GT(noticed, 0u);
}

}  // namespace
}  // namespace yeto::sync::sim
