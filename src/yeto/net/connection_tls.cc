// SPDX-License-Identifier: Apache-2.0
// The part of a connection that runs TLS between its queues and its socket.
//
// Reading: socket → `in` → engine → the reader's target, in tls_pump(). Writing: queue → engine →
// `out` → socket, at most kBatchBytes of the queue at once, in tls_write(). During the handshake
// only what the engine itself wants to say is written.
#include <algorithm>
#include <asio/buffer.hpp>
#include <utility>

#include "yeto/net/connection_impl.h"

namespace yeto::net {
namespace {

// Small while the peer is a stranger; large once bulk is read.
constexpr std::size_t kFirstReadBytes = std::size_t{4} << 10;
constexpr std::size_t kBulkReadBytes = std::size_t{128} << 10;
constexpr std::size_t kBulkTargetBytes = std::size_t{16} << 10;
constexpr std::size_t kBatchBytes = std::size_t{128} << 10;

}  // namespace

void Connection::Impl::start_tls(std::shared_ptr<const Tls> tls, TlsEngine::Side side,
                                 std::function<void()> ready) {
  secure = std::make_unique<Secure>(std::move(tls), side);
  secure->ready = std::move(ready);
  secure->in.resize(kFirstReadBytes);
  // Not inside this call: the handshake may end in a callback.
  loop.post([self = shared_from_this()] { self->tls_pump(); });
}

void Connection::Impl::tls_start_read() {
  if (secure->pumping) {
    return;  // its loop goes on with the new target
  }
  if (secure->engine.ready() && secure->engine.has_input()) {
    loop.post([self = shared_from_this()] { self->tls_pump(); });
  } else {
    tls_read_socket();
  }
}

void Connection::Impl::tls_read_socket() {
  if (secure->reading) {
    return;
  }
  secure->reading = true;
  if (secure->engine.ready() && read_target.size() > kBulkTargetBytes &&
      secure->in.size() < kBulkReadBytes) {
    secure->in.resize(kBulkReadBytes);
  }
  socket.async_read_some(
      asio::buffer(secure->in.data(), secure->in.size()),
      [self = shared_from_this()](const asio::error_code& ec, std::size_t bytes) {
        self->secure->reading = false;
        self->tls_on_bytes(ec, bytes);
      });
}

void Connection::Impl::tls_on_bytes(const asio::error_code& ec, std::size_t bytes) {
  bytes_in += bytes;
  if (state != State::kOpen) {
    return;
  }
  if (ec) {
    return lose(ec);
  }
  if (const Status fed = secure->engine.feed(ByteView(secure->in).first(bytes)); !fed) {
    return tls_fail(fed.error());
  }
  tls_pump();
}

void Connection::Impl::tls_pump() {
  if (state != State::kOpen || secure->pumping) {
    return;
  }
  secure->pumping = true;
  while (state == State::kOpen && tls_step()) {
  }
  secure->pumping = false;
  if (state != State::kOpen) {
    return;
  }
  tls_write();
  if (!secure->engine.ready() || read_done) {
    tls_read_socket();
  }
}

// One turn of the handshake or of the read in progress; false when there is nothing more to do now.
bool Connection::Impl::tls_step() {
  if (!secure->engine.ready()) {
    const Result<bool> ready = secure->engine.handshake();
    if (!ready) {
      tls_fail(ready.error());
      return false;
    }
    if (*ready && secure->ready) {
      const auto call = std::exchange(secure->ready, nullptr);
      call();
    }
    return *ready;
  }
  if (!read_done) {
    return false;
  }
  const bool full = read_filled == read_target.size();
  if (!full) {
    const Result<std::size_t> bytes = secure->engine.read(read_target.subspan(read_filled));
    if (!bytes) {
      tls_fail(bytes.error());
      return false;
    }
    read_filled += *bytes;
    if (*bytes > 0) {
      return true;
    }
  }
  if (!full && (read_whole || read_filled == 0)) {
    return false;
  }
  const auto done = std::exchange(read_done, nullptr);
  done(read_filled);
  return true;
}

void Connection::Impl::tls_write() {
  if (writing || write_broken || state == State::kClosed) {
    return;
  }
  if (secure->out_sent == secure->out.size()) {
    secure->out.clear();
    secure->out_sent = 0;
    handed = 0;
    const bool may_write = secure->engine.ready() && !writes.empty();
    const std::size_t allowance = may_write ? write_allowance() : kBatchBytes;
    if (allowance == 0) {
      return;
    }
    const Status encrypted = tls_encrypt(std::min(allowance, kBatchBytes));
    if (!encrypted) {
      return state == State::kFlushing ? finish_flush() : tls_fail(encrypted.error());
    }
    secure->engine.take_output(secure->out);
  }
  // A write of no bytes is done like any other.
  if (secure->out.empty() && (writes.empty() || !secure->engine.ready())) {
    return;
  }
  writing = true;
  socket.async_write_some(
      asio::buffer(secure->out.data() + secure->out_sent, secure->out.size() - secure->out_sent),
      [self = shared_from_this()](const asio::error_code& ec, std::size_t bytes) {
        self->tls_on_written(ec, bytes);
      });
}

// From the head of the queue into the engine; after the last bytes of a graceful end our close
// notice.
Status Connection::Impl::tls_encrypt(std::size_t allowance) {
  if (!secure->engine.ready()) {
    return Unit{};
  }
  while (handed < writes.size() && secure->plain < allowance) {
    const Write& write = writes[handed];
    const bool first = handed == 0;
    for (std::size_t p = first ? part : 0; p < write.count && secure->plain < allowance; ++p) {
      const ByteView all = write.parts[p].subspan(first && p == part ? part_offset : 0);
      const ByteView bytes = all.first(std::min(all.size(), allowance - secure->plain));
      YETO_TRY(secure->engine.write(bytes));
      secure->plain += bytes.size();
    }
    ++handed;
  }
  if (state == State::kFlushing && secure->plain == queued && !secure->finished) {
    secure->finished = true;
    secure->engine.finish();
  }
  return Unit{};
}

void Connection::Impl::tls_on_written(const asio::error_code& ec, std::size_t bytes) {
  writing = false;
  bytes_out += bytes;
  if (state == State::kClosed) {
    return;
  }
  secure->out_sent += bytes;
  if (ec && !(state == State::kFlushing && ec == asio::error::operation_aborted)) {
    return on_write_error(ec);
  }
  if (secure->out_sent < secure->out.size()) {
    return tls_write();
  }
  const auto sent = advance(std::exchange(secure->plain, 0));
  if (state == State::kFlushing && secure->finished && writes.empty()) {
    return discard_input();
  }
  if (!writes.empty() || secure->engine.has_output() || state == State::kFlushing) {
    tls_write();
  }
  for (const auto& callback : sent) {
    if (state == State::kOpen) {
      callback();
    }
  }
}

// Tells the peer why, as far as the kernel takes it at once, and then the owner.
void Connection::Impl::tls_fail(Error error) {
  if (!writing) {
    secure->engine.take_output(secure->out);
    asio::error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(
        asio::buffer(secure->out.data() + secure->out_sent, secure->out.size() - secure->out_sent),
        ignored);
  }
  if (error.where.empty()) {
    error.where = peer.text();
  }
  lose_with(std::move(error));
}

}  // namespace yeto::net
