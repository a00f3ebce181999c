// SPDX-License-Identifier: Apache-2.0
// Goal: the life of a run, and what each trouble costs. Method: the real core in a made-up world
// (core_world.h) with injected time; jobs and transfers answer at once unless a test holds them.
#include <gtest/gtest.h>

#include "yeto/sync/core/core_world.h"

namespace yeto::sync {
namespace {

// ---- start
// -----------------------------------------------------------------------------------------------

TEST(CoreTest, OneDonorGivesLayoutAndValuesAndVersionZeroIsSavedBeforeRoundOne) {
  World world(options_for(2));
  world.connect(0, 1);
  EXPECT_EQ(world.checkpoints.size(), 1u) << "version 0";
  EXPECT_EQ(world.order, std::vector<std::string>{"checkpoint"})
      << "nothing is sent before the start";
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kWaiting);
  EXPECT_EQ(world.core.status(world.now).waiting_for, "1 of 2 learners joined");
  auto& second = world.connect(1, 2);
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kTraining);
  for (const wire::Held& held : second.held) {
    EXPECT_EQ(held.term, 1u);
  }
  EXPECT_EQ(world.buffers.size(), 4u) << "only the images are kept";
}

TEST(CoreTest, DonorLostInTheMiddleIsReplacedFromTheStart) {
  World world(options_for(2));
  world.hold_donor = true;
  auto& donor = world.connect(0, 1);
  world.connect(1, 2);
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kInitialising);
  world.hold_donor = false;
  world.disconnect(donor);
  EXPECT_EQ(world.checkpoints.size(), 1u) << "seat 1 gave everything";
  world.connect(0, 3);
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kTraining);
}

TEST(CoreTest, BadInitialValuesRefuseTheDonor) {
  World world(options_for(1));
  world.init_error = "not finite";
  auto& donor = world.connect(0, 1);
  ASSERT_TRUE(donor.refused);
  EXPECT_NE(donor.refused->text.find("not finite"), std::string::npos);
  world.init_error.clear();
  world.connect(1, 2);
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kTraining);
}

TEST(CoreTest, StartQuorumStartsAfterTheTimeout) {
  auto options = options_for(4);
  options.start_timeout = 30 * kSecond;
  World world(options);
  for (Seat seat = 0; seat < 3; ++seat) {
    world.connect(seat, 10 + seat);
  }
  world.pass(29 * kSecond);
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kWaiting);
  world.pass(2 * kSecond);
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kTraining);
}

TEST(CoreTest, DifferentLayoutOrContractIsRefusedByName) {
  World world(options_for(2));
  world.connect(0, 1, [](wire::Hello& hello) { hello.contract = {{"base-model", {1}}}; });
  auto& model =
      world.connect(1, 2, [](wire::Hello& hello) { hello.contract = {{"base-model", {2}}}; });
  ASSERT_TRUE(model.refused);
  EXPECT_NE(model.refused->text.find("'base-model' differs"), std::string::npos);
  auto& layout = world.connect(1, 3, [](wire::Hello& hello) {
    hello.contract = {{"base-model", {1}}};
    hello.layout = {9};
  });
  ASSERT_TRUE(layout.refused);
  EXPECT_EQ(layout.refused->code, wire::RefuseCode::kLayout);
  EXPECT_EQ(layout.refused->tensors.size(), 4u)
      << "the learner can name the first tensor that differs";
}

// ---- rounds
// ----------------------------------------------------------------------------------------------

TEST(CoreTest, RoundsCommitInOrderAndVersionsGrowByOne) {
  World world(options_for(2));
  auto learners = world.start(2);
  run_rounds(world, learners, 9);
  const auto commits = world.commits();
  for (std::size_t i = 0; i < commits.size(); ++i) {
    EXPECT_EQ(commits[i].round, i + 1);
    EXPECT_EQ(commits[i].fragment, i % 4);
    EXPECT_EQ(commits[i].version, i / 4 + 1);
  }
  EXPECT_EQ(learners[0]->held[0].version, commits.size() / 4 + (commits.size() % 4 != 0));
  world.expect_ledger_balances();
  EXPECT_EQ(world.core.status(world.now).ledger.dropped, 0u);
}

