// SPDX-License-Identifier: Apache-2.0
// Goal: work that misses its round is not lost, counts once and with less weight. Method: the core
// in a made-up world (core_world.h); seat 3 of four is late.
#include <gtest/gtest.h>

#include <cmath>

#include "yeto/sync/core/carried.h"
#include "yeto/sync/core/core_world.h"

namespace yeto::sync {
namespace {

struct LateTest : testing::Test {
  std::optional<World> made;
  std::vector<TestLearner*> learners;
  wire::Pull missed;  // seat 3's pull of round 1

  World& world() { return *made; }
  Ledger ledger() { return world().core.status(world().now).ledger; }
  SeatStatus seat(Seat number) { return world().core.status(world().now).seats[number]; }

  // Round 1 commits without seat 3.
  void start(const std::function<void(CoreOptions&)>& change = {}) {
    CoreOptions options = options_for(4);  // K = 3
    if (change) {
      change(options);
    }
    made.emplace(options);
    learners = world().start(4);
    for (TestLearner* learner : learners) {
      world().step(*learner, 2);
    }
    missed = learners[3]->pulls.at(0);
    for (int i = 0; i < 3; ++i) {
      world().push(*learners[static_cast<std::size_t>(i)]);
    }
    before_close();
    world().pass(2 * kSecond);
    ASSERT_EQ(world().commits().size(), 1u);
    clear_pulls();
  }
  virtual void before_close() {}
  void clear_pulls() {
    for (TestLearner* learner : learners) {
      std::erase_if(learner->pulls,
                    [&](const wire::Pull& ask) { return ask.round <= world().commits().size(); });
    }
  }
  void push_late(std::uint64_t tokens = 70) { world().push(*learners[3], missed, tokens, 2); }
  std::vector<wire::Verdict> verdicts_of(std::uint64_t round) {
    auto out = learners[3]->verdicts;
    std::erase_if(out, [&](const wire::Verdict& it) { return it.round != round; });
    return out;
  }
  // Rounds without an answer of seat 3.
  void run_without_the_late_one(std::size_t rounds) {
    const std::size_t goal = world().commits().size() + rounds;
    for (int turn = 0; turn < 500 && world().commits().size() < goal; ++turn) {
      world().pass(kSecond);
      for (TestLearner* learner : learners) {
        world().step(*learner);
        while (learner != learners[3] && !learner->pulls.empty()) {
          const wire::Pull ask = learner->pulls.front();
          learner->pulls.erase(learner->pulls.begin());
          world().push(*learner, ask, 100, 2);
        }
      }
    }
    ASSERT_GE(world().commits().size(), goal);
  }
  // Lets all finish; seats answer the sweep with `steps` steps of work.
  void finish(std::uint64_t steps) {
    world().give(FinishRequested{wire::FinishMode::kFinish, "enough"});
    for (int turn = 0; turn < 100; ++turn) {
      for (TestLearner* learner : learners) {
        while (!learner->pulls.empty()) {
          const wire::Pull ask = learner->pulls.front();
          learner->pulls.erase(learner->pulls.begin());
          world().push(*learner, ask, steps * 10, ask.sweep != 0 ? steps : 1);
        }
      }
      world().pass(100 * kMillisecond);
    }
    EXPECT_EQ(world().core.status(world().now).phase, RunPhase::kFinal);
  }
};

TEST_F(LateTest, LatePushIsCarriedAndDiscounted) {
  start();
  push_late();
  ASSERT_EQ(verdicts_of(1).size(), 1u);
  EXPECT_EQ(verdicts_of(1)[0].outcome, wire::Outcome::kCarried);
  EXPECT_EQ(ledger().waiting, 70u);
  EXPECT_EQ(seat(3).carried, 1u);
  EXPECT_EQ(world().core.status(world().now).carried_pushes, 1u);
  ASSERT_EQ(world().records<TapeLate>().size(), 1u);
  EXPECT_TRUE(world().records<TapeLate>()[0].carried);

  run_rounds(world(), learners, 4);  // round 5 is the fragment's next
  const Merge& merge = world().merges.at(4);
  ASSERT_EQ(merge.pushes.size(), 5u) << "four own pushes and the late one";
  EXPECT_EQ(merge.pushes[3].seat, 3u);
  EXPECT_EQ(merge.pushes[3].base_version, 0u) << "the older base comes first";
  EXPECT_DOUBLE_EQ(merge.pushes[3].factor, 0.5);
  EXPECT_EQ(merge.pushes[3].c_tokens, 70u);
  EXPECT_EQ(merge.pushes[4].seat, 3u);
  EXPECT_EQ(merge.pushes[4].base_version, 1u);
  EXPECT_DOUBLE_EQ(merge.pushes[4].factor, 1.0);
  const TapeRound commit = world().commits().at(4);
  ASSERT_EQ(commit.carried.size(), 1u);
  EXPECT_EQ(commit.carried[0].seat, 3u);
  EXPECT_EQ(commit.carried[0].value, 1.0) << "its lag";
  EXPECT_DOUBLE_EQ(commit.factors.at(0).value, 0.5);
  EXPECT_EQ(commit.responded.size(), 4u);
  EXPECT_EQ(commit.ledger.pushed,
            commit.ledger.merged + commit.ledger.dropped + commit.ledger.waiting);
  ASSERT_EQ(verdicts_of(1).size(), 2u);
  EXPECT_EQ(verdicts_of(1)[1].outcome, wire::Outcome::kMerged) << "how it ended";
  EXPECT_EQ(ledger().waiting, 0u);
  EXPECT_EQ(ledger().dropped, 0u);
}

TEST_F(LateTest, WelcomeTellsHowFarWorkMayLag) {
  start();
  EXPECT_EQ(learners[0]->welcome.settings.max_lag, 2u);
}

TEST_F(LateTest, RawReferencesCountTheRetainedShareOnlyOnce) {
  start([](CoreOptions& options) { options.merge_alpha = 0.75; });
  push_late();
  run_rounds(world(), learners, 4);
  EXPECT_DOUBLE_EQ(world().merges.at(4).pushes[3].factor, 0.25) << "1 − α";
}

TEST_F(LateTest, BlendedReferencesDiscountByLagAlone) {
  start([](CoreOptions& options) {
    options.merge_alpha = 0.75;
    options.delta_blended = true;
  });
  push_late();
  run_rounds(world(), learners, 4);
  EXPECT_DOUBLE_EQ(world().merges.at(4).pushes[3].factor, 0.5);
}

struct LateOnTheWay : LateTest {
  void before_close() override {
    world().hold_transfers = true;
    push_late();
  }
};
TEST_F(LateOnTheWay, PushOnTheWayWhenItsRoundClosesIsCarried) {
  start();
  EXPECT_TRUE(verdicts_of(1).empty());
  EXPECT_EQ(ledger().waiting, 70u);
  world().hold_transfers = false;
  world().release_held();
  ASSERT_EQ(verdicts_of(1).size(), 1u);
  EXPECT_EQ(verdicts_of(1)[0].outcome, wire::Outcome::kCarried);
}
TEST_F(LateOnTheWay, BrokenOffItIsDroppedAndNotAskedForAgain) {
  start();
  world().held.clear();
  world().disconnect(*learners[3]);
  EXPECT_EQ(ledger().waiting, 0u);
  EXPECT_EQ(ledger().dropped, 70u);
}

struct LateMeasured : LateTest {
  void before_close() override {
    world().hold_inspections = true;
    push_late();
  }
};
TEST_F(LateMeasured, PushBeingMeasuredWhenItsRoundClosesIsCarried) {
  start();
  world().hold_inspections = false;
  world().release_held();
  ASSERT_EQ(verdicts_of(1).size(), 1u);
  EXPECT_EQ(verdicts_of(1)[0].outcome, wire::Outcome::kCarried);
}
TEST_F(LateMeasured, NothingOfADeadProcessCountsAfterItsSuccessorJoined) {
  start();
  world().disconnect(*learners[3]);
  world().connect(3, 999);
  world().hold_inspections = false;
  world().release_held();
  EXPECT_EQ(ledger().dropped, 70u);
  EXPECT_EQ(world().core.status(world().now).carried_pushes, 0u);
}

TEST_F(LateTest, NewestLateWorkOfASeatIsKept) {
  start();
  run_without_the_late_one(4);  // round 5 closes without seat 3 too
  const auto second = std::find_if(learners[3]->pulls.begin(), learners[3]->pulls.end(),
                                   [](const wire::Pull& ask) { return ask.round == 5; });
  ASSERT_NE(second, learners[3]->pulls.end());
  const std::uint64_t in_flight = ledger().waiting;
  push_late(70);  // lag 2
  EXPECT_EQ(ledger().waiting, in_flight + 70);
  world().push(*learners[3], *second, 50, 2);
  EXPECT_EQ(ledger().waiting, in_flight + 50);
  ASSERT_EQ(verdicts_of(1).size(), 2u);
  EXPECT_EQ(verdicts_of(1)[1].outcome, wire::Outcome::kDropped);
  EXPECT_EQ(verdicts_of(5).at(0).outcome, wire::Outcome::kCarried);
  learners[3]->pulls.clear();
  run_without_the_late_one(4);
  EXPECT_DOUBLE_EQ(world().merges.at(8).pushes.back().factor, 0.5);
  EXPECT_EQ(world().merges.at(8).pushes.back().c_tokens, 50u);
}

TEST_F(LateTest, WorkThatLagsTwoVersionsKeepsAQuarter) {
  start();
  run_without_the_late_one(4);
  push_late();
  run_without_the_late_one(4);
  EXPECT_DOUBLE_EQ(world().merges.at(8).pushes.back().factor, 0.25);
  EXPECT_EQ(world().commits().at(8).carried.at(0).value, 2.0);
}

TEST_F(LateTest, WorkThatLagsTooFarIsDropped) {
  start([](CoreOptions& options) { options.max_lag = 1; });
  run_without_the_late_one(4);
  push_late();
  ASSERT_EQ(verdicts_of(1).size(), 1u);
  EXPECT_EQ(verdicts_of(1)[0].outcome, wire::Outcome::kDropped);
  EXPECT_EQ(ledger().dropped, 70u);
  EXPECT_FALSE(world().records<TapeLate>().at(0).carried);
}

TEST_F(LateTest, SecondAnswerAfterTheRoundHasClosedIsRefused) {
  start();
  push_late(70);
  push_late(60);
  EXPECT_EQ(ledger().waiting, 70u);
  EXPECT_EQ(ledger().dropped, 60u);
  world().push(*learners[0], missed, 10, 1);
  EXPECT_EQ(ledger().dropped, 70u) << "seat 0 had answered in time";
  world().push(*learners[3], missed, 5, 1, [](wire::Offer& offer) { offer.bytes = 3; });
  EXPECT_EQ(ledger().dropped, 75u);
}

TEST_F(LateTest, BadLateWorkIsDroppedAndCountsAgainstTheSeat) {
  start();
  world().inspect = [](const InspectPush& job) {
    return PushInspected{job.job, job.buffer, false, 1.0};
  };
  push_late();
  EXPECT_EQ(verdicts_of(1).at(0).reason, "non-finite");
  EXPECT_EQ(ledger().dropped, 70u);
}

TEST_F(LateTest, LateWorkNeverCountsForTheQuorum) {
  start();
  push_late();
  for (int turn = 0; turn < 30; ++turn) {  // rounds 2 to 4, then two of four answer round 5
    world().pass(kSecond);
    for (TestLearner* learner : learners) {
      world().step(*learner);
      while (!learner->pulls.empty()) {
        const wire::Pull ask = learner->pulls.front();
        learner->pulls.erase(learner->pulls.begin());
        if (ask.round < 5 || (ask.round == 5 && learner->seat < 2)) {
          world().push(*learner, ask, 100, 2);
        }
      }
    }
  }
  EXPECT_EQ(world().commits().size(), 4u) << "two accepted and one carried are not three";
}

TEST_F(LateTest, LastSweepMergesLateWorkAlone) {
  start();
  push_late();
  finish(0);
  const auto commits = world().commits();
  const TapeRound& last = commits.back();
  EXPECT_EQ(last.fragment, 0u);
  EXPECT_TRUE(last.sweep);
  EXPECT_TRUE(last.responded.empty());
  EXPECT_EQ(last.carried.size(), 1u);
  EXPECT_EQ(ledger().waiting, 0u);
  EXPECT_EQ(ledger().dropped, 0u) << "no work is lost";
}

TEST_F(LateTest, LastSweepMergesLateWorkBesideNewWork) {
  start();
  push_late();
  finish(1);
  const auto commits = world().commits();
  const auto sweep = std::find_if(commits.begin(), commits.end(), [](const TapeRound& round) {
    return round.sweep && round.fragment == 0;
  });
  ASSERT_NE(sweep, commits.end());
  EXPECT_EQ(sweep->responded.size(), 4u);
  EXPECT_EQ(sweep->carried.size(), 1u);
  EXPECT_EQ(ledger().waiting, 0u);
}

TEST_F(LateTest, AfterTheLastMergeOfItsFragmentItIsFinal) {
  start();
  finish(1);
  push_late();
  EXPECT_EQ(verdicts_of(1).at(0).reason, "final");
  EXPECT_EQ(ledger().waiting, 0u);
}

TEST_F(LateTest, FinishNowDropsWhatWasCarried) {
  start();
  push_late();
  world().give(FinishRequested{wire::FinishMode::kNow, "now"});
  EXPECT_EQ(world().core.status(world().now).phase, RunPhase::kFinal);
  EXPECT_EQ(verdicts_of(1).at(1).reason, "final");
  EXPECT_EQ(ledger().waiting, 0u);
}

TEST_F(LateTest, RestartDropsWhatWasCarried) {
  start();
  push_late();
  run_without_the_late_one(1);  // its checkpoint knows the waiting work
  const CoreState saved = world().checkpoints.back();
  EXPECT_EQ(saved.ledger.waiting, 70u);
  CoreOptions options = options_for(4);
  options.term = 2;
  World second(options, Restored{world().layout, saved});
  const Ledger after = second.core.status(0).ledger;
  EXPECT_EQ(after.waiting, 0u);
  EXPECT_EQ(after.dropped, saved.ledger.dropped + 70);
}

TEST_F(LateTest, FailedMergeVoidsWhatIsLateForIt) {
  start();
  // Round 2 merges without seat 3, whose push comes in the middle; the merge then fails and the
  // attempt is repeated on the same base, so the late push would count twice.
  world().finite_merges = false;
  world().hold_merges = true;
  wire::Pull ask;
  for (int turn = 0; turn < 20 && world().merges.size() < 2; ++turn) {
    world().pass(kSecond);
    for (TestLearner* learner : learners) {
      world().step(*learner);
      for (const wire::Pull& it : std::exchange(learner->pulls, {})) {
        if (it.round == 2 && learner == learners[3]) {
          ask = it;
        } else if (it.round == 2) {
          world().push(*learner, it, 100, 2);
        }
      }
    }
  }
  ASSERT_EQ(world().merges.size(), 2u);
  ASSERT_EQ(ask.round, 2u);
  world().push(*learners[3], ask, 40, 2);
  EXPECT_EQ(verdicts_of(2).at(0).outcome, wire::Outcome::kCarried);
  world().hold_merges = false;
  world().finite_merges = true;
  world().release_held();
  EXPECT_EQ(verdicts_of(2).at(1).outcome, wire::Outcome::kDropped);
  EXPECT_EQ(ledger().waiting, 0u);
  EXPECT_EQ(world().core.status(world().now).carried_pushes, 0u);
}

TEST_F(LateTest, ResumedSessionGetsTheLastVerdictAgain) {
  start();
  push_late();
  const auto session = learners[3]->welcome.session;
  world().disconnect(*learners[3]);
  auto& again = world().connect(3, 103, [&](wire::Hello& hello) { hello.session = session; });
  EXPECT_EQ(again.welcome.resumed, 1);
  ASSERT_EQ(again.verdicts.size(), 1u);
  EXPECT_EQ(again.verdicts[0].round, 1u);
  EXPECT_EQ(again.verdicts[0].outcome, wire::Outcome::kCarried);
  world().disconnect(again);
  world().pass(6 * kSecond);
  auto& other = world().connect(3, 103, [&](wire::Hello& hello) { hello.session = session; });
  EXPECT_EQ(other.welcome.resumed, 0) << "its lease ended";
  EXPECT_TRUE(other.verdicts.empty());
}

// ---- work that nobody asked for
// -----------------------------------------------------------------

struct LivedThroughTest : LateTest {
  // Seat 3 is lost in round 1 and comes back after its lease, still holding version 0.
  TestLearner& come_back(std::uint64_t incarnation, std::uint64_t version = 0) {
    if (!learners[3]->closed) {
      world().disconnect(*learners[3]);
      world().pass(6 * kSecond);
    }
    const auto held = learners[3]->held;
    return world().connect(3, incarnation, [&](wire::Hello& hello) {
      hello.held = held;
      for (wire::Held& it : hello.held) {
        it = {1, version};
      }
    });
  }
  void offer(TestLearner& learner, std::uint32_t fragment, std::uint64_t version,
             std::uint64_t term = 1) {
    wire::Pull ask;
    ask.term = term;
    ask.fragment = fragment;
    ask.round = 0;
    ask.base_version = version;
    world().push(learner, ask, 33, 3);
  }
  // The committed fragment 0, on version 1 now, is the only one that seat 3's anchors are behind.
  void lose_seat_3_in_round_1() {
    start();
    learners[3]->pulls.clear();
  }
};

TEST_F(LivedThroughTest, ProcessThatLivedThroughABreakOffersItsWorkOncePerFragment) {
  lose_seat_3_in_round_1();
  auto& again = come_back(103);
  ASSERT_EQ(again.welcome.resumed, 0);
  EXPECT_EQ(again.held[0].version, 1u) << "the broadcast may come first";
  offer(again, 0, 0);
  ASSERT_EQ(again.verdicts.size(), 1u);
  EXPECT_EQ(again.verdicts[0].outcome, wire::Outcome::kCarried);
  EXPECT_EQ(again.verdicts[0].round, 0u);
  offer(again, 0, 0);
  EXPECT_EQ(again.verdicts.back().outcome, wire::Outcome::kDropped) << "once";
  EXPECT_EQ(ledger().waiting, 33u);
  EXPECT_EQ(ledger().dropped, 33u);
  EXPECT_EQ(world().records<TapeLate>().front().round, 0u);
}

TEST_F(LivedThroughTest, CurrentFragmentsAreKeptAndAskedForByPull) {
  lose_seat_3_in_round_1();
  auto& again = come_back(103);
  EXPECT_EQ(again.broadcasts.size(), 1u) << "fragments 1 to 3 are current";
  offer(again, 1, 0);
  EXPECT_EQ(again.verdicts.back().outcome, wire::Outcome::kDropped);
}

TEST_F(LivedThroughTest, AnotherProcessOfTheSeatHasNoSuchRight) {
  lose_seat_3_in_round_1();
  auto& other = come_back(777);
  offer(other, 0, 0);
  EXPECT_EQ(other.verdicts.back().outcome, wire::Outcome::kDropped);
  EXPECT_EQ(ledger().waiting, 0u);
}

TEST_F(LivedThroughTest, WorkThatWasCountedInTimeIsNotCountedAgain) {
  start();
  push_late();  // accepted: its base is counted
  auto& again = come_back(103);
  offer(again, 0, 0);
  EXPECT_NE(again.verdicts.back().reason.find("counted already"), std::string::npos);
  EXPECT_EQ(ledger().waiting, 70u) << "what was carried stays";
}

TEST_F(LivedThroughTest, BaseThatItDidNotNameAtTheBreakIsRefused) {
  lose_seat_3_in_round_1();
  auto& again = come_back(103);
  offer(again, 0, 0, 2);
  EXPECT_EQ(again.verdicts.back().outcome, wire::Outcome::kDropped) << "another term";
  offer(again, 0, 5);
  EXPECT_EQ(again.verdicts.back().outcome, wire::Outcome::kDropped) << "another version";
  EXPECT_EQ(ledger().waiting, 0u);
}

TEST_F(LivedThroughTest, ProcessThatLivedThroughARestartOffersWhatSurvivesTheFork) {
  start();
  run_without_the_late_one(1);
  const CoreState saved = world().checkpoints.back();  // versions 1 1 0 0
  CoreOptions options = options_for(4);
  options.term = 2;
  made.emplace(options, Restored{test_layout(4), saved});
  const auto join = [&](Seat number, std::vector<wire::Held> held) -> TestLearner& {
    return world().connect(number, 100 + number,
                           [&](wire::Hello& hello) { hello.held = std::move(held); });
  };
  auto& behind = join(3, {{1, 0}, {1, 0}, {1, 0}, {1, 0}});
  offer(behind, 0, 0);
  EXPECT_EQ(behind.verdicts.back().outcome, wire::Outcome::kCarried);
  auto& merged = join(0, {{1, 0}, {1, 0}, {1, 0}, {1, 0}});
  offer(merged, 0, 0);
  EXPECT_NE(merged.verdicts.back().reason.find("counted already"), std::string::npos)
      << "the checkpoint knows whose work is in";
  auto& ahead = join(1, {{1, 7}, {1, 1}, {1, 0}, {1, 0}});
  offer(ahead, 0, 7);
  EXPECT_EQ(ahead.verdicts.back().outcome, wire::Outcome::kDropped) << "above the fork point";
  world().expect_ledger_balances();
}

TEST_F(LivedThroughTest, NothingIsOfferedWhereNothingIsCarried) {
  start([](CoreOptions& options) { options.max_lag = 0; });
  auto& again = come_back(103);
  offer(again, 0, 0);
  EXPECT_EQ(again.verdicts.back().outcome, wire::Outcome::kDropped);
}

// ---- what waits
// ---------------------------------------------------------------------------------

Push push_of(Seat seat, std::uint32_t fragment, std::uint64_t base, BufferId buffer) {
  Push out;
  out.seat = seat;
  out.offer.fragment = fragment;
  out.offer.base_version = base;
  out.offer.bytes = 10;
  out.offer.c_tokens = 7;
  out.buffer = buffer;
  return out;
}

TEST(CarriedPushesTest, OnePerSeatAndFragmentTheNewestBaseWins) {
  CarriedPushes carried;
  EXPECT_FALSE(carried.keep(push_of(0, 0, 4, 1)));
  EXPECT_EQ(carried.keep(push_of(0, 0, 5, 2))->buffer, 1u);
  EXPECT_EQ(carried.keep(push_of(0, 0, 4, 3))->buffer, 3u) << "an older one is not kept";
  EXPECT_EQ(carried.keep(push_of(0, 0, 5, 4))->buffer, 4u) << "the first of two equals is kept";
  EXPECT_FALSE(carried.keep(push_of(0, 1, 4, 5)));
  EXPECT_FALSE(carried.keep(push_of(1, 0, 4, 6)));
  EXPECT_EQ(carried.bytes(), 30u);
  EXPECT_EQ(carried.tokens(), 21u);
}

TEST(CarriedPushesTest, TakesWhatIsFreshAndNamesWhatIsStale) {
  CarriedPushes carried;
  carried.keep(push_of(0, 3, 4, 1));
  carried.keep(push_of(1, 3, 6, 2));
  carried.keep(push_of(2, 3, 7, 3));
  carried.keep(push_of(2, 4, 7, 4));
  const auto taken = carried.take(3, 7, 2);
  ASSERT_EQ(taken.fresh.size(), 1u);
  EXPECT_EQ(taken.fresh[0].buffer, 2u);
  EXPECT_EQ(taken.stale.size(), 2u) << "lag 3, and one on the merge's own base";
  EXPECT_FALSE(carried.waits(3));
  EXPECT_TRUE(carried.waits(4));
  EXPECT_EQ(carried.bytes(), 10u);
  EXPECT_EQ(carried.take_oldest()->buffer, 4u);
  EXPECT_FALSE(carried.take_oldest());
  EXPECT_EQ(carried.tokens(), 0u);
}

}  // namespace
}  // namespace yeto::sync
