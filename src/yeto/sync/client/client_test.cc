// SPDX-License-Identifier: Apache-2.0
// Goal: the learner's rules of protocol and step boundary. Method: events are injected by hand, the
// actions are compared; no socket, no thread, no value.
#include "yeto/sync/client/client_testing.h"

namespace yeto::sync::client {
namespace {

using namespace testing_world;

class ClientTest : public World {};

TEST_F(ClientTest, HelloNamesWhatIsHeld) {
  EXPECT_EQ(client_.hello().held, (std::vector<wire::Held>{{0, 0}, {0, 0}}));
  EXPECT_EQ(client_.hello().layout, layout_.fingerprint());
  EXPECT_EQ(client_.hello().values, 14U);
  join();
  EXPECT_EQ(client_.hello().held, (std::vector<wire::Held>{{kTerm, 0}, {kTerm, 0}}));
  EXPECT_EQ(client_.hello().session, welcome({0, 0}).session);
}

TEST_F(ClientTest, NothingIsReadyUntilEveryFragmentWasOverwritten) {
  EXPECT_FALSE(client_.ready());
  admit({0, 0});
  EXPECT_FALSE(client_.ready());
  broadcast(0, 0);
  const Actions actions = client_.boundary();
  ASSERT_TRUE(one<Apply>(actions));
  EXPECT_EQ(one<Apply>(actions)->mode, ApplyMode::kOverwrite);
  EXPECT_FALSE(client_.ready());
  broadcast(1, 0);
  client_.boundary();
  EXPECT_TRUE(client_.ready());
}

TEST_F(ClientTest, TheDonorGivesLayoutAtOnceAndInitialValuesAtABoundary) {
  admit({});
  wire::Pull ask;
  ask.term = kTerm;
  ask.fragment = wire::kLayoutFragment;
  const auto layout = one<SendLayout>(client_.on(MessageArrived{ask}));
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->offer.kind, TransferKind::kLayout);
  EXPECT_EQ(layout->offer.bytes, layout_.encode().size());

