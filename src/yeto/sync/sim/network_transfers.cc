// SPDX-License-Identifier: Apache-2.0
// Bodies: OFFER, HAVE, pieces beside the control frames, DONE; data streams that are lost.
#include <algorithm>
#include <utility>

#include "yeto/base/result.h"
#include "yeto/sync/sim/network.h"
#include "yeto/sync/sim/world.h"

namespace yeto::sync::sim {
namespace {

constexpr std::size_t kMaxOpen = 64;         // as in sync/link
constexpr Nanos kTotalLimit = 10 * kSecond;  // of Breakage::kTotalTimeout
constexpr std::uint64_t kMostPieces = 20;

// A piece on its way: is it the last, which life of the data streams carries it, how many bytes.
constexpr std::uint64_t kLifeMask = 0x7fff;
std::uint64_t piece_key(std::uint32_t life, std::uint64_t bytes, bool last) {
  return bytes << 16 | (life & kLifeMask) << 1 | (last ? 1 : 0);
}
bool is_last(std::uint64_t piece) { return piece % 2 != 0; }
std::uint64_t life_of(std::uint64_t piece) { return piece >> 1 & kLifeMask; }
std::uint64_t bytes_of(std::uint64_t piece) { return piece >> 16; }

}  // namespace

// ---- transfers
// -----------------------------------------------------------------------------------

void Network::send_transfer(ConnId id, End from, std::uint64_t ticket, wire::Offer offer,
                            Body body) {
  Conn* conn = find(id);
  if (conn == nullptr || !conn->at(from).open) {
    return;
  }
  Outgoing transfer;
  transfer.ticket = ticket;
  transfer.offer = std::move(offer);
  transfer.offer.bytes = body.size;
  transfer.body = std::move(body);
  conn->at(from).waiting.push_back(std::move(transfer));
  offer_waiting(id, from);
}

void Network::offer_waiting(ConnId id, End from) {
  Half& half = conns_[id]->at(from);
  while (half.open && !half.waiting.empty() && half.outgoing.size() < kMaxOpen) {
    Outgoing transfer = std::move(half.waiting.front());
    half.waiting.pop_front();
    transfer.id = ++half.last_sent;
    transfer.offer.transfer = transfer.id;
    push_frame(id, other(from), Frame{0, false, transfer.offer});
    half.outgoing.push_back(std::move(transfer));
    if (half.outgoing.back().offer.kind == wire::TransferKind::kPush) {
      start_flow(id, from, half.outgoing.back());
    }
  }
}

void Network::start_flow(ConnId id, End from, Outgoing& transfer) {
  transfer.sending = true;
  const Conn& conn = *conns_[id];
  Path& path = paths_[conn.island];
  Flow flow;
  flow.conn = id;
  flow.transfer = transfer.id;
  flow.body = transfer.body;
  flow.kind = transfer.offer.kind;
  flow.left = transfer.body.size - transfer.arrived;
  flow.piece = piece_size(path, transfer.body.size);
  path.lanes[static_cast<int>(other(from))].flows.push_back(std::move(flow));
  pump(conn.island, other(from));
}

std::uint64_t Network::piece_size(const Path& path, std::uint64_t bytes) const {
  std::uint64_t pieces = plan_.pieces;
  if (pieces == 0) {
    const double rate = path.shape.bytes_per_s;
    const double wire_s = rate > 0.0 ? static_cast<double>(bytes) / rate : 0.0;
    pieces = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wire_s) + 1, 1, kMostPieces);
  }
  return std::max<std::uint64_t>(1, (bytes + pieces - 1) / pieces);
}

void Network::cut_data(ConnId id) {
  Conn* conn = find(id);
  if (conn == nullptr || !conn->half[0].open || !conn->half[1].open ||
      queue_.now() < conn->data_from) {
    return;
  }
  ++conn->data_life;
  Path& path = paths_[conn->island];
  // A connection, its CHALLENGE, and ATTACH with its answer.
  conn->data_from = std::max(queue_.now(), path.down_until) + delay(path) * 3;
  conn->data_active = conn->data_from;
  if (plan_.breakage != Breakage::kMissingNotSent) {
    send_missing(id, End::kSyncer);
    send_missing(id, End::kIsland);
  }
}

