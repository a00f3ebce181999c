// SPDX-License-Identifier: Apache-2.0
// Link: one session's control stream and its 0..64 data streams, the same class on both sides. It
// carries messages, and transfers by OFFER → HAVE → CHUNK… → DONE.
//
// Rules
// * A PUSH is sent at once (the PULL that asked for it has accepted it); every other kind waits for
//   HAVE.
// * Chunks, oldest transfer first, go to the data stream that will be done with them first, by how
//   fast each has drained so far; one that is much slower gets none at the end of a transfer, and
//   what is queued on a stream that falls behind moves to another. Little is queued: 200 ms of what
//   a stream drains, 64 KiB … 1 MiB, and the chunk that crosses that.
// * Control frames never wait behind chunks.
// * A CHUNK whose OFFER has not arrived, or has not been answered yet, parks its data stream. A
//   CHUNK of a transfer that is over (refused, withdrawn, aborted) is read and discarded.
// * The loss of a data stream is no loss of the session: on_data_stream_lost tells it, its chunks
//   go over the others as soon as HAVE says which are missing, and add_data_stream() takes its
//   successor at any time. The receiver sends HAVE at the loss, at the successor's arrival and each
//   second in between. A chunk that arrives while another stream is in the middle of it ends the
//   other: its sender has given it up.
// * A data stream is given up like a lost one when, although the peer is heard, for a lease it
//   delivers nothing of what it has to send, brings nothing in the middle of a chunk, or had
//   nothing left to send while a chunk it carried did not arrive (the receiver sends HAVE of a
//   transfer of which nothing came for a lease).
// * Without any data stream for a lease chunks go over control, under the same bound, until one is
//   there; with 0 data streams always.
// * An idle data stream carries an empty chunk every `idle_frame`, so that nothing between the
//   peers forgets it.
// * The loss of the control stream ends the link; so does a broken protocol rule on any stream.
// Limits: kMaxOpenTransfers offered and unfinished each way (the sender lets further ones wait
// unoffered, up to kMaxWaitingTransfers, beyond which send_transfer() is answered on_sent(false);
// an OFFER over the limit is refused); kMaxQueuedControlBytes of unsent control frames (over it the
// link is closed: the peer has stopped reading).
//
// Not thread-safe: all calls and callbacks on the loop thread. The link may be closed or destroyed
// inside any callback; none runs afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "yeto/base/bytes.h"
#include "yeto/net/loop.h"
#include "yeto/sync/link/chunk_crcs.h"
#include "yeto/sync/link/framed_stream.h"
#include "yeto/wire/messages.h"

namespace yeto::sync {

inline constexpr std::size_t kMaxOpenTransfers = 64;
inline constexpr std::size_t kMaxWaitingTransfers = 1024;
inline constexpr std::size_t kMaxDataStreams = 64;
inline constexpr std::size_t kMaxQueuedControlBytes = std::size_t{64} << 20;

class LinkHandler {
 public:
  virtual ~LinkHandler() = default;
  // Any session message except OFFER, HAVE, DONE, CHUNK.
  virtual void on_message(wire::Message message) = 0;
  // Answer by accept() or refuse(), in this call or later.
  virtual void on_offer(const wire::Offer& offer) = 0;
  // All bytes of an accepted transfer are in its target (`ok`): verify, then finish_receive(). Or
  // it was broken off (`ok` false): the sender withdrew it, or the link was lost and on_closed
  // follows; nothing is owed. Exactly once per accept(), never inside it, unless abort() came
  // first.
  virtual void on_received(std::uint64_t transfer, bool ok) = 0;
  // The transfer ended; `ok` if the peer answered DONE with the right digest. Exactly once per
  // send_transfer(), never inside it or abort_transfer().
  virtual void on_sent(std::uint64_t ticket, bool ok) = 0;
  // A valid frame came on any stream; at most every 100 ms.
  virtual void on_heard() = 0;
  // The data stream ended, for the peer, the network or this side: the side that connects may bring
  // another one for this index.
  virtual void on_data_stream_lost(std::uint16_t index, const std::string& reason) {
    (void)index;
    (void)reason;
  }
  // The link was lost: every open transfer has been answered with false before. Not called after
  // close().
  virtual void on_closed(const std::string& reason) = 0;
};

struct LinkOptions {
  wire::Direction incoming = wire::Direction::kToSyncer;  // of the frames read here
  std::uint32_t chunk_bytes = wire::kDefaultChunkBytes;   // of WELCOME; the same on both sides
  std::uint16_t data_streams = 0;                         // how many there may be
  // Of WELCOME. Kernel: a stream whose peer acknowledges nothing for four leases is lost.
  Nanos lease = 5 * kSecond;
  Nanos idle_frame = 15 * kSecond;
  // CRCs of bodies that other links of this loop send as well; may be null.
  std::shared_ptr<ChunkCrcs> crcs;
};

struct LinkCounters {
  std::uint64_t bytes_in = 0;  // all streams that were there, frame headers included
  std::uint64_t bytes_out = 0;
  std::size_t open_in = 0;       // transfers
  std::size_t open_out = 0;      // offered or waiting
  std::size_t data_streams = 0;  // attached now
  std::uint64_t data_streams_lost = 0;
};

class Link {
 public:
  // `handler` must outlive the link or close it.
  Link(net::Loop& loop, const LinkOptions& options, LinkHandler* handler);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Takes the control stream after the handshake and starts reading.
  void start(std::unique_ptr<FramedStream> control);
  // Takes a data stream after ATTACHED; the one that had its index before, if it is still there, is
  // closed without a callback. kProtocol if the index is not below data_streams (the stream is then
  // closed, the link is not).
  Status add_data_stream(std::unique_ptr<FramedStream> stream, std::uint16_t index);

  // Any message but OFFER, HAVE, DONE and CHUNK. Nothing happens on a closed link.
  void send(const wire::Message& message);

  // Sends `body` (kept by the shared pointer, not copied) under offer.kind; fills offer.transfer
  // and offer.bytes. `ticket` comes back in on_sent().
  void send_transfer(std::uint64_t ticket, wire::Offer offer, std::shared_ptr<const Bytes> body);
  // The same for bytes inside something else, which `keep_alive` owns.
  void send_transfer(std::uint64_t ticket, wire::Offer offer, ByteView body,
                     std::shared_ptr<const void> keep_alive);

  // Breaks off a transfer that has not ended; the receiver is told. Ends in on_sent(false). Nothing
  // happens if there is none with this ticket.
  void abort_transfer(std::uint64_t ticket);

  // Receive an offered transfer into `target`, exactly offer.bytes long; `keep_alive` owns it until
  // on_received() or abort(), and a little longer while a read is in progress.
  void accept(std::uint64_t transfer, MutableByteView target, std::shared_ptr<void> keep_alive);
  void refuse(std::uint64_t transfer, std::string reason);
  // After on_received(ok): tells the sender whether the digest was right, unless it has withdrawn
  // the transfer meanwhile.
  void finish_receive(std::uint64_t transfer, bool ok);
  // Breaks off a transfer that was accepted; the sender gets on_sent(false). No callback here.
  void abort(std::uint64_t transfer, std::string reason);

  // Ends the link without callbacks; queued bytes are lost.
  void close();
  // Ends the callbacks, sends the queued control frames (GOODBYE, REFUSED, LEAVE), then closes; cut
  // off after `limit`. `done` (optional) is called at the end, even if the link is destroyed
  // meanwhile.
  void close_gracefully(Nanos limit, std::function<void()> done = {});
  bool is_open() const;
  LinkCounters counters() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace yeto::sync
