// SPDX-License-Identifier: Apache-2.0
// FramedStream: frames over one connection, both ways, with all checks of the frame layer: magic,
// major, flags, type, direction, size, sequence, CRC-32C. A broken rule closes the stream with an
// error that names it. Bodies of CHUNK frames are read straight into the place its owner names, in
// pieces of ≤ 128 KiB with the CRC computed while a piece is in cache; they are sent from the
// owner's memory without a copy.
//
// Two ways of reading: expect_one_message() for a handshake (reads exactly one frame, then stops),
// and start() for a session. Not thread-safe: all calls and callbacks on the loop thread. The
// stream may be closed or destroyed inside any of its callbacks; none runs afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/base/result.h"
#include "yeto/net/connection.h"
#include "yeto/net/loop.h"
#include "yeto/wire/codec.h"
#include "yeto/wire/frame.h"
#include "yeto/wire/messages.h"
#include "yeto/wire/transfer.h"

namespace yeto::sync {

class FramedStream;

// What to do with a chunk whose prefix has been read.
struct ChunkTarget {
  enum class Way : std::uint8_t { kStore, kDiscard, kPark, kRefuse };
  Way way = Way::kDiscard;
  MutableByteView target;            // kStore: exactly the chunk's bytes
  std::shared_ptr<void> keep_alive;  // kStore: of the target's memory, until the chunk is read
  std::string reason;                // kRefuse: the protocol error
};

// A chunk to send: its bytes stay where they are, kept alive by `keep_alive`.
struct ChunkBody {
  ByteView bytes;
  std::uint32_t crc = 0;  // CRC-32C of `bytes`
  std::shared_ptr<const void> keep_alive;
};

// Who reads a started stream.
class StreamOwner {
 public:
  virtual ~StreamOwner() = default;
  // A valid frame that is not a CHUNK.
  virtual void on_message(FramedStream& stream, wire::Message message) = 0;
  // The prefix of a CHUNK. After kPark nothing is read until unpark(), which asks again.
  virtual ChunkTarget on_chunk(FramedStream& stream, const wire::ChunkPrefix& prefix) = 0;
  // The chunk was read and its CRC is right; `stored` false if it was discarded.
  virtual void on_chunk_read(FramedStream& stream, const wire::ChunkPrefix& prefix,
                             bool stored) = 0;
  // Queued bytes went to the kernel.
  virtual void on_drained(FramedStream& stream) = 0;
  // The peer closed, an I/O error or a broken rule. Once; not after close().
  virtual void on_stream_closed(FramedStream& stream, const Error& error) = 0;
};

class FramedStream {
 public:
  // `incoming`: the way the frames travel that are read here.
  FramedStream(net::Loop& loop, std::unique_ptr<net::Connection> connection,
               wire::Direction incoming);
  ~FramedStream();
  FramedStream(const FramedStream&) = delete;
  FramedStream& operator=(const FramedStream&) = delete;

  // Reads one frame of at most `max_payload` payload bytes, not a CHUNK, within `timeout`, and
  // stops reading. `done` gets the message, or kProtocol, kTimeout, kClosed, kIo. After kProtocol
  // and kTimeout nothing more is read, but a REFUSED can still be sent before close_gracefully();
  // after the others the stream is closed. One at a time, and only before start().
  void expect_one_message(std::uint32_t max_payload, Nanos timeout,
                          std::function<void(Result<wire::Message>)> done);
  // Reads frames until the stream is closed. `owner` must outlive the stream or close it.
  void start(StreamOwner* owner);

  // Encodes and queues a frame. Nothing happens on a closed stream.
  void send(const wire::Message& message);
  // Queues a CHUNK frame.
  void send_chunk(std::uint64_t transfer, std::uint32_t index, ChunkBody body);
  // Takes the newest queued frames of which nothing was sent out of the queue again: transfers and
  // indices. Only for a stream that sends nothing but chunks.
  std::vector<std::pair<std::uint64_t, std::uint32_t>> take_back();
  // Bytes in the process that wait to be sent, and in the kernel without an acknowledgement.
  std::size_t queued_bytes() const;
  std::size_t unacknowledged_bytes() const;
  Nanos shortest_round_trip() const;
  // See Connection.
  void set_liveness(Nanos silence);
  void set_unacknowledged_limit(std::size_t bytes);

  // Asks the owner again about the parked chunk. No effect if none is parked.
  void unpark();
  bool parked() const;
  // The chunk that is being stored now.
  std::optional<wire::ChunkPrefix> storing() const;
  // If a chunk of this transfer is being stored now, the rest of it is discarded.
  void discard_current(std::uint64_t transfer);

  // Ends the callbacks and the reading; what is queued goes on being sent until close().
  void detach();
  void close();
  // Sends what is queued, then closes (see Connection::close_gracefully). No callback but `done`.
  void close_gracefully(Nanos limit, std::function<void()> done = {});
  bool is_open() const;
  net::Address peer() const;
  // Whom TLS has proven the peer to be (see net::Connection).
  bool is_secure() const;
  std::vector<std::string> peer_uris() const;
  std::uint64_t bytes_in() const;
  std::uint64_t bytes_out() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace yeto::sync
