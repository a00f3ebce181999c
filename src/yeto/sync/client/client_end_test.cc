// SPDX-License-Identifier: Apache-2.0
// Goal: the learner's rules of lockstep and of the end of a run. Method: as in client_test.cc.
#include "yeto/sync/client/client_testing.h"

namespace yeto::sync::client {
namespace {

using namespace testing_world;

class FinalTest : public World {
 protected:
  static wire::Final final_message() {
    wire::Final final;
    final.global_step = 6;
    final.versions = {3, 3};
    final.digests.resize(2);
    final.digests[0].fill(1);
    final.digests[1].fill(2);
    return final;
  }
  // FINAL and its transfers.
  void send_final() {
    deliver(TransferKind::kFinal, 0, 3);
    client_.on(MessageArrived{final_message()});
    deliver(TransferKind::kFinal, 1, 3);
  }
};

TEST_F(FinalTest, FinalValuesAreAppliedOnceAllAreThereAndAcknowledged) {
  join();
  step();
  deliver(TransferKind::kFinal, 0, 3);
  client_.on(MessageArrived{final_message()});
  EXPECT_TRUE(client_.draining());
  client_.finalize(false);
  EXPECT_TRUE(all<ApplyFinal>(client_.boundary()).empty());
  deliver(TransferKind::kFinal, 1, 3);
  const auto apply = one<ApplyFinal>(client_.boundary());
  ASSERT_TRUE(apply);
  EXPECT_EQ(apply->images.size(), 2U);
  EXPECT_EQ(client_.final_message().digests, final_message().digests);
  const auto ack = sent<wire::FinalAck>(client_.final_applied(final_message().digests));
  ASSERT_TRUE(ack);
  EXPECT_EQ(ack->digests, final_message().digests);
  EXPECT_EQ(ack->versions, final_message().versions);
  EXPECT_TRUE(client_.acknowledged());
  EXPECT_FALSE(client_.ended());
  client_.on(MessageArrived{wire::Goodbye{"done"}});
  EXPECT_TRUE(client_.ended());
}

TEST_F(FinalTest, FinalIsNotAppliedBeforeTheTrainerAsksForIt) {
  join();
  send_final();
  EXPECT_TRUE(all<ApplyFinal>(step()).empty());
  EXPECT_TRUE(client_.draining());
}

TEST_F(FinalTest, AMemberThatReturnsAcknowledgesAgain) {
  join();
  send_final();
  client_.finalize(false);
  client_.boundary();
  client_.final_applied(final_message().digests);
  client_.on(SessionLost{"cable"});
  admit({3, 3});
  EXPECT_TRUE(sent<wire::FinalAck>(client_.on(MessageArrived{final_message()})));
}

TEST_F(FinalTest, AnotherFinalStateIsAppliedAnew) {
  join();
  send_final();
  client_.finalize(false);
  client_.boundary();
  client_.final_applied(final_message().digests);
  client_.on(SessionLost{"the syncer died"});
  admit({2, 3}, kTerm + 1);
  wire::Final other = final_message();
  other.digests[0].fill(7);
  EXPECT_FALSE(sent<wire::FinalAck>(client_.on(MessageArrived{other})));
  EXPECT_FALSE(client_.acknowledged());
  deliver(TransferKind::kFinal, 0, 3);
  deliver(TransferKind::kFinal, 1, 3);
  EXPECT_TRUE(one<ApplyFinal>(client_.boundary()));
}

TEST_F(FinalTest, AStoppedTrainerSaysLimitToASyncerThatLostTheSweep) {
  join();
  send_final();
  client_.finalize(false);
  client_.on(SessionLost{"the syncer died"});
  EXPECT_TRUE(sent<wire::Limit>(admit({2, 3}, kTerm + 1)));
}

TEST_F(FinalTest, ATrainerThatHasNotStoppedTrainsOnWithASyncerThatLostTheSweep) {
  join();
  step();
  pull(0, 4, 3, true);
  EXPECT_TRUE(client_.draining());
  client_.on(SessionLost{"the syncer died"});
  EXPECT_FALSE(sent<wire::Limit>(admit({2, 3}, kTerm + 1)));
  EXPECT_FALSE(client_.draining());
  // It had been told to stop before: then it says so.
  EXPECT_TRUE(sent<wire::Limit>(client_.finalize(false)));
}

// ---- lockstep
// ------------------------------------------------------------------------------------

TEST(LockstepScheduleTest, RoundsFallOnTheStepsOfTheFormula) {
  // ceil((k + (p+1)/F)·H) for H = 5, F = 2: 3, 5, 8, 10, …
  const std::vector<std::uint64_t> expected = {3, 5, 8, 10, 13, 15};
  for (std::uint64_t round = 1; round <= expected.size(); ++round) {
    EXPECT_EQ(lockstep_due(round, 5, 2), expected[round - 1]);
  }
  // H smaller than F: several fragments at one step.
  EXPECT_EQ(lockstep_due(1, 1, 2), 1U);
  EXPECT_EQ(lockstep_due(2, 1, 2), 1U);
  EXPECT_EQ(lockstep_due(3, 1, 2), 2U);
}

class LockstepTest : public World {
 protected:
  static wire::Welcome lockstep_welcome(std::vector<std::uint64_t> versions, std::uint32_t interval,
                                        std::uint64_t total_steps, bool fixed_roster) {
    wire::Welcome out = welcome(std::move(versions));
    out.settings.lockstep = 1;
    out.settings.sync_interval_steps = interval;
    out.settings.total_steps = total_steps;
    out.settings.fixed_roster = fixed_roster ? 1 : 0;
    return out;
  }
  void join_lockstep(std::uint32_t interval, std::uint64_t total_steps, bool fixed_roster = false) {
    const wire::Welcome start = lockstep_welcome({0, 0}, interval, total_steps, fixed_roster);
    client_.on(Admitted{start});
    broadcast(0, 0);
    broadcast(1, 0);
    client_.boundary();
    ASSERT_TRUE(client_.ready());
  }
};

TEST_F(LockstepTest, AStepWaitsForExactlyItsPullAndItsBroadcast) {
  join_lockstep(2, 0);
  pull(1, 2, 0);  // the next round's PULL may come early
  EXPECT_TRUE(all<TakePush>(step()).empty());
  EXPECT_TRUE(client_.must_wait());
  pull(0, 1, 0);
  EXPECT_EQ(one<TakePush>(client_.boundary())->fragment, 0U);
  EXPECT_TRUE(client_.must_wait());
  broadcast(0, 1);
  EXPECT_EQ(one<Apply>(client_.boundary())->mode, ApplyMode::kAfterPush);
  EXPECT_FALSE(client_.must_wait());
  EXPECT_EQ(one<TakePush>(step())->fragment, 1U);
}

TEST_F(LockstepTest, FragmentsDueAtOneStepFollowEachOther) {
  join_lockstep(1, 0);
  pull(0, 1, 0);
  pull(1, 2, 0);
  EXPECT_EQ(one<TakePush>(step())->fragment, 0U);
  broadcast(0, 1);
  const Actions second = client_.boundary();
  EXPECT_EQ(one<Apply>(second)->fragment, 0U);
  EXPECT_EQ(one<TakePush>(second)->fragment, 1U);
  EXPECT_TRUE(client_.must_wait());
  broadcast(1, 1);
  client_.boundary();
  EXPECT_FALSE(client_.must_wait());
}

TEST_F(LockstepTest, ASecondAttemptCarriesTheSameWork) {
  join_lockstep(2, 0);
  pull(0, 1, 0);
  const auto take = one<TakePush>(step(10));
  client_.on(PushEncoded{take->ticket, true, 1.0});
  client_.on(BodySent{take->ticket, true});
  pull(0, 1, 0, false, 0, 2);
  const auto again = one<TakePush>(client_.boundary());
  ASSERT_TRUE(again);
  EXPECT_EQ(one<SendBody>(client_.on(PushEncoded{again->ticket, true, 1.0}))->offer.c_tokens, 10U);
}

TEST_F(LockstepTest, AfterTheLastRoundTheStepWaitsForTheSweep) {
  join_lockstep(2, 1);
  pull(0, 1, 0);
  step();
  broadcast(0, 1);
  client_.boundary();
  EXPECT_TRUE(client_.must_wait());
  pull(1, 2, 0, true);
  EXPECT_FALSE(client_.must_wait());
  EXPECT_TRUE(client_.draining());
  EXPECT_TRUE(all<TakePush>(client_.boundary()).empty());
  client_.finalize(false);
  EXPECT_EQ(one<TakePush>(client_.boundary())->fragment, 1U);
}

TEST_F(LockstepTest, ARoundPushedBeforeTheSweepIsStillAppliedInItsStep) {
  join_lockstep(2, 1);
  pull(0, 1, 0);
  step();
  pull(1, 2, 0, true);  // control is faster than the broadcast
  EXPECT_TRUE(client_.must_wait());
  broadcast(0, 1);
  EXPECT_TRUE(one<Apply>(client_.boundary()));
  EXPECT_FALSE(client_.must_wait());
}

TEST_F(LockstepTest, ACancelledRoundIsNotWaitedForInTheSweep) {
  join_lockstep(2, 0);
  pull(0, 1, 0);
  step();
  client_.on(MessageArrived{wire::Cancel{1, 1}});
  EXPECT_TRUE(client_.must_wait());  // for the next attempt
  pull(0, 1, 0, true);
  EXPECT_FALSE(client_.must_wait());
}

TEST_F(LockstepTest, ALostSessionEndsTheRunForTheCaller) {
  join_lockstep(2, 0);
  EXPECT_TRUE(client_.lockstep_fault().empty());
  step();
  client_.on(SessionLost{"cable"});
  EXPECT_NE(client_.lockstep_fault().find("cable"), std::string::npos);
}

TEST_F(LockstepTest, WithAFixedRosterTheStepWaitsForTheLostSession) {
  join_lockstep(2, 0, true);
  pull(0, 1, 0);
  const auto take = one<TakePush>(step(10));
  client_.on(PushEncoded{take->ticket, true, 1.0});
  client_.on(SessionLost{"cable"});
  EXPECT_TRUE(client_.lockstep_fault().empty());
  EXPECT_TRUE(client_.must_wait());
  wire::Welcome again = lockstep_welcome({0, 0}, 2, 0, true);
  again.resumed = 1;
  client_.on(Admitted{again});
  pull(0, 1, 0);  // the push had not arrived
  const auto repeated = one<TakePush>(client_.boundary());
  ASSERT_TRUE(repeated);
  EXPECT_EQ(one<SendBody>(client_.on(PushEncoded{repeated->ticket, true, 1.0}))->offer.c_tokens,
            10U);
  broadcast(0, 1);
  EXPECT_EQ(one<Apply>(client_.boundary())->mode, ApplyMode::kAfterPush);
  EXPECT_FALSE(client_.must_wait());
}

TEST_F(LockstepTest, APushThatHadArrivedIsNotAskedForAgain) {
  join_lockstep(2, 0, true);
  pull(0, 1, 0);
  const auto take = one<TakePush>(step(10));
  client_.on(PushEncoded{take->ticket, true, 1.0});
  client_.on(SessionLost{"cable"});
  wire::Welcome again = lockstep_welcome({1, 0}, 2, 0, true);
  again.resumed = 1;
  client_.on(Admitted{again});
  broadcast(0, 1);
  const Actions actions = client_.boundary();
  EXPECT_TRUE(all<TakePush>(actions).empty());
  EXPECT_TRUE(one<Apply>(actions));
  EXPECT_FALSE(client_.must_wait());
}

TEST_F(LockstepTest, ASeatThatWasNotKeptEndsTheFixedRosterRunToo) {
  join_lockstep(2, 0, true);
  step();
  client_.on(SessionLost{"cable"});
  client_.on(Admitted{lockstep_welcome({0, 0}, 2, 0, true)});
  EXPECT_NE(client_.lockstep_fault().find("cable"), std::string::npos);
}

TEST_F(LockstepTest, ALockstepRunCannotBeJoinedLate) {
  wire::Welcome late = welcome({1, 1});
  late.settings.lockstep = 1;
  late.global_step = 2;
  client_.on(Admitted{late});
  EXPECT_FALSE(client_.lockstep_fault().empty());
}

}  // namespace
}  // namespace yeto::sync::client
