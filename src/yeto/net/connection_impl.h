// SPDX-License-Identifier: Apache-2.0
// Inside of Connection, for the .cc files of this room only.
#pragma once

#include <array>
#include <asio/ip/tcp.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "yeto/net/connection.h"
#include "yeto/net/loop_impl.h"
#include "yeto/net/tls_engine.h"

namespace yeto::net {

Address address_of(const asio::ip::tcp::endpoint& endpoint);
// The endpoint of an address whose host is a literal.
std::optional<asio::ip::tcp::endpoint> literal_endpoint(const Address& address);

struct Connection::Impl : std::enable_shared_from_this<Connection::Impl> {
  static constexpr std::size_t kMaxParts = 8;
  // What one write hands to the kernel at once: parts, and about how many bytes of several writes.
  static constexpr std::size_t kMaxGather = 32;
  static constexpr std::size_t kGatherBytes = std::size_t{256} << 10;

  struct Write {
    std::array<ByteView, kMaxParts> parts;
    std::size_t count = 0;
    std::shared_ptr<const void> owner;
    std::function<void()> sent;
  };
  // kOpen → kFlushing (close_gracefully) → kClosed; or straight to kClosed.
  enum class State : std::uint8_t { kOpen, kFlushing, kClosed };

  // What a connection with TLS has beside its plain queue.
  struct Secure {
    Secure(std::shared_ptr<const Tls> tls, TlsEngine::Side side) : engine(std::move(tls), side) {}
    TlsEngine engine;
    std::function<void()> ready;  // of the side that connects
    Bytes in;                     // the peer's bytes, as read from the socket
    Bytes out;                    // encrypted, on its way to the kernel
    std::size_t out_sent = 0;
    std::size_t plain = 0;  // of the write queue, inside `out`
    bool reading = false;
    bool pumping = false;
    bool finished = false;  // our close notice is in `out` or gone
  };

  Impl(Loop& of_loop, asio::ip::tcp::socket of_socket);

  // Once, before anything is read or written. `ready` (optional) is called when the peer has proven
  // itself.
  void start_tls(std::shared_ptr<const Tls> tls, TlsEngine::Side side,
                 std::function<void()> ready = {});
  void tls_start_read();
  void tls_read_socket();
  void tls_on_bytes(const asio::error_code& ec, std::size_t bytes);
  void tls_pump();
  bool tls_step();
  void tls_write();
  Status tls_encrypt(std::size_t allowance);
  void tls_on_written(const asio::error_code& ec, std::size_t bytes);
  void tls_fail(Error error);

  void start_read();
  void on_read(const asio::error_code& ec, std::size_t bytes);
  void start_write();
  void on_written(const asio::error_code& ec, std::size_t bytes);
  // How many bytes the kernel may get now. 0: it holds enough; the next write is tried a little
  // later.
  std::size_t write_allowance();
  // Removes `bytes` from the head of the queue; the `sent` callbacks of what is complete.
  std::vector<std::function<void()>> advance(std::size_t bytes);
  void on_write_error(const asio::error_code& ec);
  void lose(const asio::error_code& ec);
  void lose_with(Error error);
  void close();
  void flush_then_close(Nanos limit, std::function<void()> done);
  void discard_input();
  void finish_flush();

  Loop& loop;
  asio::ip::tcp::socket socket;
  Address local;
  Address peer;
  State state = State::kOpen;
  std::function<void(const Error&)> close_handler;
  std::optional<Error> loss;

  MutableByteView read_target;
  std::size_t read_filled = 0;
  bool read_whole = false;
  std::function<void(std::size_t)> read_done;  // set while a read is wanted

  std::deque<Write> writes;
  std::size_t part = 0;         // of the first write: what is not sent yet
  std::size_t part_offset = 0;  // within that part
  std::size_t handed = 0;       // of the first writes: those the write in progress reads from
  bool writing = false;
  std::size_t unacknowledged_limit = 0;
  TimerId write_timer = 0;
  bool write_broken = false;
  std::size_t queued = 0;

  std::function<void()> flushed;
  TimerId flush_timer = 0;
  std::array<std::uint8_t, 4096> discard{};

  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;

  std::unique_ptr<Secure> secure;  // null without TLS
};

}  // namespace yeto::net
