// SPDX-License-Identifier: Apache-2.0
// Goal: whoever joins, when and however often, gets the run's state and nothing of it is replaced;
// who misbehaves is left out for a while. Method: the core in a made-up world (core_world.h).
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "yeto/sync/core/core_world.h"

namespace yeto::sync {
namespace {

TEST(JoinTest, SixtyFourJoinAtOnce) {
  World world(options_for(64));
  auto learners = world.start(64);
  std::set<ConnId> donors;
  for (TestLearner* learner : learners) {
    ASSERT_FALSE(learner->refused);
    for (const wire::Held& held : learner->held) {
      EXPECT_EQ(held.term, 1u);
    }
    if (learner->next_transfer > 1) {
      donors.insert(learner->conn);
    }
  }
  EXPECT_EQ(donors.size(), 1u) << "one donor gives everything";
  run_rounds(world, learners, 5);
  EXPECT_EQ(world.commits()[0].responded.size(), 64u);
  world.expect_ledger_balances();
}

TEST(JoinTest, JoinAtEveryStepOffset) {
  for (std::uint64_t offset = 0; offset <= 16; ++offset) {
    SCOPED_TRACE("offset " + std::to_string(offset));
    World world(options_for(2));
    auto learners = world.start(2);
    for (std::uint64_t step = 0; step < offset; ++step) {
      world.pass(kSecond);
      for (TestLearner* learner : learners) {
        world.step(*learner);
        for (const wire::Pull& ask : std::exchange(learner->pulls, {})) {
          world.push(*learner, ask, 10, 1);
        }
      }
    }
    auto& joiner = world.connect(2, 300);
    for (std::uint32_t i = 0; i < 4; ++i) {
      EXPECT_EQ(joiner.held[i].version, world.core.status(world.now).versions[i]);
    }
    learners.push_back(&joiner);
    run_rounds(world, learners, 5);
    EXPECT_EQ(world.commits().back().responded.size(), 3u);
    world.expect_ledger_balances();
  }
}

TEST(JoinTest, DonorThatDiesAfterAnyNumberOfTransfersIsReplacedFromTheStart) {
  for (std::size_t arrived = 0; arrived <= 4; ++arrived) {
    SCOPED_TRACE("transfers " + std::to_string(arrived));
    World world(options_for(2));
    world.hold_transfers = true;
    auto& donor = world.connect(0, 1);
    world.connect(1, 2);
    // The layout first, then one fragment after the other.
    for (std::size_t i = 0; i < arrived; ++i) {
      ASSERT_FALSE(world.held.empty());
      const Event event = world.held.front();
      world.held.erase(world.held.begin());
      world.give(event);
    }
    std::erase_if(world.held, [&](const Event& event) {
      const auto* it = std::get_if<TransferArrived>(&event);
      return it != nullptr && it->conn == donor.conn;
    });
    EXPECT_TRUE(world.checkpoints.empty()) << "not initialised by half a donor";
    world.hold_transfers = false;
    world.disconnect(donor);
    EXPECT_EQ(world.checkpoints.size(), 1u) << "seat 1 gave everything";
    world.connect(0, 3);
    EXPECT_EQ(world.core.status(world.now).phase, RunPhase::kTraining);
    EXPECT_EQ(world.buffers.size(), 4u);
  }
}

TEST(JoinTest, JoinerThatDiesAfterAnyNumberOfFragmentsLeavesNothingBehind) {
  for (std::size_t taken = 0; taken <= 4; ++taken) {
    SCOPED_TRACE("fragments " + std::to_string(taken));
    World world(options_for(2));
    auto learners = world.start(2);
    run_rounds(world, learners, 4);
    world.slow_readers.insert(2);
    auto& joiner = world.connect(2, 300);
    for (std::size_t i = 0; i < taken; ++i) {
      world.release_held();
    }
    world.held.clear();
    world.disconnect(joiner);
    world.slow_readers.clear();
    auto& next = world.connect(2, 301);
    for (const wire::Held& held : next.held) {
      EXPECT_EQ(held.version, 1u);
    }
    learners.push_back(&next);
    run_rounds(world, learners, 5);
    EXPECT_EQ(world.commits().back().responded.size(), 3u);
    EXPECT_LE(world.buffers.size(), 4u + 2u * 3u);
  }
}

TEST(JoinTest, InitialValuesNeverReplaceAnInitialisedState) {
  World world(options_for(2));
  auto learners = world.start(2);
  wire::Offer offer;
  offer.transfer = 77;
  offer.kind = wire::TransferKind::kInit;
  offer.fragment = 1;
  offer.bytes = 16;
  world.give(OfferArrived{learners[0]->conn, offer});
  ASSERT_EQ(world.refused_transfers.size(), 1u);
  EXPECT_EQ(world.refused_transfers[0], "not asked for");
}

TEST(JoinTest, WhatComesOnAReplacedConnectionIsNobodys) {
  World world(options_for(2));
  auto learners = world.start(2);
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  world.hold_transfers = true;
  world.push(*learners[1], 100, 2);
  const ConnId old = learners[1]->conn;
  ASSERT_EQ(world.held.size(), 1u);
  const Event arrival = world.held[0];
  world.held.clear();
  world.hold_transfers = false;
  const auto session = learners[1]->welcome.session;
  const auto held = learners[1]->held;
  // Half-open: the old socket is not known to be dead when the process comes back.
  auto& again = world.connect(1, 101, [&](wire::Hello& hello) {
    hello.session = session;
    hello.held = held;
    hello.local_step = 2;
  });
  ASSERT_EQ(again.welcome.resumed, 1);
  EXPECT_TRUE(world.learners[old].closed);
  world.give(arrival);
  EXPECT_TRUE(world.commits().empty());
  ASSERT_EQ(again.pulls.size(), 1u) << "asked once more, after its WELCOME";
  world.push(again, 100, 2);
  world.push(*learners[0], 100, 2);
  EXPECT_EQ(world.commits().size(), 1u);
  world.expect_ledger_balances();
  EXPECT_EQ(world.buffers.size(), 4u);
}

TEST(RestartTest, IntervalDurabilityReissuesNoVersionOfATerm) {
  CoreOptions options = options_for(2);
  options.durability = Durability::kInterval;
  World first(options);
  auto learners = first.start(2);
  run_rounds(first, learners, 2);
  first.pass(31 * kSecond);  // a checkpoint
  const CoreState saved = first.checkpoints.back();
  run_rounds(first, learners, 8);  // lost with this life of the syncer
  std::set<std::tuple<std::uint64_t, std::uint32_t, std::uint64_t>> issued;
  for (const TapeRound& commit : first.commits()) {
    EXPECT_TRUE(issued.insert({1, commit.fragment, commit.version}).second);
  }
  options.term = 2;
  World second(options, Restored{first.layout, saved});
  const auto lived = [&](TestLearner& before) -> TestLearner& {
    return second.connect(before.seat, before.incarnation, [&](wire::Hello& hello) {
      hello.held = before.held;
      hello.local_step = before.beat.local_step;
      hello.tokens = before.beat.tokens;
    });
  };
  auto& a = lived(*learners[0]);
  auto& b = lived(*learners[1]);
  for (TestLearner* learner : {&a, &b}) {
    EXPECT_EQ(learner->welcome.valid, saved.versions) << "the fork point";
    for (std::uint32_t i = 0; i < 4; ++i) {
      const bool ahead = learners[0]->held[i].version > saved.versions[i];
      EXPECT_EQ(learner->held[i].term, ahead ? 2u : 1u) << "versions above the fork are void";
      EXPECT_EQ(learner->held[i].version, saved.versions[i]);
    }
    learner->beat.local_step = learner->beat.tokens = 4000;
  }
  run_rounds(second, {&a, &b}, 8);
  for (const TapeRound& commit : second.commits()) {
    EXPECT_TRUE(issued.insert({2, commit.fragment, commit.version}).second);
  }
  for (TestLearner* learner : {&a, &b}) {
    for (const wire::Offer& offer : learner->broadcasts) {
      EXPECT_EQ(offer.term, 2u);
    }
  }
  second.expect_ledger_balances();
}

TEST(RestartTest, BytesOfAnOlderTermCountUpToTheLowestForkSince) {
  World first(options_for(1));
  auto learners = first.start(1);
  run_rounds(first, learners, 4);
  CoreState saved = first.checkpoints.back();  // versions 1 1 1 1
  // Term 2 began at version 0 of fragment 0; what term 1 made above it is void though the run is
  // at version 1 again.
  saved.term = 2;
  saved.forks.push_back({2, {0, 1, 1, 1}});
  CoreOptions options = options_for(1);
  options.term = 3;
  World third(options, Restored{first.layout, saved});
  auto& old = third.connect(0, 1, [](wire::Hello& hello) { hello.held.assign(4, {1, 1}); });
  EXPECT_EQ(old.welcome.valid, (std::vector<std::uint64_t>{0, 1, 1, 1}));
  EXPECT_EQ(old.held[0].term, 3u) << "overwritten";
  EXPECT_EQ(old.held[1].term, 1u) << "kept";
}

// ---- quarantine
// ---------------------------------------------------------------------------------

struct QuarantineTest : testing::Test {
  World world{options_for(2)};
  std::vector<TestLearner*> learners = world.start(2);
  bool bad = true;  // pushes of seat 1

