// SPDX-License-Identifier: Apache-2.0
// Goal: every push has one fate, its work is in one place, and late work is offered where it may
// still count; chains of q4 images. Method: as in client_test.cc.
#include "yeto/sync/client/client_testing.h"

namespace yeto::sync::client {
namespace {

using namespace testing_world;
using wire::Outcome;

class PushFateTest : public World {
 protected:
  // A push of fragment 0, taken at a step of 10 tokens; its OFFER is out.
  Ticket push(std::uint64_t round = 1, std::uint64_t base = 0) {
    pull(0, round, base);
    const auto take = one<TakePush>(step(10));
    EXPECT_TRUE(take);
    EXPECT_TRUE(one<SendBody>(client_.on(PushEncoded{take->ticket, true, 1.0})));
    return take->ticket;
  }
  Ticket arrived_push(std::uint64_t round = 1, std::uint64_t base = 0) {
    const Ticket ticket = push(round, base);
    client_.on(BodySent{ticket, true});
    return ticket;
  }
  Actions verdict(Outcome outcome, std::uint64_t round = 1, std::uint32_t attempt = 1) {
    wire::Verdict verdict;
    verdict.term = client_.run().term;
    verdict.round = round;
    verdict.attempt = attempt;
    verdict.outcome = outcome;
    return client_.on(MessageArrived{verdict});
  }
  Actions resume(std::vector<std::uint64_t> versions) {
    wire::Welcome again = welcome(std::move(versions));
    again.resumed = 1;
    return client_.on(Admitted{again});
  }
  static void expect_settled(const Actions& actions, Ticket ticket, bool kept) {
    const auto settled = one<SettlePush>(actions);
    ASSERT_TRUE(settled);
    EXPECT_EQ(settled->ticket, ticket);
    EXPECT_EQ(settled->kept, kept);
  }
};

TEST_F(PushFateTest, AVerdictIsCountedOnce) {
  join();
  const Ticket ticket = arrived_push();
  expect_settled(verdict(Outcome::kMerged), ticket, true);
  EXPECT_TRUE(verdict(Outcome::kMerged).empty());  // said again after a resumed session
  EXPECT_EQ(client_.counters().merged, 1U);
}

TEST_F(PushFateTest, ACarriedPushIsSettledOnceAndEndsOnceMore) {
  join();
  const Ticket ticket = arrived_push();
  expect_settled(verdict(Outcome::kCarried), ticket, true);
  EXPECT_TRUE(verdict(Outcome::kCarried).empty());
  EXPECT_TRUE(all<SettlePush>(verdict(Outcome::kMerged)).empty());
  EXPECT_EQ(client_.counters().carried, 1U);
  EXPECT_EQ(client_.counters().merged, 1U);
}

TEST_F(PushFateTest, ADroppedPushGivesWorkAndResidualBack) {
  join();
  const Ticket ticket = arrived_push();
  expect_settled(verdict(Outcome::kDropped), ticket, false);
  EXPECT_EQ(client_.fragment(0).returned, (Work{1, 10}));
  EXPECT_EQ(client_.counters().dropped, 1U);
}

TEST_F(PushFateTest, WorkThatABroadcastHasReplacedIsDiscardedWithItsPush) {
  join();
  arrived_push();
  broadcast(0, 1);
  client_.boundary();
  verdict(Outcome::kDropped);
  EXPECT_EQ(client_.fragment(0).returned, Work{});
  EXPECT_EQ(client_.counters().discarded_tokens, 10U);
}

TEST_F(PushFateTest, ARefusedPushIsSettledBeforeItsVerdict) {
  join();
  const Ticket ticket = push();
  expect_settled(client_.on(BodySent{ticket, false}), ticket, false);
  EXPECT_TRUE(all<SettlePush>(verdict(Outcome::kDropped)).empty());
  EXPECT_EQ(client_.counters().dropped, 1U);
  EXPECT_EQ(client_.fragment(0).returned, (Work{1, 10}));
}

TEST_F(PushFateTest, OfTwoPushesForOnePullTheRefusedOneIsTheDroppedOne) {
  join();
  const Ticket first = push();
  pull(0, 1, 0);  // sent again before the first push arrived
  const auto take = one<TakePush>(step(5));
  client_.on(PushEncoded{take->ticket, true, 1.0});
  client_.on(BodySent{first, true});
  client_.on(BodySent{take->ticket, false});
  EXPECT_TRUE(all<SettlePush>(verdict(Outcome::kDropped)).empty());
  expect_settled(verdict(Outcome::kMerged), first, true);
}

TEST_F(PushFateTest, ACancelGivesBackThePushThatHadArrived) {
  join();
  const Ticket ticket = arrived_push();
  expect_settled(client_.on(MessageArrived{wire::Cancel{1, 1}}), ticket, false);
  EXPECT_EQ(client_.fragment(0).returned, (Work{1, 10}));
}

TEST_F(PushFateTest, APushUnderWayIsSentOnAlthoughItsRoundHasClosed) {
  join();
  pull(0, 1, 0);
  const auto take = one<TakePush>(step(10));
  broadcast(0, 1);
  step(10);  // applied
  EXPECT_TRUE(one<SendBody>(client_.on(PushEncoded{take->ticket, true, 1.0})));
  client_.on(BodySent{take->ticket, true});
  expect_settled(verdict(Outcome::kCarried), take->ticket, true);
}

TEST_F(PushFateTest, WhatASessionLeftOpenIsSettledByTheLastVerdictOfTheNext) {
  join();
  const Ticket ticket = push();
  EXPECT_TRUE(all<SettlePush>(client_.on(SessionLost{"cable"})).empty());
  EXPECT_EQ(client_.fragment(0).returned, (Work{1, 10}));
  resume({0, 0});
  expect_settled(verdict(Outcome::kMerged), ticket, true);
  EXPECT_EQ(client_.fragment(0).returned, Work{});
  EXPECT_EQ(client_.fragment(0).taken, (Work{1, 10}));
}

TEST_F(PushFateTest, AskedAgainTheBrokenOffPushIsSuperseded) {
  join();
  const Ticket ticket = push();
  client_.on(SessionLost{"cable"});
  resume({0, 0});
  pull(0, 1, 0);
  const Actions actions = step(5);
  expect_settled(actions, ticket, false);
  EXPECT_EQ(one<SendBody>(client_.on(PushEncoded{one<TakePush>(actions)->ticket, true, 1.0}))
                ->offer.c_tokens,
            15U);
}

TEST_F(PushFateTest, ANewTermSettlesEveryPushAsNotKept) {
  join();
  const Ticket ticket = arrived_push();
  client_.on(SessionLost{"the syncer died"});
  expect_settled(admit({0, 0}, kTerm + 1), ticket, false);
  EXPECT_EQ(client_.fragment(0).returned, (Work{1, 10}));
}

// ---- late work
// -----------------------------------------------------------------------------------

TEST_F(PushFateTest, ABrokenOffPushIsOfferedLateBeforeItsFragmentIsReplaced) {
  join();
  push();
  step(7);
  client_.on(SessionLost{"cable"});
  resume({1, 0});  // its round has closed without it
  broadcast(0, 1);
  const Actions actions = client_.boundary();
  const auto late = one<TakePush>(actions);
  ASSERT_TRUE(late);
  EXPECT_TRUE(late->again);
  EXPECT_LT(position<TakePush>(actions, 0), position<Apply>(actions, 0));
  EXPECT_EQ(one<Apply>(actions)->mode, ApplyMode::kAfterPush);
  const auto body = one<SendBody>(client_.on(PushEncoded{late->ticket, true, 1.0}));
  EXPECT_EQ(body->offer.round, 0U);
  EXPECT_EQ(body->offer.base_version, 0U);
  EXPECT_EQ(body->offer.term, kTerm);
  EXPECT_EQ(body->offer.c_tokens, 10U);
  EXPECT_EQ(client_.fragment(0).work, (Work{1, 7}));  // the next delta carries it
  expect_settled(verdict(Outcome::kCarried, 0, 0), late->ticket, true);
}

TEST_F(PushFateTest, ARefusedPushIsNotOfferedAgain) {
  join();
  client_.on(BodySent{push(), false});
  broadcast(0, 1);
  EXPECT_TRUE(all<TakePush>(client_.boundary()).empty());
  EXPECT_EQ(client_.counters().discarded_tokens, 10U);
}

TEST_F(PushFateTest, ARejoinOffersTheWorkOfASurvivingAnchorOnceAndThenOverwrites) {
  join();
  step(10);
  client_.on(SessionLost{"the syncer died"});
  admit({2, 3}, kTerm + 1);  // fragment 1 is further behind than late work may be
  EXPECT_EQ(client_.hello().held[0], wire::Held{});
  EXPECT_TRUE(all<TakePush>(step(5)).empty());  // as late as possible: with all the work
  broadcast(0, 2);
  broadcast(1, 3);
  const Actions actions = step(5);
  const auto late = one<TakePush>(actions);
  ASSERT_TRUE(late);
  EXPECT_EQ(late->fragment, 0U);
  EXPECT_FALSE(late->again);
  EXPECT_EQ(all<Apply>(actions).size(), 2U);
  EXPECT_EQ(all<Apply>(actions)[0].mode, ApplyMode::kOverwrite);
  const auto body = one<SendBody>(client_.on(PushEncoded{late->ticket, true, 1.0}));
  EXPECT_EQ(body->offer.term, kTerm);
  EXPECT_EQ(body->offer.c_tokens, 20U);
  EXPECT_EQ(client_.counters().discarded_tokens, 20U);  // of fragment 1
  EXPECT_EQ(client_.counters().late_offers, 1U);
  client_.on(BodySent{late->ticket, false});
  EXPECT_EQ(client_.counters().discarded_tokens, 40U);
}

TEST_F(PushFateTest, TheLateOfferHoldsAllWorkOfItsAnchor) {
  join();
  arrived_push();  // whether it was merged is for the syncer to know
  step(4);
  client_.on(SessionLost{"lease"});
  admit({1, 0});
  broadcast(0, 1);
  const auto late = one<TakePush>(client_.boundary());
  ASSERT_TRUE(late);
  EXPECT_FALSE(late->again);
  EXPECT_EQ(one<SendBody>(client_.on(PushEncoded{late->ticket, true, 1.0}))->offer.c_tokens, 14U);
}

TEST_F(PushFateTest, AnAnchorBeyondTheForkPointIsNotOffered) {
  join();
  broadcast(0, 2);
  step(10);
  step(10);
  client_.on(SessionLost{"the syncer died"});
  wire::Welcome other = welcome({1, 0}, kTerm + 1);
  client_.on(Admitted{other});
  broadcast(0, 1);
  EXPECT_TRUE(all<TakePush>(step(1)).empty());
}

TEST_F(PushFateTest, WithoutCarryingNothingIsOfferedLate) {
  wire::Welcome never = welcome({0, 0});
  never.settings.max_lag = 0;
  client_.on(Admitted{never});
  broadcast(0, 0);
  broadcast(1, 0);
  client_.boundary();
  step(10);
  client_.on(SessionLost{"lease"});
  never.versions = never.valid = {1, 0};
  client_.on(Admitted{never});
  broadcast(0, 1);
  EXPECT_TRUE(all<TakePush>(step(1)).empty());
  EXPECT_EQ(client_.counters().discarded_tokens, 11U);
}

// ---- chains of images
// ----------------------------------------------------------------------------

class ChainTest : public World {
 protected:
  void join_q4() {
    wire::Welcome start = welcome({0, 0});
    start.broadcast_codec = CodecId::kQ4;
    client_.on(Admitted{start});
    whole(0, 0);
    whole(1, 0);
    client_.boundary();
    ASSERT_TRUE(client_.ready());
  }
  wire::Offer image(CodecId codec, std::uint64_t version, std::uint64_t base) {
    wire::Offer made = offer(TransferKind::kBroadcast, 0, version);
    made.codec = codec;
    made.base_version = base;
    made.bytes = codec::encoded_bytes(codec, layout_.fragments[0].values);
    return made;
  }
  Actions deliver_offer(const wire::Offer& made) {
    const auto accept = one<Accept>(client_.on(OfferArrived{made}));
    EXPECT_TRUE(accept);
    const auto check = one<CheckImage>(client_.on(ImageArrived{accept->image}));
    EXPECT_TRUE(check);
    EXPECT_EQ(check->fragment, made.fragment);
    EXPECT_EQ(check->version, made.version);
    EXPECT_EQ(check->base_version, made.base_version);
    return client_.on(ImageChecked{accept->image, true});
  }
  void whole(std::uint32_t fragment, std::uint64_t version) {
    wire::Offer made = image(CodecId::kBf16, version, 0);
    made.fragment = fragment;
    made.bytes = layout_.fragments[fragment].values * 2;
    deliver_offer(made);
  }
  bool refused(const wire::Offer& made) {
    const auto refuse = one<Refuse>(client_.on(OfferArrived{made}));
    return refuse && refuse->reason.find("send the whole") != std::string::npos;
  }
};

TEST_F(ChainTest, ImagesFollowEachOtherOnTheNewestValueThatIsHere) {
  join_q4();
  deliver_offer(image(CodecId::kQ4, 1, 0));
  deliver_offer(image(CodecId::kQ4, 2, 1));  // on an image that is not applied yet
  EXPECT_EQ(client_.hello().held[0], (wire::Held{kTerm, 2}));
  const auto apply = one<Apply>(step());
  ASSERT_TRUE(apply);
  EXPECT_EQ(apply->version, 2U);
  deliver_offer(image(CodecId::kQ4, 3, 2));
  EXPECT_EQ(one<Apply>(step())->version, 3U);
}

TEST_F(ChainTest, AnImageOfAnotherBaseIsRefusedWithTheReason) {
  join_q4();
  EXPECT_TRUE(refused(image(CodecId::kQ4, 2, 1)));
  deliver_offer(image(CodecId::kQ4, 1, 0));
  EXPECT_TRUE(refused(image(CodecId::kQ4, 1, 0)));
  whole(0, 5);
  EXPECT_TRUE(refused(image(CodecId::kQ4, 2, 1)));
  deliver_offer(image(CodecId::kQ4, 6, 5));
}

TEST_F(ChainTest, NoImageChangesAValueThatIsVoid) {
  join_q4();
  client_.on(SessionLost{"lease"});
  wire::Welcome later = welcome({3, 0});
  later.broadcast_codec = CodecId::kQ4;
  client_.on(Admitted{later});
  EXPECT_TRUE(refused(image(CodecId::kQ4, 1, 0)));
  whole(0, 3);
  deliver_offer(image(CodecId::kQ4, 4, 3));  // the whole value that has just come may be changed
  const auto apply = one<Apply>(step());
  ASSERT_TRUE(apply);
  EXPECT_EQ(apply->mode, ApplyMode::kOverwrite);
  EXPECT_EQ(apply->version, 4U);
}

}  // namespace
}  // namespace yeto::sync::client
