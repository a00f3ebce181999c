// SPDX-License-Identifier: Apache-2.0
#include <asio/ip/tcp.hpp>
#include <asio/ip/v6_only.hpp>
#include <cerrno>
#include <utility>
#include <vector>

#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/net/connection_impl.h"

namespace yeto::net {
namespace {

using asio::ip::tcp;

// Mostly out of descriptors or memory: accepting again at once would spin.
constexpr Nanos kAcceptPause = 100 * kMillisecond;

Error bind_error(const Address& address, const asio::error_code& ec) {
  std::string hint = "check the address";
  ErrorCode code = ErrorCode::kIo;
  if (ec == asio::error::address_in_use) {
    code = ErrorCode::kUnreachable;
    hint = "another process listens there: end it, or choose another port (0 takes a free one)";
  } else if (ec == asio::error::access_denied) {
    code = ErrorCode::kPermission;
    hint = "ports below 1024 need privileges: choose a higher one";
  } else if (ec == asio::error_code(EADDRNOTAVAIL, asio::error::get_system_category())) {
    code = ErrorCode::kUnreachable;
    hint = "this machine has no such address";
  }
  return {code, strf("cannot listen: {}", ec.message()), address.text(), std::move(hint)};
}

Result<std::vector<tcp::endpoint>> resolve(Loop& loop, const Address& address) {
  std::vector<tcp::endpoint> endpoints;
  if (const auto literal = literal_endpoint(address)) {
    endpoints.push_back(*literal);
    return endpoints;
  }
  tcp::resolver resolver(loop.impl().io);
  asio::error_code ec;
  for (const auto& entry :
       resolver.resolve(address.host, std::to_string(address.port), tcp::resolver::passive, ec)) {
    endpoints.push_back(entry.endpoint());
  }
  if (endpoints.empty()) {
    return fail(ErrorCode::kUnreachable, strf("cannot resolve the host name: {}", ec.message()),
                address.text(), "check the name");
  }
  return endpoints;
}

}  // namespace

struct Listener::Impl : std::enable_shared_from_this<Listener::Impl> {
  explicit Impl(Loop& of_loop) : loop(of_loop), acceptor(of_loop.impl().io) {}

  asio::error_code bind(const tcp::endpoint& endpoint) {
    asio::error_code ec;
    acceptor.open(endpoint.protocol(), ec);
    if (!ec) {
      // A restarted syncer takes its old port although old connections are in TIME_WAIT.
      acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
    }
    if (!ec && endpoint.address().is_v6()) {
      // The systems differ in their default.
      acceptor.set_option(asio::ip::v6_only(!endpoint.address().is_unspecified()), ec);
    }
    if (!ec) {
      acceptor.bind(endpoint, ec);
    }
    if (!ec) {
      acceptor.listen(asio::socket_base::max_listen_connections, ec);
    }
    if (!ec) {
      bound = address_of(acceptor.local_endpoint(ec));
    }
    return ec;
  }

  void start_accept() {
    accepting = true;
    acceptor.async_accept(
        [self = shared_from_this()](const asio::error_code& ec, tcp::socket socket) {
          self->accepting = false;
          self->on_accept(ec, std::move(socket));
        });
  }

  void on_accept(const asio::error_code& ec, tcp::socket socket) {
    if (!handler) {
      return;
    }
    // A peer that gave up while it waited is no reason to pause.
    if (ec && ec != asio::error::connection_aborted) {
      log(LogLevel::kWarn, "net", "{}: accepting waits: {}", bound.text(), ec.message());
      retry = loop.after(kAcceptPause, [self = shared_from_this()] { self->resume(); });
      return;
    }
    if (!ec) {
      auto connection = std::make_shared<Connection::Impl>(loop, std::move(socket));
      if (tls) {
        connection->start_tls(tls, TlsEngine::Side::kAccepts);
      }
      held = std::make_unique<Connection>(std::move(connection));
    }
    resume();
  }

  // Hands out the held connection and accepts on, unless paused.
  void resume() {
    const auto keep = shared_from_this();
    if (paused || !handler) {
      return;
    }
    if (held) {
      const auto call = handler;  // it may close the listener
      call(std::move(held));
    }
    if (!paused && handler && !accepting) {
      start_accept();
    }
  }

  Loop& loop;
  tcp::acceptor acceptor;
  Address bound;
  AcceptHandler handler;
  std::shared_ptr<const Tls> tls;
  std::unique_ptr<Connection> held;
  bool accepting = false;
  bool paused = false;
  TimerId retry = 0;
};

Listener::Listener(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Listener::~Listener() {
  impl_->handler = nullptr;
  impl_->held = nullptr;
  impl_->loop.cancel(impl_->retry);
  asio::error_code ignored;
  impl_->acceptor.close(ignored);
}

Result<std::unique_ptr<Listener>> Listener::open(Loop& loop, const Address& address,
                                                 AcceptHandler handler,
                                                 std::shared_ptr<const Tls> tls) {
  YETO_ASSIGN(const std::vector<tcp::endpoint> endpoints, resolve(loop, address));
  std::shared_ptr<Impl> impl;
  asio::error_code ec;
  // A name may stand for an address family this machine does not have.
  for (const tcp::endpoint& endpoint : endpoints) {
    impl = std::make_shared<Impl>(loop);
    ec = impl->bind(endpoint);
    if (!ec) {
      break;
    }
  }
  if (ec) {
    return fail(bind_error(address, ec));
  }
  impl->handler = std::move(handler);
  impl->tls = std::move(tls);
  impl->start_accept();
  return std::unique_ptr<Listener>(new Listener(std::move(impl)));
}

Address Listener::address() const { return impl_->bound; }
void Listener::pause() { impl_->paused = true; }
bool Listener::paused() const { return impl_->paused; }

void Listener::resume() {
  if (std::exchange(impl_->paused, false)) {
    // Not inside this call: the handler may be what called it.
    impl_->loop.post([impl = impl_] { impl->resume(); });
  }
}

}  // namespace yeto::net
