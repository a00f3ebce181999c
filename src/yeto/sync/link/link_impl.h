// SPDX-License-Identifier: Apache-2.0
// Inside of Link, for its .cc files only: link.cc (streams, time, the end), link_send.cc,
// link_receive.cc. The order of the members is the order in which a transfer meets them.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "yeto/sync/link/link.h"
#include "yeto/sync/link/pace.h"

namespace yeto::sync {

class Link::Impl : public StreamOwner, public std::enable_shared_from_this<Link::Impl> {
 public:
  // A place for a stream: control, or one index of the data streams.
  struct Lane {
    std::unique_ptr<FramedStream> stream;  // null while there is none
    wire::Carrier carrier = 0;             // of this stream; each has a number of its own
    Pace pace;
    Nanos wrote_at = 0;
    std::uint64_t bytes_in = 0;  // at the last look
    Nanos read_at = 0;           // when they last grew
    bool had_one = false;

    bool open() const { return stream != nullptr && stream->is_open(); }
  };
  // A transfer to the peer: waiting (not offered) → kOffered → kSending → gone at DONE, refusal or
  // withdrawal.
  struct Outgoing {
    enum class State : std::uint8_t { kOffered, kSending };
    std::uint64_t ticket = 0;
    wire::Offer offer;
    ByteView body;
    std::shared_ptr<const void> keep_alive;
    wire::OutgoingTransfer chunks;
    State state = State::kOffered;
  };
  // A transfer from the peer: kOffered → kReceiving (accepted) → kReceived → gone at
  // finish_receive(). Withdrawn before the owner has answered: kWithdrawn.
  struct Incoming {
    enum class State : std::uint8_t { kOffered, kReceiving, kReceived, kWithdrawn };
    wire::Offer offer;
    State state = State::kOffered;
    std::optional<wire::IncomingTransfer> chunks;
    std::shared_ptr<void> keep_alive;
    Nanos moved_at = 0;  // accepted, last chunk arrived, or HAVE was sent again
  };

  Impl(net::Loop& of_loop, const LinkOptions& of_options, LinkHandler* of_handler)
      : loop(of_loop), options(of_options), handler(of_handler), data(of_options.data_streams) {}

  void on_message(FramedStream& stream, wire::Message message) override;
  ChunkTarget on_chunk(FramedStream& stream, const wire::ChunkPrefix& prefix) override;
  void on_chunk_read(FramedStream& stream, const wire::ChunkPrefix& prefix, bool stored) override;
  void on_drained(FramedStream& stream) override;
  void on_stream_closed(FramedStream& stream, const Error& error) override;

  // ---- streams and time: link.cc
  void start(std::unique_ptr<FramedStream> stream);
  Status add_data_stream(std::unique_ptr<FramedStream> stream, std::uint16_t index);
  // Closes the stream of a data lane and puts what it carried in order.
  void clear_lane(Lane& lane);
  void drop_lane(std::size_t index, const std::string& reason);
  Lane* lane_of(const FramedStream& stream);
  bool carries(wire::Carrier carrier) const;
  std::size_t data_streams_open() const;
  void heard();
  void send(const wire::Message& message);
  // Runs `task` at the next turn of the loop if the link is still open.
  void post(std::function<void(Impl&)> task);
  void arm_tick();
  void tick();
  void drop_stalled(Nanos now);
  void sample(Lane& lane, Nanos now);
  void keep_lanes_alive(Nanos now);
  void close();
  void lose(const std::string& reason);

  // ---- sending: link_send.cc
  void send_transfer(Outgoing transfer);
  void abort_transfer(std::uint64_t ticket);
  // Tells the owner on_sent(ticket, false) at the next turn, or when the link is lost.
  void fail_later(std::uint64_t ticket);
  void offer_waiting();
  Lane* best_lane();
  void pump();
  void send_chunk(Lane& lane, std::uint64_t id, Outgoing& transfer);
  // Takes what is queued, but not begun, on this lane back into its transfers.
  void take_back(Lane& lane);
  void relieve_slow_lanes();
  // Gives up the streams that were done with chunks long ago which have not arrived.
  void drop_silent_carriers(const Outgoing& transfer);
  void on_have(const wire::Have& have);
  void on_done(const wire::Done& done);
  void end_sending(std::uint64_t transfer, bool ok);

  // ---- receiving: link_receive.cc
  void on_offer(const wire::Offer& offer);
  void on_withdrawn(std::uint64_t id);
  void accept(std::uint64_t id, MutableByteView target, std::shared_ptr<void> keep_alive);
  void refuse(std::uint64_t id, std::string reason);
  void discard_current(std::uint64_t id);
  void finish_receive(std::uint64_t id, bool ok);
  // HAVE of every transfer that is being received.
  void tell_what_is_here();
  // HAVE of those of which nothing has come for a lease.
  void ask_for_what_stalls(Nanos now);
  bool is_storing(std::uint64_t id) const;
  void unpark();
  // Another stream is in the middle of this chunk: it ends.
  void end_other_way(const wire::ChunkPrefix& prefix);
  void complete(std::uint64_t id);

  net::Loop& loop;
  const LinkOptions options;
  LinkHandler* handler;
  bool open = true;
  bool ended = false;  // the owner closed or destroyed the link: no callback any more
  bool overfull = false;

  Lane control;
  std::vector<Lane> data;
  wire::Carrier last_carrier = 0;
  bool over_control = false;  // chunks go over control
  Nanos streamless_since = 0;
  Nanos have_sent_at = 0;
  std::uint64_t lost_in = 0;  // bytes of streams that are gone
  std::uint64_t lost_out = 0;
  std::uint64_t streams_lost = 0;
  net::TimerId tick_timer = 0;
  bool tick_is_soon = false;
  Nanos last_heard = 0;

  std::deque<Outgoing> waiting;
  std::map<std::uint64_t, Outgoing> outgoing;
  std::uint64_t last_sent = 0;
  std::deque<std::uint64_t> failed;  // tickets of fail_later()

  std::map<std::uint64_t, Incoming> incoming;
  std::uint64_t highest_offer = 0;
};

}  // namespace yeto::sync
