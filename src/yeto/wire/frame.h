// SPDX-License-Identifier: Apache-2.0
// Frames: a 24-byte little-endian header and a payload. Format page: docs/PROTOCOL.md.
//
//   off  type          field
//     0  u32           magic "YETO" (bytes 59 45 54 4F)
//     4  u8, u8, u16   protocol major, message type, flags (0; an unknown bit is an error)
//     8  u32           payload bytes
//    12  u32           CRC-32C of the payload
//    16  u64           sequence per direction and connection: 0, 1, 2, …
//
// All errors here are kProtocol and name the field; after one the connection cannot be used any
// more. Pure functions, thread-safe; FrameSequence belongs to one connection.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "yeto/base/bytes.h"
#include "yeto/base/result.h"
#include "yeto/wire/messages.h"

namespace yeto::wire {

inline constexpr std::size_t kHeaderBytes = 24;
inline constexpr std::uint32_t kMagic = 0x4f544559;

// Which way a frame travels. A controller or observer counts as a learner here.
enum class Direction : std::uint8_t { kToSyncer = 0, kToLearner = 1 };

constexpr Direction opposite(Direction direction) {
  return direction == Direction::kToSyncer ? Direction::kToLearner : Direction::kToSyncer;
}

struct FrameHeader {
  Type type = Type::kGoodbye;
  std::uint32_t payload_bytes = 0;
  std::uint32_t crc = 0;
  std::uint64_t sequence = 0;
  bool operator==(const FrameHeader&) const = default;
};

// "HELLO"; empty for a byte that is no type.
std::string_view type_name(Type type);
// True for a type of this protocol that may travel this way.
bool type_allowed(Type type, Direction direction);
// The most payload bytes a frame of that type may have: the bound of its fields plus room for what
// a newer minor may append. 0 for a type that is not allowed this way.
std::uint32_t max_payload(Type type, Direction direction);

void encode_header(const FrameHeader& header, std::span<std::uint8_t, kHeaderBytes> out);

// Checks magic, major, flags, type, direction and size against max_payload() and `limit` (whichever
// is smaller), in this order, before anything is allocated for the payload.
Result<FrameHeader> parse_header(std::span<const std::uint8_t, kHeaderBytes> bytes,
                                 Direction direction, std::uint32_t limit);

// kProtocol if the CRC of the payload (computed by the caller, perhaps in pieces) is not the
// header's.
Status check_crc(const FrameHeader& header, std::uint32_t crc_of_payload);

// The header and payload of one frame as contiguous bytes.
Bytes encode_frame(Type type, std::uint64_t sequence, ByteView payload);

// Sequence numbers of one direction of one connection.
class FrameSequence {
 public:
  // The number of the next frame to send.
  std::uint64_t take() { return next_++; }
  // The last `frames` taken numbers were not sent and will be taken again.
  void give_back(std::uint64_t frames) { next_ -= frames; }
  // kProtocol if a received frame is not the next one (gap, repeat or reorder).
  Status check(std::uint64_t sequence);

 private:
  std::uint64_t next_ = 0;
};

}  // namespace yeto::wire
