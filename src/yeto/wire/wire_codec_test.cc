// SPDX-License-Identifier: Apache-2.0
// Goal: a payload is what the field lists say, both ways, and no payload harms the decoder.
// Method: bytes written by hand, random messages of every type, every truncation, every bit flip,
// and a count of what the decoder allocates.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/wire/codec.h"
#include "yeto/wire/transfer.h"
#include "yeto/wire/utf8.h"

namespace {
// Largest single allocation since it was set to 0.
std::atomic<std::size_t> largest_allocation{0};
}  // namespace

// Not inlined: g++ 12 otherwise warns of free() on memory of operator new.
[[gnu::noinline]] void* operator new(std::size_t size) {
  std::size_t seen = largest_allocation.load();
  while (size > seen && !largest_allocation.compare_exchange_weak(seen, size)) {
  }
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) {
    std::abort();
  }
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace yeto::wire {
namespace {

constexpr Direction kDirections[] = {Direction::kToSyncer, Direction::kToLearner};

// Calls f(type, direction) for all that may travel.
template <class F>
void for_each_type(F&& f) {
  for (int type = 0; type < 256; ++type) {
    for (const Direction direction : kDirections) {
      if (type_allowed(static_cast<Type>(type), direction)) {
        f(static_cast<Type>(type), direction);
      }
    }
  }
}

// Text in the printer's form is also a readable difference.
void expect_same(const Message& a, const Message& b) {
  EXPECT_TRUE(a == b) << to_text(a) << "\n" << to_text(b);
}

TEST(Codec, TwentyTwoTypesTravelTheWayTheTableSays) {
  int ways = 0;
  for_each_type([&](Type, Direction) { ++ways; });
  EXPECT_EQ(ways, 22 + 6);  // HEARTBEAT, OFFER, HAVE, DONE, DATA, CHUNK travel both ways
  EXPECT_FALSE(type_allowed(Type::kPull, Direction::kToSyncer));
  EXPECT_FALSE(type_allowed(Type::kHello, Direction::kToLearner));
  EXPECT_FALSE(decode(Type::kHello, Direction::kToLearner, Bytes(1000)));
}

TEST(Codec, RandomMessagesOfEveryTypeSurviveTheRoundTrip) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    Rng rng(seed);
    for_each_type([&](Type type, Direction direction) {
      const Message sent = random_message(rng, type, direction);
      const Bytes payload = encode_message(sent);
      EXPECT_LE(payload.size(), max_payload(type, direction));
      const auto got = decode(type, direction, payload);
      ASSERT_TRUE(got) << got.error().text();
      EXPECT_EQ(type_of(*got), type);
      expect_same(*got, sent);
    });
  }
}

TEST(Codec, TrailingBytesOfANewerMinorAreIgnored) {
  Rng rng(5);
  for_each_type([&](Type type, Direction direction) {
    const Message sent = random_message(rng, type, direction);
    Bytes payload = encode_message(sent);
    payload.insert(payload.end(), {1, 2, 3});
    const auto got = decode(type, direction, payload);
    ASSERT_TRUE(got);
    expect_same(*got, sent);
  });
}

TEST(Codec, EveryTruncationIsRefusedAndNamesTheField) {
  Rng rng(6);
  for_each_type([&](Type type, Direction direction) {
    const Bytes payload = encode_message(random_message(rng, type, direction));
    const std::size_t step = payload.size() > 600 ? 7 : 1;
    for (std::size_t size = 0; size < payload.size(); size += step) {
      const auto got = decode(type, direction, ByteView(payload).first(size));
      ASSERT_FALSE(got) << type_name(type) << " cut to " << size << " of " << payload.size();
      EXPECT_EQ(got.error().code, ErrorCode::kProtocol);
      EXPECT_NE(got.error().what.find("the payload ends inside field "), std::string::npos);
    }
  });
}

