// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/broadcast/broadcast.h"

#include <algorithm>

#include "yeto/base/result.h"
#include "yeto/codec/codec.h"

namespace yeto::sync {

std::uint64_t transfer_bytes(CodecId codec, std::uint64_t values) {
  return codec::encoded_bytes(codec, values);
}

CodecId automatic_codec(std::uint64_t values) { return codec::default_codec(values); }

CodecId whole_codec(CodecId broadcast_codec) {
  return codec::anchor_dtype(broadcast_codec) == DType::kF32 ? CodecId::kF32 : CodecId::kBf16;
}

// ---- images and their buffers
// ------------------------------------------------------------------

void Broadcasts::begin(const BroadcastImage& image) {
  uses_[image.buffer].bytes = image.bytes;
  uses_[image.buffer].current = true;
}

void Broadcasts::release_if_unused(std::uint64_t buffer, Buffers& free) {
  const auto use = uses_.find(buffer);
  if (!use->second.current && use->second.transfers == 0) {
    retired_bytes_ -= use->second.bytes;
    uses_.erase(use);
    free.push_back(buffer);
  }
}

void Broadcasts::retire(const BroadcastImage& image, Buffers& free) {
  Use& use = uses_.at(image.buffer);
  use.current = false;
  retired_bytes_ += use.bytes;
  release_if_unused(image.buffer, free);
}

Broadcasts::Buffers Broadcasts::publish(std::uint32_t fragment, const BroadcastImage& whole) {
  Buffers free;
  FragmentImages& images = fragments_[fragment];
  if (images.whole) {
    retire(*images.whole, free);
  }
  for (const BroadcastImage& delta : images.deltas) {
    retire(delta, free);
  }
  images.deltas.clear();
  images.whole = whole;
  begin(whole);
  return free;
}

Broadcasts::Buffers Broadcasts::publish(std::uint32_t fragment, const BroadcastImage& whole,
                                        const BroadcastImage& delta) {
  Buffers free;
  FragmentImages& images = fragments_[fragment];
  YETO_CHECK(
      images.whole && images.whole->version + 1 == whole.version && delta.version == whole.version,
      "a delta stands on the version before");
  retire(*images.whole, free);
  images.whole = whole;
  begin(whole);
  images.deltas.push_back(delta);
  begin(delta);
  std::uint64_t bytes = 0;
  for (const BroadcastImage& it : images.deltas) {
    bytes += it.bytes;
  }
  // A chain that is as long as the whole helps nobody.
  while (!images.deltas.empty() && (images.deltas.size() > kMaxDeltas || bytes >= whole.bytes)) {
    bytes -= images.deltas.front().bytes;
    retire(images.deltas.front(), free);
    images.deltas.pop_front();
  }
  return free;
}

// ---- readers
// -----------------------------------------------------------------------------------

void Broadcasts::end_transfer(Reader& reader, Buffers& free) {
  if (reader.under_way) {
    const std::uint64_t buffer = reader.under_way->image.buffer;
    reader.under_way.reset();
    --uses_.at(buffer).transfers;
    release_if_unused(buffer, free);
  }
}

Broadcasts::Buffers Broadcasts::join(std::uint32_t seat,
                                     std::vector<std::optional<std::uint64_t>> held) {
  Buffers free;
  Reader& reader = readers_[seat];
  end_transfer(reader, free);
  reader.held = std::move(held);
  reader.refused_delta.assign(fragments_.size(), false);
  return free;
}

Broadcasts::Buffers Broadcasts::pause(std::uint32_t seat) {
  Buffers free;
  const auto at = readers_.find(seat);
  if (at != readers_.end()) {
    end_transfer(at->second, free);
  }
  return free;
}

Broadcasts::Buffers Broadcasts::leave(std::uint32_t seat) {
  Buffers free = pause(seat);
  readers_.erase(seat);
  return free;
}

BroadcastOrder Broadcasts::order_for(const Reader& reader, std::uint32_t fragment) const {
  const FragmentImages& images = fragments_[fragment];
  BroadcastOrder order;
  order.fragment = fragment;
  order.image = *images.whole;
  const auto& held = reader.held[fragment];
  if (!held || reader.refused_delta[fragment] || images.deltas.empty() ||
      *held + 1 < images.deltas.front().version) {
    return order;
  }
  order.delta = true;
  order.image = images.deltas[*held + 1 - images.deltas.front().version];
  return order;
}

std::optional<BroadcastOrder> Broadcasts::next(std::uint32_t seat) {
  const auto at = readers_.find(seat);
  if (at == readers_.end() || at->second.under_way) {
    return std::nullopt;
  }
  Reader& reader = at->second;
  std::optional<std::uint32_t> best;
  std::uint64_t best_lag = 0;
  for (std::uint32_t fragment = 0; fragment < fragments_.size(); ++fragment) {
    const auto& image = fragments_[fragment].whole;
    if (!image) {
      continue;
    }
    const auto& held = reader.held[fragment];
    const std::uint64_t lag = held ? image->version - *held : image->version + 1;
    if (lag > best_lag) {
      best_lag = lag;
      best = fragment;
    }
  }
  if (!best) {
    return std::nullopt;
  }
  reader.under_way = order_for(reader, *best);
  reader.under_way->seat = seat;
  reader.began = ++transfers_begun_;
  ++uses_.at(reader.under_way->image.buffer).transfers;
  return reader.under_way;
}

Broadcasts::Buffers Broadcasts::sent(std::uint32_t seat, bool ok) {
  Buffers free;
  const auto at = readers_.find(seat);
  if (at == readers_.end() || !at->second.under_way) {
    return free;
  }
  Reader& reader = at->second;
  const BroadcastOrder& order = *reader.under_way;
  if (ok) {
    reader.held[order.fragment] = order.image.version;
    reader.refused_delta[order.fragment] = false;
  } else if (order.delta) {
    reader.refused_delta[order.fragment] = true;
  }
  end_transfer(reader, free);
  return free;
}

std::optional<Broadcasts::Aborted> Broadcasts::abort_slowest() {
  auto slowest = readers_.end();
  for (auto at = readers_.begin(); at != readers_.end(); ++at) {
    const Reader& reader = at->second;
    if (reader.under_way && !uses_.at(reader.under_way->image.buffer).current &&
        (slowest == readers_.end() || reader.began < slowest->second.began)) {
      slowest = at;
    }
  }
  if (slowest == readers_.end()) {
    return std::nullopt;
  }
  Aborted out;
  out.seat = slowest->first;
  end_transfer(slowest->second, out.free);
  return out;
}

bool Broadcasts::holds(std::uint32_t seat, std::uint32_t fragment, std::uint64_t version) const {
  const auto at = readers_.find(seat);
  return at != readers_.end() && at->second.held[fragment] == version;
}

bool Broadcasts::complete(std::uint32_t seat) const {
  const auto at = readers_.find(seat);
  return at != readers_.end() && std::all_of(at->second.held.begin(), at->second.held.end(),
                                             [](const auto& held) { return held.has_value(); });
}

std::optional<std::uint64_t> Broadcasts::lag(std::uint32_t seat) const {
  if (!complete(seat)) {
    return std::nullopt;
  }
  const Reader& reader = readers_.at(seat);
  std::uint64_t largest = 0;
  for (std::size_t fragment = 0; fragment < fragments_.size(); ++fragment) {
    if (fragments_[fragment].whole) {
      largest = std::max(largest, fragments_[fragment].whole->version - *reader.held[fragment]);
    }
  }
  return largest;
}

}  // namespace yeto::sync
