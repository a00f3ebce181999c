// SPDX-License-Identifier: Apache-2.0
// Network: the connections between islands and the syncer, on the level of messages. Each island
// has one path with a rate, a delay and jitter; control frames keep their order per connection and
// direction; bodies of transfers travel in pieces, oldest transfer first, beside the control
// frames. A transfer goes OFFER → HAVE → pieces → DONE with the rules of sync/link: a push is sent
// at once, every other kind waits for HAVE; the loss of a connection answers each open transfer
// before it is told.
//
// A partition holds back frames and pieces; they arrive after it. What was sent to a machine that
// died is gone, and its peer is told nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/base/rng.h"
#include "yeto/sync/core/events.h"
#include "yeto/sync/sim/event_queue.h"
#include "yeto/sync/sim/plan.h"
#include "yeto/wire/messages.h"

namespace yeto::sync::sim {

enum class End : std::uint8_t { kSyncer = 0, kIsland = 1 };
constexpr End other(End end) { return end == End::kSyncer ? End::kIsland : End::kSyncer; }

// Bytes of a transfer. Phantom bodies have a size and stand for the digest they would decode to.
struct Body {
  std::shared_ptr<const Bytes> bytes;  // null: phantom
  std::uint64_t size = 0;
};

// What lives at one end of connections: the syncer's host, or one island.
class EndHandler {
 public:
  virtual ~EndHandler() = default;
  virtual void on_message(ConnId conn, wire::Message message) = 0;
  virtual void on_offer(ConnId conn, const wire::Offer& offer) = 0;
  virtual void on_received(ConnId conn, std::uint64_t transfer, bool ok, const Body& body) = 0;
  virtual void on_sent(ConnId conn, std::uint64_t ticket, bool ok) = 0;
  virtual void on_heard(ConnId conn) = 0;
  virtual void on_closed(ConnId conn, const std::string& reason) = 0;
  // Until when the process stands still; what arrives earlier waits.
  virtual Nanos standing_until() const = 0;
  // It answers frames for connections it does not know any more.
  virtual bool machine_up() const = 0;
};

class Network {
 public:
  Network(EventQueue& queue, const Plan& plan, EndHandler& syncer);

  void add_island(const IslandShape& shape, EndHandler& handler);

  // ---- connections. A call on an end that is closed does nothing.
  ConnId open(std::uint32_t island);
  // Bodies may travel from then on (the data streams are attached).
  void attach(ConnId conn, Nanos at);
  void send(ConnId conn, End from, wire::Message message);
  // Closes this end without callbacks: frames that were sent arrive, then the peer is told.
  void close(ConnId conn, End from);
  // The machine of this end died.
  void vanish(ConnId conn, End from);
  // Both ends are told at once.
  void cut(ConnId conn, const std::string& reason);
  // Only the data streams are lost, and attach again: what was on them is sent once more.
  void cut_data(ConnId conn);
  bool is_open(ConnId conn, End end) const;
  std::uint32_t island_of(ConnId conn) const { return conns_[conn]->island; }

  // ---- transfers, as in sync/link
  void send_transfer(ConnId conn, End from, std::uint64_t ticket, wire::Offer offer, Body body);
  void accept(ConnId conn, End at, std::uint64_t transfer);
  void refuse(ConnId conn, End at, std::uint64_t transfer, std::string reason);
  void finish_receive(ConnId conn, End at, std::uint64_t transfer, bool ok);
  // Breaks off a transfer that this end sends.
  void abort(ConnId conn, End from, std::uint64_t ticket);

  // ---- paths
  void partition(std::uint32_t island, Nanos until);
  bool passes(std::uint32_t island) const { return queue_.now() >= paths_[island].down_until; }
  Nanos round_trip(std::uint32_t island);

  std::uint64_t frames_delivered() const { return frames_delivered_; }
  std::uint64_t bytes_moved() const { return bytes_moved_; }
  // Called before each control frame, and after each piece of a transfer, is delivered.
  using FrameHook = bool (*)(World& world, ConnId conn, End to, const wire::Message& message);
  using PieceHook = void (*)(World& world, ConnId conn, End to, wire::TransferKind kind);
  void set_hooks(FrameHook frame, PieceHook piece) {
    frame_hook_ = frame;
    piece_hook_ = piece;
  }

