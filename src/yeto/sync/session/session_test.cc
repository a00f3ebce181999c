// SPDX-License-Identifier: Apache-2.0
// Goal: admission, leases and liveness follow the roster's rules. Method: one Roster, injected
// time.
#include <gtest/gtest.h>

#include "yeto/sync/session/roster.h"

namespace yeto::sync {
namespace {

wire::Hello hello(std::uint32_t seat, std::uint64_t incarnation) {
  wire::Hello out;
  out.run_id = "run";
  out.seat = seat;
  out.incarnation = incarnation;
  out.contract = {{"base-model", {1}}, {"recipe", {2}}};
  return out;
}

wire::SessionToken token(std::uint8_t value) { return wire::SessionToken{value}; }

struct SessionTest : testing::Test {
  Roster roster{RosterOptions{.run_id = "run", .lease = 5 * kSecond}};

  wire::Refused refusal(const wire::Hello& hello_in, bool proof = true, Nanos now = 0) {
    const auto result = roster.admit(hello_in, 99, proof, token(9), now);
    EXPECT_TRUE(std::holds_alternative<wire::Refused>(result));
    return std::get<wire::Refused>(result);
  }
  Admission admitted(const wire::Hello& hello_in, std::uint64_t conn, std::uint8_t session,
                     Nanos now = 0) {
    const auto result = roster.admit(hello_in, conn, true, token(session), now);
    EXPECT_TRUE(std::holds_alternative<Admission>(result));
    return std::get<Admission>(result);
  }
};

TEST_F(SessionTest, RefusalsNameWhatDiffers) {
  auto other_run = hello(0, 1);
  other_run.run_id = "other";
  EXPECT_EQ(refusal(other_run).code, wire::RefuseCode::kRun);
  EXPECT_EQ(refusal(hello(0, 1), false).code, wire::RefuseCode::kProof);

  admitted(hello(0, 1), 1, 1);
  auto other_recipe = hello(1, 2);
  other_recipe.contract[1].hash = {3};
  EXPECT_NE(refusal(other_recipe).text.find("'recipe' differs"), std::string::npos);
  auto missing = hello(1, 2);
  missing.contract.pop_back();
  EXPECT_NE(refusal(missing).text.find("'recipe' is missing"), std::string::npos);
  auto extra = hello(1, 2);
  extra.contract.push_back({"data", {7}});
  EXPECT_NE(refusal(extra).text.find("'data' is not part"), std::string::npos);
  auto other_layout = hello(1, 2);
  other_layout.layout = {5};
  EXPECT_EQ(refusal(other_layout).code, wire::RefuseCode::kLayout);
  EXPECT_EQ(roster.members().size(), 1u);
}

TEST_F(SessionTest, AnotherProcessOfASeatWaitsForTheOldSocketOrLease) {
  admitted(hello(0, 1), 1, 1);
  const auto busy = refusal(hello(0, 2), true, 1 * kSecond);
  EXPECT_EQ(busy.code, wire::RefuseCode::kBusySeat);
  EXPECT_EQ(busy.retryable, 1);
  roster.disconnect(1);
  EXPECT_FALSE(admitted(hello(0, 2), 2, 2, 2 * kSecond).resumed);
  // Silence for a lease frees the seat too, though the socket is still open.
  EXPECT_FALSE(admitted(hello(0, 3), 3, 3, 8 * kSecond).resumed);
}

TEST_F(SessionTest, SameProcessWithItsTokenResumes) {
  admitted(hello(0, 1), 1, 7);
  roster.disconnect(1);
  auto again = hello(0, 1);
  again.session = token(7);
  EXPECT_TRUE(admitted(again, 2, 8, kSecond).resumed);
  EXPECT_EQ(roster.find(0)->session, token(7));
  // Half-open: the old socket is not known to be dead yet; the same process takes its place.
  const auto third = admitted(again, 3, 8, kSecond);
  EXPECT_TRUE(third.resumed);
  EXPECT_EQ(third.replaced, 2u);
  again.session = token(6);
  EXPECT_FALSE(admitted(again, 4, 8, kSecond).resumed);
}

TEST_F(SessionTest, AnonymousJoinersGetTheLowestFreeSeat) {
  EXPECT_EQ(admitted(hello(wire::kNoSeat, 1), 1, 1).seat, 0u);
  EXPECT_EQ(admitted(hello(wire::kNoSeat, 2), 2, 2).seat, 1u);
}

TEST_F(SessionTest, LeaseEndsOnSilenceAndIsRenewedByAnyFrame) {
  admitted(hello(0, 1), 1, 1);
  roster.heard(1, 3 * kSecond);
  EXPECT_TRUE(roster.expire(5 * kSecond).empty());
  EXPECT_TRUE(roster.live(*roster.find(0), 7 * kSecond, false));
  EXPECT_EQ(roster.expire(8 * kSecond), std::vector<std::uint32_t>{0});
  EXPECT_TRUE(roster.expire(9 * kSecond).empty()) << "a loss is reported once";
  EXPECT_FALSE(roster.live(*roster.find(0), 9 * kSecond, false));
}

TEST_F(SessionTest, HungTrainingIsStaleAfterTheStallLimitButLoadingIsNot) {
  admitted(hello(0, 1), 1, 1);
  roster.beat(1, {.local_step = 1, .tokens = 10, .phase = wire::Phase::kTrain, .step_time_s = 2.0},
              0);
  const Member& member = *roster.find(0);
  EXPECT_FALSE(roster.stale(member, 59 * kSecond, true));
  EXPECT_TRUE(roster.stale(member, 60 * kSecond, true));
  roster.beat(1, {.local_step = 1, .tokens = 10, .phase = wire::Phase::kTrain, .step_time_s = 9.0},
              60 * kSecond);
  EXPECT_FALSE(roster.stale(member, 89 * kSecond, true)) << "ten step times of 9 s";
  EXPECT_TRUE(roster.stale(member, 90 * kSecond, true));
  roster.beat(1, {.local_step = 2, .tokens = 10, .phase = wire::Phase::kTrain, .step_time_s = 9.0},
              100 * kSecond);
  EXPECT_FALSE(roster.stale(member, 101 * kSecond, true)) << "its next step takes it in again";
  roster.beat(1, {.local_step = 2, .tokens = 10, .phase = wire::Phase::kEval, .step_time_s = 9.0},
              102 * kSecond);
  EXPECT_FALSE(roster.stale(member, 1000 * kSecond, true));
}

TEST_F(SessionTest, SeatTokensNeverFallAndSumOverSeats) {
  admitted(hello(0, 1), 1, 1);
  admitted(hello(1, 2), 2, 2);
  roster.beat(1, {.local_step = 3, .tokens = 100, .phase = wire::Phase::kTrain}, 0);
  roster.beat(2, {.local_step = 3, .tokens = 50, .phase = wire::Phase::kTrain}, 0);
  roster.disconnect(1);
  admitted(hello(0, 3), 3, 3, kSecond);
  EXPECT_EQ(roster.run_tokens(), 150u);
  EXPECT_EQ(Roster::steps_since_join(*roster.find(0)), 0u);
}

TEST(FixedRosterTest, OnlyItsSeatsAreAdmittedAndAnonymousJoinersTakeFreeOnes) {
  Roster roster(RosterOptions{.run_id = "run", .lease = 5 * kSecond, .fixed = {2, 5}});
  const auto other = roster.admit(hello(3, 1), 1, true, token(1), 0);
  ASSERT_TRUE(std::holds_alternative<wire::Refused>(other));
  EXPECT_EQ(std::get<wire::Refused>(other).code, wire::RefuseCode::kSeat);
  EXPECT_EQ(std::get<wire::Refused>(other).text, "seat 3 is not in the run's fixed roster (2, 5)");
  const auto named = roster.admit(hello(2, 1), 2, true, token(2), 0);
  EXPECT_EQ(std::get<Admission>(named).seat, 2u);
  const auto anonymous = roster.admit(hello(wire::kNoSeat, 2), 3, true, token(3), 0);
  EXPECT_EQ(std::get<Admission>(anonymous).seat, 5u);
  const auto full = roster.admit(hello(wire::kNoSeat, 3), 4, true, token(4), 0);
  EXPECT_EQ(std::get<wire::Refused>(full).code, wire::RefuseCode::kFull);
  roster.leave(2, "done");
  EXPECT_EQ(std::get<Admission>(roster.admit(hello(wire::kNoSeat, 4), 5, true, token(5), 0)).seat,
            2u);
}

TEST_F(SessionTest, AdmissionTellsWhichProcessHoldsTheSeat) {
  const auto first = admitted(hello(0, 1), 1, 1);
  EXPECT_TRUE(first.first);
  EXPECT_FALSE(first.same_process);
  roster.disconnect(1);
  roster.expire(5 * kSecond);
  const auto again = admitted(hello(0, 1), 2, 2, 6 * kSecond);
  EXPECT_TRUE(again.same_process) << "its lease ended, the process lived";
  EXPECT_FALSE(again.resumed);
  roster.disconnect(2);
  const auto other = admitted(hello(0, 2), 3, 3, 7 * kSecond);
  EXPECT_FALSE(other.first);
  EXPECT_FALSE(other.same_process);
}

TEST_F(SessionTest, QuarantineOutlivesAReconnectButNotTheProcess) {
  admitted(hello(0, 1), 1, 1);
  roster.find(0)->quarantined_until_round = 12;
  roster.disconnect(1);
  admitted(hello(0, 1), 2, 2, kSecond);
  EXPECT_EQ(roster.find(0)->quarantined_until_round, 12u);
  roster.disconnect(2);
  admitted(hello(0, 2), 3, 3, kSecond);
  EXPECT_EQ(roster.find(0)->quarantined_until_round, 0u);
}

}  // namespace
}  // namespace yeto::sync