TEST(CoreTest, PipelineKeepsTwoRoundsInFlightAndOnlyTheFirstCloses) {
  World world(options_for(2));
  auto learners = world.start(2);
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  world.pass(3 * kSecond);
  ASSERT_EQ(learners[0]->pulls.size(), 2u) << "rounds 1 and 2";
  for (TestLearner* learner : learners) {
    world.push(*learner, learner->pulls[1], 100, 2);
  }
  EXPECT_TRUE(world.commits().empty()) << "round 2 is complete but round 1 is not";
  for (TestLearner* learner : learners) {
    world.push(*learner, learner->pulls[0], 100, 2);
  }
  ASSERT_EQ(world.commits().size(), 2u);
  EXPECT_EQ(world.commits()[0].round, 1u);
}

TEST(CoreTest, PacingSpacesLaunchesByHStepsOverFragments) {
  World world(options_for(2));
  auto learners = world.start(2);
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  ASSERT_EQ(learners[0]->pulls.size(), 1u);
  // H 8, F 4, step time 1 s: the next round comes 2 s later.
  world.pass(1900 * kMillisecond);
  EXPECT_EQ(learners[0]->pulls.size(), 1u);
  world.pass(200 * kMillisecond);
  EXPECT_EQ(learners[0]->pulls.size(), 2u);
}

TEST(CoreTest, FirstRoundWaitsForMembersThatLoadAndForTheStepsARoundNeeds) {
  World world(options_for(2));
  auto& a = world.connect(0, 1);
  auto& b = world.connect(1, 2);
  b.beat.phase = wire::Phase::kLoad;
  world.step(a, 5);
  world.beat(b);
  EXPECT_TRUE(a.pulls.empty());
  b.beat.phase = wire::Phase::kTrain;
  world.step(b, 1);
  EXPECT_TRUE(a.pulls.empty()) << "H/F = 2 steps are needed";
  world.step(b, 1);
  EXPECT_EQ(a.pulls.size(), 1u);
  EXPECT_EQ(b.pulls.size(), 1u);
}

TEST(CoreTest, QuorumClosesAfterGraceAndTheLatePushIsDroppedWhereNothingIsCarried) {
  auto options = options_for(4);  // K = 3
  options.max_lag = 0;
  World world(options);
  auto learners = world.start(4);
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  const wire::Pull ask = learners[3]->pulls.back();
  for (int i = 0; i < 3; ++i) {
    world.push(*learners[static_cast<std::size_t>(i)], 100, 2);
  }
  EXPECT_TRUE(world.commits().empty()) << "in grace";
  // grace = 0.8·(2·1 s − 0 − 0) = 1.6 s
  world.pass(1500 * kMillisecond);
  EXPECT_TRUE(world.commits().empty());
  world.pass(200 * kMillisecond);
  ASSERT_EQ(world.commits().size(), 1u);
  EXPECT_EQ(world.commits()[0].responded, (std::vector<Seat>{0, 1, 2}));
  world.push(*learners[3], ask, 70, 2);
  ASSERT_EQ(learners[3]->verdicts.size(), 1u);
  EXPECT_EQ(learners[3]->verdicts[0].outcome, wire::Outcome::kDropped);
  EXPECT_EQ(learners[3]->verdicts[0].reason, "late");
  EXPECT_EQ(world.core.status(world.now).ledger.dropped, 70u);
  world.expect_ledger_balances();
}

TEST(CoreTest, PushStillOnTheWayWhenItsRoundClosesIsLate) {
  auto options = options_for(4);
  options.max_lag = 0;
  World world(options);
  auto learners = world.start(4);
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  for (int i = 0; i < 3; ++i) {
    world.push(*learners[static_cast<std::size_t>(i)], 100, 2);
  }
  world.hold_transfers = true;
  world.push(*learners[3], 70, 2);
  world.pass(2 * kSecond);
  ASSERT_EQ(world.commits().size(), 1u);
  world.hold_transfers = false;
  world.release_held();
  ASSERT_EQ(learners[3]->verdicts.size(), 1u);
  EXPECT_EQ(learners[3]->verdicts[0].reason, "late");
  world.expect_ledger_balances();
  EXPECT_EQ(world.buffers.size(), 4u);
}

TEST(CoreTest, SecondPushOfASeatIsRefusedAndTheFirstStays) {
  World world(options_for(2));
  auto learners = world.start(2);
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  world.push(*learners[0], 100, 2);
  world.push(*learners[0], 999, 2);
  ASSERT_EQ(world.refused_transfers.size(), 1u);
  EXPECT_NE(world.refused_transfers[0].find("answered round 1"), std::string::npos);
  world.push(*learners[1], 100, 2);
  ASSERT_EQ(world.merges.size(), 1u);
  EXPECT_EQ(world.merges[0].pushes[0].c_tokens, 100u);
  world.expect_ledger_balances();
}

