// SPDX-License-Identifier: Apache-2.0
// Goal: images travel as deltas where the reader holds the base; the budget of buffers holds, and
// whatever it is, the run goes on. Method: the core in a made-up world (core_world.h), where a push
// and a whole image take 16 bytes and a delta takes 1.
#include <gtest/gtest.h>

#include "yeto/sync/core/core_world.h"

namespace yeto::sync {
namespace {

constexpr std::uint64_t kPush = 16;

CoreOptions q4_options(std::uint32_t learners) {
  CoreOptions options = options_for(learners);
  options.push_codec = CodecId::kF32;
  options.broadcast_codec = CodecId::kQ4;
  return options;
}

// ---- q4 broadcasts
// ------------------------------------------------------------------------------

TEST(Q4BroadcastTest, FirstImagesAreWholeAndCommitsTravelAsDeltas) {
  World world(q4_options(2));
  auto learners = world.start(2);
  ASSERT_EQ(learners[0]->broadcasts.size(), 4u);
  for (const wire::Offer& offer : learners[0]->broadcasts) {
    EXPECT_EQ(offer.codec, CodecId::kBf16) << "whole, in the anchor dtype";
    EXPECT_EQ(offer.base_version, 0u);
  }
  run_rounds(world, learners, 5);
  EXPECT_NE(world.merges[0].full, 0u) << "a merge makes the whole image too";
  const wire::Offer& last = learners[0]->broadcasts.back();
  EXPECT_EQ(last.codec, CodecId::kQ4);
  EXPECT_EQ(last.fragment, 0u);
  EXPECT_EQ(last.version, 2u);
  EXPECT_EQ(last.base_version, 1u);
  EXPECT_EQ(last.digest, world.commits()[4].digest) << "of the public value, not of the delta";
  auto& joiner = world.connect(2, 300);
  for (const wire::Offer& offer : joiner.broadcasts) {
    EXPECT_EQ(offer.codec, CodecId::kBf16);
  }
  EXPECT_EQ(joiner.held[0].version, 2u);
}

TEST(Q4BroadcastTest, OtherCodecsTravelWhole) {
  World world(options_for(2));
  auto learners = world.start(2);
  run_rounds(world, learners, 2);
  EXPECT_EQ(world.merges[0].full, 0u);
  EXPECT_EQ(learners[0]->broadcasts.back().codec, CodecId::kF32);
  EXPECT_EQ(learners[0]->broadcasts.back().base_version, 0u);
}

TEST(Q4BroadcastTest, SlowReaderGetsTheWholeOnceAndReturnsToDeltas) {
  CoreOptions options = q4_options(3);
  options.quorum = 2;
  World world(options);
  auto learners = world.start(3);
  auto& slow = *learners[2];
  run_rounds(world, learners, 4);
  world.slow_readers.insert(2);
  run_rounds(world, {learners[0], learners[1]}, 21);  // five versions a fragment
  world.slow_readers.clear();
  const std::size_t before = slow.broadcasts.size();
  world.release_held();
  EXPECT_GT(slow.broadcasts.size(), before);
  std::size_t whole = 0;
  for (std::size_t i = before; i < slow.broadcasts.size(); ++i) {
    whole += slow.broadcasts[i].codec == CodecId::kBf16 ? 1 : 0;
  }
  EXPECT_GT(whole, 0u) << "too far behind for a chain";
  EXPECT_LE(whole, 4u);
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(slow.held[i].version, world.core.status(world.now).versions[i]);
  }
  slow.pulls.clear();
  run_rounds(world, {learners[0], learners[1]}, 4);
  EXPECT_EQ(slow.broadcasts.back().codec, CodecId::kQ4) << "back at deltas";
}

TEST(Q4BroadcastTest, ResumedSessionGetsTheChainItMissed) {
  World world(q4_options(2));
  auto learners = world.start(2);
  run_rounds(world, learners, 4);
  const auto session = learners[1]->welcome.session;
  const auto held = learners[1]->held;
  const auto steps = learners[1]->beat;
  CoreOptions options;
  world.disconnect(*learners[1]);
  learners[1]->pulls.clear();
  auto& again = world.connect(1, 101, [&](wire::Hello& hello) {
    hello.session = session;
    hello.held = held;
    for (wire::Held& it : hello.held) {
      it.version = 0;  // it missed the first commit of each fragment
    }
    hello.local_step = steps.local_step;
  });
  ASSERT_EQ(again.welcome.resumed, 1);
  ASSERT_EQ(again.broadcasts.size(), 4u);
  for (const wire::Offer& offer : again.broadcasts) {
    EXPECT_EQ(offer.codec, CodecId::kQ4);
    EXPECT_EQ(offer.base_version, 0u);
    EXPECT_EQ(offer.version, 1u);
  }
}

TEST(Q4BroadcastTest, RestartBeginsWithWholeImages) {
  World first(q4_options(2));
  auto learners = first.start(2);
  run_rounds(first, learners, 4);
  CoreOptions options = q4_options(2);
  options.term = 2;
  Restored restored{first.layout, first.checkpoints.back()};
  restored.push_codec = CodecId::kF32;
  restored.broadcast_codec = CodecId::kQ4;
  World second(options, restored);
  auto& a = second.connect(0, 100, [&](wire::Hello& hello) { hello.held = learners[0]->held; });
  EXPECT_TRUE(a.broadcasts.empty()) << "what it holds is current";
  auto& b = second.connect(1, 500);
  EXPECT_EQ(b.broadcasts.size(), 4u);
  a.beat.local_step = b.beat.local_step = 40;
  run_rounds(second, {&a, &b}, 1);
  EXPECT_EQ(a.broadcasts.back().codec, CodecId::kQ4);
  EXPECT_EQ(a.broadcasts.back().base_version + 1, a.broadcasts.back().version);
}

TEST(Q4BroadcastTest, BuffersAreOneWholeImageAndAShortChainPerFragment) {
  World world(q4_options(2));
  auto learners = world.start(2);
  run_rounds(world, learners, 40);
  for (TestLearner* learner : learners) {
    learner->pulls.clear();
  }
  EXPECT_LE(world.buffers.size(), 4u * (1 + Broadcasts::kMaxDeltas) + 2u * 2u);
  EXPECT_GE(world.buffers.size(), 4u * (1 + Broadcasts::kMaxDeltas));
}

// ---- the budget
// ---------------------------------------------------------------------------------

TEST(BufferBudgetTest, AutomaticBudgetIsRoundsTimesLearnersTimesPushPlusFourImages) {
  const Layout layout = test_layout(4, 100);
  const BufferSizes sizes = buffer_sizes(layout, CodecId::kBf16, CodecId::kQ4, 2);
  EXPECT_EQ(sizes.largest_push, 200u);
  EXPECT_EQ(sizes.largest_image, 200u) << "whole images of q4 travel as bf16";
  EXPECT_EQ(automatic_buffer(sizes, 8), 2 * 8 * 200 + 4 * 200u);
  EXPECT_EQ(buffer_sizes(layout, CodecId::kBf16, CodecId::kF32, 9).rounds, 4u)
      << "never more rounds than fragments";
}

TEST(BufferBudgetTest, ObjectionNamesTheBytesThatAreNeeded) {
  const BufferSizes sizes{.largest_push = 100, .largest_image = 50, .rounds = 2};
  EXPECT_EQ(buffer_objection(0, sizes, 1000), "");
  EXPECT_EQ(buffer_objection(300, sizes, 3), "");
  EXPECT_NE(buffer_objection(299, sizes, 3).find("3 learners needs 300 bytes"), std::string::npos);
}

TEST(BufferBudgetTest, BudgetTooSmallForOneRoundEndsTheRunAtStart) {
  CoreOptions options = options_for(3);
  options.max_buffer = 3 * kPush - 1;
  World world(options);
  world.connect(0, 1);
  ASSERT_TRUE(world.ended);
  EXPECT_EQ(world.ended->exit_code, 2);
  EXPECT_NE(world.ended->reason.find("needs 48 bytes"), std::string::npos);

  World good(options_for(3));
  auto learners = good.start(3);
  run_rounds(good, learners, 1);
  options.term = 2;
  World restored(options, Restored{good.layout, good.checkpoints.back()});
  ASSERT_TRUE(restored.ended) << "at once, the layout is known";
  EXPECT_EQ(restored.ended->exit_code, 2);
}

TEST(BufferBudgetTest, OneMoreMemberThanFitsIsRefusedUntilOneLeaves) {
  CoreOptions options = options_for(2);
  options.max_buffer = 2 * kPush;
  World world(options);
  auto learners = world.start(2);
  auto& third = world.connect(2, 3);
  ASSERT_TRUE(third.refused);
  EXPECT_EQ(third.refused->code, wire::RefuseCode::kFull);
  EXPECT_EQ(third.refused->retryable, 1);
  EXPECT_NE(third.refused->text.find("48 bytes"), std::string::npos);
  world.give(MessageArrived{learners[1]->conn, wire::Leave{}});
  EXPECT_FALSE(world.connect(2, 4).refused);
}

TEST(BufferBudgetTest, SecondRoundWaitsForRoomAndSaysSo) {
  CoreOptions options = options_for(2);
  options.max_buffer = 2 * kPush;
  World world(options);
  auto learners = world.start(2);
  for (int turn = 0; turn < 5; ++turn) {
    world.pass(kSecond);
    world.step(*learners[0]);
    world.step(*learners[1]);
  }
  EXPECT_EQ(learners[0]->pulls.size(), 1u) << "the pipeline of two is held at one";
  const CoreStatus status = world.core.status(world.now);
  EXPECT_NE(status.waiting_for.find("no buffer room for round 2"), std::string::npos);
  EXPECT_EQ(status.buffer_bytes, 2 * kPush);
  EXPECT_EQ(status.effective->max_buffer, 2 * kPush);
  run_rounds(world, learners, 6);
  world.expect_ledger_balances();
}

TEST(BufferBudgetTest, SlowestReaderIsBrokenOffWhenItsImageNoLongerFits) {
  CoreOptions options = options_for(2);
  options.quorum = 1;
  options.max_buffer = 2 * kPush + 8;  // not one image beside a whole round
  World world(options);
  auto learners = world.start(2);
  run_rounds(world, learners, 2);
  world.slow_readers.insert(1);
  run_rounds(world, {learners[0]}, 9);
  EXPECT_FALSE(world.aborted.empty());
  for (const Event& event : world.held) {
    const auto* sent = std::get_if<TransferSent>(&event);
    ASSERT_NE(sent, nullptr);
    EXPECT_EQ(std::count(world.aborted.begin(), world.aborted.end(), sent->ticket), 0);
  }
  world.slow_readers.clear();
  world.release_held();
  learners[1]->pulls.clear();
  run_rounds(world, learners, 4);
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(learners[1]->held[i].version, world.core.status(world.now).versions[i]);
  }
}

