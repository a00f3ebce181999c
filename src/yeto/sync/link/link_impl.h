// SPDX-License-Identifier: Apache-2.0
// Inside of Link, for link.cc only. The order of the members is the order in which a transfer meets
// them.
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

namespace yeto::sync {

class Link::Impl : public StreamOwner, public std::enable_shared_from_this<Link::Impl> {
 public:
  // A transfer to the peer: waiting (not offered) → kOffered → kSending → kSent → gone at DONE or
  // refusal.
  struct Outgoing {
    enum class State : std::uint8_t { kOffered, kSending, kSent };
    std::uint64_t ticket = 0;
    wire::Offer offer;
    ByteView body;
    std::shared_ptr<const void> keep_alive;
    wire::OutgoingTransfer chunks;
    State state = State::kOffered;
  };
  // A transfer from the peer: kOffered → kReceiving (accepted) → kReceived → gone at
  // finish_receive().
  struct Incoming {
    enum class State : std::uint8_t { kOffered, kReceiving, kReceived };
    wire::Offer offer;
    State state = State::kOffered;
    std::optional<wire::IncomingTransfer> chunks;
    std::shared_ptr<void> keep_alive;
  };

  Impl(net::Loop& of_loop, const LinkOptions& of_options, LinkHandler* of_handler)
      : loop(of_loop), options(of_options), handler(of_handler) {}

  void on_message(FramedStream& stream, wire::Message message) override;
  ChunkTarget on_chunk(FramedStream& stream, const wire::ChunkPrefix& prefix) override;
  void on_chunk_read(FramedStream& stream, const wire::ChunkPrefix& prefix, bool stored) override;
  void on_drained(FramedStream& stream) override;
  void on_stream_closed(FramedStream& stream, const Error& error) override;

  void start(std::unique_ptr<FramedStream> stream);
  Status add_data_stream(std::unique_ptr<FramedStream> stream, std::uint16_t index);
  void heard();
  void send(const wire::Message& message);
  // Runs `task` at the next turn of the loop if the link is still open.
  void post(std::function<void(Impl&)> task);
  void close();
  void lose(const std::string& reason);

  void send_transfer(Outgoing transfer);
  void offer_waiting();
  FramedStream* emptiest_stream();
  void pump();
  void on_have(const wire::Have& have);
  void on_done(const wire::Done& done);
  void end_sending(std::uint64_t transfer, bool ok);

  void on_offer(const wire::Offer& offer);
  void accept(std::uint64_t id, MutableByteView target, std::shared_ptr<void> keep_alive);
  void refuse(std::uint64_t id, std::string reason);
  void finish_receive(std::uint64_t id, bool ok);
  void unpark();
  void complete(std::uint64_t id);

  net::Loop& loop;
  const LinkOptions options;
  LinkHandler* handler;
  bool open = true;
  bool ended = false;  // the owner closed or destroyed the link: no callback any more
  bool overfull = false;

  std::unique_ptr<FramedStream> control;
  std::vector<std::unique_ptr<FramedStream>> data;
  std::size_t attached = 0;
  net::TimerId attach_timer = 0;
  Nanos last_heard = 0;

  std::deque<Outgoing> waiting;
  std::map<std::uint64_t, Outgoing> outgoing;
  std::uint64_t last_sent = 0;

  std::map<std::uint64_t, Incoming> incoming;
  std::uint64_t highest_offer = 0;
};

}  // namespace yeto::sync