TEST(CoreTest, PushOfAnotherTermOrUnknownRoundOrSizeIsRefused) {
  World world(options_for(2));
  auto learners = world.start(2);
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  auto& a = *learners[0];
  const wire::Pull ask = a.pulls.back();
  world.push(a, ask, 1, 1, [](wire::Offer& offer) { offer.term = 7; });
  world.push(a, ask, 1, 1, [](wire::Offer& offer) { offer.round = 50; });
  world.push(a, ask, 1, 1, [](wire::Offer& offer) { offer.bytes = 3; });
  world.push(a, ask, 1, 1, [](wire::Offer& offer) { offer.codec = CodecId::kBf16; });
  world.push(a, ask, 1, 1, [](wire::Offer& offer) { offer.parts = 2; });
  ASSERT_EQ(world.refused_transfers.size(), 5u);
  EXPECT_EQ(world.refused_transfers[0], "another term");
  EXPECT_EQ(world.refused_transfers[1], "unknown round");
  EXPECT_NE(world.refused_transfers[2].find("3 bytes"), std::string::npos);
  world.push(a, ask, 100, 2);
  world.push(*learners[1], 100, 2);
  EXPECT_EQ(world.commits().size(), 1u) << "the good pushes still count";
  world.expect_ledger_balances();
}

TEST(CoreTest, NonFinitePushIsDroppedAndThreeInARowLeaveTheSeatOut) {
  World world(options_for(2));
  auto learners = world.start(2);
  bool finite = true;
  world.inspect = [&](const InspectPush& job) {
    return PushInspected{job.job, job.buffer, finite, 1.0};
  };
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  for (int i = 0; i < 3; ++i) {
    world.pass(2 * kSecond);
    world.step(*learners[0], 2);
    world.step(*learners[1], 2);
    ASSERT_FALSE(learners[1]->pulls.empty());
    const wire::Pull ask0 = learners[0]->pulls.front();
    const wire::Pull ask1 = learners[1]->pulls.front();
    learners[0]->pulls.erase(learners[0]->pulls.begin());
    learners[1]->pulls.erase(learners[1]->pulls.begin());
    finite = false;
    world.push(*learners[1], ask1, 77, 2);
    finite = true;
    world.push(*learners[0], ask0, 100, 2);
  }
  EXPECT_EQ(world.commits().size(), 3u);
  ASSERT_EQ(learners[1]->verdicts.size(), 3u);
  EXPECT_EQ(learners[1]->verdicts[0].reason, "non-finite");
  EXPECT_EQ(world.core.status(world.now).ledger.dropped, 231u);
  learners[1]->pulls.clear();
  learners[0]->pulls.clear();
  world.disconnect(*learners[0]);  // what is in flight asked both; a fresh start for seat 0
  auto& a = world.connect(0, 500);
  a.beat.phase = wire::Phase::kTrain;
  const auto dropped = world.core.status(world.now).seats[1].dropped;
  run_rounds(world, {&a, learners[1]}, 3);
  for (std::size_t i = world.commits().size() - 2; i < world.commits().size(); ++i) {
    EXPECT_EQ(world.commits()[i].expected, std::vector<Seat>{0}) << "left out for ten rounds";
  }
  EXPECT_EQ(world.core.status(world.now).seats[1].dropped, dropped);
  world.expect_ledger_balances();
}

TEST(CoreTest, NonFiniteMergeChangesNothingAndIsTriedAgain) {
  World world(options_for(2));
  auto learners = world.start(2);
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  world.finite_merges = false;
  for (TestLearner* learner : learners) {
    world.push(*learner, 100, 2);
  }
  EXPECT_TRUE(world.commits().empty());
  EXPECT_EQ(world.core.status(world.now).versions[0], 0u);
  world.finite_merges = true;
  for (TestLearner* learner : learners) {
    ASSERT_EQ(learner->pulls.back().attempt, 1u);
    ASSERT_EQ(learner->pulls.back().round, 1u);
    world.push(*learner, 100, 2);
  }
  EXPECT_EQ(world.commits().size(), 1u);
  world.expect_ledger_balances();
}