TEST(BufferBudgetTest, AutomaticBudgetLetsReadersOfOldImagesBe) {
  CoreOptions options = options_for(2);
  options.quorum = 1;
  World world(options);
  auto learners = world.start(2);
  run_rounds(world, learners, 2);
  world.slow_readers.insert(1);
  run_rounds(world, {learners[0]}, 9);
  EXPECT_TRUE(world.aborted.empty());
}

// Four learners, seat 3 misses round 1.
struct LateRoomTest : testing::Test {
  std::optional<World> made;
  std::vector<TestLearner*> learners;
  wire::Pull missed;
  World& world() { return *made; }
  void start(std::uint64_t max_buffer) {
    CoreOptions options = options_for(4);
    options.max_buffer = max_buffer;
    made.emplace(options);
    learners = world().start(4);
    for (TestLearner* learner : learners) {
      world().step(*learner, 2);
    }
    missed = learners[3]->pulls.at(0);
    for (int i = 0; i < 3; ++i) {
      world().push(*learners[static_cast<std::size_t>(i)]);
    }
    world().pass(2 * kSecond);
    ASSERT_EQ(world().commits().size(), 1u);
    for (TestLearner* learner : learners) {
      std::erase_if(learner->pulls, [](const wire::Pull& ask) { return ask.round == 1; });
    }
  }
};