// After the data streams of this end were lost: whatever has not arrived goes again.
void Network::send_missing(ConnId id, End from) {
  Conn& conn = *conns_[id];
  Lane& lane = paths_[conn.island].lanes[static_cast<int>(other(from))];
  for (Outgoing& transfer : conn.at(from).outgoing) {
    if (!transfer.sending || (transfer.sent && transfer.arrived == transfer.body.size)) {
      continue;
    }
    const auto flow = std::find_if(lane.flows.begin(), lane.flows.end(), [&](const Flow& it) {
      return it.conn == id && it.transfer == transfer.id;
    });
    if (flow != lane.flows.end()) {
      flow->left = transfer.body.size - transfer.arrived;
    } else {
      transfer.sent = false;
      start_flow(id, from, transfer);
    }
  }
}

void Network::drop_flow(const Conn& conn, ConnId id, End to, std::uint64_t transfer) {
  Lane& lane = paths_[conn.island].lanes[static_cast<int>(to)];
  const auto found = std::find_if(lane.flows.begin(), lane.flows.end(), [&](const Flow& flow) {
    return flow.conn == id && flow.transfer == transfer;
  });
  if (found == lane.flows.end()) {
    return;
  }
  if (found == lane.flows.begin() && lane.serving) {
    found->left = 0;  // the piece under way is the last
    found->conn = 0;
    return;
  }
  lane.flows.erase(found);
}

Nanos Network::drained_at(const Path& path, End to) const {
  std::uint64_t bytes = 0;
  for (const Flow& flow : path.lanes[static_cast<int>(to)].flows) {
    bytes += flow.left;
  }
  const double rate = path.shape.bytes_per_s;
  return rate > 0.0 ? queue_.now() + from_seconds(static_cast<double>(bytes) / rate) : queue_.now();
}

void Network::pump(std::uint32_t island, End to) {
  Path& path = paths_[island];
  Lane& lane = path.lanes[static_cast<int>(to)];
  if (lane.serving || lane.flows.empty()) {
    return;
  }
  Flow& flow = lane.flows.front();
  const Conn* conn = find(flow.conn);
  Nanos begin = std::max(queue_.now(), path.down_until);
  if (conn != nullptr) {
    begin = std::max(begin, conn->data_from);
  }
  const auto bytes = static_cast<double>(std::min(flow.piece, flow.left));
  Nanos done = begin;
  if (path.shape.bytes_per_s > 0.0) {
    done += from_seconds(bytes / path.shape.bytes_per_s);
  }
  if (plan_.syncer_bytes_per_s > 0.0) {
    Nanos& busy = syncer_busy_[static_cast<int>(to)];
    busy = std::max(busy, begin) + from_seconds(bytes / plan_.syncer_bytes_per_s);
    done = std::max(done, busy);
  }
  lane.serving = true;
  lane.serving_life = conn != nullptr ? conn->data_life : 0;
  queue_.at(
      done,
      [](World& world, std::uint64_t at, std::uint64_t end, std::uint64_t) {
        world.network().piece_sent(static_cast<std::uint32_t>(at), static_cast<End>(end));
      },
      island, static_cast<std::uint64_t>(to));
}

void Network::piece_sent(std::uint32_t island, End to) {
  Path& path = paths_[island];
  Lane& lane = path.lanes[static_cast<int>(to)];
  lane.serving = false;
  Flow& flow = lane.flows.front();
  Conn* conn = find(flow.conn);
  if (flow.conn == 0 || conn == nullptr) {
    lane.flows.pop_front();
    return pump(island, to);
  }
  if (queue_.now() < path.down_until || lane.serving_life != conn->data_life) {
    return pump(island, to);  // the piece goes again, after the partition or on new streams
  }
  const bool idle = path.shape.idle_drop > 0 && plan_.breakage == Breakage::kNoKeepalive &&
                    queue_.now() - conn->data_active > path.shape.idle_drop;
  const std::uint64_t bytes = std::min(flow.piece, flow.left);
  flow.left -= bytes;
  const bool last = flow.left == 0;
  if (!idle) {
    conn->data_active = queue_.now();
    bytes_moved_ += bytes;
    Half& half = conn->at(to);
    half.last_piece = std::max(half.last_piece, queue_.now() + delay(path));
    queue_.at(
        half.last_piece,
        [](World& world, std::uint64_t key, std::uint64_t transfer, std::uint64_t piece) {
          world.network().piece_arrived(world, conn_of(key), end_of(key), transfer, piece);
        },
        both(flow.conn, to), flow.transfer, piece_key(conn->data_life, bytes, last));
  }
  if (last) {
    for (Outgoing& transfer : conn->at(other(to)).outgoing) {
      transfer.sent = transfer.sent || transfer.id == flow.transfer;
    }
    lane.flows.pop_front();
  }
  pump(island, to);
}

