// SPDX-License-Identifier: Apache-2.0
// Goal: quorum, grace, pacing and the judgement of pushes. Method: pure calls with injected time.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "yeto/sync/round/round.h"

namespace yeto::sync {
namespace {

Attempt attempt_of(std::initializer_list<Duty> duties) {
  Attempt out;
  out.round = 1;
  std::uint32_t seat = 0;
  for (const Duty duty : duties) {
    out.duties[seat++] = duty;
  }
  return out;
}

TEST(RoundTest, QuorumIsAllUpToTwoElseThreeQuartersRoundedUp) {
  RoundOptions options;
  const std::uint32_t expected[] = {1, 2, 3, 3, 4, 5, 6, 6};
  for (std::uint32_t members = 1; members <= 8; ++members) {
    options.learners = members;
    EXPECT_EQ(quorum_of(options, 1), expected[members - 1]) << members;
  }
  options.learners = 2;
  EXPECT_EQ(quorum_of(options, 8), 6u) << "late joiners raise the quorum";
  options.quorum = 5;
  EXPECT_EQ(quorum_of(options, 8), 5u);
  options.quorum_all = true;
  EXPECT_EQ(quorum_of(options, 8), 8u);
}

TEST(RoundTest, GraceFollowsTheFormula) {
  RoundOptions options;
  EXPECT_EQ(*grace_of(options, kSecond, kSecond / 2, kSecond / 2), 800 * kMillisecond);
  EXPECT_EQ(*grace_of(options, kSecond, 3 * kSecond, 0), 0);
  EXPECT_FALSE(grace_of(options, std::nullopt, 0, 0));
  options.grace_cap = 100 * kMillisecond;
  EXPECT_EQ(*grace_of(options, kSecond, 0, 0), 100 * kMillisecond);
}

TEST(RoundTest, PaceIsTheStepTimeOfTheKthFastest) {
  EXPECT_EQ(pace_of({3, 1, 2}, 2), 2);
  EXPECT_EQ(pace_of({3}, 2), std::nullopt);
  EXPECT_EQ(pace_of({}, 0), std::nullopt);
}

TEST(RoundTest, LaunchIntervalIsTheLargerOfFloorAndHSteps) {
  RoundOptions options;
  options.sync_interval_steps = 24;
  EXPECT_EQ(launch_interval(options, kSecond, 8), 3 * kSecond);
  EXPECT_EQ(launch_interval(options, std::nullopt, 8), 0);
  options.min_round = 5 * kSecond;
  EXPECT_EQ(launch_interval(options, kSecond, 8), 5 * kSecond);
  EXPECT_EQ(steps_to_capture(options, 8), 3u);
  EXPECT_EQ(steps_to_capture(options, 48), 1u);
}

TEST(RoundTest, NeverClosesWithoutAnAcceptedPush) {
  RoundOptions options;
  options.learners = 3;
  auto waiting = attempt_of({Duty::kOutstanding, Duty::kGone, Duty::kGone});
  EXPECT_EQ(decide(options, waiting, kSecond, 0, 10 * kSecond).kind, Decision::Kind::kWait);
  auto nobody = attempt_of({Duty::kDropped, Duty::kGone, Duty::kEmpty});
  EXPECT_EQ(decide(options, nobody, kSecond, 0, 10 * kSecond).kind, Decision::Kind::kAbandon);
}

TEST(RoundTest, QuorumShrinksToWhatCanStillCome) {
  RoundOptions options;
  options.learners = 4;  // K = 3
  auto attempt = attempt_of({Duty::kAccepted, Duty::kGone, Duty::kGone, Duty::kOutstanding});
  // min(3, 1 + 1) = 2 are needed.
  EXPECT_EQ(decide(options, attempt, kSecond, 0, kSecond).kind, Decision::Kind::kWait);
  EXPECT_EQ(attempt.quorum_at, 0);
  attempt.duties[3] = Duty::kGone;
  EXPECT_EQ(decide(options, attempt, kSecond, 0, kSecond).kind, Decision::Kind::kClose);
}

TEST(RoundTest, GraceOpensOnceAtQuorumAndEndsTheRound) {
  RoundOptions options;
  options.learners = 4;
  auto attempt =
      attempt_of({Duty::kAccepted, Duty::kAccepted, Duty::kAccepted, Duty::kOutstanding});
  attempt.launched = 0;
  const Nanos quorum = kSecond / 2;
  auto first = decide(options, attempt, kSecond, kSecond / 2, quorum);
  EXPECT_EQ(first.kind, Decision::Kind::kWait);
  EXPECT_EQ(first.until, quorum + 800 * kMillisecond);
  // A slower pace seen later does not move the window.
  auto second = decide(options, attempt, 9 * kSecond, 0, quorum + 799 * kMillisecond);
  EXPECT_EQ(second.until, first.until);
  EXPECT_EQ(decide(options, attempt, kSecond, 0, first.until).kind, Decision::Kind::kClose);
}

TEST(RoundTest, UnknownPaceWaitsForAllLiveUpToTheTimeout) {
  RoundOptions options;
  options.learners = 4;
  options.round_timeout = 10 * kSecond;
  auto attempt =
      attempt_of({Duty::kAccepted, Duty::kAccepted, Duty::kAccepted, Duty::kOutstanding});
  EXPECT_EQ(decide(options, attempt, std::nullopt, 0, 9 * kSecond).kind, Decision::Kind::kWait);
  EXPECT_EQ(decide(options, attempt, std::nullopt, 0, 10 * kSecond).kind, Decision::Kind::kClose);
}

TEST(RoundTest, TimeoutBelowQuorumKeepsTheAcceptedAndAsksAgain) {
  RoundOptions options;
  options.learners = 4;
  options.round_timeout = 10 * kSecond;
  auto attempt = attempt_of({Duty::kAccepted, Duty::kOutstanding, Duty::kOutstanding});
  EXPECT_EQ(decide(options, attempt, kSecond, 0, 10 * kSecond).kind, Decision::Kind::kAskAgain);
}

TEST(RoundTest, SweepWaitsForEveryLiveMember) {
  RoundOptions options;
  options.learners = 4;
  options.quorum = 1;
  auto attempt = attempt_of({Duty::kAccepted, Duty::kOutstanding});
  attempt.sweep = true;
  EXPECT_EQ(decide(options, attempt, kSecond, 0, 100 * kSecond).kind, Decision::Kind::kWait);
  attempt.duties[1] = Duty::kEmpty;
  EXPECT_EQ(decide(options, attempt, kSecond, 0, 100 * kSecond).kind, Decision::Kind::kClose);
}

TEST(RoundTest, PushesAreJudgedByTheirOffer) {
  auto attempt = attempt_of({Duty::kOutstanding, Duty::kAccepted});
  attempt.fragment = 3;
  attempt.base_version = 7;
  PushClaim good{.seat = 0, .round = 1, .attempt = 0, .fragment = 3, .base_version = 7};
  EXPECT_EQ(objection_to(attempt, good), "");
  auto claim = good;
  claim.seat = 5;
  EXPECT_NE(objection_to(attempt, claim).find("did not capture"), std::string::npos);
  claim = good;
  claim.base_version = 6;
  EXPECT_NE(objection_to(attempt, claim).find("base version 6"), std::string::npos);
  claim = good;
  claim.seat = 1;
  EXPECT_NE(objection_to(attempt, claim).find("answered round"), std::string::npos);
  claim = good;
  claim.fragment = 2;
  EXPECT_NE(objection_to(attempt, claim).find("fragment 3, not 2"), std::string::npos);
  claim = good;
  claim.attempt = 1;
  EXPECT_NE(objection_to(attempt, claim).find("attempt 1"), std::string::npos);
}

TEST(RoundTest, OutliersNeedEightNormsToCompareWith) {
  NormWatch watch;
  for (int i = 0; i < 7; ++i) {
    watch.add(1.0);
    watch.add(0.0);
  }
  EXPECT_FALSE(watch.outlier(1e9));
  watch.add(1.0);
  EXPECT_TRUE(watch.outlier(1.0001e4));
  EXPECT_FALSE(watch.outlier(1e4));
}

TEST(RoundTest, GraceIsNeverNegativeAndNeverAboveItsFormula) {
  RoundOptions options;
  EXPECT_EQ(*grace_of(options, 0, 0, 0), 0) << "a step time of zero leaves no time";
  EXPECT_EQ(*grace_of(options, kSecond, 2 * kSecond, 0), 0) << "the quorum took all of it";
  EXPECT_EQ(*grace_of(options, kSecond, 0, 5 * kSecond), 0) << "the last commit took all of it";
  options.grace_cap = 0;
  EXPECT_EQ(*grace_of(options, kSecond, 0, 0), 0) << "a cap of zero closes at quorum";
  options.grace_cap = 60 * kSecond;
  EXPECT_EQ(*grace_of(options, kSecond, 0, 0), 1600 * kMillisecond) << "a cap never lengthens";
  options.grace_cap.reset();
  for (const Nanos pace : {kMillisecond, kSecond, 30 * kSecond}) {
    for (const Nanos used : {Nanos{0}, kMillisecond, kSecond, 100 * kSecond}) {
      const Nanos grace = *grace_of(options, pace, used, used / 2);
      EXPECT_GE(grace, 0);
      EXPECT_LE(grace, from_seconds(1.6 * seconds(pace)));
    }
  }
}

TEST(RoundTest, TimeoutInTheLastSweepLetsTheMissingGo) {
  RoundOptions options;
  options.learners = 4;
  options.round_timeout = 10 * kSecond;
  auto attempt = attempt_of({Duty::kAccepted, Duty::kOutstanding, Duty::kReceiving});
  attempt.sweep = true;
  EXPECT_EQ(needed_pushes(options, attempt), 3u);
  EXPECT_EQ(decide(options, attempt, kSecond, 0, 10 * kSecond).kind, Decision::Kind::kClose);
  EXPECT_EQ(needed_pushes(options, attempt), 1u) << "only what came is needed then";
}

TEST(RoundTest, FixedRosterWaitsForLostSeatsToo) {
  RoundOptions options;
  options.learners = 3;
  options.all_answer = true;
  auto attempt = attempt_of({Duty::kAccepted, Duty::kGone, Duty::kEmpty});
  EXPECT_EQ(decide(options, attempt, kSecond, 0, 100 * kSecond).kind, Decision::Kind::kWait);
  EXPECT_EQ(decide(options, attempt, kSecond, 0, options.round_timeout).kind,
            Decision::Kind::kAskAgain)
      << "never without it, however late";
  attempt.duties[1] = Duty::kDropped;
  EXPECT_EQ(decide(options, attempt, kSecond, 0, 0).kind, Decision::Kind::kClose)
      << "a bad push is an answer";
  attempt.duties[0] = Duty::kEmpty;
  EXPECT_EQ(decide(options, attempt, kSecond, 0, 0).kind, Decision::Kind::kAbandon);
}

TEST(RoundTest, LateWorkIsDiscountedByItsLag) {
  EXPECT_DOUBLE_EQ(late_factor(0, 0.5, false), 1.0);
  EXPECT_DOUBLE_EQ(late_factor(1, 0.0, false), 0.5);
  EXPECT_DOUBLE_EQ(late_factor(2, 0.0, false), 0.25);
  EXPECT_DOUBLE_EQ(late_factor(1, 0.75, false), 0.25) << "1 − α^lag is the smaller one";
  EXPECT_DOUBLE_EQ(late_factor(2, 0.75, false), 0.25) << "0.5^lag is the smaller one";
  EXPECT_DOUBLE_EQ(late_factor(1, 0.75, true), 0.5) << "blended deltas leave the share out";
  EXPECT_DOUBLE_EQ(late_factor(1, 1.0, false), 0.0) << "all of it comes again";
}

}  // namespace
}  // namespace yeto::sync
