// SPDX-License-Identifier: Apache-2.0
// Goal: the sample order is handed out once, comes back from lost learners, survives a restart and
// stands on the tape. Method: the core in a made-up world (core_world.h).
#include <gtest/gtest.h>

#include "yeto/sync/core/core_world.h"

namespace yeto::sync {
namespace {

struct DataTest : testing::Test {
  World world{[] {
    CoreOptions options = options_for(2);
    options.data_leases = true;
    options.epochs = 1;
    return options;
  }()};
  std::vector<TestLearner*> learners = world.start(2);

  DataRange ask(World& in, TestLearner& learner, std::uint64_t count, std::uint64_t rows = 20) {
    const std::size_t before = learner.data.size();
    in.give(
        MessageArrived{learner.conn, wire::Data{wire::DataAction::kRequest, 0, 0, count, rows}});
    if (learner.data.size() != before + 1) {
      ADD_FAILURE() << "no answer";
      return {};
    }
    const wire::Data& grant = learner.data.back();
    EXPECT_EQ(grant.action, wire::DataAction::kGrant);
    EXPECT_EQ(grant.rows, rows);
    return {grant.epoch, grant.first, grant.count};
  }
  DataRange ask(TestLearner& learner, std::uint64_t count) { return ask(world, learner, count); }
  void tell(World& in, TestLearner& learner, wire::DataAction action, const DataRange& range) {
    in.give(MessageArrived{learner.conn,
                           wire::Data{action, range.epoch, range.first, range.count, 20}});
  }
  std::vector<std::string> taped() {
    std::vector<std::string> out;
    for (const TapeData& it : world.records<TapeData>()) {
      out.push_back(it.what + " " + std::to_string(it.seat) + ": " +
                    std::to_string(it.range.first) + "+" + std::to_string(it.range.count));
    }
    return out;
  }
};

TEST_F(DataTest, LearnersGetRangesAndTheTapeShowsThem) {
  EXPECT_EQ(learners[0]->welcome.settings.data_leases, 1);
  EXPECT_EQ(ask(*learners[0], 8), (DataRange{0, 0, 8}));
  EXPECT_EQ(ask(*learners[1], 8), (DataRange{0, 8, 8}));
  tell(world, *learners[0], wire::DataAction::kComplete, {0, 0, 6});
  tell(world, *learners[0], wire::DataAction::kReturn, {0, 6, 2});
  EXPECT_EQ(taped(), (std::vector<std::string>{"grant 0: 0+8", "grant 1: 8+8", "complete 0: 0+6",
                                               "return 0: 6+2"}));
  EXPECT_EQ(ask(*learners[1], 8), (DataRange{0, 6, 2})) << "what came back goes out first";
  EXPECT_EQ(ask(*learners[1], 8), (DataRange{0, 16, 4}));
  EXPECT_EQ(ask(*learners[1], 8).count, 0u) << "one epoch is all";
  const DataState data = world.core.status(world.now).data;
  EXPECT_EQ(data.repeated, 2u);
  EXPECT_EQ(data.settled, (std::vector<DataRange>{{0, 0, 6}}));
}

TEST_F(DataTest, LostLearnersRangesGoBack) {
  ask(*learners[0], 8);
  world.disconnect(*learners[0]);
  EXPECT_EQ(ask(*learners[1], 4), (DataRange{0, 8, 4})) << "within its lease it keeps them";
  world.pass(6 * kSecond);
  EXPECT_EQ(taped().back(), "lost 0: 0+8");
  EXPECT_EQ(ask(*learners[1], 4), (DataRange{0, 0, 4}));
}

TEST_F(DataTest, ResumedSessionKeepsItsRangesAndIsToldThemAgain) {
  ask(*learners[0], 8);
  ask(*learners[0], 2);
  const auto session = learners[0]->welcome.session;
  world.disconnect(*learners[0]);
  auto& again = world.connect(0, 100, [&](wire::Hello& hello) { hello.session = session; });
  ASSERT_EQ(again.welcome.resumed, 1);
  ASSERT_EQ(again.data.size(), 2u);
  EXPECT_EQ(again.data[0].count, 8u);
  EXPECT_EQ(again.data[1].first, 8u);
  tell(world, again, wire::DataAction::kComplete, {0, 0, 10});
  EXPECT_EQ(world.core.status(world.now).data.settled, (std::vector<DataRange>{{0, 0, 10}}));
}

TEST_F(DataTest, NewProcessOfTheSeatStartsWithoutThem) {
  ask(*learners[0], 8);
  world.disconnect(*learners[0]);
  auto& other = world.connect(0, 999);
  EXPECT_TRUE(other.data.empty());
  EXPECT_EQ(ask(other, 3), (DataRange{0, 0, 3})) << "they went back at once";
}

TEST_F(DataTest, OtherDataIsRefusedByTheNumberOfRows) {
  ask(*learners[0], 8);
  world.give(
      MessageArrived{learners[1]->conn, wire::Data{wire::DataAction::kRequest, 0, 0, 8, 21}});
  ASSERT_TRUE(learners[1]->refused);
  EXPECT_EQ(learners[1]->refused->retryable, 0);
  EXPECT_NE(learners[1]->refused->text.find("21 positions an epoch, the run's 20"),
            std::string::npos);
  EXPECT_EQ(state_of(world, 1), "left");
}

TEST_F(DataTest, GrantFromALearnerAndDataWithoutLeasesCloseTheSession) {
  tell(world, *learners[0], wire::DataAction::kGrant, {0, 0, 8});
  EXPECT_TRUE(learners[0]->closed);
  World without(options_for(1));
  auto one = without.start(1);
  EXPECT_EQ(one[0]->welcome.settings.data_leases, 0);
  tell(without, *one[0], wire::DataAction::kRequest, {0, 0, 8});
  EXPECT_TRUE(one[0]->closed);
}

TEST_F(DataTest, CheckpointsHoldTheLeasesAlsoWithoutACommit) {
  ask(*learners[0], 8);
  tell(world, *learners[0], wire::DataAction::kComplete, {0, 0, 5});
  const std::size_t before = world.checkpoints.size();
  world.pass(31 * kSecond);
  ASSERT_GT(world.checkpoints.size(), before) << "no round was committed, but data was settled";
  const CoreState saved = world.checkpoints.back();
  EXPECT_EQ(saved.data.settled, (std::vector<DataRange>{{0, 0, 5}}));
  EXPECT_EQ(saved.data.out.size(), 1u);
  CoreOptions options = options_for(2);
  options.term = 2;
  options.data_leases = true;
  options.epochs = 1;
  World second(options, Restored{world.layout, saved});
  auto& other = second.connect(1, 7);
  EXPECT_EQ(ask(second, other, 10), (DataRange{0, 5, 3})) << "not settled: given out again";
  EXPECT_EQ(ask(second, other, 10), (DataRange{0, 8, 10}));
}

TEST_F(DataTest, RowsSettledByTheLastSweepAreSavedBeforeTheEnd) {
  ask(*learners[0], 20);
  run_rounds(world, learners, 2);
  world.give(FinishRequested{wire::FinishMode::kFinish, "enough"});
  sweep(world, learners);
  ASSERT_EQ(world.core.status(world.now).phase, RunPhase::kFinal);
  tell(world, *learners[0], wire::DataAction::kComplete, {0, 0, 20});
  world.acknowledge(*learners[0]);
  world.acknowledge(*learners[1]);
  ASSERT_TRUE(world.ended);
  EXPECT_EQ(world.checkpoints.back().data.settled, (std::vector<DataRange>{{0, 0, 20}}));
}

}  // namespace
}  // namespace yeto::sync