void Network::piece_arrived(World& world, ConnId id, End to, std::uint64_t transfer,
                            std::uint64_t piece) {
  Conn* conn = find(id);
  if (conn == nullptr || !conn->at(to).open || life_of(piece) != (conn->data_life & kLifeMask)) {
    return;
  }
  const Path& path = paths_[conn->island];
  Nanos not_before = handler(*conn, to).standing_until();
  if (queue_.now() < path.down_until) {
    not_before = std::max(not_before, path.down_until + path.shape.one_way);
  }
  // A body never overtakes its offer: without one its chunks are parked.
  Half& half = conn->at(to);
  const auto at = std::find_if(half.incoming.begin(), half.incoming.end(),
                               [&](const Incoming& it) { return it.offer.transfer == transfer; });
  const bool parked = at == half.incoming.end() && !half.to_come.empty();
  if (parked) {
    // After a partition the frames that waited behind the first are due since earlier.
    not_before = std::max(not_before, std::max(half.to_come.front().at, queue_.now()) + 1);
  }
  if (not_before > queue_.now()) {
    queue_.at(
        not_before,
        [](World& w, std::uint64_t key, std::uint64_t which, std::uint64_t same_piece) {
          w.network().piece_arrived(w, conn_of(key), end_of(key), which, same_piece);
        },
        both(id, to), transfer, piece);
    return;
  }
  if (at == half.incoming.end()) {
    return;  // refused or broken off: read and thrown away
  }
  const wire::TransferKind kind = at->offer.kind;
  at->complete = at->complete || is_last(piece);
  for (Outgoing& sent : conn->at(other(to)).outgoing) {
    sent.arrived += sent.id == transfer ? bytes_of(piece) : 0;
  }
  if (plan_.breakage != Breakage::kHeartbeatsBehindData) {
    heard(id, to);
  }
  if (piece_hook_ != nullptr) {
    piece_hook_(world, id, to, kind);
  }
  complete(id, to, transfer);
}

void Network::take_offer(ConnId id, End to, const wire::Offer& offer) {
  Conn& conn = *conns_[id];
  Half& half = conn.at(to);
  Incoming incoming;
  incoming.offer = offer;
  for (const Outgoing& transfer : conn.at(other(to)).outgoing) {
    if (transfer.id == offer.transfer) {
      incoming.body = transfer.body;
    }
  }
  half.incoming.push_back(std::move(incoming));
  handler(conn, to).on_offer(id, offer);
}

void Network::accept(ConnId id, End at, std::uint64_t transfer) {
  Conn* conn = find(id);
  if (conn == nullptr || !conn->at(at).open) {
    return;
  }
  for (Incoming& incoming : conn->at(at).incoming) {
    if (incoming.offer.transfer == transfer) {
      incoming.accepted = true;
      incoming.complete = incoming.complete || incoming.offer.bytes == 0;
      if (incoming.offer.kind != wire::TransferKind::kPush) {
        push_frame(id, other(at), Frame{0, false, wire::Have{transfer, 1, {}, {}}});
      }
    }
  }
  if (plan_.breakage == Breakage::kTotalTimeout) {
    queue_.at(
        queue_.now() + kTotalLimit,
        [](World& world, std::uint64_t key, std::uint64_t which, std::uint64_t) {
          Network& self = world.network();
          Conn* held = self.find(conn_of(key));
          if (held == nullptr) {
            return;
          }
          for (const Incoming& it : held->at(end_of(key)).incoming) {
            if (it.offer.transfer == which && !it.complete) {
              return self.cut(conn_of(key), "a transfer took longer than its limit");
            }
          }
        },
        both(id, at), transfer);
  }
  // Never inside this call.
  queue_.at(
      queue_.now(),
      [](World& world, std::uint64_t key, std::uint64_t which, std::uint64_t) {
        world.network().complete(conn_of(key), end_of(key), which);
      },
      both(id, at), transfer);
}