  // Both answer `rounds` rounds.
  void run(std::size_t rounds) {
    world.inspect = [this](const InspectPush& job) {
      return PushInspected{job.job, job.buffer, !(bad && pushing_ == 1), 1.0};
    };
    const std::size_t goal = world.commits().size() + rounds;
    for (int turn = 0; turn < 400 && world.commits().size() < goal; ++turn) {
      world.pass(kSecond);
      for (TestLearner* learner : learners) {
        world.step(*learner);
      }
      for (TestLearner* learner : {learners[1], learners[0]}) {
        for (const wire::Pull& ask : std::exchange(learner->pulls, {})) {
          pushing_ = learner->seat;
          world.push(*learner, ask, 10, 1);
        }
      }
    }
    ASSERT_GE(world.commits().size(), goal);
  }
  SeatStatus seat1() { return world.core.status(world.now).seats[1]; }
  Seat pushing_ = 0;
};

TEST_F(QuarantineTest, ThreeBadPushesInARowLeaveTheSeatOutForTenRounds) {
  run(2);
  EXPECT_FALSE(seat1().quarantined_until);
  run(1);
  ASSERT_TRUE(seat1().quarantined_until) << "seen in the status";
  const std::uint64_t until = *seat1().quarantined_until;
  const auto errors = world.records<TapeError>();
  ASSERT_FALSE(errors.empty()) << "and on the tape";
  EXPECT_NE(errors.back().text.find("seat 1 is left out of rounds"), std::string::npos);
  EXPECT_EQ(state_of(world, 1), "live") << "its session stays";
  bad = false;
  run(16);
  std::size_t left_out = 0;
  for (const TapeRound& round : world.commits()) {
    left_out += round.expected == std::vector<Seat>{0} ? 1 : 0;
    if (round.round > until) {
      EXPECT_EQ(round.responded.size(), 2u) << "taken in again";
    }
  }
  EXPECT_EQ(left_out, 10u);
  EXPECT_FALSE(seat1().quarantined_until);
}

TEST_F(QuarantineTest, GoodPushBetweenBadOnesStartsTheCountAgain) {
  run(2);
  bad = false;
  run(1);
  bad = true;
  run(2);
  EXPECT_FALSE(seat1().quarantined_until);
}

TEST_F(QuarantineTest, ReconnectingDoesNotEndIt) {
  run(3);
  ASSERT_TRUE(seat1().quarantined_until);
  world.disconnect(*learners[1]);
  world.pass(6 * kSecond);
  world.connect(1, 101);
  EXPECT_TRUE(seat1().quarantined_until) << "the same process";
  world.pass(kSecond);
}

TEST_F(QuarantineTest, OfferThatNamesANormThatIsNoNumberEndsItsDuty) {
  bad = false;
  for (TestLearner* learner : learners) {
    world.step(*learner, 2);
  }
  world.push(*learners[1], learners[1]->pulls.at(0), 10, 1,
             [](wire::Offer& offer) { offer.norm = std::nan(""); });
  EXPECT_EQ(learners[1]->verdicts.at(0).reason, "non-finite");
  world.push(*learners[0], 10, 1);
  ASSERT_EQ(world.commits().size(), 1u) << "nobody waits for another answer";
  EXPECT_EQ(world.commits()[0].dropped.at(0).seat, 1u);
}

TEST(CoreTest, MergedValueThatIsNotFiniteIsNobodysFault) {
  World world(options_for(2));
  auto learners = world.start(2);
  world.finite_merges = false;
  for (int turn = 0; turn < 8; ++turn) {
    world.pass(kSecond);
    for (TestLearner* learner : learners) {
      world.step(*learner);
    }
    for (TestLearner* learner : learners) {
      for (const wire::Pull& ask : std::exchange(learner->pulls, {})) {
        world.push(*learner, ask, 10, 1);
      }
    }
  }
  EXPECT_GE(world.merges.size(), 3u);
  for (const SeatStatus& seat : world.core.status(world.now).seats) {
    EXPECT_FALSE(seat.quarantined_until) << "a round that cannot be merged is skipped";
  }
}

// ---- settings as they work out
// ------------------------------------------------------------------

TEST(EffectiveSettingsTest, AreToldOnceTheLayoutIsKnown) {
  CoreOptions options = options_for(4);
  options.sync_interval_steps = 24;
  World world(options);
  EXPECT_FALSE(world.core.status(world.now).effective);
  auto learners = world.start(4);
  const auto effective = world.core.status(world.now).effective;
  ASSERT_TRUE(effective);
  EXPECT_EQ(effective->quorum, 3u);
  EXPECT_EQ(effective->sync_interval_steps, 24u);
  EXPECT_EQ(learners[0]->welcome.settings.sync_interval_steps, 24u);
  EXPECT_EQ(effective->pipeline, 2u);
  EXPECT_EQ(effective->push_codec, CodecId::kF32);
  EXPECT_EQ(effective->durability, Durability::kCommit);
  EXPECT_EQ(effective->max_buffer, (2 * 4 + 4) * 16u);
}

}  // namespace
}  // namespace yeto::sync
