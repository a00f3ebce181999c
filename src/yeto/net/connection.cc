// SPDX-License-Identifier: Apache-2.0
#include "yeto/net/connection.h"

#include <algorithm>
#include <asio/buffer.hpp>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/net/connection_impl.h"
#include "yeto/net/socket_tuning.h"

namespace yeto::net {
namespace {

using asio::ip::tcp;

constexpr std::size_t kNoLimit = static_cast<std::size_t>(-1);
constexpr std::size_t kUnsentLimit = std::size_t{256} << 10;
// How soon a write that waits for acknowledgements is tried again: far below any round trip for
// which the limit matters.
constexpr Nanos kWriteRetry = 5 * kMillisecond;

// A buffer sequence that asio copies without allocating.
struct Gather {
  std::array<asio::const_buffer, Connection::Impl::kMaxGather> buffers;
  std::size_t count = 0;
  const asio::const_buffer* begin() const { return buffers.data(); }
  const asio::const_buffer* end() const { return buffers.data() + count; }
};

}  // namespace

Address address_of(const tcp::endpoint& endpoint) {
  return {endpoint.address().to_string(), endpoint.port()};
}

std::optional<tcp::endpoint> literal_endpoint(const Address& address) {
  asio::error_code ec;
  const asio::ip::address ip = asio::ip::make_address(address.host, ec);
  return ec ? std::nullopt : std::optional(tcp::endpoint(ip, address.port));
}

Connection::Impl::Impl(Loop& of_loop, tcp::socket of_socket)
    : loop(of_loop), socket(std::move(of_socket)) {
  // A peer that is gone already shows itself at the first read; here its errors do not matter.
  asio::error_code ec;
  socket.set_option(tcp::no_delay(true), ec);
  socket.set_option(asio::socket_base::keep_alive(true), ec);
  net::set_unsent_limit(socket.native_handle(), kUnsentLimit);
  local = address_of(socket.local_endpoint(ec));
  peer = address_of(socket.remote_endpoint(ec));
}

void Connection::Impl::start_read() {
  if (secure) {
    return tls_start_read();
  }
  const MutableByteView target = read_target.subspan(read_filled);
  socket.async_read_some(
      asio::buffer(target.data(), target.size()),
      [self = shared_from_this()](const asio::error_code& ec, std::size_t bytes) {
        self->on_read(ec, bytes);
      });
}

void Connection::Impl::on_read(const asio::error_code& ec, std::size_t bytes) {
  bytes_in += bytes;
  if (state != State::kOpen) {
    return;
  }
  if (ec) {
    return lose(ec);
  }
  read_filled += bytes;
  if (read_whole && read_filled < read_target.size()) {
    return start_read();
  }
  // Moved out first: the callback may ask for the next read.
  const auto done = std::exchange(read_done, nullptr);
  done(read_filled);
}

std::size_t Connection::Impl::write_allowance() {
  if (unacknowledged_limit == 0) {
    return kNoLimit;
  }
  const std::size_t held = net::unacknowledged_bytes(socket.native_handle());
  if (held < unacknowledged_limit) {
    return unacknowledged_limit - held;
  }
  writing = true;
  write_timer = loop.after(kWriteRetry, [self = shared_from_this()] {
    self->write_timer = 0;
    self->writing = false;
    if (!self->writes.empty()) {
      self->start_write();
    }
  });
  return 0;
}

void Connection::Impl::start_write() {
  if (secure) {
    return tls_write();
  }
  handed = 0;
  const std::size_t allowance = write_allowance();
  if (allowance == 0) {
    return;
  }
  // After this many bytes no further write is begun: what was handed over cannot be taken back.
  const std::size_t begin_below = std::min(allowance, kGatherBytes);
  std::size_t bytes_handed = 0;
  Gather gather;
  while (handed < writes.size() && gather.count < kMaxGather && bytes_handed < begin_below) {
    const Write& write = writes[handed];
    const bool first = handed == 0;
    for (std::size_t p = first ? part : 0; p < write.count && gather.count < kMaxGather; ++p) {
      ByteView bytes = write.parts[p].subspan(first && p == part ? part_offset : 0);
      bytes = bytes.first(std::min(bytes.size(), allowance - bytes_handed));
      if (!bytes.empty()) {
        gather.buffers[gather.count++] = asio::const_buffer(bytes.data(), bytes.size());
        bytes_handed += bytes.size();
      }
    }
    ++handed;
  }
  writing = true;
  socket.async_write_some(
      gather, [self = shared_from_this()](const asio::error_code& ec, std::size_t bytes) {
        self->on_written(ec, bytes);
      });
}

std::vector<std::function<void()>> Connection::Impl::advance(std::size_t bytes) {
  std::vector<std::function<void()>> sent;
  queued -= bytes;
  while (!writes.empty()) {
    Write& write = writes.front();
    while (part < write.count) {
      const std::size_t taken = std::min(bytes, write.parts[part].size() - part_offset);
      bytes -= taken;
      part_offset += taken;
      if (part_offset < write.parts[part].size()) {
        return sent;
      }
      ++part;
      part_offset = 0;
    }
    if (write.sent) {
      sent.push_back(std::move(write.sent));
    }
    writes.pop_front();
    part = 0;
  }
  return sent;
}

void Connection::Impl::on_written(const asio::error_code& ec, std::size_t bytes) {
  writing = false;
  bytes_out += bytes;
  if (state == State::kClosed) {
    return;
  }
  const auto sent = advance(bytes);
  // close_gracefully() cancels the read in progress, and with it this write, which goes on here.
  if (ec && !(state == State::kFlushing && ec == asio::error::operation_aborted)) {
    return on_write_error(ec);
  }
  if (!writes.empty()) {
    start_write();
  } else if (state == State::kFlushing) {
    return discard_input();
  }
  for (const auto& callback : sent) {
    if (state == State::kOpen) {
      callback();
    }
  }
}

void Connection::Impl::on_write_error(const asio::error_code& ec) {
  if (state == State::kFlushing) {
    return finish_flush();
  }
  if (!read_done) {
    return lose(ec);
  }
  // What the peer sent before it went (why it closes) is still to be read; the read then tells the
  // loss.
  write_broken = true;
  const auto dropped = std::exchange(writes, {});
  queued = 0;
}

void Connection::Impl::lose(const asio::error_code& ec) {
  const bool closed = ec == asio::error::eof || ec == asio::error::connection_reset ||
                      ec == asio::error::broken_pipe;
  Error error{closed ? ErrorCode::kClosed : ErrorCode::kIo,
              ec == asio::error::eof ? "the peer closed the connection"
                                     : strf("the connection was lost: {}", ec.message()),
              peer.text(),
              {}};
  lose_with(std::move(error));
}

void Connection::Impl::lose_with(Error error) {
  const auto handler = std::exchange(close_handler, nullptr);
  close();
  if (handler) {
    handler(error);
  } else {
    loss = std::move(error);
  }
}

void Connection::Impl::close() {
  state = State::kClosed;
  loop.cancel(std::exchange(write_timer, 0));
  asio::error_code ignored;
  socket.close(ignored);
  // Destroyed at the end of this function: a callback may own the objects that led here.
  const auto old_read = std::exchange(read_done, nullptr);
  const auto old_close = std::exchange(close_handler, nullptr);
  const auto old_writes = std::exchange(writes, {});
  const auto old_ready = secure ? std::exchange(secure->ready, nullptr) : std::function<void()>();
  queued = 0;
  part = 0;
  part_offset = 0;
}

void Connection::Impl::flush_then_close(Nanos limit, std::function<void()> done) {
  flushed = std::move(done);
  if (state == State::kClosed) {
    loop.post([self = shared_from_this()] { self->finish_flush(); });
    return;
  }
  if (secure && !secure->engine.ready()) {
    // Nothing can be said to a peer that has not finished the handshake.
    close();
    loop.post([self = shared_from_this()] { self->finish_flush(); });
    return;
  }
  state = State::kFlushing;
  const auto old_read = std::exchange(read_done, nullptr);
  const auto old_close = std::exchange(close_handler, nullptr);
  flush_timer = loop.after(limit, [self = shared_from_this()] { self->finish_flush(); });
  // The target of a read in progress may be freed after this call.
  asio::error_code ignored;
  socket.cancel(ignored);
  if (!writing) {
    if (writes.empty() && !secure) {
      discard_input();
    } else {
      start_write();
    }
  }
}

void Connection::Impl::discard_input() {
  asio::error_code ignored;
  socket.shutdown(tcp::socket::shutdown_send, ignored);
  socket.async_read_some(asio::buffer(discard),
                         [self = shared_from_this()](const asio::error_code& ec, std::size_t) {
                           if (self->state != State::kFlushing) {
                             return;
                           }
                           if (ec && ec != asio::error::operation_aborted) {
                             return self->finish_flush();
                           }
                           self->discard_input();
                         });
}

void Connection::Impl::finish_flush() {
  loop.cancel(flush_timer);
  const auto done = std::exchange(flushed, nullptr);
  close();
  if (done) {
    done();
  }
}

Connection::Connection(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Connection::~Connection() { close(); }

void Connection::set_close_handler(std::function<void(const Error&)> handler) {
  if (impl_->loss) {
    impl_->close_handler = std::move(handler);
    impl_->loop.post([self = impl_] {
      if (const auto late = std::exchange(self->close_handler, nullptr); late) {
        late(*std::exchange(self->loss, std::nullopt));
      }
    });
  } else if (impl_->state == Impl::State::kOpen) {
    impl_->close_handler = std::move(handler);
  }
}

void Connection::read_exactly(MutableByteView target, std::function<void()> done) {
  read_some(target, [done = std::move(done)](std::size_t) { done(); });
  impl_->read_whole = true;
}

void Connection::read_some(MutableByteView target, std::function<void(std::size_t bytes)> done) {
  if (impl_->state != Impl::State::kOpen) {
    return;
  }
  YETO_CHECK(!impl_->read_done, "a second read on a connection before the first is done");
  YETO_CHECK(!target.empty(), "a read of no bytes");
  impl_->read_target = target;
  impl_->read_filled = 0;
  impl_->read_whole = false;
  impl_->read_done = std::move(done);
  impl_->start_read();
}

void Connection::write(std::span<const ByteView> parts, std::shared_ptr<const void> owner,
                       std::function<void()> sent) {
  if (impl_->state != Impl::State::kOpen || impl_->write_broken) {
    return;
  }
  YETO_CHECK(parts.size() <= Impl::kMaxParts, "a write of too many parts");
  Impl::Write write;
  for (const ByteView part : parts) {
    write.parts[write.count++] = part;
    impl_->queued += part.size();
  }
  write.owner = std::move(owner);
  write.sent = std::move(sent);
  impl_->writes.push_back(std::move(write));
  if (!impl_->writing) {
    impl_->start_write();
  }
}

std::size_t Connection::queued_bytes() const { return impl_->queued; }

std::size_t Connection::take_back() {
  // The first write may have been sent in part although no write is in progress.
  const std::size_t keep = std::max<std::size_t>(impl_->handed, 1);
  std::size_t taken = 0;
  std::vector<Impl::Write> dropped;  // destroyed at the end: their owners may call back
  while (impl_->state == Impl::State::kOpen && impl_->writes.size() > keep) {
    dropped.push_back(std::move(impl_->writes.back()));
    impl_->writes.pop_back();
    for (std::size_t p = 0; p < dropped.back().count; ++p) {
      impl_->queued -= dropped.back().parts[p].size();
    }
    ++taken;
  }
  return taken;
}

void Connection::set_liveness(Nanos silence) {
  if (is_open()) {
    net::set_liveness(impl_->socket.native_handle(), silence);
  }
}

void Connection::set_unacknowledged_limit(std::size_t bytes) {
  impl_->unacknowledged_limit = bytes;
}

std::size_t Connection::unacknowledged_bytes() const {
  return is_open() ? net::unacknowledged_bytes(impl_->socket.native_handle()) : 0;
}

Nanos Connection::shortest_round_trip() const {
  return is_open() ? net::shortest_round_trip(impl_->socket.native_handle()) : 0;
}

void Connection::close() {
  // A graceful end goes on without its Connection.
  if (impl_->state == Impl::State::kOpen) {
    impl_->close();
  }
  impl_->close_handler = nullptr;
}

void Connection::close_gracefully(Nanos limit, std::function<void()> done) {
  if (impl_->state != Impl::State::kFlushing) {
    impl_->close_handler = nullptr;
    impl_->flush_then_close(limit, std::move(done));
  }
}

bool Connection::is_open() const { return impl_->state == Impl::State::kOpen; }
bool Connection::is_secure() const { return impl_->secure != nullptr; }
std::vector<std::string> Connection::peer_uris() const {
  return impl_->secure ? impl_->secure->engine.peer_uris() : std::vector<std::string>{};
}
Address Connection::peer() const { return impl_->peer; }
Address Connection::local() const { return impl_->local; }
std::uint64_t Connection::bytes_in() const { return impl_->bytes_in; }
std::uint64_t Connection::bytes_out() const { return impl_->bytes_out; }

}  // namespace yeto::net
