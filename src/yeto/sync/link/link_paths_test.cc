// SPDX-License-Identifier: Apache-2.0
// Goal: a session outlives its data streams, and neither a slow, a still nor a forgotten path loses
// a byte or the session. Method: two links in one loop, all their streams through a proxy that
// cuts, slows, stops and forgets connections; lost streams are brought again as a learner does.
#include <optional>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/sync/link/link.h"
#include "yeto/sync/link/link_test_recorder.h"
#include "yeto/sync/link/link_test_streams.h"
#include "yeto/sync/link/proxy_testing.h"

namespace yeto::sync {
namespace {

using wire::Direction;
using wire::TransferKind;

constexpr double kMega = 1e6;
constexpr std::size_t kMiB = std::size_t{1} << 20;

class LinkPathsTest : public LoopbackTest {
 protected:
  // Small socket buffers: bytes wait at the sender, as on a long path.
  static constexpr int kSocketBytes = 32 << 10;

  void make_session(std::uint16_t streams, LinkOptions options = {}) {
    streams_ = streams;
    options.data_streams = streams;
    options.incoming = Direction::kToSyncer;
    syncer_link = std::make_unique<Link>(loop, options, &syncer);
    options.incoming = Direction::kToLearner;
    learner_link = std::make_unique<Link>(loop, options, &learner);
    syncer.link = syncer_link.get();
    learner.link = learner_link.get();
    Ends ends = connect(proxy.address());
    learner_link->start(stream_of(std::move(ends.first), Direction::kToLearner));
    syncer_link->start(stream_of(std::move(ends.second), Direction::kToSyncer));
    for (std::uint16_t i = 0; i < streams; ++i) {
      attach(i);
    }
    beat();
  }
  std::unique_ptr<FramedStream> stream_of(std::unique_ptr<net::Connection> connection,
                                          Direction incoming) {
    return std::make_unique<FramedStream>(loop, std::move(connection), incoming);
  }
  void attach(std::uint16_t index) {
    Ends ends = connect(proxy.address());
    // The syncer's side answers ATTACH before the learner's side hears ATTACHED.
    ASSERT_TRUE(syncer_link->add_data_stream(
        stream_of(std::move(ends.second), Direction::kToSyncer), index));
    ASSERT_TRUE(learner_link->add_data_stream(
        stream_of(std::move(ends.first), Direction::kToLearner), index));
  }
  // What the learner has lost is attached again.
  void attach_lost() {
    for (const auto& [index, reason] : std::exchange(learner.lost, {})) {
      attach(index);
    }
  }
  // Heartbeats both ways, so that each side hears the other on control.
  void beat() {
    loop.after(beat_every, [this] {
      if (syncer_link) {
        syncer_link->send(wire::SyncerBeat{});
        learner_link->send(wire::LearnerBeat{});
        beat();
      }
    });
  }
  bool wait_attaching(const std::function<bool()>& done) {
    const Nanos end = monotonic_now() + kTestLimit;
    while (!done() && monotonic_now() < end) {
      wait([&] { return done() || !learner.lost.empty(); });
      attach_lost();
    }
    return done();
  }
  std::uint64_t arrived() { return learner_link->counters().bytes_in; }
  void expect_open() {
    EXPECT_FALSE(syncer.closed) << syncer.closed.value_or("");
    EXPECT_FALSE(learner.closed) << learner.closed.value_or("");
  }

