// SPDX-License-Identifier: Apache-2.0
// TCP connections in callback style. All calls on the loop thread; see loop.h.
//
// A connection has one owner. Destroying or closing it, also from inside one of its callbacks, ends
// all its callbacks: none runs afterwards. A loss (the peer closed, an I/O error) is told once
// through the close handler; pending reads and writes are then dropped without a call. TCP_NODELAY
// and keep-alive are on; buffer sizes are left to the kernel, which tunes them better than a fixed
// SO_RCVBUF would. Of what is queued the kernel gets at most 256 KiB that it has not sent yet
// (TCP_NOTSENT_LOWAT).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/base/result.h"
#include "yeto/net/address.h"
#include "yeto/net/loop.h"
#include "yeto/net/tls.h"

namespace yeto::net {

class Connection {
 public:
  struct Impl;
  explicit Connection(std::shared_ptr<Impl> impl);  // made by Listener and connect()
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Called once when the connection is lost: kClosed (peer closed) or kIo. A loss that happened
  // before is told at the next turn of the loop. Without a read or write in progress a loss may
  // stay unnoticed.
  void set_close_handler(std::function<void(const Error&)> handler);

  // Fills `target` (not empty) completely, then calls `done`. One read at a time; `target` must
  // live until `done` or until the connection is closed.
  void read_exactly(MutableByteView target, std::function<void()> done);
  // Reads at least one byte, at most target.size(). Bulk is read in pieces of ≤ 128 KiB, so that a
  // checksum over each piece finds it in the core's cache.
  void read_some(MutableByteView target, std::function<void(std::size_t bytes)> done);

  // Appends the parts (at most 8) to the write queue. Their memory is not copied: `owner` keeps it
  // alive until the bytes are handed to the kernel. `sent` (optional) is called after that. The
  // queue itself has no limit: callers bound it by queued_bytes().
  void write(std::span<const ByteView> parts, std::shared_ptr<const void> owner,
             std::function<void()> sent = {});
  // Bytes given to write() and not yet taken by the kernel.
  std::size_t queued_bytes() const;
  // Takes the newest writes of which nothing was sent out of the queue, without their `sent`; how
  // many.
  std::size_t take_back();

  // A peer that acknowledges nothing for `silence` is lost; idle connections are probed. On systems
  // without such options the peer's silence must be noticed by the caller.
  void set_liveness(Nanos silence);
  // While the kernel holds more than this without an acknowledgement of the peer, nothing more is
  // given to it: on a slow link little waits in the network then. 0, the default: no limit.
  void set_unacknowledged_limit(std::size_t bytes);
  // Bytes in the kernel that the peer has not acknowledged; 0 where it does not say.
  std::size_t unacknowledged_bytes() const;
  // The shortest round trip so far; 0 if unknown.
  Nanos shortest_round_trip() const;

  // Ends the connection at once; queued bytes are lost.
  void close();
  // Ends all callbacks, sends what is queued, then closes; what the peer still sends meanwhile is
  // discarded, so that the last bytes are not lost to a reset. Cut off after `limit`. `done`
  // (optional) is called at the end; the Connection may be destroyed meanwhile.
  void close_gracefully(Nanos limit, std::function<void()> done = {});
  bool is_open() const;

  // Made with TLS; the peer may still have to prove itself.
  bool is_secure() const;
  // The URIs of the certificate the peer has proven to own. Empty without TLS and before the
  // handshake is over.
  std::vector<std::string> peer_uris() const;

  Address peer() const;
  Address local() const;
  // Totals of this connection as they passed the socket, headers of TCP and IP not included.
  std::uint64_t bytes_in() const;
  std::uint64_t bytes_out() const;

 private:
  std::shared_ptr<Impl> impl_;
};

// Accepts connections. Destroying it ends the callbacks.
class Listener {
 public:
  using AcceptHandler = std::function<void(std::unique_ptr<Connection>)>;

  // Binds and listens; port 0 takes a free one. kUnreachable or kIo name the address and what to
  // do. Resolves a host name in this call (blocks); literals do not.
  // "::" takes IPv4 peers too (their addresses appear as ::ffff:a.b.c.d), every other IPv6 address
  // IPv6 peers only. With `tls` each accepted connection begins with a handshake.
  static Result<std::unique_ptr<Listener>> open(Loop& loop, const Address& address,
                                                AcceptHandler handler,
                                                std::shared_ptr<const Tls> tls = nullptr);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // The bound address with the real port.
  Address address() const;
  // While paused, peers wait in the kernel's backlog. At most one connection that was being
  // accepted when pause() was called still arrives after resume().
  void pause();
  void resume();
  bool paused() const;

 private:
  struct Impl;
  explicit Listener(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

// Connects to the first endpoint of `address` that answers within `timeout` over all of them (name
// resolution and handshake included). `done` gets kUnreachable, kTimeout, and with TLS kPermission
// or kProtocol, naming the address; it is never called inside this call, and not at all once the
// returned handle is destroyed.
class Connecting {
 public:
  struct Impl;
  explicit Connecting(std::shared_ptr<Impl> impl);
  ~Connecting();
  Connecting(const Connecting&) = delete;
  Connecting& operator=(const Connecting&) = delete;

 private:
  std::shared_ptr<Impl> impl_;
};
using ConnectHandler = std::function<void(Result<std::unique_ptr<Connection>>)>;
std::unique_ptr<Connecting> connect(Loop& loop, const Address& address, Nanos timeout,
                                    ConnectHandler done, std::shared_ptr<const Tls> tls = nullptr);

}  // namespace yeto::net
