// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/sim/network.h"

#include <algorithm>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/base/result.h"
#include "yeto/sync/sim/world.h"

namespace yeto::sync::sim {
namespace {

constexpr Nanos kHeardEvery = 100 * kMillisecond;  // as in sync/link
// A frame that was lost on the way is sent again after this, doubled each time.
constexpr Nanos kSendAgain = 200 * kMillisecond;

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

// ---- paths
// --------------------------------------------------------------------------------------

void Network::partition(std::uint32_t island, Nanos until) {
  paths_[island].down_until = std::max(paths_[island].down_until, until);
}

}  // namespace yeto::sync::sim