 private:
  struct Frame {
    Nanos at = 0;
    bool fin = false;
    wire::Message message;
  };
  struct Outgoing {
    std::uint64_t id = 0;
    std::uint64_t ticket = 0;
    wire::Offer offer;
    Body body;
    bool sending = false;       // its pieces may go
    bool sent = false;          // all of them went
    std::uint64_t arrived = 0;  // bytes; what HAVE tells after a lost data stream
  };
  struct Incoming {
    wire::Offer offer;
    Body body;
    bool accepted = false;
    bool complete = false;  // all bytes are here
    bool received = false;  // and it was told
  };
  struct Half {  // one end of a connection
    bool open = true;
    std::deque<Frame> to_come;  // frames on the way to this end
    bool delivery_planned = false;
    Nanos last_arrival = 0;
    Nanos last_piece = 0;
    Nanos last_heard = 0;
    std::uint64_t last_sent = 0;
    std::vector<Outgoing> outgoing;
    std::deque<Outgoing> waiting;
    std::vector<Incoming> incoming;
  };
  struct Conn {
    std::uint32_t island = 0;
    Nanos data_from = 0;
    Nanos data_active = 0;
    std::uint32_t data_life = 0;  // raised when the data streams are lost
    Half half[2];
    Half& at(End end) { return half[static_cast<int>(end)]; }
    const Half& at(End end) const { return half[static_cast<int>(end)]; }
  };
  // A body on its way in one direction of a path.
  struct Flow {
    ConnId conn = 0;
    std::uint64_t transfer = 0;
    std::uint64_t left = 0;
    std::uint64_t piece = 0;  // bytes of each
    Body body;
    wire::TransferKind kind = wire::TransferKind::kPush;
  };
  struct Lane {  // one direction
    std::deque<Flow> flows;
    bool serving = false;
    std::uint32_t serving_life = 0;  // of the data streams that the piece under way is on
  };
  struct Path {
    LinkShape shape;
    EndHandler* handler = nullptr;
    Nanos down_until = 0;
    Lane lanes[2];  // by the end the bytes go to
  };

  // Connection and end in one number, for the queue.
  static std::uint64_t both(ConnId conn, End end) {
    return conn * 2 + static_cast<std::uint64_t>(end);
  }
  static ConnId conn_of(std::uint64_t key) { return key / 2; }
  static End end_of(std::uint64_t key) { return static_cast<End>(key % 2); }

  EndHandler& handler(const Conn& conn, End end) {
    return end == End::kSyncer ? syncer_ : *paths_[conn.island].handler;
  }
  Conn* find(ConnId conn) { return conn < conns_.size() ? conns_[conn].get() : nullptr; }
  Nanos delay(const Path& path);
  void push_frame(ConnId id, End to, Frame frame);
  void plan_delivery(ConnId id, End to);
  void deliver(World& world, ConnId id, End to);
  void take_frame(ConnId id, End to, wire::Message message);
  void take_offer(ConnId id, End to, const wire::Offer& offer);
  void take_have(ConnId id, End to, const wire::Have& have);
  void take_done(ConnId id, End to, const wire::Done& done);
  void offer_waiting(ConnId id, End from);
  void end_sending(ConnId id, End from, std::size_t index, bool ok);
  void start_flow(ConnId id, End from, Outgoing& transfer);
  void send_missing(ConnId id, End from);
  std::uint64_t piece_size(const Path& path, std::uint64_t bytes) const;
  void drop_flow(const Conn& conn, ConnId id, End to, std::uint64_t transfer);
  void pump(std::uint32_t island, End to);
  void piece_sent(std::uint32_t island, End to);
  void piece_arrived(World& world, ConnId id, End to, std::uint64_t transfer, std::uint64_t piece);
  void complete(ConnId id, End at, std::uint64_t transfer);
  void heard(ConnId id, End at);
  void lose(ConnId id, End end, const std::string& reason);
  void forget_if_over(ConnId id);
  Nanos drained_at(const Path& path, End to) const;

  EventQueue& queue_;
  const Plan& plan_;
  EndHandler& syncer_;
  Rng rng_;
  std::vector<Path> paths_;
  std::vector<std::unique_ptr<Conn>> conns_;
  Nanos syncer_busy_[2] = {0, 0};  // of its own link, by direction
  FrameHook frame_hook_ = nullptr;
  PieceHook piece_hook_ = nullptr;
  std::uint64_t frames_delivered_ = 0;
  std::uint64_t bytes_moved_ = 0;
};

}  // namespace yeto::sync::sim
