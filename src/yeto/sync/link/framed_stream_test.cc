// SPDX-License-Identifier: Apache-2.0
// Goal: a stream delivers whole valid frames and names every broken rule. Method: a raw peer on a
// loopback socket writes good and bad bytes.
#include "yeto/sync/link/framed_stream.h"

#include <optional>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/sync/link/link_test_streams.h"

namespace yeto::sync {
namespace {

using wire::Direction;

// Stores chunks of transfer 1, discards those of 2, parks those of 3 until `released`, refuses
// others.
class Recorder : public StreamOwner {
 public:
  void on_message(FramedStream&, wire::Message message) override {
    messages.push_back(std::move(message));
    if (act) {
      act();
    }
  }
  ChunkTarget on_chunk(FramedStream&, const wire::ChunkPrefix& prefix) override {
    using Way = ChunkTarget::Way;
    ++asked;
    if (prefix.transfer == 1 || (prefix.transfer == 3 && released)) {
      body.resize(prefix.bytes);
      return {Way::kStore, body, keep, {}};
    }
    if (prefix.transfer == 2) {
      return {Way::kDiscard, {}, nullptr, {}};
    }
    if (prefix.transfer == 3) {
      return {Way::kPark, {}, nullptr, {}};
    }
    return {Way::kRefuse, {}, nullptr, "no such transfer"};
  }
  void on_chunk_read(FramedStream&, const wire::ChunkPrefix& prefix, bool stored) override {
    chunks.emplace_back(prefix.transfer, stored);
  }
  void on_drained(FramedStream&) override { ++drained; }
  void on_stream_closed(FramedStream&, const Error& of_error) override {
    EXPECT_FALSE(error) << "told twice";
    error = of_error;
  }

  std::vector<wire::Message> messages;
  std::vector<std::pair<std::uint64_t, bool>> chunks;
  std::function<void()> act;
  Bytes body;
  std::shared_ptr<void> keep;
  int asked = 0;
  int drained = 0;
  bool released = false;
  std::optional<Error> error;
};

Bytes frame(const wire::Message& message, std::uint64_t sequence) {
  return wire::encode_frame(wire::type_of(message), sequence, wire::encode_message(message));
}

class FramedStreamTest : public LoopbackTest {
 protected:
  FramedStreamTest() {
    Ends ends = connect();
    raw = std::move(ends.first);
    stream = std::make_unique<FramedStream>(loop, std::move(ends.second), Direction::kToSyncer);
  }
  // What closes the stream, in words.
  std::string reason() {
    EXPECT_TRUE(wait([&] { return owner.error.has_value(); }));
    EXPECT_FALSE(stream->is_open());
    return owner.error ? owner.error->what : "";
  }
  void send(const wire::Message& message) { write(*raw, frame(message, sequence++)); }
  void send_bytes(Bytes bytes) { write(*raw, std::move(bytes)); }

