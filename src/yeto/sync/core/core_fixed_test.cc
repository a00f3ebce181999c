// SPDX-License-Identifier: Apache-2.0
// Goal: with a fixed roster exactly the named seats take part, each answers every round, and a lost
// one pauses the run instead of being left out. Method: the core in a made-up world (core_world.h).
#include <gtest/gtest.h>

#include "yeto/sync/core/core_world.h"

namespace yeto::sync {
namespace {

CoreOptions fixed_options(std::vector<Seat> seats) {
  CoreOptions options = options_for(1);
  options.fixed_roster = std::move(seats);
  return options;
}

// All push what they are asked for, the given seats excepted.
void answer(World& world, const std::vector<TestLearner*>& learners, Seat except = 99) {
  for (TestLearner* learner : learners) {
    if (learner->seat == except) {
      continue;
    }
    while (!learner->pulls.empty()) {
      const wire::Pull ask = learner->pulls.front();
      learner->pulls.erase(learner->pulls.begin());
      world.push(*learner, ask, 100, 2);
    }
  }
}

// Seats 0 to 2 have answered round 1 except seat 2, whose socket closes.
struct FixedRosterTest : testing::Test {
  World world{[] {
    CoreOptions options = fixed_options({0, 1, 2});
    options.recover_timeout = 60 * kSecond;
    return options;
  }()};
  std::vector<TestLearner*> learners;

  void SetUp() override {
    for (Seat seat = 0; seat < 3; ++seat) {
      learners.push_back(&world.connect(seat, 100 + seat));
    }
    for (TestLearner* learner : learners) {
      world.step(*learner, 2);
    }
    ASSERT_FALSE(learners[2]->pulls.empty());
  }
  std::string waiting_for() { return world.core.status(world.now).waiting_for; }
};

TEST(FixedRosterStartTest, WaitsForEverySeatAndRefusesOthersByName) {
  CoreOptions options = fixed_options({3, 7});
  options.start_quorum = 1;
  options.start_timeout = kSecond;
  World world(options);
  world.connect(3, 1).beat.phase = wire::Phase::kLoad;
  auto& stranger = world.connect(4, 2);
  ASSERT_TRUE(stranger.refused);
  EXPECT_EQ(stranger.refused->code, wire::RefuseCode::kSeat);
  world.pass(700 * kSecond);
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kWaiting) << "no quorum replaces a seat";
  EXPECT_FALSE(world.ended) << "a new run waits as long as it takes";
  EXPECT_NE(world.core.status(world.now).waiting_for.find("seat 7 (it has not joined)"),
            std::string::npos);
  auto& last = world.connect(7, 3);
  EXPECT_EQ(last.welcome.settings.fixed_roster, 1);
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kTraining);
}

TEST_F(FixedRosterTest, RoundWaitsForALostSeatHoweverLongAndGoesOnWhenItReturns) {
  answer(world, learners, 2);
  const auto held = learners[2]->held;
  world.disconnect(*learners[2]);
  world.pass(50 * kSecond);
  EXPECT_TRUE(world.commits().empty()) << "two of three do not close a round";
  EXPECT_EQ(waiting_for(), "the fixed roster waits for seat 2 (socket closed and lease ended)");
  auto& again = world.connect(2, 102, [&](wire::Hello& hello) {
    hello.held = held;
    hello.local_step = 2;
  });
  EXPECT_EQ(again.welcome.resumed, 0);
  ASSERT_EQ(again.pulls.size(), 1u) << "asked as soon as it holds everything";
  EXPECT_EQ(again.pulls[0].round, 1u);
  EXPECT_EQ(waiting_for(), "");
  learners[2] = &again;
  answer(world, learners);
  ASSERT_EQ(world.commits().size(), 1u);
  EXPECT_EQ(world.commits()[0].responded.size(), 3u);
  run_rounds(world, learners, 4);
  world.expect_ledger_balances();
}