TEST(Codec, NoBitFlipAllocatesMoreThanThePayloadCanHold) {
  Rng rng(7);
  for_each_type([&](Type type, Direction direction) {
    Bytes payload = encode_message(random_message(rng, type, direction));
    const std::size_t bits = std::min<std::size_t>(payload.size() * 8, 4000);
    for (std::size_t bit = 0; bit < bits; ++bit) {
      payload[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
      largest_allocation = 0;
      const auto got = decode(type, direction, payload);
      // Structs with texts are larger in memory than on the wire, and their vector doubles.
      EXPECT_LE(largest_allocation, 16 * payload.size() + 4096)
          << type_name(type) << " bit " << bit;
      payload[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
      if (got) {
        EXPECT_EQ(type_of(*got), type);
      }
    }
  });
}

TEST(Codec, HugeCountIsRefusedBeforeMemoryIsTaken) {
  Bytes payload;
  ByteWriter writer(payload);
  writer.number(std::uint16_t{1});  // code
  writer.number(std::uint8_t{0});   // retryable
  writer.number(std::uint16_t{0});  // text
  writer.number(std::uint32_t{1U << 20});
  largest_allocation = 0;
  const auto got = decode(Type::kRefused, Direction::kToLearner, payload);
  ASSERT_FALSE(got);
  EXPECT_LT(largest_allocation, 4096u);
  EXPECT_EQ(got.error().what, "REFUSED: the payload ends inside field tensors");
}

TEST(Codec, CountOverTheBoundIsRefusedByName) {
  Bytes payload(28);  // term, global step, durable step, run tokens
  payload.resize(32);
  ByteWriter writer(payload);
  writer.number(std::uint32_t{4097});
  payload.resize(payload.size() + 4097 * 4);
  const auto got = decode(Type::kHeartbeat, Direction::kToLearner, payload);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().what, "HEARTBEAT: field live has 4097 elements, more than 4096");
}

TEST(Codec, UnknownEnumValueIsRefusedByName) {
  Bytes payload = encode(Leave{LeaveReason::kPreempted, 7});
  payload[0] = 3;
  const auto got = decode(Type::kLeave, Direction::kToSyncer, payload);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().what, "LEAVE: field reason has the unknown value 3");
  Bytes refused = encode(Refused{});
  refused[0] = 0;
  EXPECT_FALSE(decode(Type::kRefused, Direction::kToLearner, refused)) << "codes start at 1";
}

TEST(Codec, TextThatIsNotUtf8IsRefused) {
  for (const std::string_view bad :
       {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xe2\x82", "\xf4\x90\x80\x80"}) {
    Bytes payload;
    ByteWriter writer(payload);
    writer.number(static_cast<std::uint16_t>(bad.size()));
    writer.raw(as_bytes_view(bad));
    const auto got = decode(Type::kGoodbye, Direction::kToLearner, payload);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error().what, "GOODBYE: field reason is not UTF-8");
  }
}

TEST(Codec, OverlongTextIsCutAtACharacterAndBadBytesBecomeQuestionMarks) {
  std::string long_text;
  while (long_text.size() < 300) {
    long_text += "→";  // 3 bytes; 256 is no multiple of 3
  }
  const auto cut = decode(Type::kGoodbye, Direction::kToLearner, encode(Goodbye{long_text}));
  ASSERT_TRUE(cut);
  EXPECT_EQ(std::get<Goodbye>(*cut).reason, long_text.substr(0, 255));
  const auto mended = decode(Type::kGoodbye, Direction::kToLearner, encode(Goodbye{"a\xff→\xe2"}));
  ASSERT_TRUE(mended);
  EXPECT_EQ(std::get<Goodbye>(*mended).reason, "a?→?");
}

TEST(Codec, BytesOfPullAndOfferAreAsDocumented) {
  const Pull pull{0x0102030405060708, 3, 9, 1, 4, 0, 1};
  EXPECT_EQ(hex(encode(pull)),
            "0807060504030201"
            "03000000"
            "0900000000000000"
            "01000000"
            "0400000000000000"
            "0000000000000000"
            "01");
  Have have;
  have.transfer = 5;
  have.accept = 0;
  have.reason = "no";
  have.chunks = {0xff, 0x01};
  EXPECT_EQ(hex(encode(have)),
            "050000000000000000"
            "02006e6f"
            "02000000ff01");
  Hello hello;
  hello.run_id = "r";
  hello.contract = {{"loss", {1, 2, 3, 4, 5, 6, 7, 8}}};
  hello.held = {{2, 3}};
  hello.streams = 4;
  hello.device = "cpu";
  const std::string zeros32(64, '0');
  EXPECT_EQ(hex(encode(hello)),
            "0000"
            "010072"
            "00"
            "ffffffff"
            "0000000000000000" +
                std::string(32, '0') + zeros32 + zeros32 + "0000000000000000" +
                "01000000"
                "04006c6f7373"
                "0102030405060708" +
                "01000000"
                "0200000000000000"
                "0300000000000000" +
                "0000000000000000"
                "0000000000000000"
                "0400"
                "0300637075");
}