TEST(CoreTest, RoundTimeoutKeepsAcceptedPushesAndAsksTheMissingAgain) {
  auto options = options_for(2);
  options.round_timeout = 20 * kSecond;
  World world(options);
  auto learners = world.start(2);
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  world.push(*learners[0], 100, 2);
  const std::size_t asked = learners[1]->pulls.size();
  for (int i = 0; i < 21; ++i) {
    world.pass(kSecond);
    world.step(*learners[1]);
  }
  EXPECT_GT(learners[1]->pulls.size(), asked);
  const wire::Pull again = learners[1]->pulls.back();
  EXPECT_EQ(again.round, 1u);
  world.push(*learners[1], again, 100, 2);
  ASSERT_GE(world.commits().size(), 1u);
  EXPECT_EQ(world.commits()[0].responded.size(), 2u);
}

// ---- members that go
// -------------------------------------------------------------------------------------

TEST(CoreTest, DeadMemberCostsALeaseNotTheRoundTimeout) {
  World world(options_for(2));
  auto learners = world.start(2);
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  world.push(*learners[0], 100, 2);
  world.disconnect(*learners[1]);
  EXPECT_EQ(state_of(world, 1), "suspended") << "seen at once";
  world.pass(4500 * kMillisecond);
  EXPECT_TRUE(world.commits().empty()) << "it may come back within its lease";
  world.pass(kSecond);
  EXPECT_EQ(state_of(world, 1), "lost");
  ASSERT_EQ(world.commits().size(), 1u);
  EXPECT_EQ(world.commits()[0].responded, std::vector<Seat>{0});
}

TEST(CoreTest, SilentMemberWithAnOpenSocketIsLostAfterALease) {
  World world(options_for(2));
  auto learners = world.start(2);
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  world.push(*learners[0], 100, 2);
  world.silent.insert(1);
  world.pass(6 * kSecond);
  EXPECT_EQ(state_of(world, 1), "lost");
  EXPECT_TRUE(learners[1]->closed);
  EXPECT_EQ(world.commits().size(), 1u);
}

TEST(CoreTest, HungMemberDoesNotHoldTheRoundBeyondTheStallLimit) {
  World world(options_for(2));
  auto learners = world.start(2);
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  world.push(*learners[0], 100, 2);
  // Seat 1 beats but makes no step.
  world.pass(59 * kSecond);
  EXPECT_TRUE(world.commits().empty());
  world.pass(2 * kSecond);
  ASSERT_EQ(world.commits().size(), 1u);
  EXPECT_EQ(state_of(world, 1), "stalled");
  world.step(*learners[1]);
  EXPECT_EQ(state_of(world, 1), "live") << "its next step takes it in again";
}

TEST(CoreTest, EvaluatingMemberIsNotWaitedForAndMayStillAnswerWhileTheRoundIsOpen) {
  World world(options_for(2));
  auto learners = world.start(2);
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  const wire::Pull ask = learners[1]->pulls.back();
  learners[1]->beat.phase = wire::Phase::kEval;
  world.beat(*learners[1]);
  world.push(*learners[1], ask, 50, 2);
  world.push(*learners[0], 100, 2);
  ASSERT_EQ(world.commits().size(), 1u);
  EXPECT_EQ(world.commits()[0].responded.size(), 2u);
}

TEST(CoreTest, CompletePushStaysWhenItsSenderDies) {
  World world(options_for(2));
  auto learners = world.start(2);
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  world.push(*learners[1], 100, 2);
  world.disconnect(*learners[1]);
  world.push(*learners[0], 100, 2);
  ASSERT_EQ(world.commits().size(), 1u);
  EXPECT_EQ(world.commits()[0].responded.size(), 2u);
}

TEST(CoreTest, SessionResumedWithinTheLeaseIsAskedAgain) {
  World world(options_for(2));
  auto learners = world.start(2);
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  const auto session = learners[1]->welcome.session;
  const auto held = learners[1]->held;
  world.hold_transfers = true;
  world.push(*learners[1], 100, 2);  // breaks off
  world.disconnect(*learners[1]);
  world.hold_transfers = false;
  world.held.clear();
  auto& again = world.connect(1, 101, [&](wire::Hello& hello) {
    hello.session = session;
    hello.held = held;
    hello.local_step = 2;
  });
  EXPECT_EQ(again.welcome.resumed, 1);
  ASSERT_EQ(again.pulls.size(), 1u);
  EXPECT_EQ(again.pulls[0].round, 1u);
  world.push(again, 100, 2);
  world.push(*learners[0], 100, 2);
  ASSERT_EQ(world.commits().size(), 1u);
  EXPECT_EQ(world.commits()[0].responded.size(), 2u);
  world.expect_ledger_balances();
  EXPECT_EQ(world.buffers.size(), 4u);
}