TEST_F(FixedRosterTest, AnotherProcessTakesTheSeatAfterItsOverwrite) {
  answer(world, learners, 2);
  world.disconnect(*learners[2]);
  world.hold_sends = true;
  auto& other = world.connect(2, 999);
  world.step(other, 5);
  EXPECT_TRUE(other.pulls.empty()) << "not before it holds every fragment";
  world.hold_sends = false;
  for (int turn = 0; turn < 20; ++turn) {
    world.release_held();
    world.pass(kSecond);
    world.step(other);
  }
  ASSERT_FALSE(other.pulls.empty());
  EXPECT_EQ(other.pulls[0].round, 1u);
  learners[2] = &other;
  answer(world, learners);
  ASSERT_GE(world.commits().size(), 1u);
  EXPECT_EQ(world.commits()[0].responded.size(), 3u);
}

TEST_F(FixedRosterTest, RecoverTimeoutEndsTheRunWithFourAndNamesTheSeats) {
  answer(world, learners, 2);
  world.disconnect(*learners[2]);
  world.pass(59 * kSecond);
  EXPECT_FALSE(world.ended);
  world.pass(2 * kSecond);
  ASSERT_TRUE(world.ended);
  EXPECT_EQ(world.ended->exit_code, 4);
  EXPECT_NE(world.ended->reason.find("seats 2 of the fixed roster"), std::string::npos);
}

TEST_F(FixedRosterTest, HungSeatPausesTheRunToo) {
  answer(world, learners, 2);
  for (int second = 0; second < 70; ++second) {  // seat 2 beats but makes no step
    world.pass(kSecond);
    world.step(*learners[0]);
    world.step(*learners[1]);
  }
  EXPECT_TRUE(world.commits().empty());
  EXPECT_EQ(waiting_for(), "the fixed roster waits for seat 2 (it makes no step)");
  world.step(*learners[2]);
  answer(world, learners);
  EXPECT_FALSE(world.commits().empty());
}

TEST_F(FixedRosterTest, WhatIsNotDurableIsSavedBeforeTheTimeoutEndsTheRun) {
  CoreOptions options = fixed_options({0, 1});
  options.recover_timeout = 20 * kSecond;
  options.durability = Durability::kInterval;
  options.checkpoint_every = 1000 * kSecond;
  World slow(options);
  std::vector<TestLearner*> two{&slow.connect(0, 1), &slow.connect(1, 2)};
  run_rounds(slow, two, 3);
  const auto step = slow.core.status(slow.now).global_step;
  ASSERT_LT(slow.core.status(slow.now).durable_step, step);
  slow.disconnect(*two[1]);
  slow.pass(30 * kSecond);
  ASSERT_TRUE(slow.ended);
  EXPECT_EQ(slow.ended->exit_code, 4);
  EXPECT_EQ(slow.checkpoints.back().global_step, step);
}

TEST_F(FixedRosterTest, BadPushesAreReportedButNobodyIsLeftOut) {
  world.inspect = [](const InspectPush& job) {
    return PushInspected{job.job, job.buffer, false, 1.0};
  };
  for (int turn = 0; turn < 5; ++turn) {
    answer(world, learners);
    world.pass(100 * kMillisecond);  // the next attempt is launched
  }
  world.inspect = [](const InspectPush& job) {
    return PushInspected{job.job, job.buffer, true, 1.0};
  };
  EXPECT_NE(world.core.status(world.now).error.find("bad pushes of seat"), std::string::npos);
  answer(world, learners);
  ASSERT_FALSE(world.commits().empty());
  EXPECT_EQ(world.commits()[0].responded.size(), 3u);
}

TEST_F(FixedRosterTest, LastSweepWaitsForEverySeat) {
  answer(world, learners);
  run_rounds(world, learners, 2);
  for (TestLearner* learner : learners) {
    learner->pulls.clear();
  }
  const auto held = learners[2]->held;
  world.disconnect(*learners[2]);
  world.give(FinishRequested{wire::FinishMode::kFinish, "enough"});
  sweep(world, {learners[0], learners[1]});
  EXPECT_NE(world.core.status(world.now).phase, RunPhase::kFinal);
  auto& again = world.connect(2, 102, [&](wire::Hello& hello) { hello.held = held; });
  sweep(world, {learners[0], learners[1], &again});
  EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kFinal);
  EXPECT_EQ(world.commits().back().responded.size(), 3u);
}