TEST(Codec, ChunkPrefixIsTheStartOfTheDeclaredMessage) {
  const Chunk chunk{7, 2, {9, 8, 7}};
  const Bytes payload = encode(chunk);
  std::array<std::uint8_t, kChunkPrefixBytes> prefix{};
  encode_chunk_prefix({7, 2, 3}, prefix);
  ASSERT_EQ(payload.size(), kChunkPrefixBytes + 3);
  EXPECT_TRUE(std::equal(prefix.begin(), prefix.end(), payload.begin()));
  EXPECT_EQ(*parse_chunk_prefix(prefix, 19), (ChunkPrefix{7, 2, 3}));
  EXPECT_FALSE(parse_chunk_prefix(prefix, 18));
  EXPECT_FALSE(parse_chunk_prefix(prefix, 3));
}

TEST(Codec, SizeBoundsAreThoseOfTheFields) {
  EXPECT_EQ(min_bytes<Done>(), 9u);
  EXPECT_EQ(max_bytes<Done>(), 9u);
  EXPECT_EQ(min_bytes<Metric>(), 2u);
  EXPECT_EQ(max_bytes<Metric>(), 2u + 8192u);
  EXPECT_EQ(max_bytes<Final>(), 8u + 4u + 512u * 8u + 4u + 512u * 32u);
  EXPECT_EQ(max_bytes<Chunk>(), kChunkPrefixBytes + kMaxChunkBytes);
  EXPECT_LE(max_bytes<Hello>(), kMaxUnadmittedBytes) << "every HELLO must fit before admission";
  EXPECT_LE(max_bytes<Attach>(), kMaxUnadmittedBytes);
}

TEST(Codec, PrinterShowsNamesAndHidesSecrets) {
  Attach attach;
  attach.session.fill(0xab);
  attach.stream = 3;
  EXPECT_EQ(to_text(attach), "ATTACH{session=<16 bytes> proof=<32 bytes> stream=3 rank=0}");
  EXPECT_EQ(to_text(Leave{LeaveReason::kPreempted, 5}), "LEAVE{reason=preempted notice_ms=5}");
  EXPECT_EQ(to_text(Goodbye{"a\nb"}), "GOODBYE{reason=\"a?b\"}");
  SyncerBeat beat;
  beat.live = {1, 4};
  EXPECT_EQ(to_text(beat),
            "HEARTBEAT{term=0 global_step=0 durable_step=0 run_tokens=0 live=[1 4]}");
}

TEST(Proof, CoversNonceAndEveryFieldButItself) {
  const Bytes key(32, 1);
  Nonce nonce{};
  nonce[0] = 9;
  Hello hello;
  hello.run_id = "run";
  hello.proof = make_proof(key, nonce, hello);
  EXPECT_TRUE(proof_ok(key, nonce, hello));
  EXPECT_EQ(hello.proof, make_proof(key, nonce, hello)) << "its own value does not matter";

  Bytes expected(nonce.begin(), nonce.end());
  Hello bare = hello;
  bare.proof = {};
  const Bytes encoded = encode(bare);
  expected.insert(expected.end(), encoded.begin(), encoded.end());
  EXPECT_EQ(hello.proof, hmac_sha256(key, expected));

  Hello other = hello;
  other.seat = 1;
  EXPECT_FALSE(proof_ok(key, nonce, other));
  Nonce replayed = nonce;
  replayed[31] ^= 1;
  EXPECT_FALSE(proof_ok(key, replayed, hello));
  EXPECT_FALSE(proof_ok(Bytes(32, 2), nonce, hello));
  Attach attach;
  attach.proof = make_proof(key, nonce, attach);
  EXPECT_TRUE(proof_ok(key, nonce, attach));
  attach.stream = 1;
  EXPECT_FALSE(proof_ok(key, nonce, attach));
}

TEST(Utf8, CharactersAtTheEdges) {
  EXPECT_TRUE(is_utf8(
      "\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"));
  EXPECT_EQ(utf8_character("\xe0\x9f\xbf"), 0u);
  EXPECT_EQ(utf8_character("\xf0\x8f\xbf\xbf"), 0u);
  EXPECT_EQ(utf8_character("\x80"), 0u);
  EXPECT_EQ(utf8_character("\xf5\x80\x80\x80"), 0u);
}

}  // namespace
}  // namespace yeto::wire