  ask.fragment = 1;
  ask.attempt = 4;
  EXPECT_TRUE(client_.on(MessageArrived{ask}).empty());
  const auto take = one<TakeInit>(client_.boundary());
  ASSERT_TRUE(take);
  EXPECT_EQ(take->fragment, 1U);
  wire::Digest16 digest{};
  digest.fill(5);
  const auto body = one<SendBody>(client_.on(InitEncoded{take->ticket, digest}));
  ASSERT_TRUE(body);
  EXPECT_EQ(body->offer.kind, TransferKind::kInit);
  EXPECT_EQ(body->offer.digest, digest);
  EXPECT_EQ(body->offer.attempt, 4U);
  EXPECT_EQ(body->offer.bytes, layout_.fragments[1].values * 4);
  EXPECT_TRUE(all<TakeInit>(client_.boundary()).empty());
}

TEST_F(ClientTest, PullOfTheHeldBaseIsAnsweredBeforeItsBroadcastIsApplied) {
  join();
  pull(0, 1, 0);
  broadcast(0, 1);  // others closed the round: this learner is a straggler
  const Actions actions = step(10);
  EXPECT_LT(position<TakePush>(actions, 0), position<Apply>(actions, 0));
  EXPECT_LT(position<Apply>(actions, 0), actions.size());
  EXPECT_EQ(one<Apply>(actions)->mode, ApplyMode::kAfterPush);
  EXPECT_EQ(client_.fragment(0).anchor, (wire::Held{kTerm, 1}));
}

TEST_F(ClientTest, PushCountsStepsAndTokensSinceTheLastDelta) {
  join();
  step(10);
  step(20);
  pull(1, 2, 0);
  const auto take = one<TakePush>(step(30));
  ASSERT_TRUE(take);
  EXPECT_EQ(take->fragment, 1U);
  const auto body = one<SendBody>(client_.on(PushEncoded{take->ticket, true, 1.5}));
  ASSERT_TRUE(body);
  EXPECT_EQ(body->offer.kind, TransferKind::kPush);
  EXPECT_EQ(body->offer.round, 2U);
  EXPECT_EQ(body->offer.base_version, 0U);
  EXPECT_EQ(body->offer.c_steps, 3U);
  EXPECT_EQ(body->offer.c_tokens, 60U);
  EXPECT_DOUBLE_EQ(body->offer.norm, 1.5);
  client_.on(BodySent{take->ticket, true});
  EXPECT_EQ(client_.counters().pushes, 1U);
  EXPECT_EQ(client_.fragment(1).work, Work{});
  EXPECT_EQ(client_.fragment(0).work, (Work{3, 60}));
}

TEST_F(ClientTest, PullOfALaterBaseWaitsForItsBroadcast) {
  join();
  pull(0, 3, 1);
  EXPECT_TRUE(all<TakePush>(step()).empty());
  EXPECT_EQ(client_.pulls_waiting(), 1U);
  EXPECT_EQ(client_.staleness_max(), 1U);
  broadcast(0, 1);
  EXPECT_TRUE(one<Apply>(step()));
  EXPECT_EQ(client_.staleness_max(), 0U);
  const auto take = one<TakePush>(step());
  ASSERT_TRUE(take);
  EXPECT_EQ(client_.pulls_waiting(), 0U);
}

TEST_F(ClientTest, PullOfAnOlderBaseIsDropped) {
  join();
  broadcast(0, 2);
  step();
  pull(0, 1, 1);
  EXPECT_TRUE(all<TakePush>(step()).empty());
  EXPECT_EQ(client_.pulls_waiting(), 0U);
}

TEST_F(ClientTest, AtLeastOneStepLiesBetweenTwoDeltas) {
  join();
  pull(0, 1, 0);
  EXPECT_TRUE(one<TakePush>(step()));
  pull(0, 1, 0, false, 0, 2);
  EXPECT_TRUE(client_.boundary().empty());
  EXPECT_TRUE(one<TakePush>(step()));
}

TEST_F(ClientTest, NothingIsPushedBeforeTheFirstStep) {
  join();
  pull(0, 1, 0);
  EXPECT_TRUE(client_.boundary().empty());
}

TEST_F(ClientTest, TheLastPullReplacesTheOneThatWaits) {
  join();
  pull(0, 1, 0, false, 0, 1);
  pull(0, 1, 0, false, 0, 2);
  const auto take = one<TakePush>(step());
  const auto body = one<SendBody>(client_.on(PushEncoded{take->ticket, true, 0.0}));
  EXPECT_EQ(body->offer.attempt, 2U);
}

TEST_F(ClientTest, PullOfAnotherTermIsIgnored) {
  join();
  wire::Pull late;
  late.term = kTerm - 1;
  late.round = 1;
  EXPECT_TRUE(client_.on(MessageArrived{late}).empty());
  EXPECT_TRUE(all<TakePush>(step()).empty());
}

TEST_F(ClientTest, PullIsHeldUntilItsStep) {
  join();
  pull(0, 1, 0, false, 3);
  EXPECT_TRUE(all<TakePush>(step()).empty());
  EXPECT_TRUE(all<TakePush>(step()).empty());
  EXPECT_TRUE(one<TakePush>(step()));
}

TEST_F(ClientTest, CancelDropsThePullThatIsNotAnswered) {
  join();
  pull(0, 1, 0);
  client_.on(MessageArrived{wire::Cancel{1, 1}});
  EXPECT_TRUE(all<TakePush>(step()).empty());
}

TEST_F(ClientTest, CancelKeepsBackTheDeltaThatIsBeingEncoded) {
  join();
  pull(0, 1, 0);
  const auto take = one<TakePush>(step(10));
  client_.on(MessageArrived{wire::Cancel{1, 1}});
  const Actions actions = client_.on(PushEncoded{take->ticket, true, 1.0});
  EXPECT_TRUE(all<SendBody>(actions).empty());
  EXPECT_TRUE(one<DropBody>(actions));
  EXPECT_EQ(client_.fragment(0).returned, (Work{1, 10}));
}

TEST_F(ClientTest, CancelOfAnotherAttemptChangesNothing) {
  join();
  pull(0, 1, 0, false, 0, 2);
  client_.on(MessageArrived{wire::Cancel{1, 1}});
  EXPECT_TRUE(one<TakePush>(step()));
}

TEST_F(ClientTest, TheNewestImageWins) {
  join();
  broadcast(0, 1);
  const ImageId older = last_image_;
  const auto dropped = one<DropImage>(broadcast(0, 2));
  ASSERT_TRUE(dropped);
  EXPECT_EQ(dropped->image, older);
  const auto apply = one<Apply>(step());
  ASSERT_TRUE(apply);
  EXPECT_EQ(apply->version, 2U);
}

TEST_F(ClientTest, AnImageThatIsHeldAlreadyIsNotAppliedAgain) {
  join();
  EXPECT_TRUE(one<DropImage>(broadcast(0, 0)));
  EXPECT_TRUE(all<Apply>(step()).empty());
}

TEST_F(ClientTest, ADamagedImageIsToldToTheSenderAndNeverApplied) {
  join();
  const Actions actions = deliver(TransferKind::kBroadcast, 0, 1, false);
  ASSERT_TRUE(one<FinishReceive>(actions));
  EXPECT_FALSE(one<FinishReceive>(actions)->ok);
  EXPECT_TRUE(one<DropImage>(actions));
  EXPECT_TRUE(all<Apply>(step()).empty());
  EXPECT_EQ(client_.counters().damaged_images, 1U);
}

TEST_F(ClientTest, OffersThatDoNotFitAreRefused) {
  join();
  const auto refused = [&](wire::Offer wrong) {
    const auto refuse = one<Refuse>(client_.on(OfferArrived{wrong}));
    return refuse && !refuse->reason.empty();
  };
  wire::Offer wrong = offer(TransferKind::kBroadcast, 0, 1);
  wrong.bytes += 1;
  EXPECT_TRUE(refused(wrong));
  wrong = offer(TransferKind::kBroadcast, 0, 1);
  wrong.term = kTerm + 1;
  EXPECT_TRUE(refused(wrong));
  wrong = offer(TransferKind::kBroadcast, 0, 1);
  wrong.fragment = 2;
  EXPECT_TRUE(refused(wrong));
  wrong = offer(TransferKind::kBroadcast, 0, 1);
  wrong.codec = CodecId::kBf16;
  EXPECT_TRUE(refused(wrong));
  EXPECT_TRUE(refused(offer(TransferKind::kPush, 0, 1)));
}

TEST_F(ClientTest, WithoutAPushTheLocalWorkIsLostAndNotCounted) {
  join();
  step(10);
  broadcast(0, 1);
  const auto apply = one<Apply>(step(20));
  ASSERT_TRUE(apply);
  EXPECT_EQ(apply->mode, ApplyMode::kWithoutPush);
  EXPECT_EQ(client_.fragment(0).work, Work{});
  EXPECT_EQ(client_.counters().discarded_tokens, 30U);
}

TEST_F(ClientTest, WorkSinceThePushStaysCounted) {
  join();
  pull(0, 1, 0);
  step(10);
  broadcast(0, 1);
  EXPECT_EQ(one<Apply>(step(20))->mode, ApplyMode::kAfterPush);
  EXPECT_EQ(client_.fragment(0).work, (Work{1, 20}));
}

TEST_F(ClientTest, TheRunsSettingsReachTheApplication) {
  wire::Welcome settings = welcome({0, 0});
  settings.settings.merge_alpha = 0.25;
  settings.settings.delta_blended = 1;
  client_.on(Admitted{settings});
  broadcast(0, 0);
  client_.boundary();
  broadcast(0, 1);
  const auto apply = one<Apply>(step());
  ASSERT_TRUE(apply);
  EXPECT_DOUBLE_EQ(apply->alpha, 0.25);
  EXPECT_TRUE(apply->blended);
}

TEST_F(ClientTest, AfterAResumedSessionNothingIsOverwritten) {
  join();
  pull(0, 1, 0);
  const auto take = one<TakePush>(step(10));
  client_.on(PushEncoded{take->ticket, true, 1.0});
  broadcast(1, 1);
  client_.on(SessionLost{"cable"});
  EXPECT_FALSE(client_.connected());
  wire::Welcome again = welcome({0, 1});
  again.resumed = 1;
  client_.on(Admitted{again});
  EXPECT_TRUE(client_.ready());
  // The push did not arrive: asked again, it carries the same work.
  EXPECT_EQ(client_.fragment(0).returned, (Work{1, 10}));
  pull(0, 1, 0);
  const auto repeated = one<TakePush>(client_.boundary());
  ASSERT_TRUE(repeated);
  const auto body = one<SendBody>(client_.on(PushEncoded{repeated->ticket, true, 1.0}));
  EXPECT_EQ(body->offer.c_tokens, 10U);
  // The image that came before the loss was applied at the same boundary.
  EXPECT_EQ(client_.fragment(1).anchor.version, 1U);
}

TEST_F(ClientTest, ARejoinKeepsTheCurrentVersionAndOverwritesTheRest) {
  join();
  broadcast(0, 1);
  step(10);
  client_.on(SessionLost{"lease"});
  step(5);
  admit({1, 1});  // fragment 1 went on without this learner
  EXPECT_FALSE(client_.fragment(0).overwrite);
  EXPECT_TRUE(client_.fragment(1).overwrite);
  pull(0, 5, 1);
  pull(1, 6, 1);
  const Actions before = step(5);
  EXPECT_EQ(all<TakePush>(before).size(), 1U);
  EXPECT_EQ(one<TakePush>(before)->fragment, 0U);
  broadcast(1, 1);
  const Actions actions = step(5);
  EXPECT_EQ(one<Apply>(actions)->mode, ApplyMode::kOverwrite);
  EXPECT_LT(position<TakePush>(actions, 1), position<Apply>(actions, 1));  // offered late
  EXPECT_EQ(one<TakePush>(step(5))->fragment, 1U);
}

TEST_F(ClientTest, ANewTermKeepsAnchorsUpToItsForkPoint) {
  join();
  broadcast(0, 1);
  broadcast(1, 1);
  step(10);
  client_.on(SessionLost{"the syncer died"});
  // The new term began before the commit of fragment 1 was durable.
  admit({1, 0}, kTerm + 1);
  EXPECT_EQ(client_.fragment(0).anchor, (wire::Held{kTerm + 1, 1}));
  EXPECT_TRUE(client_.fragment(1).overwrite);
  EXPECT_EQ(client_.hello().held[1], wire::Held{});
  broadcast(1, 0);
  EXPECT_EQ(one<Apply>(step())->mode, ApplyMode::kOverwrite);
}

TEST_F(ClientTest, ANewTermForgetsPushesSoTheirWorkIsPushedAgain) {
  join();
  pull(0, 1, 0);
  const auto take = one<TakePush>(step(10));
  client_.on(PushEncoded{take->ticket, true, 1.0});
  client_.on(BodySent{take->ticket, true});
  client_.on(SessionLost{"the syncer died"});
  admit({0, 0}, kTerm + 1);
  pull(0, 1, 0);
  const auto again = one<TakePush>(step(7));
  const auto body = one<SendBody>(client_.on(PushEncoded{again->ticket, true, 1.0}));
  EXPECT_EQ(body->offer.c_steps, 2U);
  EXPECT_EQ(body->offer.c_tokens, 17U);
}

TEST_F(ClientTest, AnEncodedDeltaOfALostSessionIsDropped) {
  join();
  pull(0, 1, 0);
  const auto take = one<TakePush>(step());
  client_.on(SessionLost{"cable"});
  const Actions actions = client_.on(PushEncoded{take->ticket, true, 1.0});
  EXPECT_TRUE(all<SendBody>(actions).empty());
  EXPECT_TRUE(one<DropBody>(actions));
}

TEST_F(ClientTest, ARefusedPushGivesItsWorkBackUntilABroadcastReplacesIt) {
  join();
  pull(0, 1, 0);
  const auto take = one<TakePush>(step(10));
  client_.on(PushEncoded{take->ticket, true, 1.0});
  client_.on(BodySent{take->ticket, false});
  EXPECT_EQ(client_.fragment(0).returned, (Work{1, 10}));
  broadcast(0, 1);
  client_.boundary();
  EXPECT_EQ(client_.fragment(0).returned, Work{});
  EXPECT_EQ(client_.counters().discarded_tokens, 10U);
}

TEST_F(ClientTest, NonFiniteValuesAreNeverPushedAndGoBackToTheAnchor) {
  join();
  pull(0, 1, 0);
  const auto take = one<TakePush>(step());
  const Actions actions = client_.on(PushEncoded{take->ticket, false, 0.0});
  EXPECT_TRUE(one<DropBody>(actions));
  // The syncer need not wait for this seat: an empty push ends its duty in the round.
  ASSERT_TRUE(one<SendBody>(actions));
  EXPECT_EQ(one<SendBody>(actions)->offer.bytes, 0U);
  EXPECT_EQ(client_.counters().nonfinite_pushes, 1U);
  EXPECT_TRUE(one<SettlePush>(actions));
  EXPECT_FALSE(one<SettlePush>(actions)->kept);
  // All work since the last delta stands on those values too.
  pull(0, 1, 0, false, 0, 2);
  const Actions reset = step();
  EXPECT_EQ(one<ResetFragment>(reset)->fragment, 0U);
  EXPECT_FALSE(one<TakePush>(reset));
  EXPECT_EQ(client_.counters().resets, 1U);
  EXPECT_EQ(client_.counters().discarded_tokens, 20U);
  EXPECT_EQ(client_.hello().held[0], (wire::Held{kTerm, 0}));
  // The next attempt of the round, without any newer version, gets the work since the reset.
  const Actions next = step();
  EXPECT_FALSE(one<ResetFragment>(next));
  ASSERT_TRUE(one<TakePush>(next));
  client_.on(PushEncoded{one<TakePush>(next)->ticket, true, 1.0});
  broadcast(0, 1);
  EXPECT_EQ(one<Apply>(step())->mode, ApplyMode::kAfterPush);
}

TEST_F(ClientTest, ABroadcastThatKeepsWorkSinceDoesNotHealAndAWholeOneDoes) {
  join();
  pull(0, 1, 0);
  const auto kept = one<TakePush>(step());
  broadcast(0, 1);
  EXPECT_EQ(one<Apply>(step())->mode, ApplyMode::kAfterPush);
  client_.on(PushEncoded{kept->ticket, false, 0.0});
  const Actions actions = client_.boundary();
  EXPECT_TRUE(one<ResetFragment>(actions));
  // Here a second broadcast has replaced the values before the delta was found to be bad.
  pull(0, 3, 1);
  const auto replaced = one<TakePush>(step());
  broadcast(0, 2);
  step();
  broadcast(0, 3);
  EXPECT_EQ(one<Apply>(step())->mode, ApplyMode::kWithoutPush);
  client_.on(PushEncoded{replaced->ticket, false, 0.0});
  EXPECT_FALSE(one<ResetFragment>(step()));
  EXPECT_EQ(client_.counters().resets, 1U);
}

TEST_F(ClientTest, TheSweepIsAnsweredEvenWithNonFiniteValues) {
  join();
  pull(0, 1, 0, true);
  const auto take = one<TakePush>(step());
  const auto body = one<SendBody>(client_.on(PushEncoded{take->ticket, false, 0.0}));
  ASSERT_TRUE(body);
  EXPECT_EQ(body->offer.bytes, 0U);
  // Asked again: what was trained since is lost with them.
  pull(0, 1, 0, true, 0, 2);
  const Actions again = step();
  EXPECT_TRUE(one<ResetFragment>(again));
  ASSERT_TRUE(one<SendBody>(again));
  EXPECT_EQ(one<SendBody>(again)->offer.bytes, 0U);
}

TEST_F(ClientTest, SweepDrainsAndIsAnsweredWithoutNewSteps) {
  join();
  pull(0, 1, 0);
  const auto take = one<TakePush>(step());
  client_.on(PushEncoded{take->ticket, true, 1.0});
  EXPECT_FALSE(client_.draining());
  pull(0, 3, 0, true);
  EXPECT_TRUE(client_.draining());
  client_.finalize(false);
  const auto empty = one<SendBody>(client_.boundary());
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->offer.bytes, 0U);
  EXPECT_EQ(empty->offer.c_steps, 0U);
  EXPECT_EQ(empty->offer.c_tokens, 0U);
  EXPECT_EQ(empty->offer.round, 3U);
  // Fragment 1 has a step that was never pushed: a real delta.
  pull(1, 4, 0, true);
  EXPECT_TRUE(one<TakePush>(client_.boundary()));
}

