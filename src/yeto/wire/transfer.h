// SPDX-License-Identifier: Apache-2.0
// Bookkeeping of one transfer's chunks: a body of `bytes` bytes is cut into pieces of `chunk_bytes`
// (the last one may be shorter); chunk i covers bytes [i·chunk_bytes, …). A body of 0 bytes has no
// chunk. No I/O here. Not thread-safe; one owner.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/base/result.h"
#include "yeto/wire/messages.h"

namespace yeto::wire {

// Bytes before the body in a CHUNK payload: transfer u64, index u32, count u32.
inline constexpr std::size_t kChunkPrefixBytes = 16;
// Smallest chunk a WELCOME may set: below it the frame headers dominate.
inline constexpr std::uint32_t kMinChunkBytes = 1U << 10;

struct ChunkPrefix {
  std::uint64_t transfer = 0;
  std::uint32_t index = 0;
  std::uint32_t bytes = 0;
  bool operator==(const ChunkPrefix&) const = default;
};

void encode_chunk_prefix(const ChunkPrefix& prefix, std::span<std::uint8_t, kChunkPrefixBytes> out);
// kProtocol if the count is over kMaxChunkBytes or more than `payload_bytes` leaves for it.
Result<ChunkPrefix> parse_chunk_prefix(std::span<const std::uint8_t, kChunkPrefixBytes> bytes,
                                       std::uint32_t payload_bytes);

// Where chunk `index` lies in the body.
struct ChunkRange {
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  bool operator==(const ChunkRange&) const = default;
};

// How a body is cut. `bytes` at most 2^32 - 1 chunks.
struct ChunkPlan {
  std::uint64_t bytes = 0;
  std::uint32_t chunk_bytes = kDefaultChunkBytes;
  std::uint32_t count() const;
  ChunkRange range(std::uint32_t index) const;  // index < count()
};

// Who carried a chunk: a number of the sender's choice, never used for two streams.
using Carrier = std::uint32_t;

// The sender's side: hands out chunk indices in order, without those the receiver has. What was
// given to a stream that is lost is handed out again once HAVE has told what of it arrived.
class OutgoingTransfer {
 public:
  OutgoingTransfer(std::uint64_t bytes, std::uint32_t chunk_bytes);
  // Takes the bitmap of a HAVE, at any time (bit i of byte i/8, low bit first); empty means none.
  // kProtocol if it has not one bit for every chunk.
  Status skip(ByteView held_chunks);
  // The next chunk to send; nothing when all are handed out.
  std::optional<std::uint32_t> next(Carrier carrier);
  // A chunk that was handed out and will not be sent there after all.
  void give_back(std::uint32_t index);
  // Hands out again what `is_lost` carriers were given and the receiver does not have.
  void reclaim(const std::function<bool(Carrier)>& is_lost);
  // It was given a chunk that the receiver does not have, as far as is known.
  bool carried_by(Carrier carrier) const;
  bool exhausted() const { return left_ == 0; }
  std::uint32_t left() const { return left_; }
  // Every chunk has been handed out once or is held: DONE may come.
  bool may_be_complete() const { return untouched_ == 0; }
  const ChunkPlan& plan() const { return plan_; }

 private:
  ChunkPlan plan_;
  std::uint32_t at_ = 0;         // no chunk before it waits
  std::uint32_t left_ = 0;       // chunks that wait
  std::uint32_t untouched_ = 0;  // of them, never handed out
  std::vector<Carrier> chunks_;  // a carrier, or one of the marks in transfer.cc
};

// The receiver's side: says where a chunk goes in a buffer of the announced size, which the caller
// owns and keeps. A chunk counts only after mark(), which the caller calls when its CRC was right.
class IncomingTransfer {
 public:
  IncomingTransfer(MutableByteView target, std::uint32_t chunk_bytes);
  // Where the body of this chunk is to be written; nothing if that chunk is here or on its way
  // already (read and discard it). kProtocol: index out of range, or not the size it must have.
  Result<std::optional<MutableByteView>> place(std::uint32_t index, std::uint32_t bytes);
  // The chunk that place() gave a target for has arrived.
  void mark(std::uint32_t index);
  // The chunk that place() gave a target for will not arrive there: its stream was lost.
  void unplace(std::uint32_t index);
  // place() gave a target for it, and it has not arrived.
  bool arriving(std::uint32_t index) const;
  bool complete() const { return left_ == 0; }
  // For HAVE: bit i of byte i/8 is set for a chunk that has arrived.
  Bytes held_chunks() const;

 private:
  enum class State : std::uint8_t { kMissing, kArriving, kHeld };
  MutableByteView target_;
  ChunkPlan plan_;
  std::uint32_t left_ = 0;
  std::vector<State> chunks_;
};

}  // namespace yeto::wire