TEST(CoreTest, RejoinedProcessIsOverwrittenAndCountsOnlyAfterItsSteps) {
  World world(options_for(2));
  auto learners = world.start(2);
  run_rounds(world, learners, 4);
  world.disconnect(*learners[1]);
  auto& again = world.connect(1, 555);
  EXPECT_EQ(again.welcome.resumed, 0);
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(again.held[i].version, 1u) << "it got every fragment";
  }
  again.beat.phase = wire::Phase::kTrain;
  world.step(again, 1);
  world.pass(3 * kSecond);
  EXPECT_TRUE(again.pulls.empty()) << "two steps are needed before it is asked";
  run_rounds(world, {learners[0], &again}, 4);
  EXPECT_EQ(world.commits().back().responded.size(), 2u);
  EXPECT_EQ(world.records<TapeJoin>().size(), 3u);
}

TEST(CoreTest, LateJoinerComesIntoTheRunningRun) {
  World world(options_for(2));
  auto learners = world.start(2);
  run_rounds(world, learners, 5);
  auto& third = world.connect(2, 300);
  EXPECT_EQ(third.held[0].version, 2u);
  third.beat.phase = wire::Phase::kTrain;
  learners.push_back(&third);
  run_rounds(world, learners, 4);
  EXPECT_EQ(world.commits().back().responded.size(), 3u);
}

TEST(CoreTest, SameSeatRejoinsAHundredTimes) {
  World world(options_for(2));
  auto learners = world.start(2);
  run_rounds(world, learners, 1);
  TestLearner* last = learners[1];
  for (std::uint64_t i = 0; i < 100; ++i) {
    world.disconnect(*last);
    last = &world.connect(1, 1000 + i);
    ASSERT_FALSE(last->refused);
    world.pass(kSecond);
  }
  EXPECT_EQ(world.core.status(world.now).seats.size(), 2u);
  EXPECT_EQ(world.buffers.size(), 4u);
  run_rounds(world, {learners[0], last}, 2);
  world.expect_ledger_balances();
}

// ---- durability and restart
// ------------------------------------------------------------------------------

TEST(CoreTest, CommitDurabilityPutsTheCheckpointBeforeTheBroadcast) {
  World world(options_for(2));
  auto learners = world.start(2);
  world.order.clear();
  world.hold_checkpoints = true;
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  for (TestLearner* learner : learners) {
    world.push(*learner, 100, 2);
  }
  EXPECT_EQ(world.order, (std::vector<std::string>{"merge", "checkpoint"}));
  EXPECT_EQ(world.core.status(world.now).durable_step, 0u);
  world.release_held();
  EXPECT_EQ(world.core.status(world.now).durable_step, 1u);
  EXPECT_EQ(world.order[2], "verdict");
  EXPECT_EQ(world.order[4], "broadcast");
}

TEST(CoreTest, FullDiskIsReportedAndTrainingGoesOn) {
  World world(options_for(2));
  auto learners = world.start(2);
  world.fail_checkpoints = true;
  run_rounds(world, learners, 2);
  auto status = world.core.status(world.now);
  EXPECT_NE(status.error.find("disk full"), std::string::npos);
  EXPECT_EQ(status.durable_step, 0u);
  EXPECT_EQ(learners[0]->held[0].version, 1u) << "the broadcast was sent all the same";
  world.fail_checkpoints = false;
  run_rounds(world, learners, 1);
  status = world.core.status(world.now);
  EXPECT_EQ(status.durable_step, status.global_step);
  EXPECT_EQ(status.error, "");
}

TEST(CoreTest, IntervalDurabilityBroadcastsAtOnceAndSavesByTheClock) {
  auto options = options_for(2);
  options.durability = Durability::kInterval;
  World world(options);
  auto learners = world.start(2);
  run_rounds(world, learners, 2);
  EXPECT_EQ(world.checkpoints.size(), 1u) << "version 0 only";
  world.pass(31 * kSecond);
  EXPECT_EQ(world.checkpoints.size(), 2u);
  EXPECT_EQ(world.core.status(world.now).durable_step, world.core.status(world.now).global_step);
}

