// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/sim/network.h"

#include <algorithm>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/base/result.h"
#include "yeto/sync/sim/world.h"

namespace yeto::sync::sim {
namespace {

// As in sync/link.
constexpr std::size_t kMaxOpen = 64;
constexpr Nanos kHeardEvery = 100 * kMillisecond;
// A frame that was lost on the way is sent again after this, doubled each time.
constexpr Nanos kSendAgain = 200 * kMillisecond;
constexpr Nanos kTotalLimit = 10 * kSecond;  // of Breakage::kTotalTimeout
constexpr std::uint64_t kMostPieces = 20;

std::uint64_t both(ConnId conn, End end) { return conn * 2 + static_cast<std::uint64_t>(end); }
ConnId conn_of(std::uint64_t key) { return key / 2; }
End end_of(std::uint64_t key) { return static_cast<End>(key % 2); }

}  // namespace

Network::Network(EventQueue& queue, const Plan& plan, EndHandler& syncer)
    : queue_(queue), plan_(plan), syncer_(syncer), rng_(mix64(plan.seed ^ 0x6e6574)) {
  conns_.emplace_back();  // connections are numbered from 1
}

void Network::add_island(const IslandShape& shape, EndHandler& handler) {
  Path path;
  path.shape = shape.link;
  path.handler = &handler;
  paths_.push_back(std::move(path));
}

Nanos Network::delay(const Path& path) {
  Nanos out = path.shape.one_way;
  if (path.shape.jitter > 0) {
    out += static_cast<Nanos>(rng_.below(static_cast<std::uint64_t>(path.shape.jitter) + 1));
  }
  Nanos again = kSendAgain;
  while (path.shape.loss > 0.0 && rng_.uniform() < path.shape.loss) {
    out += again;
    again *= 2;
  }
  return out;
}

Nanos Network::round_trip(std::uint32_t island) {
  return delay(paths_[island]) + delay(paths_[island]);
}

// ---- connections
// ---------------------------------------------------------------------------------

ConnId Network::open(std::uint32_t island) {
  auto conn = std::make_unique<Conn>();
  conn->island = island;
  conn->data_active = queue_.now();
  conns_.push_back(std::move(conn));
  return conns_.size() - 1;
}

void Network::attach(ConnId id, Nanos at) {
  if (Conn* conn = find(id)) {
    conn->data_from = at;
    conn->data_active = at;
  }
}

bool Network::is_open(ConnId id, End end) const {
  return id < conns_.size() && conns_[id] && conns_[id]->at(end).open;
}

void Network::send(ConnId id, End from, wire::Message message) {
  Conn* conn = find(id);
  if (conn == nullptr || !conn->at(from).open) {
    return;
  }
  push_frame(id, other(from), Frame{0, false, std::move(message)});
}

void Network::push_frame(ConnId id, End to, Frame frame) {
  Conn& conn = *conns_[id];
  Half& half = conn.at(to);
  Path& path = paths_[conn.island];
  Nanos sent = queue_.now();
  if (plan_.breakage == Breakage::kHeartbeatsBehindData) {
    sent = std::max(sent, drained_at(path, to));
  }
  frame.at = std::max(half.last_arrival, sent + delay(path));
  half.last_arrival = frame.at;
  half.to_come.push_back(std::move(frame));
  plan_delivery(id, to);
}

void Network::plan_delivery(ConnId id, End to) {
  Half& half = conns_[id]->at(to);
  if (half.delivery_planned || half.to_come.empty()) {
    return;
  }
  half.delivery_planned = true;
  queue_.at(
      half.to_come.front().at,
      [](World& world, std::uint64_t key, std::uint64_t, std::uint64_t) {
        world.network().deliver(world, conn_of(key), end_of(key));
      },
      both(id, to));
}

void Network::deliver(World& world, ConnId id, End to) {
  Conn* conn = find(id);
  if (conn == nullptr) {
    return;
  }
  Half& half = conn->at(to);
  half.delivery_planned = false;
  if (half.to_come.empty()) {
    return;
  }
  const Path& path = paths_[conn->island];
  Nanos not_before = 0;
  if (queue_.now() < path.down_until) {
    not_before = path.down_until + path.shape.one_way;
  }
  not_before = std::max(not_before, handler(*conn, to).standing_until());
  if (not_before > queue_.now()) {
    half.to_come.front().at = not_before;
    return plan_delivery(id, to);
  }
  Frame frame = std::move(half.to_come.front());
  half.to_come.pop_front();
  plan_delivery(id, to);
  if (frame.fin) {
    return lose(id, to, "closed by the peer");
  }
  if (!half.open) {
    if (conn->at(other(to)).open && handler(*conn, to).machine_up()) {
      push_frame(id, other(to), Frame{0, true, wire::Goodbye{}});
    }
    return forget_if_over(id);
  }
  ++frames_delivered_;
  if (frame_hook_ != nullptr && !frame_hook_(world, id, to, frame.message)) {
    return;
  }
  take_frame(id, to, std::move(frame.message));
}

void Network::take_frame(ConnId id, End to, wire::Message message) {
  Conn& conn = *conns_[id];
  if (const auto* offer = std::get_if<wire::Offer>(&message)) {
    take_offer(id, to, *offer);
  } else if (const auto* have = std::get_if<wire::Have>(&message)) {
    heard(id, to);
    take_have(id, to, *have);
  } else if (const auto* done = std::get_if<wire::Done>(&message)) {
    heard(id, to);
    take_done(id, to, *done);
  } else {
    handler(conn, to).on_message(id, std::move(message));
  }
}

void Network::heard(ConnId id, End at) {
  Conn* conn = find(id);
  if (conn == nullptr || !conn->at(at).open) {
    return;
  }
  Half& half = conn->at(at);
  if (half.last_heard == 0 || queue_.now() - half.last_heard >= kHeardEvery) {
    half.last_heard = queue_.now();
    handler(*conn, at).on_heard(id);
  }
}

void Network::close(ConnId id, End from) {
  Conn* conn = find(id);
  if (conn == nullptr || !conn->at(from).open) {
    return;
  }
  vanish(id, from);
  if (conn->at(other(from)).open) {
    push_frame(id, other(from), Frame{0, true, wire::Goodbye{}});
  } else {
    forget_if_over(id);
  }
}

void Network::vanish(ConnId id, End from) {
  Conn* conn = find(id);
  if (conn == nullptr) {
    return;
  }
  Half& half = conn->at(from);
  half.open = false;
  for (const Outgoing& transfer : half.outgoing) {
    drop_flow(*conn, id, other(from), transfer.id);
  }
  half.outgoing.clear();
  half.waiting.clear();
  half.incoming.clear();
  half.to_come.clear();
}

void Network::cut(ConnId id, const std::string& reason) {
  lose(id, End::kSyncer, reason);
  lose(id, End::kIsland, reason);
}

// This end learns that the connection is gone: each open transfer is answered first.
void Network::lose(ConnId id, End end, const std::string& reason) {
  Conn* conn = find(id);
  if (conn == nullptr || !conn->at(end).open) {
    return forget_if_over(id);
  }
  Half& half = conn->at(end);
  EndHandler& told = handler(*conn, end);
  std::vector<std::uint64_t> receiving;
  for (const Incoming& transfer : half.incoming) {
    if (transfer.accepted && !transfer.received) {
      receiving.push_back(transfer.offer.transfer);
    }
  }
  std::vector<std::uint64_t> tickets;
  for (const Outgoing& transfer : half.outgoing) {
    tickets.push_back(transfer.ticket);
  }
  for (const Outgoing& transfer : half.waiting) {
    tickets.push_back(transfer.ticket);
  }
  vanish(id, end);
  for (const std::uint64_t transfer : receiving) {
    told.on_received(id, transfer, false, {});
  }
  for (const std::uint64_t ticket : tickets) {
    told.on_sent(id, ticket, false);
  }
  told.on_closed(id, reason);
  forget_if_over(id);
}

void Network::forget_if_over(ConnId id) {
  Conn* conn = find(id);
  if (conn != nullptr && !conn->half[0].open && !conn->half[1].open) {
    conns_[id].reset();
  }
}

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
  flow.left = transfer.body.size;
  flow.body = transfer.body;
  flow.kind = transfer.offer.kind;
  std::uint64_t pieces = plan_.pieces;
  if (pieces == 0) {
    const double rate = path.shape.bytes_per_s;
    const double wire_s = rate > 0.0 ? static_cast<double>(flow.left) / rate : 0.0;
    pieces = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wire_s) + 1, 1, kMostPieces);
  }
  flow.piece = std::max<std::uint64_t>(1, (flow.left + pieces - 1) / pieces);
  path.lanes[static_cast<int>(other(from))].flows.push_back(std::move(flow));
  pump(conn.island, other(from));
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
  if (queue_.now() < path.down_until) {
    return pump(island, to);  // the piece goes again after the partition
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
        [](World& world, std::uint64_t key, std::uint64_t transfer, std::uint64_t is_last) {
          world.network().piece_arrived(world, conn_of(key), end_of(key), transfer, is_last != 0);
        },
        both(flow.conn, to), flow.transfer, last ? 1 : 0);
  }
  if (last) {
    for (Outgoing& transfer : conn->at(other(to)).outgoing) {
      transfer.sent = transfer.sent || transfer.id == flow.transfer;
    }
    lane.flows.pop_front();
  }
  pump(island, to);
}

void Network::piece_arrived(World& world, ConnId id, End to, std::uint64_t transfer, bool last) {
  Conn* conn = find(id);
  if (conn == nullptr || !conn->at(to).open) {
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
        [](World& w, std::uint64_t key, std::uint64_t which, std::uint64_t is_last) {
          w.network().piece_arrived(w, conn_of(key), end_of(key), which, is_last != 0);
        },
        both(id, to), transfer, last ? 1 : 0);
    return;
  }
  if (at == half.incoming.end()) {
    return;  // refused or broken off: read and thrown away
  }
  const wire::TransferKind kind = at->offer.kind;
  at->complete = at->complete || last;
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

void Network::partition(std::uint32_t island, Nanos until) {
  paths_[island].down_until = std::max(paths_[island].down_until, until);
}

}  // namespace yeto::sync::sim