  Recorder owner;
  std::unique_ptr<net::Connection> raw;
  std::unique_ptr<FramedStream> stream;
  std::uint64_t sequence = 0;
};

TEST_F(FramedStreamTest, MessagesArriveInOrderHoweverTheBytesAreCut) {
  stream->start(&owner);
  Bytes bytes;
  std::vector<wire::Message> sent;
  Rng rng(4);
  for (std::uint64_t i = 0; i < 60; ++i) {
    sent.push_back(wire::random_message(rng, i % 2 == 0 ? wire::Type::kOffer : wire::Type::kMetric,
                                        Direction::kToSyncer));
    const Bytes one = frame(sent.back(), i);
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t count = std::min<std::size_t>(1 + rng.below(700), bytes.size() - at);
    send_bytes(Bytes(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                     bytes.begin() + static_cast<std::ptrdiff_t>(at + count)));
    settle();
    at += count;
  }
  EXPECT_TRUE(wait([&] { return owner.messages.size() == sent.size(); }));
  EXPECT_TRUE(owner.messages == sent);
}

TEST_F(FramedStreamTest, WhatIsSentIsAFrame) {
  stream->start(&owner);
  stream->send(wire::Goodbye{"bye"});
  stream->send_chunk(7, 2, {as_bytes_view("body"), crc32c(as_bytes_view("body")), nullptr});
  Bytes expected = frame(wire::Goodbye{"bye"}, 0);
  const Bytes second = frame(wire::Chunk{7, 2, {'b', 'o', 'd', 'y'}}, 1);
  expected.insert(expected.end(), second.begin(), second.end());
  Bytes got(expected.size());
  bool done = false;
  raw->read_exactly(got, [&] { done = true; });
  EXPECT_TRUE(wait([&] { return done && owner.drained == 2; }));
  EXPECT_EQ(got, expected);
}

TEST_F(FramedStreamTest, EveryBrokenRuleIsNamed) {
  struct Case {
    std::string what;
    Bytes bytes;
  };
  Bytes damaged = frame(wire::Done{1, 1}, 0);
  damaged.back() ^= 0x10;
  const ByteView http = as_bytes_view("GET / HTTP/1.1\r\nHost: example\r\n");
  const Bytes foreign(http.begin(), http.end());
  Bytes major = frame(wire::Done{1, 1}, 0);
  major[4] = 9;
  Bytes short_payload = wire::encode_frame(wire::Type::kDone, 0, Bytes{1, 2, 3});
  Bytes chunk = frame(wire::Chunk{1, 0, Bytes(300'000, 5)}, 0);
  chunk[200'000] ^= 1;
  Bytes no_prefix = wire::encode_frame(wire::Type::kChunk, 0, Bytes(15));
  Bytes lying = frame(wire::Chunk{1, 0, Bytes(4)}, 0);
  lying[wire::kHeaderBytes + 12] = 5;
  const std::vector<Case> cases = {
      {"CRC-32C of the payload is", damaged},
      {"wrong magic 47455420", foreign},
      {"protocol major 9 is not 1", major},
      {"DONE: the payload ends inside field transfer", short_payload},
      {"sequence 1 where 0 was due", frame(wire::Done{1, 1}, 1)},
      {"PULL may not be sent to the syncer", frame(wire::Pull{}, 0)},
      {"CRC-32C of the payload is", chunk},
      {"has no room for its prefix", no_prefix},
      {"CHUNK announces 5 bytes in a payload of 20", lying},
      {"no such transfer", frame(wire::Chunk{9, 0, Bytes(4)}, 0)},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Ends ends = connect();
    FramedStream victim(loop, std::move(ends.second), Direction::kToSyncer);
    Recorder told;
    victim.start(&told);
    write(*ends.first, c.bytes);
    ASSERT_TRUE(wait([&] { return told.error.has_value(); }));
    EXPECT_EQ(told.error->code, ErrorCode::kProtocol);
    EXPECT_NE(told.error->what.find(c.what), std::string::npos) << told.error->what;
    EXPECT_FALSE(told.error->where.empty());
    EXPECT_TRUE(told.messages.empty());
    EXPECT_TRUE(told.chunks.empty());
    EXPECT_FALSE(victim.is_open());
  }
}

TEST_F(FramedStreamTest, PeerThatClosesInMidFrameIsALoss) {
  stream->start(&owner);
  Bytes half = frame(wire::Metric{std::string(100, 'x')}, 0);
  half.resize(half.size() - 1);
  send_bytes(half);
  settle();
  raw.reset();
  EXPECT_EQ(reason(), "the peer closed the connection");
  EXPECT_EQ(owner.error->code, ErrorCode::kClosed);
  EXPECT_TRUE(owner.messages.empty());
}

TEST_F(FramedStreamTest, ChunkIsStoredDiscardedOrParked) {
  stream->start(&owner);
  const Bytes body(300'000, 7);
  send(wire::Chunk{1, 0, body});
  EXPECT_TRUE(wait([&] { return owner.chunks.size() == 1; }));
  EXPECT_EQ(owner.body, body);
  send(wire::Chunk{2, 0, Bytes(500'000, 1)});
  send(wire::Done{1, 1});
  EXPECT_TRUE(wait([&] { return owner.messages.size() == 1; }));
  EXPECT_EQ(owner.body, body);
  send(wire::Chunk{3, 0, Bytes(9, 3)});
  send(wire::Done{2, 1});
  EXPECT_TRUE(wait([&] { return stream->parked(); }));
  settle();
  EXPECT_EQ(owner.messages.size(), 1u) << "nothing is read behind a parked chunk";
  stream->unpark();
  EXPECT_TRUE(stream->parked());
  owner.released = true;
  stream->unpark();
  EXPECT_TRUE(wait([&] { return owner.messages.size() == 2; }));
  EXPECT_EQ(owner.body, Bytes(9, 3));
  EXPECT_EQ(owner.asked, 5);
  EXPECT_EQ(owner.chunks,
            (std::vector<std::pair<std::uint64_t, bool>>{{1, true}, {2, false}, {3, true}}));
}

TEST_F(FramedStreamTest, TrailingBytesOfANewerMinorAreReadOver) {
  stream->start(&owner);
  Bytes payload = wire::encode(wire::Chunk{1, 0, Bytes(100, 4)});
  payload.insert(payload.end(), 50, 0xee);
  send_bytes(wire::encode_frame(wire::Type::kChunk, sequence++, payload));
  send(wire::Done{1, 1});
  EXPECT_TRUE(wait([&] { return owner.messages.size() == 1; }));
  EXPECT_EQ(owner.body, Bytes(100, 4));
}

TEST_F(FramedStreamTest, DiscardedMidChunkLeavesTheOldTargetAlive) {
  stream->start(&owner);
  auto keep = std::make_shared<int>(1);
  const std::weak_ptr<int> watch = keep;
  owner.keep = std::move(keep);
  Bytes bytes = frame(wire::Chunk{1, 0, Bytes(400'000, 6)}, sequence++);
  const auto half = bytes.begin() + 200'000;
  send_bytes(Bytes(bytes.begin(), half));
  EXPECT_TRUE(wait([&] { return owner.asked == 1 && stream->bytes_in() == 200'000; }));
  owner.keep = nullptr;
  stream->discard_current(2);
  stream->discard_current(1);
  EXPECT_FALSE(watch.expired()) << "a read into it may be in progress";
  send_bytes(Bytes(half, bytes.end()));
  EXPECT_TRUE(wait([&] { return owner.chunks.size() == 1; }));
  EXPECT_FALSE(owner.chunks[0].second);
  EXPECT_TRUE(watch.expired());
}

TEST_F(FramedStreamTest, OwnerMayDestroyTheStreamInACallback) {
  stream->start(&owner);
  owner.act = [&] { stream.reset(); };
  send(wire::Done{1, 1});
  send(wire::Done{2, 1});
  EXPECT_TRUE(wait([&] { return stream == nullptr; }));
  settle();
  EXPECT_EQ(owner.messages.size(), 1u);
  EXPECT_FALSE(owner.error);
}

TEST_F(FramedStreamTest, HandshakeReadsExactlyOneFrameAtATime) {
  send(wire::Done{1, 1});
  send(wire::Done{2, 1});
  send(wire::Done{3, 1});
  for (std::uint64_t i = 1; i <= 2; ++i) {
    std::optional<wire::Message> got;
    stream->expect_one_message(100, kTestLimit, [&](Result<wire::Message> message) {
      ASSERT_TRUE(message) << message.error().text();
      got = std::move(*message);
    });
    ASSERT_TRUE(wait([&] { return got.has_value(); }));
    EXPECT_EQ(std::get<wire::Done>(*got).transfer, i);
    settle();
  }
  stream->start(&owner);
  EXPECT_TRUE(wait([&] { return owner.messages.size() == 1; }));
  EXPECT_EQ(std::get<wire::Done>(owner.messages[0]).transfer, 3u);
}

TEST_F(FramedStreamTest, HandshakeLimitsAreEnforced) {
  const auto expect_error = [&](ErrorCode code, std::string_view what, Nanos timeout, Bytes bytes) {
    Ends ends = connect();
    FramedStream victim(loop, std::move(ends.second), Direction::kToSyncer);
    std::optional<Error> error;
    victim.expect_one_message(wire::kMaxUnadmittedBytes, timeout,
                              [&](Result<wire::Message> message) {
                                ASSERT_FALSE(message);
                                error = message.error();
                              });
    write(*ends.first, std::move(bytes));
    ASSERT_TRUE(wait([&] { return error.has_value(); }));
    EXPECT_EQ(error->code, code);
    EXPECT_NE(error->what.find(what), std::string::npos) << error->what;
    // The refusal still goes out.
    victim.send(wire::Refused{wire::RefuseCode::kProtocol, 0, error->what, {}});
    victim.close_gracefully(kTestLimit);
    std::array<std::uint8_t, wire::kHeaderBytes> header{};
    bool done = false;
    ends.first->read_exactly(header, [&] { done = true; });
    EXPECT_TRUE(wait([&] { return done; }));
    EXPECT_EQ(header[5], static_cast<std::uint8_t>(wire::Type::kRefused));
  };
  Bytes large = frame(wire::Hello{}, 0);
  large[9] = 0x41;  // payload of 16 KiB and more
  expect_error(ErrorCode::kProtocol, "over the limit of", kTestLimit, large);
  expect_error(ErrorCode::kProtocol, "CHUNK before the handshake is over", kTestLimit,
               frame(wire::Chunk{1, 0, Bytes(4)}, 0));
  expect_error(ErrorCode::kProtocol, "protocol major", kTestLimit, [] {
    Bytes bytes = frame(wire::Hello{}, 0);
    bytes[4] = 2;
    return bytes;
  }());
  Bytes slow = frame(wire::Hello{}, 0);
  slow.resize(10);
  expect_error(ErrorCode::kTimeout, "no message within", 20 * kMillisecond, slow);
}

TEST_F(FramedStreamTest, HandshakeEndsWhenThePeerCloses) {
  std::optional<Error> error;
  stream->expect_one_message(100, kTestLimit, [&](Result<wire::Message> message) {
    ASSERT_FALSE(message);
    error = message.error();
  });
  raw.reset();
  EXPECT_TRUE(wait([&] { return error.has_value(); }));
  EXPECT_EQ(error->code, ErrorCode::kClosed);
  error.reset();
  stream->expect_one_message(100, kTestLimit,
                             [&](Result<wire::Message> message) { error = message.error(); });
  EXPECT_FALSE(error);
  EXPECT_TRUE(wait([&] { return error.has_value(); }));
}

}  // namespace
}  // namespace yeto::sync