void Network::complete(ConnId id, End at, std::uint64_t transfer) {
  Conn* conn = find(id);
  if (conn == nullptr || !conn->at(at).open) {
    return;
  }
  for (Incoming& incoming : conn->at(at).incoming) {
    if (incoming.offer.transfer == transfer && incoming.accepted && incoming.complete &&
        !incoming.received) {
      incoming.received = true;
      const Body body = incoming.body;
      handler(*conn, at).on_received(id, transfer, true, body);
      return;
    }
  }
}

void Network::refuse(ConnId id, End at, std::uint64_t transfer, std::string reason) {
  Conn* conn = find(id);
  if (conn == nullptr || !conn->at(at).open) {
    return;
  }
  const std::size_t erased = std::erase_if(
      conn->at(at).incoming, [&](const Incoming& it) { return it.offer.transfer == transfer; });
  if (erased > 0) {
    push_frame(id, other(at), Frame{0, false, wire::Have{transfer, 0, std::move(reason), {}}});
  }
}

void Network::finish_receive(ConnId id, End at, std::uint64_t transfer, bool ok) {
  Conn* conn = find(id);
  if (conn == nullptr || !conn->at(at).open) {
    return;
  }
  std::erase_if(conn->at(at).incoming,
                [&](const Incoming& it) { return it.offer.transfer == transfer; });
  push_frame(id, other(at),
             Frame{0, false, wire::Done{transfer, static_cast<std::uint8_t>(ok ? 1 : 0)}});
}

void Network::abort(ConnId id, End from, std::uint64_t ticket) {
  Conn* conn = find(id);
  if (conn == nullptr || !conn->at(from).open) {
    return;
  }
  Half& half = conn->at(from);
  const auto found = std::find_if(half.outgoing.begin(), half.outgoing.end(),
                                  [&](const Outgoing& it) { return it.ticket == ticket; });
  if (found == half.outgoing.end()) {
    const auto waits = std::find_if(half.waiting.begin(), half.waiting.end(),
                                    [&](const Outgoing& it) { return it.ticket == ticket; });
    if (waits != half.waiting.end()) {
      half.waiting.erase(waits);
      handler(*conn, from).on_sent(id, ticket, false);
    }
    return;
  }
  const std::uint64_t transfer = found->id;
  drop_flow(*conn, id, other(from), transfer);
  std::erase_if(conn->at(other(from)).incoming,
                [&](const Incoming& it) { return it.offer.transfer == transfer && !it.received; });
  end_sending(id, from, static_cast<std::size_t>(found - half.outgoing.begin()), false);
}

void Network::take_have(ConnId id, End to, const wire::Have& have) {
  Conn* conn = find(id);
  if (conn == nullptr || !conn->at(to).open) {
    return;
  }
  Half& half = conn->at(to);
  for (std::size_t i = 0; i < half.outgoing.size(); ++i) {
    Outgoing& transfer = half.outgoing[i];
    if (transfer.id != have.transfer) {
      continue;
    }
    if (have.accept == 0) {
      drop_flow(*conn, id, other(to), transfer.id);
      return end_sending(id, to, i, false);
    }
    if (!transfer.sending) {
      start_flow(id, to, transfer);
    }
    return;
  }
}

void Network::take_done(ConnId id, End to, const wire::Done& done) {
  Conn* conn = find(id);
  if (conn == nullptr || !conn->at(to).open) {
    return;
  }
  Half& half = conn->at(to);
  for (std::size_t i = 0; i < half.outgoing.size(); ++i) {
    if (half.outgoing[i].id == done.transfer) {
      return end_sending(id, to, i, done.ok != 0);
    }
  }
}

void Network::end_sending(ConnId id, End from, std::size_t index, bool ok) {
  Conn& conn = *conns_[id];
  Half& half = conn.at(from);
  const std::uint64_t ticket = half.outgoing[index].ticket;
  half.outgoing.erase(half.outgoing.begin() + static_cast<std::ptrdiff_t>(index));
  offer_waiting(id, from);
  handler(conn, from).on_sent(id, ticket, ok);
}

}  // namespace yeto::sync::sim