TEST(CoreTest, RestartTakesANewTermAndKeepsAnchorsBelowTheForkPoint) {
  World first(options_for(2));
  auto learners = first.start(2);
  run_rounds(first, learners, 6);
  const CoreState saved = first.checkpoints.back();
  ASSERT_EQ(saved.global_step, 6u);

  auto options = options_for(2);
  options.term = 2;
  World second(options, Restored{first.layout, saved});
  EXPECT_EQ(second.core.status(0).global_step, 6u);
  // Seat 0 lived through the break and holds what is current; seat 1 holds one fragment above the
  // fork.
  auto held = learners[0]->held;
  auto& a = second.connect(0, 100, [&](wire::Hello& hello) {
    hello.held = held;
    hello.local_step = 40;
  });
  EXPECT_EQ(a.welcome.term, 2u);
  EXPECT_EQ(a.welcome.resumed, 0);
  EXPECT_EQ(a.welcome.versions, saved.versions);
  EXPECT_EQ(a.welcome.seat_tokens, saved.seats[0].tokens);
  EXPECT_EQ(second.core.status(second.now).phase, RunPhase::kWaiting) << "seat 1 is awaited";
  held[3].version = 9;
  auto& b = second.connect(1, 101, [&](wire::Hello& hello) { hello.held = held; });
  EXPECT_EQ(second.core.status(second.now).phase, RunPhase::kTraining);
  for (const wire::Held& item : a.held) {
    EXPECT_EQ(item.term, 1u) << "nothing was sent to it";
  }
  EXPECT_EQ(b.held[3].term, 2u) << "the void version was overwritten";
  EXPECT_EQ(b.held[3].version, saved.versions[3]);
  a.beat.local_step = b.beat.local_step = 40;
  run_rounds(second, {&a, &b}, 2);
  EXPECT_EQ(second.commits().front().round, 7u);
  EXPECT_EQ(second.commits().front().fragment, 2u);
  EXPECT_EQ(second.checkpoints.back().forks.size(), 2u);
  second.expect_ledger_balances();
}

TEST(CoreTest, RestartDoesNotWaitForeverForASeatThatStaysAway) {
  World first(options_for(2));
  auto learners = first.start(2);
  run_rounds(first, learners, 2);
  auto options = options_for(2);
  options.term = 2;
  World second(options, Restored{first.layout, first.checkpoints.back()});
  second.connect(0, 100);
  second.pass(9 * kSecond);
  EXPECT_EQ(second.core.status(second.now).phase, RunPhase::kWaiting);
  second.pass(2 * kSecond);
  EXPECT_EQ(second.core.status(second.now).phase, RunPhase::kTraining);
}

// ---- the end
// ---------------------------------------------------------------------------------------------

TEST(CoreTest, PlannedStepsEndInOneSweepAndFinalAcknowledgements) {
  auto options = options_for(2);
  options.total_steps = 8;
  World world(options);
  auto learners = world.start(2);
  EXPECT_EQ(world.core.status(world.now).total_steps, 12u);
  run_rounds(world, learners, 8);
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kSweeping);
  ASSERT_FALSE(learners[0]->pulls.empty());
  EXPECT_EQ(learners[0]->pulls[0].sweep, 1);
  sweep(world, learners);
  EXPECT_EQ(world.commits().size(), 12u);
  for (std::size_t i = 8; i < 12; ++i) {
    EXPECT_EQ(world.commits()[i].fragment, i - 8) << "each fragment once";
    EXPECT_TRUE(world.commits()[i].sweep);
  }
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kFinal);
  for (TestLearner* learner : learners) {
    EXPECT_EQ(learner->finals.size(), 4u);
    EXPECT_FALSE(world.ended);
    world.acknowledge(*learner);
    EXPECT_EQ(learner->goodbyes.size(), 1u);
  }
  ASSERT_TRUE(world.ended);
  EXPECT_EQ(world.ended->exit_code, 0);
  EXPECT_EQ(world.checkpoints.back().global_step, 12u);
  EXPECT_EQ(world.core.status(world.now).durable_step, 12u);
  world.expect_ledger_balances();
  EXPECT_EQ(world.core.status(world.now).ledger.waiting, 0u);
}