  Recorder syncer;
  Recorder learner;
  Nanos beat_every = 20 * kMillisecond;
  std::uint16_t streams_ = 0;
  Proxy proxy{address(), kSocketBytes};
  std::unique_ptr<Link> syncer_link;
  std::unique_ptr<Link> learner_link;
};

LinkOptions small_chunks(Nanos lease) {
  LinkOptions options;
  options.chunk_bytes = 64U << 10;
  options.lease = lease;
  return options;
}

TEST_F(LinkPathsTest, LostDataStreamsComeBackAndNothingIsSentTwiceInVain) {
  make_session(4, small_chunks(kTestLimit));
  proxy.set({.bytes_per_second = 200 * kMega});
  const auto down = random_body(1, 24 * kMiB + 77);
  const auto up = random_body(2, 12 * kMiB + 5);
  syncer_link->send_transfer(1, offer_of(TransferKind::kBroadcast), down);
  learner_link->send_transfer(2, offer_of(TransferKind::kPush), up);
  for (std::size_t lost = 0; lost < 6; ++lost) {
    EXPECT_TRUE(wait([&] { return arrived() > (lost + 1) * 2 * kMiB; }));
    proxy.cut(1 + lost);  // 0 is control; later numbers are those that came again
    EXPECT_TRUE(wait_attaching([&] { return proxy.counters().accepted == 6 + lost; }));
  }
  EXPECT_TRUE(wait_attaching([&] { return syncer.sent.size() == 1 && learner.sent.size() == 1; }));
  EXPECT_TRUE(syncer.sent[1]);
  EXPECT_TRUE(learner.sent[2]);
  EXPECT_EQ(xxh3_128(*learner.bodies[1]), xxh3_128(*down));
  EXPECT_EQ(xxh3_128(*syncer.bodies[1]), xxh3_128(*up));
  EXPECT_EQ(syncer_link->counters().data_streams, 4u);
  EXPECT_EQ(syncer_link->counters().data_streams_lost, 6u);
  // What was on its way on a lost stream, not all it ever carried.
  EXPECT_LT(syncer_link->counters().bytes_out, down->size() + 12 * kMiB);
  expect_open();
}

TEST_F(LinkPathsTest, OtherStreamsCarryOnWithoutTheLostOne) {
  make_session(3, small_chunks(kTestLimit));
  proxy.set({.bytes_per_second = 200 * kMega});
  const auto body = random_body(1, 16 * kMiB);
  syncer_link->send_transfer(1, offer_of(TransferKind::kBroadcast), body);
  EXPECT_TRUE(wait([&] { return arrived() > 2 * kMiB; }));
  proxy.cut(1);
  proxy.cut(3);
  EXPECT_TRUE(wait([&] { return syncer.sent.count(1) == 1; }));
  EXPECT_EQ(*learner.bodies[1], *body);
  EXPECT_EQ(syncer_link->counters().data_streams, 1u);
  EXPECT_EQ(syncer.lost.size(), 2u);
  EXPECT_EQ(learner.lost.size(), 2u);
  expect_open();
}

TEST_F(LinkPathsTest, WithoutAnyDataStreamChunksGoOverControlAfterALease) {
  make_session(2, small_chunks(200 * kMillisecond));
  proxy.set({.bytes_per_second = 100 * kMega});
  const auto body = random_body(1, 8 * kMiB);
  syncer_link->send_transfer(1, offer_of(TransferKind::kBroadcast), body);
  EXPECT_TRUE(wait([&] { return arrived() > kMiB; }));
  proxy.cut(1);
  proxy.cut(2);
  EXPECT_TRUE(wait([&] { return syncer.sent.count(1) == 1; }));
  EXPECT_EQ(*learner.bodies[1], *body);
  EXPECT_EQ(syncer_link->counters().data_streams, 0u);
  // A stream that comes again takes over.
  attach_lost();
  const std::uint64_t control = proxy.bytes_of(0);
  const auto next = random_body(2, 4 * kMiB);
  syncer_link->send_transfer(2, offer_of(TransferKind::kBroadcast), next);
  EXPECT_TRUE(wait([&] { return syncer.sent.count(2) == 1; }));
  EXPECT_EQ(*learner.bodies[2], *next);
  EXPECT_LT(proxy.bytes_of(0) - control, kMiB);
  expect_open();
}

TEST_F(LinkPathsTest, StreamThatDeliversNothingIsGivenUpWhileThePeerIsHeard) {
  make_session(4, small_chunks(400 * kMillisecond));
  proxy.set({.bytes_per_second = 100 * kMega});
  const auto body = random_body(1, 16 * kMiB);
  syncer_link->send_transfer(1, offer_of(TransferKind::kBroadcast), body);
  EXPECT_TRUE(wait([&] { return arrived() > 2 * kMiB; }));
  proxy.set(2, {.stands_still = true});
  EXPECT_TRUE(wait_attaching([&] { return syncer.sent.count(1) == 1; }));
  EXPECT_EQ(*learner.bodies[1], *body);
  // Either side may have been first to give it up.
  EXPECT_GE(syncer_link->counters().data_streams_lost, 1u);
  expect_open();
}

TEST_F(LinkPathsTest, SlowStreamCarriesItsShareOnly) {
  make_session(4, small_chunks(kTestLimit));
  for (std::size_t i = 1; i <= 4; ++i) {
    proxy.set(i, {.bytes_per_second = (i == 3 ? 1 : 25) * kMega});
  }
  const auto body = random_body(1, 24 * kMiB);
  syncer_link->send_transfer(1, offer_of(TransferKind::kBroadcast), body);  // learns the rates
  EXPECT_TRUE(wait([&] { return syncer.sent.count(1) == 1; }));
  const std::uint64_t before = proxy.bytes_of(3);
  syncer_link->send_transfer(2, offer_of(TransferKind::kBroadcast), body);
  EXPECT_TRUE(wait([&] { return syncer.sent.count(2) == 1; }));
  EXPECT_EQ(*learner.bodies[2], *body);
  // 1 of 76 is its share; a quarter would be what it gets without regard to its rate.
  const std::uint64_t carried = proxy.bytes_of(3) - before;
  EXPECT_LT(carried, body->size() / 20);
  expect_open();
}

TEST_F(LinkPathsTest, EmptyChunksKeepIdleFlowsFromBeingForgotten) {
  LinkOptions options = small_chunks(kTestLimit);
  options.idle_frame = 100 * kMillisecond;
  make_session(3, options);
  proxy.set({.forget_idle = 5 * kSecond});
  const std::uint64_t before = syncer_link->counters().bytes_in;
  const int heard = syncer.heard;
  // Five rounds of them on each stream.
  EXPECT_TRUE(wait([&] {
    return proxy.bytes_of(1) >= 10 * 40 && proxy.bytes_of(2) >= 10 * 40 &&
           proxy.bytes_of(3) >= 10 * 40;
  }));
  EXPECT_GT(syncer_link->counters().bytes_in, before);
  EXPECT_GT(syncer.heard, heard);
  EXPECT_EQ(proxy.counters().forgotten, 0u);
  EXPECT_TRUE(syncer.received.empty());
  expect_open();
}

TEST_F(LinkPathsTest, ForgottenIdleFlowsAreReplacedWhenTheyAreNeeded) {
  LinkOptions options = small_chunks(400 * kMillisecond);
  options.idle_frame = 3600 * kSecond;
  make_session(3, options);
  proxy.set({.bytes_per_second = 100 * kMega, .forget_idle = kSecond});
  EXPECT_TRUE(wait([&] { return proxy.counters().forgotten == 3; }));
  proxy.set({.bytes_per_second = 100 * kMega});
  const auto body = random_body(1, 8 * kMiB);
  syncer_link->send_transfer(1, offer_of(TransferKind::kBroadcast), body);
  EXPECT_TRUE(wait_attaching([&] { return syncer.sent.count(1) == 1; }));
  EXPECT_EQ(*learner.bodies[1], *body);
  expect_open();
}

TEST_F(LinkPathsTest, NarrowLinkFullOfChunksLetsHeartbeatsThroughWithinTheLease) {
  // 10 Mbit/s in time that runs twice as fast: twice the rate, half the lease and heartbeat.
  constexpr Nanos kLease = 2500 * kMillisecond;
  LinkOptions options;
  options.lease = kLease;
  beat_every = 500 * kMillisecond;
  make_session(4, options);
  proxy.set({.bytes_per_second = 2.5 * kMega, .latency = 20 * kMillisecond});
  Nanos heard_by_syncer = monotonic_now();
  Nanos heard_by_learner = heard_by_syncer;
  std::size_t expired = 0;
  const auto renew = [&](Recorder& side, Nanos& heard) {
    side.act = [&expired, &heard] {
      const Nanos now = monotonic_now();
      expired += now - heard > kLease ? 1 : 0;
      heard = now;
    };
  };
  renew(syncer, heard_by_syncer);
  renew(learner, heard_by_learner);
  const auto down = random_body(1, 12 * kMiB);
  const auto up = random_body(2, 12 * kMiB);
  syncer_link->send_transfer(1, offer_of(TransferKind::kBroadcast), down);
  learner_link->send_transfer(2, offer_of(TransferKind::kPush), up);
  EXPECT_TRUE(wait([&] { return syncer.sent.size() == 1 && learner.sent.size() == 1; }));
  EXPECT_TRUE(syncer.sent[1] && learner.sent[2]);
  // Only messages count here: the lease must not need the chunks.
  EXPECT_EQ(expired, 0u);
  EXPECT_GE(syncer.messages.size(), 5u);
  EXPECT_EQ(syncer.lost, decltype(syncer.lost)());
  expect_open();
}

TEST_F(LinkPathsTest, PartitionThatHealsCostsNoTransfer) {
  make_session(2, small_chunks(kTestLimit));
  proxy.set({.bytes_per_second = 100 * kMega});
  const auto body = random_body(1, 8 * kMiB);
  syncer_link->send_transfer(1, offer_of(TransferKind::kBroadcast), body);
  EXPECT_TRUE(wait([&] { return arrived() > kMiB; }));
  proxy.set({.stands_still = true});
  settle();
  EXPECT_EQ(syncer.sent.count(1), 0u);
  proxy.set({.bytes_per_second = 100 * kMega});
  EXPECT_TRUE(wait([&] { return syncer.sent.count(1) == 1; }));
  EXPECT_EQ(*learner.bodies[1], *body);
  expect_open();
}

}  // namespace
}  // namespace yeto::sync