TEST_F(FixedRosterTest, SeatAtItsLimitAnswersWithNothingAndTheOthersGoOn) {
  answer(world, learners);
  world.give(MessageArrived{learners[2]->conn, wire::Limit{2, 20}});
  const std::size_t before = world.commits().size();
  for (int turn = 0; turn < 40; ++turn) {
    world.pass(kSecond);
    world.step(*learners[0]);
    world.step(*learners[1]);
    for (TestLearner* learner : learners) {
      for (const wire::Pull& ask : std::exchange(learner->pulls, {})) {
        const bool empty = learner == learners[2];
        world.push(*learner, ask, empty ? 0 : 10, empty ? 0 : 1);
      }
    }
  }
  EXPECT_GT(world.commits().size(), before + 8) << "each fragment more than once";
  EXPECT_EQ(world.commits().back().expected.size(), 3u);
  EXPECT_EQ(world.commits().back().responded.size(), 2u);
}

TEST(FixedRosterRestartTest, RestartedRunAwaitsItsSeatsForTheRecoverTimeout) {
  World first(fixed_options({0, 1}));
  std::vector<TestLearner*> learners{&first.connect(0, 1), &first.connect(1, 2)};
  run_rounds(first, learners, 2);
  CoreOptions options = fixed_options({0, 1});
  options.term = 2;
  options.recover_timeout = 30 * kSecond;
  World second(options, Restored{first.layout, first.checkpoints.back()});
  second.connect(0, 1);
  second.pass(20 * kSecond);
  EXPECT_EQ(second.core.status(second.now).phase, RunPhase::kWaiting) << "not without seat 1";
  second.pass(11 * kSecond);
  ASSERT_TRUE(second.ended);
  EXPECT_EQ(second.ended->exit_code, 4);
  EXPECT_NE(second.ended->reason.find("seats 1 "), std::string::npos);
}

// A lost session in lockstep with a fixed roster: the same process resumes within its lease and is
// asked again for the very step; nobody else goes on meanwhile.
TEST(FixedRosterLockstepTest, LostSessionIsAwaitedAndAskedForTheSameStep) {
  CoreOptions options = fixed_options({0, 1});
  options.lockstep = true;
  options.sync_interval_steps = 4;
  World world(options);
  std::vector<TestLearner*> learners{&world.connect(0, 1), &world.connect(1, 2)};
  ASSERT_EQ(learners[1]->pulls.size(), 2u) << "pipelined";
  EXPECT_EQ(learners[1]->pulls[0].at_step, 1u);
  answer(world, learners, 1);
  const auto session = learners[1]->welcome.session;
  const auto held = learners[1]->held;
  world.disconnect(*learners[1]);
  world.pass(3 * kSecond);
  EXPECT_TRUE(world.commits().empty());
  auto& again = world.connect(1, 2, [&](wire::Hello& hello) {
    hello.session = session;
    hello.held = held;
  });
  ASSERT_EQ(again.welcome.resumed, 1);
  ASSERT_EQ(again.pulls.size(), 2u);
  EXPECT_EQ(again.pulls[0].at_step, 1u);
  EXPECT_EQ(again.pulls[1].at_step, 2u);
  learners[1] = &again;
  for (int i = 0; i < 6; ++i) {
    answer(world, learners);
  }
  EXPECT_GE(world.commits().size(), 6u);
  for (const TapeRound& round : world.commits()) {
    EXPECT_EQ(round.responded.size(), 2u);
  }
}

TEST(LockstepTest, LostSessionOfAnOpenRosterEndsItsPartAndTheOthersWaitForALearner) {
  CoreOptions options = options_for(2);
  options.lockstep = true;
  options.sync_interval_steps = 4;
  World world(options);
  auto learners = world.start(2);
  answer(world, learners, 1);
  world.disconnect(*learners[1]);
  world.pass(6 * kSecond);
  for (int i = 0; i < 6; ++i) {
    answer(world, learners, 1);
  }
  EXPECT_EQ(world.core.status(world.now).waiting_for, "lockstep waits for every learner");
}

}  // namespace
}  // namespace yeto::sync