TEST(CoreTest, LimitsOfAllMembersEndTheRunAndEmptyAnswersCommitNothing) {
  World world(options_for(2));
  auto learners = world.start(2);
  run_rounds(world, learners, 2);
  for (TestLearner* learner : learners) {
    world.give(
        MessageArrived{learner->conn, wire::Limit{learner->beat.local_step, learner->beat.tokens}});
  }
  for (int turn = 0; turn < 50; ++turn) {
    for (TestLearner* learner : learners) {
      while (!learner->pulls.empty()) {
        const wire::Pull ask = learner->pulls.front();
        learner->pulls.erase(learner->pulls.begin());
        world.push(*learner, ask, 0, 0);
      }
    }
    world.pass(100 * kMillisecond);
  }
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kFinal);
  EXPECT_EQ(world.commits().size(), 2u);
  for (TestLearner* learner : learners) {
    world.acknowledge(*learner);
  }
  ASSERT_TRUE(world.ended);
  EXPECT_EQ(world.ended->exit_code, 0);
  world.expect_ledger_balances();
}

TEST(CoreTest, OneMemberAtItsLimitDoesNotStopTheOther) {
  World world(options_for(2));
  auto learners = world.start(2);
  run_rounds(world, learners, 2);
  auto& done = *learners[0];
  world.give(MessageArrived{done.conn, wire::Limit{done.beat.local_step, done.beat.tokens}});
  for (int turn = 0; turn < 60; ++turn) {
    world.pass(kSecond);
    world.step(*learners[1]);
    for (TestLearner* learner : learners) {
      while (!learner->pulls.empty()) {
        const wire::Pull ask = learner->pulls.front();
        learner->pulls.erase(learner->pulls.begin());
        world.push(*learner, ask, learner == &done ? 0 : 10, learner == &done ? 0 : 1);
      }
    }
  }
  EXPECT_GT(world.commits().size(), 10u);
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kTraining);
}

TEST(CoreTest, FinishMakesTheSweepWithWhatIsThere) {
  World world(options_for(2));
  auto learners = world.start(2);
  run_rounds(world, learners, 2);
  world.give(HelloArrived{900,
                          [] {
                            wire::Hello hello;
                            hello.run_id = "run";
                            hello.role = wire::Role::kController;
                            return hello;
                          }(),
                          true,
                          {}});
  world.give(MessageArrived{900, wire::Finish{wire::FinishMode::kFinish, "enough"}});
  EXPECT_EQ(world.learners[900].goodbyes.size(), 1u);
  sweep(world, learners);
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kFinal);
  EXPECT_EQ(world.records<TapeFinish>().at(0).reason, "enough");
  EXPECT_EQ(world.checkpoints.back().finish_reason, "enough") << "a restart goes on ending";
}

TEST(CoreTest, FinishNowSkipsTheSweep) {
  World world(options_for(2));
  auto learners = world.start(2);
  run_rounds(world, learners, 2);
  world.give(FinishRequested{wire::FinishMode::kNow, "now"});
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kFinal);
  world.acknowledge(*learners[0]);
  world.acknowledge(*learners[1]);
  ASSERT_TRUE(world.ended);
}

TEST(CoreTest, FinishBeforeTrainingEndsAtOnce) {
  World world(options_for(2));
  world.give(FinishRequested{wire::FinishMode::kFinish, "changed my mind"});
  ASSERT_TRUE(world.ended);
  EXPECT_EQ(world.ended->exit_code, 0);
}

TEST(CoreTest, WrongProofOrRunOfAControllerIsRefused) {
  World world(options_for(2));
  wire::Hello hello;
  hello.run_id = "run";
  hello.role = wire::Role::kController;
  world.give(HelloArrived{900, hello, false, {}});
  EXPECT_EQ(world.learners[900].refused->code, wire::RefuseCode::kProof);
  hello.run_id = "other";
  world.give(HelloArrived{901, hello, true, {}});
  EXPECT_EQ(world.learners[901].refused->code, wire::RefuseCode::kRun);
}

// A member that has acknowledged does not come back: a syncer that died now would wait for nobody.
TEST(CoreTest, FinalValuesGoOutWhenTheyAreDurable) {
  auto options = options_for(2);
  options.durability = Durability::kInterval;
  World world(options);
  auto learners = world.start(2);
  run_rounds(world, learners, 2);
  world.hold_checkpoints = true;
  world.give(FinishRequested{wire::FinishMode::kFinish, "enough"});
  sweep(world, learners);
  ASSERT_EQ(world.core.status(world.now).phase, RunPhase::kFinal);
  EXPECT_TRUE(learners[0]->finals.empty()) << "the last values are not on disk";
  world.hold_checkpoints = false;
  world.release_held();
  EXPECT_EQ(world.core.status(world.now).durable_step, world.core.status(world.now).global_step);
  EXPECT_EQ(learners[0]->finals.size(), 4u);
}

