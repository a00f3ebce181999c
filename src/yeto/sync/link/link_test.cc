// SPDX-License-Identifier: Apache-2.0
// Goal: transfers and messages of a session arrive whole, in order, and independently of each
// other; every accept and every send ends once. Method: two links over loopback sockets in one
// loop; a raw peer where the rules are to be broken.
#include "yeto/sync/link/link.h"

#include <map>
#include <optional>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/sync/link/link_test_recorder.h"
#include "yeto/sync/link/link_test_streams.h"

namespace yeto::sync {
namespace {

using wire::Direction;
using wire::TransferKind;

class LinkTest : public LoopbackTest {
 protected:
  static constexpr std::uint32_t kChunk = 64U << 10;

  static LinkOptions options(Direction incoming, std::uint16_t streams) {
    LinkOptions of;
    of.incoming = incoming;
    of.chunk_bytes = kChunk;
    of.data_streams = streams;
    of.lease = kTestLimit;
    return of;
  }

  // Both links with their control streams; data streams by attach().
  void make_links(std::uint16_t streams) {
    syncer_link = std::make_unique<Link>(loop, options(Direction::kToSyncer, streams), &syncer);
    learner_link = std::make_unique<Link>(loop, options(Direction::kToLearner, streams), &learner);
    syncer.link = syncer_link.get();
    learner.link = learner_link.get();
    Ends ends = connect();
    learner_link->start(
        std::make_unique<FramedStream>(loop, std::move(ends.first), Direction::kToLearner));
    syncer_link->start(
        std::make_unique<FramedStream>(loop, std::move(ends.second), Direction::kToSyncer));
  }
  void attach(std::uint16_t index) {
    Ends ends = connect();
    EXPECT_TRUE(learner_link->add_data_stream(
        std::make_unique<FramedStream>(loop, std::move(ends.first), Direction::kToLearner), index));
    EXPECT_TRUE(syncer_link->add_data_stream(
        std::make_unique<FramedStream>(loop, std::move(ends.second), Direction::kToSyncer), index));
  }
  void make_session(std::uint16_t streams) {
    make_links(streams);
    for (std::uint16_t i = 0; i < streams; ++i) {
      attach(i);
    }
  }
  // The syncer's link against streams that the test itself reads and writes; [0] is control.
  void make_raw_session(std::uint16_t streams) {
    syncer_link = std::make_unique<Link>(loop, options(Direction::kToSyncer, streams), &syncer);
    syncer.link = syncer_link.get();
    for (std::uint16_t i = 0; i <= streams; ++i) {
      Ends ends = connect();
      raw.push_back(std::move(ends.first));
      sequences.push_back(0);
      auto stream =
          std::make_unique<FramedStream>(loop, std::move(ends.second), Direction::kToSyncer);
      if (i == 0) {
        syncer_link->start(std::move(stream));
      } else {
        EXPECT_TRUE(
            syncer_link->add_data_stream(std::move(stream), static_cast<std::uint16_t>(i - 1)));
      }
    }
  }
  void raw_send(std::size_t stream, const wire::Message& message) {
    write(*raw[stream], wire::encode_frame(wire::type_of(message), sequences[stream]++,
                                           wire::encode_message(message)));
  }
  wire::Offer raw_offer(std::uint64_t transfer, TransferKind kind, std::uint64_t bytes) {
    wire::Offer offer = offer_of(kind);
    offer.transfer = transfer;
    offer.bytes = bytes;
    raw_send(0, offer);
    return offer;
  }
  // The next frame the syncer's link wrote to control.
  wire::Message raw_read() {
    std::array<std::uint8_t, wire::kHeaderBytes> header{};
    bool done = false;
    raw[0]->read_exactly(header, [&] { done = true; });
    EXPECT_TRUE(wait([&] { return done; }));
    const auto parsed = wire::parse_header(header, Direction::kToLearner, 1U << 20);
    EXPECT_TRUE(parsed);
    Bytes payload(parsed->payload_bytes);
    done = payload.empty();
    if (!done) {
      raw[0]->read_exactly(payload, [&] { done = true; });
    }
    EXPECT_TRUE(wait([&] { return done; }));
    return *wire::decode(parsed->type, Direction::kToLearner, payload);
  }
  void expect_closed(std::string_view what) {
    EXPECT_TRUE(wait([&] { return syncer.closed.has_value(); }));
    EXPECT_NE(syncer.closed.value_or("").find(what), std::string::npos)
        << syncer.closed.value_or("open");
    EXPECT_FALSE(syncer_link->is_open());
  }

