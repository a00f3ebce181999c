// SPDX-License-Identifier: Apache-2.0
// Goal: a frame is refused by a named error unless it is exactly what it should be.
// Method: golden bytes, then every single-bit flip and every truncation of real frames.
#include <gtest/gtest.h>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/wire/codec.h"
#include "yeto/wire/frame.h"

namespace yeto::wire {
namespace {

constexpr std::uint32_t kNoLimit = 0xffffffff;

std::span<const std::uint8_t, kHeaderBytes> header_of(const Bytes& frame) {
  return std::span<const std::uint8_t, kHeaderBytes>(frame.data(), kHeaderBytes);
}

// All checks a reader makes on one whole frame, as sync/link makes them one by one.
Result<Message> read_frame(const Bytes& frame, Direction direction, std::uint64_t sequence) {
  if (frame.size() < kHeaderBytes) {
    return fail(ErrorCode::kClosed, "truncated");
  }
  YETO_ASSIGN(const FrameHeader header, parse_header(header_of(frame), direction, kNoLimit));
  if (header.sequence != sequence) {
    return fail(ErrorCode::kProtocol, "sequence");
  }
  if (frame.size() - kHeaderBytes != header.payload_bytes) {
    return fail(ErrorCode::kClosed, "truncated");
  }
  const ByteView payload = ByteView(frame).subspan(kHeaderBytes);
  YETO_TRY(check_crc(header, crc32c(payload)));
  return decode(header.type, direction, payload);
}

std::string error_of(Bytes frame, Direction direction, std::uint32_t limit = kNoLimit) {
  const auto header = parse_header(header_of(frame), direction, limit);
  return header ? "accepted" : header.error().what;
}

TEST(Frame, GoldenBytes) {
  // The CRCs come from a bitwise CRC-32C written apart from this code.
  const Bytes done = encode_frame(Type::kDone, 3, encode(Done{5, 1}));
  const Bytes payload = *from_hex("050000000000000001");
  EXPECT_EQ(hex(done),
            "5945544f"
            "01"
            "13"
            "0000"
            "09000000"
            "dbff7f63"
            "0300000000000000"
            "050000000000000001");
  const Bytes cancel = encode_frame(Type::kCancel, 0, encode(Cancel{}));
  EXPECT_EQ(hex(cancel),
            "5945544f"
            "01"
            "08"
            "0000"
            "0c000000"
            "5db5602b"
            "0000000000000000"
            "000000000000000000000000");
  const auto parsed = parse_header(header_of(done), Direction::kToSyncer, kNoLimit);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(*parsed, (FrameHeader{Type::kDone, 9, crc32c(payload), 3}));
}

TEST(Frame, ErrorsNameWhatIsWrong) {
  const Bytes good = encode_frame(Type::kPull, 0, encode(Pull{}));
  const auto with = [&](std::size_t at, std::uint8_t value) {
    Bytes bad = good;
    bad[at] = value;
    return error_of(bad, Direction::kToLearner);
  };
  EXPECT_EQ(error_of(good, Direction::kToLearner), "accepted");
  EXPECT_EQ(with(0, 'G'), "wrong magic 4745544f (expected 5945544f)");
  EXPECT_EQ(with(4, 2), "protocol major 2 is not 1");
  EXPECT_EQ(with(5, 0), "unknown message type 0");
  EXPECT_EQ(with(5, 23), "unknown message type 23");
  EXPECT_EQ(with(6, 1), "unknown flags 0x0001");
  EXPECT_EQ(error_of(good, Direction::kToSyncer), "PULL may not be sent to the syncer");
  EXPECT_EQ(error_of(good, Direction::kToLearner, 40),
            "PULL of 41 payload bytes is over the limit of 40");
  EXPECT_EQ(with(11, 0xff), strf("PULL of {} payload bytes is over the limit of {}", 0xff000029u,
                                 max_payload(Type::kPull, Direction::kToLearner)));
}

TEST(Frame, SequenceRefusesGapRepeatAndReorder) {
  FrameSequence sequence;
  EXPECT_TRUE(sequence.check(0));
  EXPECT_TRUE(sequence.check(1));
  EXPECT_FALSE(sequence.check(1)) << "repeat";
  EXPECT_FALSE(sequence.check(3)) << "gap";
  EXPECT_FALSE(sequence.check(0)) << "reorder";
  EXPECT_TRUE(sequence.check(2));
  EXPECT_EQ(sequence.check(9).error().what,
            "sequence 9 where 3 was due (a gap, repeat or reorder)");
}

TEST(Frame, EverySingleBitFlipIsRefused) {
  Rng rng(11);
  for (std::uint8_t type = 1; type <= 22; ++type) {
    for (const Direction direction : {Direction::kToSyncer, Direction::kToLearner}) {
      if (!type_allowed(static_cast<Type>(type), direction)) {
        continue;
      }
      Message message = random_message(rng, static_cast<Type>(type), direction);
      while (encode_message(message).size() > 700) {  // long ones add time, not cases
        message = random_message(rng, static_cast<Type>(type), direction);
      }
      Bytes frame = encode_frame(static_cast<Type>(type), 6, encode_message(message));
      ASSERT_TRUE(read_frame(frame, direction, 6));
      for (std::size_t bit = 0; bit < frame.size() * 8; ++bit) {
        frame[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
        // The type byte is not under the CRC: a flip may name another type of the same shape.
        const auto got = read_frame(frame, direction, 6);
        EXPECT_TRUE(!got || bit / 8 == 5) << type_name(static_cast<Type>(type)) << " bit " << bit;
        frame[bit / 8] ^= static_cast<std::uint8_t>(1U << (bit % 8));
      }
    }
  }
}

TEST(Frame, EveryTruncationIsRefused) {
  Rng rng(12);
  Bytes frame = encode_frame(
      Type::kOffer, 0, encode_message(random_message(rng, Type::kOffer, Direction::kToSyncer)));
  while (!frame.empty()) {
    frame.pop_back();
    EXPECT_FALSE(read_frame(frame, Direction::kToSyncer, 0)) << frame.size();
  }
}

TEST(Frame, LimitsLeaveRoomForANewerMinorAndNoMore) {
  EXPECT_EQ(max_payload(Type::kDone, Direction::kToSyncer), 9u + 1024u);
  EXPECT_EQ(max_payload(Type::kPull, Direction::kToSyncer), 0u);
  EXPECT_EQ(max_payload(static_cast<Type>(99), Direction::kToSyncer), 0u);
  EXPECT_NE(max_payload(Type::kHeartbeat, Direction::kToSyncer),
            max_payload(Type::kHeartbeat, Direction::kToLearner));
}

}  // namespace
}  // namespace yeto::wire
