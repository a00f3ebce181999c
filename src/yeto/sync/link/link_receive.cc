// SPDX-License-Identifier: Apache-2.0
// The receiving half of a link: where a chunk belongs, and when a transfer is whole.
#include <algorithm>
#include <utility>

#include "yeto/base/clock.h"
#include "yeto/base/format.h"
#include "yeto/sync/link/link.h"
#include "yeto/sync/link/link_impl.h"

namespace yeto::sync {
namespace {

// The bits of the largest bitmap that a HAVE can hold.
constexpr std::uint64_t kMostChunks = std::uint64_t{8} << 16;

}  // namespace

void Link::Impl::on_offer(const wire::Offer& offer) {
  if (offer.parts == 0 && offer.transfer <= highest_offer) {
    return on_withdrawn(offer.transfer);
  }
  if (offer.transfer <= highest_offer) {
    return lose(strf("OFFER of transfer {} after {}", offer.transfer, highest_offer));
  }
  highest_offer = offer.transfer;
  if (incoming.size() >= kMaxOpenTransfers) {
    send(wire::Have{offer.transfer, 0, strf("{} transfers are open", kMaxOpenTransfers), {}});
  } else if (offer.bytes > kMostChunks * options.chunk_bytes) {
    send(wire::Have{offer.transfer,
                    0,
                    strf("{} bytes are more chunks of {} than a HAVE can tell of", offer.bytes,
                         options.chunk_bytes),
                    {}});
  } else {
    incoming[offer.transfer].offer = offer;
    handler->on_offer(offer);
  }
  // Its chunks may be waiting, to be stored or discarded.
  unpark();
}

void Link::Impl::on_withdrawn(std::uint64_t id) {
  const auto self = shared_from_this();
  const auto found = incoming.find(id);
  if (found == incoming.end()) {
    return;  // it crossed the end of the transfer
  }
  const Incoming::State state = found->second.state;
  if (state == Incoming::State::kOffered || state == Incoming::State::kWithdrawn) {
    // It stays until the owner has answered, however often the peer withdraws it.
    found->second.state = Incoming::State::kWithdrawn;
  } else {
    const auto ended_transfer = incoming.extract(found);
    discard_current(id);
    if (state == Incoming::State::kReceiving) {
      handler->on_received(id, false);
    }
  }
  unpark();
}

void Link::Impl::accept(std::uint64_t id, MutableByteView target,
                        std::shared_ptr<void> keep_alive) {
  if (!open) {
    return;
  }
  const auto found = incoming.find(id);
  YETO_CHECK(found != incoming.end(), "accept() of a transfer that is not offered");
  Incoming& transfer = found->second;
  if (transfer.state == Incoming::State::kWithdrawn) {
    return post([id](Impl& impl) {
      if (impl.incoming.erase(id) == 1) {
        impl.handler->on_received(id, false);
      }
    });
  }
  YETO_CHECK(transfer.state == Incoming::State::kOffered, "accept() of a transfer twice");
  YETO_CHECK(target.size() == transfer.offer.bytes, "accept() with a target of another size");
  transfer.state = Incoming::State::kReceiving;
  transfer.chunks.emplace(target, options.chunk_bytes);
  transfer.keep_alive = std::move(keep_alive);
  transfer.moved_at = monotonic_now();
  arm_tick();
  if (transfer.offer.kind != wire::TransferKind::kPush) {
    send(wire::Have{id, 1, {}, {}});
  }
  post([id](Impl& impl) {
    impl.complete(id);  // a transfer of no bytes
    impl.unpark();
  });
}

void Link::Impl::refuse(std::uint64_t id, std::string reason) {
  const auto found = incoming.find(id);
  if (!open || found == incoming.end()) {
    return;
  }
  const bool told = found->second.state != Incoming::State::kWithdrawn;
  incoming.erase(found);
  discard_current(id);
  if (told) {
    send(wire::Have{id, 0, std::move(reason), {}});
  }
  post([](Impl& impl) { impl.unpark(); });
}

void Link::Impl::discard_current(std::uint64_t id) {
  for (const Lane& lane : data) {
    if (lane.stream != nullptr) {
      lane.stream->discard_current(id);
    }
  }
  if (control.stream != nullptr) {
    control.stream->discard_current(id);
  }
}

void Link::Impl::finish_receive(std::uint64_t id, bool ok) {
  const auto found = incoming.find(id);
  if (!open || found == incoming.end()) {
    return;
  }
  YETO_CHECK(found->second.state == Incoming::State::kReceived,
             "finish_receive() of a transfer that is not received");
  incoming.erase(found);
  send(wire::Done{id, static_cast<std::uint8_t>(ok ? 1 : 0)});
}

void Link::Impl::tell_what_is_here() {
  have_sent_at = monotonic_now();
  for (const auto& [id, transfer] : incoming) {
    if (transfer.state == Incoming::State::kReceiving) {
      send(wire::Have{id, 1, {}, transfer.chunks->held_chunks()});
    }
  }
}

bool Link::Impl::is_storing(std::uint64_t id) const {
  const auto stores = [id](const Lane& lane) {
    const auto chunk = lane.open() ? lane.stream->storing() : std::nullopt;
    return chunk && chunk->transfer == id;
  };
  return stores(control) || std::any_of(data.begin(), data.end(), stores);
}

void Link::Impl::ask_for_what_stalls(Nanos now) {
  for (auto& [id, transfer] : incoming) {
    if (transfer.state == Incoming::State::kReceiving && now - transfer.moved_at >= options.lease &&
        !is_storing(id)) {
      transfer.moved_at = now;
      send(wire::Have{id, 1, {}, transfer.chunks->held_chunks()});
    }
  }
}

void Link::Impl::unpark() {
  const auto self = shared_from_this();
  for (std::size_t i = 0; open && i < data.size(); ++i) {
    if (data[i].stream != nullptr) {
      data[i].stream->unpark();
    }
  }
  if (open && control.stream != nullptr) {
    control.stream->unpark();
  }
}

ChunkTarget Link::Impl::on_chunk(FramedStream& stream, const wire::ChunkPrefix& prefix) {
  using Way = ChunkTarget::Way;
  const auto self = shared_from_this();
  if (prefix.transfer > highest_offer) {
    if (&stream == control.stream.get()) {
      return {Way::kRefuse, {}, nullptr, "CHUNK before its OFFER"};
    }
    return {Way::kPark, {}, nullptr, {}};
  }
  const auto found = incoming.find(prefix.transfer);
  if (found == incoming.end() || found->second.state == Incoming::State::kWithdrawn) {
    return {Way::kDiscard, {}, nullptr, {}};
  }
  Incoming& transfer = found->second;
  if (transfer.state == Incoming::State::kOffered) {
    if (transfer.offer.kind != wire::TransferKind::kPush) {
      return {Way::kRefuse, {}, nullptr, "CHUNK before HAVE"};
    }
    return {Way::kPark, {}, nullptr, {}};
  }
  if (transfer.chunks->arriving(prefix.index)) {
    end_other_way(prefix);
    if (!open) {
      return {};
    }
  }
  const auto place = transfer.chunks->place(prefix.index, prefix.bytes);
  if (!place) {
    return {Way::kRefuse, {}, nullptr, place.error().what};
  }
  if (!*place) {
    return {Way::kDiscard, {}, nullptr, {}};
  }
  return {Way::kStore, **place, transfer.keep_alive, {}};
}

// The sender never has one chunk on two streams, unless it has given one of them up.
void Link::Impl::end_other_way(const wire::ChunkPrefix& prefix) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    const auto chunk = data[i].open() ? data[i].stream->storing() : std::nullopt;
    if (chunk && chunk->transfer == prefix.transfer && chunk->index == prefix.index) {
      return drop_lane(i, strf("data stream {}: chunk {} of transfer {} came over another stream",
                               i, prefix.index, prefix.transfer));
    }
  }
}

void Link::Impl::on_chunk_read(FramedStream&, const wire::ChunkPrefix& prefix, bool stored) {
  const auto self = shared_from_this();
  heard();
  if (!open || !stored) {
    return;
  }
  Incoming& transfer = incoming.at(prefix.transfer);
  transfer.chunks->mark(prefix.index);
  transfer.moved_at = monotonic_now();
  complete(prefix.transfer);
}

void Link::Impl::complete(std::uint64_t id) {
  const auto found = incoming.find(id);
  if (found == incoming.end() || found->second.state != Incoming::State::kReceiving ||
      !found->second.chunks->complete()) {
    return;
  }
  found->second.state = Incoming::State::kReceived;
  found->second.keep_alive = nullptr;
  handler->on_received(id, true);
}

}  // namespace yeto::sync