  Recorder syncer;
  Recorder learner;
  std::unique_ptr<Link> syncer_link;
  std::unique_ptr<Link> learner_link;
  std::vector<std::unique_ptr<net::Connection>> raw;
  std::vector<std::uint64_t> sequences;
};

TEST_F(LinkTest, MessagesArriveInOrderBothWays) {
  make_session(2);
  std::vector<wire::Message> up;
  std::vector<wire::Message> down;
  Rng rng(8);
  for (int i = 0; i < 50; ++i) {
    up.push_back(wire::random_message(rng, wire::Type::kHeartbeat, Direction::kToSyncer));
    down.push_back(wire::random_message(rng, wire::Type::kVerdict, Direction::kToLearner));
    learner_link->send(up.back());
    syncer_link->send(down.back());
  }
  EXPECT_TRUE(wait([&] { return syncer.messages.size() == 50 && learner.messages.size() == 50; }));
  EXPECT_TRUE(syncer.messages == up);
  EXPECT_TRUE(learner.messages == down);
  EXPECT_GE(syncer.heard, 1);
  EXPECT_LE(syncer.heard, 50);
}

TEST_F(LinkTest, BigTransferOverFourStreamsArrivesWhole) {
  make_session(4);
  const auto body = random_body(1, (std::size_t{24} << 20) + 12'345);
  syncer_link->send_transfer(77, offer_of(TransferKind::kBroadcast), body);
  EXPECT_TRUE(wait([&] { return syncer.sent.count(77) == 1; }));
  EXPECT_TRUE(syncer.sent[77]);
  ASSERT_EQ(learner.offers.size(), 1u);
  EXPECT_EQ(learner.offers[0].transfer, 1u);
  EXPECT_EQ(learner.offers[0].bytes, body->size());
  EXPECT_EQ(xxh3_128(*learner.bodies[1]), xxh3_128(*body));
  const LinkCounters sender = syncer_link->counters();
  const LinkCounters receiver = learner_link->counters();
  EXPECT_GT(sender.bytes_out, body->size());
  EXPECT_EQ(sender.bytes_out, receiver.bytes_in);
  EXPECT_EQ(sender.open_out + receiver.open_in, 0u);
  EXPECT_EQ(body.use_count(), 1) << "a sent body is let go";
}

TEST_F(LinkTest, ManyTransfersBothWaysWithZeroAndSmallBodies) {
  for (const std::uint16_t streams : {0, 1, 3}) {
    SCOPED_TRACE(strf("{} data streams", streams));
    syncer = Recorder();
    learner = Recorder();
    make_session(streams);
    std::vector<std::shared_ptr<const Bytes>> bodies;
    const std::size_t sizes[] = {0, 1, kChunk - 1, kChunk, kChunk + 1, 5 * kChunk + 7};
    for (std::uint64_t i = 0; i < 48; ++i) {
      bodies.push_back(random_body(i, sizes[i % 6]));
      learner_link->send_transfer(
          i, offer_of(i % 2 == 0 ? TransferKind::kPush : TransferKind::kInit), bodies.back());
      syncer_link->send_transfer(i, offer_of(TransferKind::kBroadcast), bodies.back());
    }
    EXPECT_TRUE(wait([&] { return learner.sent.size() == 48 && syncer.sent.size() == 48; }));
    for (std::uint64_t i = 0; i < 48; ++i) {
      EXPECT_TRUE(learner.sent[i] && syncer.sent[i]) << i;
      EXPECT_EQ(*syncer.bodies[i + 1], *bodies[i]) << i;
      EXPECT_EQ(*learner.bodies[i + 1], *bodies[i]) << i;
    }
    EXPECT_FALSE(syncer.closed || learner.closed);
  }
}

TEST_F(LinkTest, PushDoesNotWaitForHaveAndOthersDo) {
  make_session(1);
  syncer.answer = Recorder::Answer::kLater;
  learner_link->send_transfer(1, offer_of(TransferKind::kInit), random_body(1, 1000));
  learner_link->send_transfer(2, offer_of(TransferKind::kPush), random_body(2, 2000));
  EXPECT_TRUE(wait([&] { return syncer.offers.size() == 2; }));
  settle();
  // The push lies parked on the data stream; the other has sent nothing.
  EXPECT_GT(learner_link->counters().bytes_out, 2000u);
  EXPECT_LT(learner_link->counters().bytes_out, 3000u);
  syncer.accept(syncer.offers[1]);
  EXPECT_TRUE(wait([&] { return learner.sent.count(2) == 1; }));
  EXPECT_EQ(learner.sent.count(1), 0u);
  syncer.accept(syncer.offers[0]);
  EXPECT_TRUE(wait([&] { return learner.sent.count(1) == 1; }));
  EXPECT_TRUE(learner.sent[1] && learner.sent[2]);
}

TEST_F(LinkTest, BadDigestIsToldToTheSender) {
  make_session(1);
  syncer.digest_ok = false;
  learner_link->send_transfer(5, offer_of(TransferKind::kInit), random_body(1, 100));
  EXPECT_TRUE(wait([&] { return learner.sent.count(5) == 1; }));
  EXPECT_FALSE(learner.sent[5]);
}

TEST_F(LinkTest, RefusedTransferEndsAndItsChunksAreDiscarded) {
  make_session(2);
  syncer.answer = Recorder::Answer::kRefuse;
  learner_link->send_transfer(1, offer_of(TransferKind::kInit), random_body(1, 1000));
  learner_link->send_transfer(2, offer_of(TransferKind::kPush),
                              random_body(2, std::size_t{6} << 20));
  EXPECT_TRUE(wait([&] { return learner.sent.size() == 2; }));
  EXPECT_FALSE(learner.sent[1] || learner.sent[2]);
  EXPECT_TRUE(syncer.received.empty());
  // The streams are clean again.
  syncer.answer = Recorder::Answer::kAccept;
  const auto body = random_body(3, 500'000);
  learner_link->send_transfer(3, offer_of(TransferKind::kPush), body);
  EXPECT_TRUE(wait([&] { return learner.sent.count(3) == 1; }));
  EXPECT_TRUE(learner.sent[3]);
  EXPECT_EQ(*syncer.bodies[3], *body);
}

TEST_F(LinkTest, AbortInMidTransferStopsIt) {
  make_session(2);
  const auto body = random_body(1, std::size_t{64} << 20);
  syncer_link->send_transfer(1, offer_of(TransferKind::kBroadcast), body);
  EXPECT_TRUE(wait([&] { return learner_link->counters().bytes_in > (1U << 20); }));
  const std::weak_ptr<Bytes> target = learner.bodies[1];
  learner_link->abort(1, "superseded");
  learner.bodies.clear();
  EXPECT_TRUE(wait([&] { return syncer.sent.count(1) == 1; }));
  EXPECT_FALSE(syncer.sent[1]);
  const auto next = random_body(2, 300'000);
  syncer_link->send_transfer(2, offer_of(TransferKind::kBroadcast), next);
  EXPECT_TRUE(wait([&] { return syncer.sent.count(2) == 1; }));
  EXPECT_TRUE(syncer.sent[2]);
  EXPECT_EQ(*learner.bodies[2], *next);
  EXPECT_EQ(learner.received.count(1), 0u) << "no answer after abort()";
  EXPECT_TRUE(target.expired());
  EXPECT_LT(syncer_link->counters().bytes_out, body->size()) << "the rest was never sent";
}

TEST_F(LinkTest, ChunkAheadOfItsOfferWaits) {
  make_raw_session(2);
  const Bytes body(100, 9);
  raw_send(1, wire::Chunk{1, 0, body});
  settle();
  EXPECT_TRUE(syncer.received.empty());
  EXPECT_FALSE(syncer.closed);
  raw_offer(1, TransferKind::kPush, body.size());
  EXPECT_TRUE(wait([&] { return syncer.received.count(1) == 1; }));
  EXPECT_EQ(*syncer.bodies[1], body);
  EXPECT_EQ(std::get<wire::Done>(raw_read()), (wire::Done{1, 1}));
  // Behind a parked chunk other streams go on.
  raw_send(1, wire::Chunk{3, 0, body});
  raw_offer(2, TransferKind::kPush, body.size());
  raw_send(2, wire::Chunk{2, 0, body});
  EXPECT_TRUE(wait([&] { return syncer.received.count(2) == 1; }));
  syncer.answer = Recorder::Answer::kRefuse;
  raw_offer(3, TransferKind::kPush, body.size());
  raw_send(1, wire::Chunk{3, 1, body});  // discarded, whatever it says
  syncer.answer = Recorder::Answer::kRefuse;
  EXPECT_TRUE(wait([&] { return syncer.offers.size() == 3; }));
  settle();
  EXPECT_FALSE(syncer.closed);
  EXPECT_EQ(syncer.received.count(3), 0u);
}

TEST_F(LinkTest, DuplicateChunkIsReadOver) {
  make_raw_session(2);
  raw_offer(1, TransferKind::kPush, kChunk + 5);
  raw_send(1, wire::Chunk{1, 0, Bytes(kChunk, 1)});
  EXPECT_TRUE(wait([&] { return syncer_link->counters().bytes_in > kChunk; }));
  settle();
  raw_send(2, wire::Chunk{1, 0, Bytes(kChunk, 2)});
  raw_send(2, wire::Chunk{1, 1, Bytes(5, 3)});
  EXPECT_TRUE(wait([&] { return syncer.received.count(1) == 1; }));
  Bytes expected(kChunk + 5, 1);
  std::fill(expected.begin() + kChunk, expected.end(), std::uint8_t{3});
  EXPECT_EQ(*syncer.bodies[1], expected);
}

TEST_F(LinkTest, BrokenRulesCloseTheLinkByName) {
  using Break = std::function<void()>;
  const std::vector<std::pair<std::string, Break>> cases = {
      {"OFFER of transfer 1 after 1",
       [this] {
         raw_offer(1, TransferKind::kPush, 5);
         raw_offer(1, TransferKind::kPush, 5);
       }},
      {"OFFER of transfer 0 after 0", [this] { raw_offer(0, TransferKind::kPush, 5); }},
      {"HAVE of transfer 4, which is not open", [this] { raw_send(0, wire::Have{4, 1, {}, {}}); }},
      {"DONE of transfer 4, which is not sent", [this] { raw_send(0, wire::Done{4, 1}); }},
      {"HELLO on a control stream of an admitted session", [this] { raw_send(0, wire::Hello{}); }},
      {"LIMIT on a data stream of an admitted session", [this] { raw_send(1, wire::Limit{}); }},
      {"CHUNK before its OFFER", [this] { raw_send(0, wire::Chunk{1, 0, Bytes(5)}); }},
      {"CHUNK before HAVE",
       [this] {
         syncer.answer = Recorder::Answer::kLater;
         raw_offer(1, TransferKind::kInit, 5);
         raw_send(1, wire::Chunk{1, 0, Bytes(5)});
       }},
      {"chunk 1 of a transfer of 1",
       [this] {
         raw_offer(1, TransferKind::kPush, 5);
         raw_send(1, wire::Chunk{1, 1, Bytes(5)});
       }},
      {"chunk 0 has 6 bytes where 5 are due",
       [this] {
         raw_offer(1, TransferKind::kPush, 5);
         raw_send(1, wire::Chunk{1, 0, Bytes(6)});
       }},
      {"CRC-32C of the payload is",
       [this] {
         raw_offer(1, TransferKind::kPush, 5);
         Bytes frame =
             wire::encode_frame(wire::Type::kChunk, 0, wire::encode(wire::Chunk{1, 0, Bytes(5)}));
         frame.back() ^= 1;
         write(*raw[1], frame);
       }},
      {"control stream of 127.0.0.1:", [this] { raw[0].reset(); }},
  };
  for (const auto& [what, break_rule] : cases) {
    SCOPED_TRACE(what);
    syncer = Recorder();
    raw.clear();
    sequences.clear();
    make_raw_session(1);
    break_rule();
    expect_closed(what);
    for (const auto& [transfer, ok] : syncer.received) {
      EXPECT_FALSE(ok) << transfer;
    }
  }
}

TEST_F(LinkTest, LossAnswersEveryOpenTransferBeforeOnClosed) {
  make_session(1);
  learner.answer = Recorder::Answer::kLater;
  const auto huge = random_body(1, std::size_t{32} << 20);
  learner_link->send_transfer(1, offer_of(TransferKind::kPush), huge);
  syncer_link->send_transfer(11, offer_of(TransferKind::kBroadcast), random_body(2, 10));
  syncer_link->send_transfer(12, offer_of(TransferKind::kBroadcast), random_body(3, 10));
  EXPECT_TRUE(wait([&] { return syncer.offers.size() == 1 && learner.offers.size() == 2; }));
  learner_link->close();
  EXPECT_TRUE(wait([&] { return syncer.closed.has_value(); }));
  EXPECT_EQ(syncer.received, (std::map<std::uint64_t, bool>{{1, false}}));
  EXPECT_EQ(syncer.sent, (std::map<std::uint64_t, bool>{{11, false}, {12, false}}));
  EXPECT_TRUE(learner.sent.empty()) << "no callback after close()";
  EXPECT_FALSE(learner.closed);
  EXPECT_EQ(huge.use_count(), 1);
  // Late answers of the owner are harmless.
  syncer_link->refuse(1, "late");
  syncer_link->accept(1, {}, nullptr);
  syncer_link->finish_receive(1, true);
  syncer_link->send(wire::Goodbye{});
  syncer_link->send_transfer(13, offer_of(TransferKind::kBroadcast), random_body(4, 10));
  settle();
  EXPECT_EQ(syncer.sent.count(13), 0u);
}

TEST_F(LinkTest, HeartbeatsPassWhileBulkIsStalled) {
  make_raw_session(1);
  syncer_link->send_transfer(1, offer_of(TransferKind::kBroadcast),
                             random_body(1, std::size_t{64} << 20));
  EXPECT_EQ(std::get<wire::Offer>(raw_read()).transfer, 1u);
  raw_send(0, wire::Have{1, 1, {}, {}});
  // Nobody reads the data stream: it fills and stays full.
  EXPECT_TRUE(wait([&] { return syncer_link->counters().bytes_out > 100'000; }));
  settle();
  const std::uint64_t stalled = syncer_link->counters().bytes_out;
  EXPECT_LT(stalled, std::uint64_t{64} << 20);
  for (std::uint64_t i = 1; i <= 20; ++i) {
    wire::SyncerBeat beat;
    beat.global_step = i;
    syncer_link->send(beat);
    EXPECT_EQ(std::get<wire::SyncerBeat>(raw_read()).global_step, i);
    raw_send(0, wire::LearnerBeat{i, 0, wire::Phase::kTrain, 0.0});
  }
  EXPECT_TRUE(wait([&] { return syncer.messages.size() == 20; }));
  EXPECT_TRUE(syncer.sent.empty());
}

TEST_F(LinkTest, TransfersWaitForTheFirstDataStream) {
  make_links(2);
  const auto body = random_body(1, 3 * kChunk);
  learner_link->send_transfer(1, offer_of(TransferKind::kPush), body);
  EXPECT_TRUE(wait([&] { return syncer.offers.size() == 1; }));
  settle();
  EXPECT_TRUE(syncer.received.empty());
  attach(1);
  EXPECT_TRUE(wait([&] { return learner.sent.count(1) == 1; }));
  EXPECT_EQ(*syncer.bodies[1], *body);
}

TEST_F(LinkTest, DataStreamOutOfRangeIsRefusedAndTheLinkStays) {
  make_links(2);
  attach(0);
  Ends ends = connect();
  const Status status = syncer_link->add_data_stream(
      std::make_unique<FramedStream>(loop, std::move(ends.second), Direction::kToSyncer), 2);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().what, "data stream 2 of a session with 2");
  EXPECT_TRUE(syncer_link->is_open());
}

TEST_F(LinkTest, AnOfferOfMoreChunksThanAHaveCanTellOfIsRefused) {
  make_raw_session(1);
  syncer.answer = Recorder::Answer::kLater;
  constexpr std::uint64_t kMostChunks = std::uint64_t{8} << 16;
  const std::uint64_t most = kMostChunks * kChunk;
  raw_offer(1, TransferKind::kBroadcast, most);
  raw_offer(2, TransferKind::kBroadcast, most + 1);
  const auto have = std::get<wire::Have>(raw_read());
  EXPECT_EQ(have.transfer, 2U);
  EXPECT_EQ(have.accept, 0);
  EXPECT_NE(have.reason.find("more chunks"), std::string::npos) << have.reason;
  EXPECT_EQ(syncer.offers.size(), 1U);
  // The largest bitmap that may follow an offer can be sent.
  EXPECT_GT(wire::encode(wire::Have{1, 1, {}, Bytes(kMostChunks / 8)}).size(), kMostChunks / 8);
}

TEST_F(LinkTest, OffersOverTheLimitAreRefusedAndSendersHoldThemBack) {
  make_raw_session(1);
  syncer.answer = Recorder::Answer::kLater;
  for (std::uint64_t i = 1; i <= kMaxOpenTransfers + 1; ++i) {
    raw_offer(i, TransferKind::kPush, 5);
  }
  const auto have = std::get<wire::Have>(raw_read());
  EXPECT_EQ(have.transfer, kMaxOpenTransfers + 1);
  EXPECT_EQ(have.accept, 0);
  EXPECT_EQ(have.reason, "64 transfers are open");
  EXPECT_EQ(syncer.offers.size(), kMaxOpenTransfers);

  for (std::uint64_t i = 1; i <= kMaxOpenTransfers + kMaxWaitingTransfers + 1; ++i) {
    syncer_link->send_transfer(i, offer_of(TransferKind::kBroadcast), random_body(i, 1));
  }
  EXPECT_TRUE(wait([&] { return syncer.sent.size() == 1; }));
  EXPECT_EQ(syncer.sent.begin()->first, kMaxOpenTransfers + kMaxWaitingTransfers + 1);
  for (std::uint64_t i = 1; i <= kMaxOpenTransfers; ++i) {
    EXPECT_EQ(std::get<wire::Offer>(raw_read()).transfer, i);
  }
  raw_send(0, wire::Have{7, 0, "no", {}});
  EXPECT_EQ(std::get<wire::Offer>(raw_read()).transfer, kMaxOpenTransfers + 1);
  EXPECT_TRUE(wait([&] { return syncer.sent.count(7) == 1; }));
}

TEST_F(LinkTest, HeldChunksOfHaveAreNotSentAgain) {
  make_raw_session(0);
  const auto body = random_body(1, 3 * kChunk);
  syncer_link->send_transfer(1, offer_of(TransferKind::kBroadcast), body);
  EXPECT_EQ(std::get<wire::Offer>(raw_read()).transfer, 1u);
  raw_send(0, wire::Have{1, 1, {}, {0x05}});
  const auto chunk = std::get<wire::Chunk>(raw_read());
  EXPECT_EQ(chunk.index, 1u);
  raw_send(0, wire::Done{1, 1});
  EXPECT_TRUE(wait([&] { return syncer.sent.count(1) == 1; }));
}

TEST_F(LinkTest, OwnerMayDestroyTheLinkInACallback) {
  make_session(1);
  syncer.act = [&] { syncer_link.reset(); };
  learner_link->send(wire::Limit{});
  learner_link->send(wire::Limit{});
  EXPECT_TRUE(wait([&] { return learner.closed.has_value(); }));
  EXPECT_EQ(syncer.messages.size(), 1u);
  EXPECT_FALSE(syncer.closed);
}

TEST_F(LinkTest, GracefulCloseDeliversTheFarewell) {
  make_session(2);
  bool flushed = false;
  for (int i = 0; i < 100; ++i) {
    learner_link->send(wire::Metric{"{}"});  // unread input must not turn the end into a reset
  }
  syncer_link->send(wire::Goodbye{"the run is over"});
  syncer_link->close_gracefully(kTestLimit, [&] { flushed = true; });
  syncer_link.reset();
  EXPECT_TRUE(wait([&] { return learner.closed.has_value(); }));
  ASSERT_FALSE(learner.messages.empty());
  EXPECT_EQ(std::get<wire::Goodbye>(learner.messages[0]).reason, "the run is over");
  learner_link.reset();
  EXPECT_TRUE(wait([&] { return flushed; }));
}

TEST_F(LinkTest, PeerThatStopsReadingControlIsCutOff) {
  make_raw_session(1);
  const wire::Verdict verdict{0, 0, 0, 0, wire::Outcome::kDropped, std::string(256, 'x')};
  while (!syncer.closed) {
    for (int i = 0; i < 10'000; ++i) {
      syncer_link->send(verdict);
    }
    settle();
  }
  expect_closed("the peer does not read: ");
}

TEST_F(LinkTest, WithdrawnTransferEndsOnBothSidesInEveryState) {
  make_session(1);
  learner.answer = Recorder::Answer::kLater;
  const auto body = random_body(1, std::size_t{64} << 20);
  for (std::uint64_t ticket = 1; ticket <= kMaxOpenTransfers + 1; ++ticket) {
    syncer_link->send_transfer(ticket, offer_of(TransferKind::kBroadcast),
                               ticket == 2 ? body : random_body(ticket, 10));
  }
  EXPECT_TRUE(wait([&] { return learner.offers.size() == kMaxOpenTransfers; }));
  // Not offered yet; offered and not answered; on its way; unknown.
  syncer_link->abort_transfer(kMaxOpenTransfers + 1);
  syncer_link->abort_transfer(1);
  EXPECT_TRUE(syncer.sent.empty()) << "never inside the call";
  learner.accept(learner.offers[1]);
  EXPECT_TRUE(wait([&] { return learner_link->counters().bytes_in > (1U << 20); }));
  syncer_link->abort_transfer(2);
  syncer_link->abort_transfer(2);
  syncer_link->abort_transfer(1'000);
  EXPECT_TRUE(wait([&] { return syncer.sent.size() == 3 && learner.received.size() == 1; }));
  EXPECT_EQ(syncer.sent, (std::map<std::uint64_t, bool>{
                             {1, false}, {2, false}, {kMaxOpenTransfers + 1, false}}));
  EXPECT_EQ(learner.received, (std::map<std::uint64_t, bool>{{2, false}}));
  // An answer that comes too late is owed nothing more than the end.
  learner.accept(learner.offers[0]);
  EXPECT_TRUE(wait([&] { return learner.received.size() == 2; }));
  EXPECT_FALSE(learner.received[1]);
  // The rest goes on.
  learner.accept(learner.offers[2]);
  EXPECT_TRUE(wait([&] { return syncer.sent.count(3) == 1; }));
  EXPECT_TRUE(syncer.sent[3]);
  EXPECT_FALSE(syncer.closed || learner.closed);
  EXPECT_LT(syncer_link->counters().bytes_out, body->size()) << "the rest was never sent";
}

TEST_F(LinkTest, TransferThatIsWithdrawnTwiceMayStillBeAnswered) {
  make_raw_session(1);
  syncer.answer = Recorder::Answer::kLater;
  for (const std::uint64_t transfer : {1, 2}) {
    wire::Offer withdrawal = raw_offer(transfer, TransferKind::kPush, 5);
    withdrawal.parts = 0;
    raw_send(0, withdrawal);
    raw_send(0, withdrawal);
  }
  raw_send(0, wire::LearnerBeat{});
  EXPECT_TRUE(wait([&] { return syncer.messages.size() == 1; }));
  ASSERT_EQ(syncer.offers.size(), 2U);
  syncer.accept(syncer.offers[0]);
  syncer_link->refuse(2, "not now");
  EXPECT_TRUE(wait([&] { return syncer.received.size() == 1; }));
  EXPECT_FALSE(syncer.received.at(1));
  EXPECT_TRUE(syncer_link->is_open());
}

TEST_F(LinkTest, WithdrawalMayCrossTheEndOfItsTransfer) {
  make_raw_session(0);
  syncer.finish = false;
  raw_offer(1, TransferKind::kPush, 3);
  raw_send(0, wire::Chunk{1, 0, Bytes(3)});
  EXPECT_TRUE(wait([&] { return syncer.received.count(1) == 1; }));
  wire::Offer withdrawal = offer_of(TransferKind::kPush);
  withdrawal.transfer = 1;
  withdrawal.parts = 0;
  raw_send(0, withdrawal);
  raw_send(0, withdrawal);
  raw_send(0, wire::Limit{});
  EXPECT_TRUE(wait([&] { return syncer.messages.size() == 1; }));
  syncer_link->finish_receive(1, true);  // the owner could not know
  EXPECT_EQ(syncer.received, (std::map<std::uint64_t, bool>{{1, true}})) << "told once";
  // HAVE and DONE of a transfer that this side has withdrawn.
  syncer_link->send_transfer(9, offer_of(TransferKind::kBroadcast), random_body(1, 5));
  EXPECT_EQ(std::get<wire::Offer>(raw_read()).parts, 1u);
  syncer_link->abort_transfer(9);
  EXPECT_EQ(std::get<wire::Offer>(raw_read()).parts, 0u);
  raw_send(0, wire::Have{1, 1, {}, {}});
  raw_send(0, wire::Done{1, 1});
  raw_send(0, wire::Limit{});
  EXPECT_TRUE(wait([&] { return syncer.messages.size() == 2; }));
  EXPECT_EQ(syncer.sent, (std::map<std::uint64_t, bool>{{9, false}}));
  EXPECT_FALSE(syncer.closed);
}

TEST_F(LinkTest, LossAnswersWhatWasBrokenOffJustBefore) {
  make_session(1);
  learner.answer = Recorder::Answer::kLater;
  syncer_link->send_transfer(1, offer_of(TransferKind::kBroadcast), random_body(1, 10));
  syncer.act = [&] {
    syncer_link->abort_transfer(1);
    learner_link->close();
  };
  learner_link->send(wire::Limit{});
  EXPECT_TRUE(wait([&] { return syncer.closed.has_value(); }));
  EXPECT_EQ(syncer.sent, (std::map<std::uint64_t, bool>{{1, false}}));
}

TEST_F(LinkTest, ChunkThatComesOverAnotherStreamEndsTheOneInTheMiddleOfIt) {
  make_raw_session(2);
  raw_offer(1, TransferKind::kPush, kChunk);
  Bytes frame =
      wire::encode_frame(wire::Type::kChunk, 0, wire::encode(wire::Chunk{1, 0, Bytes(kChunk, 1)}));
  frame.resize(kChunk / 2);
  write(*raw[1], frame);
  EXPECT_TRUE(wait([&] { return syncer_link->counters().bytes_in > kChunk / 2; }));
  raw_send(2, wire::Chunk{1, 0, Bytes(kChunk, 2)});
  EXPECT_TRUE(wait([&] { return syncer.received.count(1) == 1; }));
  EXPECT_EQ(*syncer.bodies[1], Bytes(kChunk, 2));
  ASSERT_EQ(syncer.lost.size(), 1u);
  EXPECT_EQ(syncer.lost[0].first, 0u);
  EXPECT_EQ(syncer_link->counters().data_streams, 1u);
  // The loss is told to the sender as well: what is here.
  const auto have = std::get<wire::Have>(raw_read());
  EXPECT_EQ(have.transfer, 1u);
  EXPECT_EQ(have.chunks, Bytes(1, 0));
  EXPECT_FALSE(syncer.closed);
}

TEST_F(LinkTest, HaveOfATransferUnderWayAsksForWhatALostStreamCarried) {
  make_raw_session(2);
  const auto body = random_body(1, 4 * kChunk);
  syncer_link->send_transfer(1, offer_of(TransferKind::kPush), body);
  EXPECT_TRUE(wait([&] { return syncer_link->counters().bytes_out > body->size(); }));
  EXPECT_EQ(std::get<wire::Offer>(raw_read()).transfer, 1u);
  raw[1].reset();
  EXPECT_TRUE(wait([&] { return syncer.lost.size() == 1; }));
  raw[2].reset();
  EXPECT_TRUE(wait([&] { return syncer.lost.size() == 2; }));
  // A new one comes for index 0, and only chunk 2 had arrived.
  const std::uint64_t before = syncer_link->counters().bytes_out;
  Ends ends = connect();
  ASSERT_TRUE(syncer_link->add_data_stream(
      std::make_unique<FramedStream>(loop, std::move(ends.second), Direction::kToSyncer), 0));
  raw_send(0, wire::Have{1, 1, {}, {0x04}});
  EXPECT_TRUE(wait([&] { return syncer_link->counters().bytes_out - before > 3 * kChunk; }));
  settle();
  EXPECT_LT(syncer_link->counters().bytes_out - before, 4 * kChunk);
  raw_send(0, wire::Done{1, 1});
  EXPECT_TRUE(wait([&] { return syncer.sent.count(1) == 1; }));
  EXPECT_TRUE(syncer.sent[1]);
}

TEST_F(LinkTest, EmptyChunkOfTransferZeroIsOnlyHeard) {
  make_raw_session(1);
  const int before = syncer.heard;
  raw_send(1, wire::Chunk{0, 0, {}});
  EXPECT_TRUE(wait([&] { return syncer.heard > before; }));
  EXPECT_TRUE(syncer.received.empty());
  EXPECT_FALSE(syncer.closed);
}

}  // namespace
}  // namespace yeto::sync
