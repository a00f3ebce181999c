// SPDX-License-Identifier: Apache-2.0
// Link: one session's control stream and its 0..64 data streams, the same class on both sides. It
// carries messages, and transfers by OFFER → HAVE → CHUNK… → DONE.
//
// Rules
// * A PUSH is sent at once (the PULL that asked for it has accepted it); every other kind waits for
// HAVE.
// * Chunks go to whichever data stream has least queued, oldest transfer first, at most about 1 MiB
// + one
//   chunk per stream; control frames never wait behind them. With 0 data streams chunks go over
//   control, under the same bound.
// * A CHUNK whose OFFER has not arrived, or has not been answered yet, parks its data stream. A
// CHUNK of a
//   transfer that is over (refused, aborted) is read and discarded.
// * The loss of any stream ends the whole link; so does a broken protocol rule.
// Limits: kMaxOpenTransfers offered and unfinished each way (the sender lets further ones wait
// unoffered, up to kMaxWaitingTransfers, beyond which send_transfer() is answered on_sent(false);
// an OFFER over the limit is refused); kMaxQueuedControlBytes of unsent control frames (over it the
// link is closed: the peer has stopped reading); data streams must be attached within
// attach_timeout.
//
// Not thread-safe: all calls and callbacks on the loop thread. The link may be closed or destroyed
// inside any callback; none runs afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "yeto/base/bytes.h"
#include "yeto/net/loop.h"
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
  // the link was lost meanwhile (`ok` false, on_closed follows): nothing is owed. Exactly once per
  // accept(), never inside it, unless abort() came first.
  virtual void on_received(std::uint64_t transfer, bool ok) = 0;
  // The transfer ended; `ok` if the peer answered DONE with the right digest. Exactly once per
  // send_transfer(), never inside it.
  virtual void on_sent(std::uint64_t ticket, bool ok) = 0;
  // A valid frame came on any stream; at most every 100 ms.
  virtual void on_heard() = 0;
  // The link was lost: every open transfer has been answered with false before. Not called after
  // close().
  virtual void on_closed(const std::string& reason) = 0;
};

struct LinkOptions {
  wire::Direction incoming = wire::Direction::kToSyncer;  // of the frames read here
  std::uint32_t chunk_bytes = wire::kDefaultChunkBytes;   // of WELCOME; the same on both sides
  std::uint16_t data_streams = 0;                         // how many will be attached
  Nanos attach_timeout = 10 * kSecond;                    // from start()
};

struct LinkCounters {
  std::uint64_t bytes_in = 0;  // all streams, frame headers included
  std::uint64_t bytes_out = 0;
  std::size_t open_in = 0;   // transfers
  std::size_t open_out = 0;  // offered or waiting
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
  // Takes a data stream after ATTACHED; index < data_streams. kProtocol if the index is out of
  // range or attached already (the stream is then closed, the link is not).
  Status add_data_stream(std::unique_ptr<FramedStream> stream, std::uint16_t index);

  // Any message but OFFER, HAVE, DONE and CHUNK. Nothing happens on a closed link.
  void send(const wire::Message& message);

  // Sends `body` (kept by the shared pointer, not copied) under offer.kind; fills offer.transfer
  // and offer.bytes. `ticket` comes back in on_sent().
  void send_transfer(std::uint64_t ticket, wire::Offer offer, std::shared_ptr<const Bytes> body);
  // The same for bytes inside something else, which `keep_alive` owns.
  void send_transfer(std::uint64_t ticket, wire::Offer offer, ByteView body,
                     std::shared_ptr<const void> keep_alive);

  // Receive an offered transfer into `target`, exactly offer.bytes long; `keep_alive` owns it until
  // on_received() or abort(), and a little longer while a read is in progress.
  void accept(std::uint64_t transfer, MutableByteView target, std::shared_ptr<void> keep_alive);
  void refuse(std::uint64_t transfer, std::string reason);
  // After on_received(ok): tells the sender whether the digest was right.
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