TEST(CoreTest, FinalValuesGoOutThoughTheDiskRefuses) {
  auto options = options_for(2);
  options.durability = Durability::kInterval;
  World world(options);
  auto learners = world.start(2);
  run_rounds(world, learners, 2);
  world.fail_checkpoints = true;
  world.give(FinishRequested{wire::FinishMode::kFinish, "enough"});
  sweep(world, learners);
  EXPECT_EQ(learners[0]->finals.size(), 4u);
  EXPECT_NE(world.core.status(world.now).error.find("disk full"), std::string::npos);
}

TEST(CoreTest, MemberThatReturnsInTheFinalPhaseGetsTheValuesAgain) {
  auto options = options_for(2);
  World world(options);
  auto learners = world.start(2);
  run_rounds(world, learners, 2);
  const auto session = learners[1]->welcome.session;
  world.give(FinishRequested{wire::FinishMode::kFinish, "enough"});
  sweep(world, learners);
  ASSERT_EQ(world.core.status(world.now).phase, RunPhase::kFinal);
  world.disconnect(*learners[1]);
  world.acknowledge(*learners[0]);
  EXPECT_FALSE(world.ended) << "seat 1 may come back within its lease";
  auto& again = world.connect(1, 101, [&](wire::Hello& hello) { hello.session = session; });
  EXPECT_EQ(again.finals.size(), 4u);
  world.acknowledge(again);
  ASSERT_TRUE(world.ended);
  EXPECT_EQ(world.ended->exit_code, 0);
  EXPECT_EQ(world.records<TapeFinal>().at(0).acknowledged.size(), 2u);
}

TEST(CoreTest, MissingAcknowledgementIsNamedAndEndsWithFour) {
  auto options = options_for(2);
  options.final_timeout = 30 * kSecond;
  World world(options);
  auto learners = world.start(2);
  run_rounds(world, learners, 2);
  world.give(FinishRequested{wire::FinishMode::kFinish, "enough"});
  sweep(world, learners);
  world.acknowledge(*learners[0]);
  world.pass(31 * kSecond);
  ASSERT_TRUE(world.ended);
  EXPECT_EQ(world.ended->exit_code, 4);
  EXPECT_NE(world.ended->reason.find("seats 1"), std::string::npos);
}

TEST(CoreTest, MemberLostBeforeFinalIsOnlyAWarning) {
  World world(options_for(2));
  auto learners = world.start(2);
  run_rounds(world, learners, 2);
  world.disconnect(*learners[1]);
  world.pass(6 * kSecond);
  world.give(FinishRequested{wire::FinishMode::kFinish, "enough"});
  sweep(world, {learners[0]});
  world.acknowledge(*learners[0]);
  ASSERT_TRUE(world.ended);
  EXPECT_EQ(world.ended->exit_code, 0);
  EXPECT_EQ(world.records<TapeLost>().size(), 1u);
}

TEST(CoreTest, OtherFinalValuesThanSentAreNotAcknowledged) {
  World world(options_for(1));
  auto learners = world.start(1);
  run_rounds(world, learners, 2);
  world.give(FinishRequested{wire::FinishMode::kFinish, "enough"});
  sweep(world, learners);
  auto wrong = *learners[0]->final_state;
  wrong.digests[0][0] ^= 1;
  world.give(MessageArrived{learners[0]->conn,
                            wire::FinalAck{wrong.global_step, wrong.versions, wrong.digests}});
  EXPECT_FALSE(world.ended);
  EXPECT_TRUE(learners[0]->closed);
}

// ---- lockstep
// --------------------------------------------------------------------------------------------

TEST(CoreTest, LockstepAsksForExactSteps) {
  auto options = options_for(2);
  options.lockstep = true;
  options.sync_interval_steps = 6;
  World world(options);
  auto learners = world.start(2);
  std::vector<std::uint64_t> steps;
  for (int i = 0; i < 6; ++i) {
    ASSERT_FALSE(learners[0]->pulls.empty());
    for (TestLearner* learner : learners) {
      const wire::Pull ask = learner->pulls.front();
      learner->pulls.erase(learner->pulls.begin());
      if (learner == learners[0]) {
        steps.push_back(ask.at_step);
      }
      world.push(*learner, ask, 10, 1);
    }
  }
  // ceil(t·6/4) for t = 1 … 6
  EXPECT_EQ(steps, (std::vector<std::uint64_t>{2, 3, 5, 6, 8, 9}));
}

}  // namespace
}  // namespace yeto::sync
