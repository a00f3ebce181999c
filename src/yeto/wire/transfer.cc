// SPDX-License-Identifier: Apache-2.0
#include "yeto/wire/transfer.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "yeto/base/format.h"

namespace yeto::wire {
namespace {

// What is known of a chunk that no stream carries.
constexpr Carrier kUntouched = 0xffffffff;  // never handed out
constexpr Carrier kAgain = 0xfffffffe;      // to be handed out again
constexpr Carrier kHeld = 0xfffffffd;       // the receiver has it
constexpr Carrier kFirstMark = kHeld;

}  // namespace

void encode_chunk_prefix(const ChunkPrefix& prefix,
                         std::span<std::uint8_t, kChunkPrefixBytes> out) {
  std::memcpy(out.data(), &prefix.transfer, 8);
  std::memcpy(out.data() + 8, &prefix.index, 4);
  std::memcpy(out.data() + 12, &prefix.bytes, 4);
}

Result<ChunkPrefix> parse_chunk_prefix(std::span<const std::uint8_t, kChunkPrefixBytes> bytes,
                                       std::uint32_t payload_bytes) {
  ChunkPrefix prefix;
  std::memcpy(&prefix.transfer, bytes.data(), 8);
  std::memcpy(&prefix.index, bytes.data() + 8, 4);
  std::memcpy(&prefix.bytes, bytes.data() + 12, 4);
  if (payload_bytes < kChunkPrefixBytes || prefix.bytes > payload_bytes - kChunkPrefixBytes ||
      prefix.bytes > kMaxChunkBytes) {
    return fail(ErrorCode::kProtocol,
                strf("CHUNK announces {} bytes in a payload of {}", prefix.bytes, payload_bytes),
                strf("transfer {} chunk {}", prefix.transfer, prefix.index));
  }
  return prefix;
}

std::uint32_t ChunkPlan::count() const {
  const std::uint64_t chunks = bytes / chunk_bytes + (bytes % chunk_bytes != 0 ? 1 : 0);
  YETO_CHECK(chunks <= std::numeric_limits<std::uint32_t>::max(), "too many chunks in a transfer");
  return static_cast<std::uint32_t>(chunks);
}

ChunkRange ChunkPlan::range(std::uint32_t index) const {
  const std::uint64_t offset = std::uint64_t{index} * chunk_bytes;
  return {offset, static_cast<std::uint32_t>(std::min<std::uint64_t>(chunk_bytes, bytes - offset))};
}

OutgoingTransfer::OutgoingTransfer(std::uint64_t bytes, std::uint32_t chunk_bytes)
    : plan_{bytes, chunk_bytes},
      left_(plan_.count()),
      untouched_(left_),
      chunks_(left_, kUntouched) {}

Status OutgoingTransfer::skip(ByteView held_chunks) {
  if (held_chunks.empty()) {
    return Unit{};
  }
  const std::size_t count = chunks_.size();
  if (held_chunks.size() != (count + 7) / 8) {
    return fail(ErrorCode::kProtocol,
                strf("HAVE has a bitmap of {} bytes for {} chunks", held_chunks.size(), count));
  }
  for (std::size_t i = 0; i < count; ++i) {
    if ((held_chunks[i / 8] >> (i % 8) & 1U) != 0) {
      left_ -= chunks_[i] == kUntouched || chunks_[i] == kAgain ? 1 : 0;
      untouched_ -= chunks_[i] == kUntouched ? 1 : 0;
      chunks_[i] = kHeld;
    }
  }
  return Unit{};
}

std::optional<std::uint32_t> OutgoingTransfer::next(Carrier carrier) {
  YETO_CHECK(carrier < kFirstMark, "too many streams");
  if (left_ == 0) {
    return std::nullopt;
  }
  while (chunks_[at_] != kUntouched && chunks_[at_] != kAgain) {
    ++at_;
  }
  untouched_ -= chunks_[at_] == kUntouched ? 1 : 0;
  --left_;
  chunks_[at_] = carrier;
  return at_++;
}

void OutgoingTransfer::give_back(std::uint32_t index) {
  if (chunks_[index] < kFirstMark) {
    chunks_[index] = kAgain;
    ++left_;
    at_ = std::min(at_, index);
  }
}

void OutgoingTransfer::reclaim(const std::function<bool(Carrier)>& is_lost) {
  for (std::uint32_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i] < kFirstMark && is_lost(chunks_[i])) {
      give_back(i);
    }
  }
}

bool OutgoingTransfer::carried_by(Carrier carrier) const {
  return std::find(chunks_.begin(), chunks_.end(), carrier) != chunks_.end();
}

IncomingTransfer::IncomingTransfer(MutableByteView target, std::uint32_t chunk_bytes)
    : target_(target),
      plan_{target.size(), chunk_bytes},
      left_(plan_.count()),
      chunks_(left_, State::kMissing) {}

Result<std::optional<MutableByteView>> IncomingTransfer::place(std::uint32_t index,
                                                               std::uint32_t bytes) {
  if (index >= chunks_.size()) {
    return fail(ErrorCode::kProtocol, strf("chunk {} of a transfer of {}", index, chunks_.size()));
  }
  const ChunkRange range = plan_.range(index);
  if (bytes != range.bytes) {
    return fail(ErrorCode::kProtocol,
                strf("chunk {} has {} bytes where {} are due", index, bytes, range.bytes));
  }
  if (chunks_[index] != State::kMissing) {
    return std::optional<MutableByteView>();
  }
  chunks_[index] = State::kArriving;
  return std::optional<MutableByteView>(target_.subspan(range.offset, range.bytes));
}

void IncomingTransfer::mark(std::uint32_t index) {
  YETO_CHECK(index < chunks_.size() && chunks_[index] == State::kArriving,
             "mark() of a chunk that was not placed");
  chunks_[index] = State::kHeld;
  --left_;
}

void IncomingTransfer::unplace(std::uint32_t index) {
  YETO_CHECK(arriving(index), "unplace() of a chunk that was not placed");
  chunks_[index] = State::kMissing;
}

bool IncomingTransfer::arriving(std::uint32_t index) const {
  return index < chunks_.size() && chunks_[index] == State::kArriving;
}

Bytes IncomingTransfer::held_chunks() const {
  Bytes bitmap((chunks_.size() + 7) / 8);
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i] == State::kHeld) {
      bitmap[i / 8] = static_cast<std::uint8_t>(bitmap[i / 8] | 1U << (i % 8));
    }
  }
  return bitmap;
}

}  // namespace yeto::wire