TEST_F(LateRoomTest, LateWorkTakesOnlyWhatAWholeRoundLeaves) {
  start(4 * kPush);
  world().push(*learners[3], missed, 70, 2);
  ASSERT_EQ(learners[3]->verdicts.size(), 1u);
  EXPECT_EQ(learners[3]->verdicts[0].outcome, wire::Outcome::kDropped);
  EXPECT_NE(learners[3]->verdicts[0].reason.find("no buffer room"), std::string::npos);
  run_rounds(world(), learners, 4);
}

TEST_F(LateRoomTest, LateWorkFitsBesideAWholeRound) {
  start(5 * kPush);
  // Round 2 is open and holds room for four, so the late push takes the rest.
  world().push(*learners[3], missed, 70, 2);
  EXPECT_EQ(learners[3]->verdicts.at(0).outcome, wire::Outcome::kCarried);
  run_rounds(world(), learners, 4);
  EXPECT_EQ(world().merges.at(4).pushes.size(), 5u);
}

TEST_F(LateRoomTest, CarriedWorkGivesWayToTheOldestRound) {
  start(5 * kPush);
  world().push(*learners[3], missed, 70, 2);
  ASSERT_EQ(world().core.status(world().now).carried_pushes, 1u);
  auto& fifth = world().connect(4, 500);  // five fit, but not beside late work
  ASSERT_FALSE(fifth.refused);
  fifth.beat.phase = wire::Phase::kTrain;
  learners.push_back(&fifth);
  run_rounds(world(), learners, 4);
  EXPECT_EQ(world().commits().back().expected.size(), 5u);
  EXPECT_EQ(world().core.status(world().now).carried_pushes, 0u);
  const auto late = world().records<TapeLate>();
  EXPECT_EQ(late.back().reason, "no buffer room");
  world().expect_ledger_balances();
}

// ---- jobs that break the contract
// ---------------------------------------------------------------

TEST(CoreDeathTest, MergeUnderQ4WithoutTheWholeImageIsABug) {
  World world(q4_options(1));
  auto learners = world.start(1);
  world.step(*learners[0], 2);
  world.hold_merges = true;
  world.push(*learners[0]);
  ASSERT_EQ(world.held.size(), 1u);
  std::get<Merged>(world.held[0]).full = {};
  EXPECT_DEATH(world.release_held(), "a q4 merge makes the whole image too");
}

}  // namespace
}  // namespace yeto::sync