TEST_F(ClientTest, WhileFinishingEveryPullIsAnsweredAtOnce) {
  join();
  step();
  EXPECT_TRUE(sent<wire::Limit>(client_.finalize(true)));
  pull(0, 1, 0, false, 50);
  EXPECT_TRUE(one<TakePush>(client_.boundary()));
  pull(0, 1, 0, false, 0, 2);
  const auto empty = one<SendBody>(client_.boundary());
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->offer.bytes, 0U);
}

TEST_F(ClientTest, LimitIsSentAgainAfterAReconnect) {
  join();
  step(10);
  const auto limit = sent<wire::Limit>(client_.finalize(true));
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->local_step, 1U);
  EXPECT_EQ(limit->tokens, 10U);
  client_.on(SessionLost{"cable"});
  EXPECT_TRUE(sent<wire::Limit>(admit({0, 0})));
}

TEST_F(ClientTest, AWelcomeThatDoesNotFitEndsTheSession) {
  EXPECT_TRUE(one<EndSession>(admit({0})));
  wire::Welcome alpha = welcome({0, 0});
  alpha.settings.merge_alpha = 1.5;
  EXPECT_TRUE(one<EndSession>(client_.on(Admitted{alpha})));
  EXPECT_FALSE(client_.connected());
}

TEST_F(ClientTest, TokensGoOnFromWhatTheSeatHasReached) {
  wire::Welcome again = welcome({0, 0});
  again.seat_tokens = 500;
  client_.on(Admitted{again});
  step(10);
  EXPECT_EQ(client_.beat().tokens, 510U);
  again.seat_tokens = 510;
  client_.on(SessionLost{"cable"});
  client_.on(Admitted{again});
  EXPECT_EQ(client_.beat().tokens, 510U);
}

TEST_F(ClientTest, StepTimeLeavesOutWhatIsNotTraining) {
  join();
  client_.resume_training(0);
  client_.step(1, 2 * kSecond);
  EXPECT_DOUBLE_EQ(client_.beat().step_time_s, 2.0);
  client_.resume_training(10 * kSecond);  // eight seconds blocked
  client_.set_phase(wire::Phase::kEval, 12 * kSecond);
  EXPECT_EQ(client_.beat().phase, wire::Phase::kEval);
  client_.set_phase(wire::Phase::kTrain, 60 * kSecond);
  client_.step(1, 62 * kSecond);
  EXPECT_DOUBLE_EQ(client_.beat().step_time_s, 0.5 * 4.0 + 0.5 * 2.0);
}

}  // namespace
}  // namespace yeto::sync::client
