// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/broadcast/broadcast.h"

#include <algorithm>

#include "yeto/codec/codec.h"

namespace yeto::sync {

std::uint64_t transfer_bytes(CodecId codec, std::uint64_t values) {
  return codec::encoded_bytes(codec, values);
}

CodecId automatic_codec(std::uint64_t values) { return codec::default_codec(values); }

std::optional<std::uint64_t> Broadcasts::publish(std::uint32_t fragment,
                                                 const BroadcastImage& image) {
  std::optional<std::uint64_t> old;
  if (images_[fragment]) {
    old = images_[fragment]->buffer;
  }
  images_[fragment] = image;
  return old;
}

void Broadcasts::join(std::uint32_t seat, std::vector<std::optional<std::uint64_t>> held) {
  readers_[seat] = Reader{std::move(held), std::nullopt};
}

void Broadcasts::pause(std::uint32_t seat) {
  const auto at = readers_.find(seat);
  if (at != readers_.end()) {
    at->second.under_way.reset();
  }
}

std::optional<BroadcastOrder> Broadcasts::next(std::uint32_t seat) {
  const auto at = readers_.find(seat);
  if (at == readers_.end() || at->second.under_way) {
    return std::nullopt;
  }
  std::optional<BroadcastOrder> best;
  std::uint64_t best_lag = 0;
  for (std::uint32_t fragment = 0; fragment < images_.size(); ++fragment) {
    const auto& image = images_[fragment];
    if (!image) {
      continue;
    }
    const auto& held = at->second.held[fragment];
    const std::uint64_t lag = held ? image->version - *held : image->version + 1;
    if (lag > best_lag) {
      best_lag = lag;
      best = BroadcastOrder{seat, fragment, *image};
    }
  }
  at->second.under_way = best;
  return best;
}

void Broadcasts::sent(std::uint32_t seat, bool ok) {
  const auto at = readers_.find(seat);
  if (at == readers_.end() || !at->second.under_way) {
    return;
  }
  if (ok) {
    at->second.held[at->second.under_way->fragment] = at->second.under_way->image.version;
  }
  at->second.under_way.reset();
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
  for (std::size_t fragment = 0; fragment < images_.size(); ++fragment) {
    if (images_[fragment]) {
      largest = std::max(largest, images_[fragment]->version - *reader.held[fragment]);
    }
  }
  return largest;
}

}  // namespace yeto::sync
