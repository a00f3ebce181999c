// SPDX-License-Identifier: Apache-2.0
#include <asio/ip/tcp.hpp>
#include <utility>
#include <vector>

#include "yeto/base/format.h"
#include "yeto/net/connection_impl.h"

namespace yeto::net {

using asio::ip::tcp;

struct Connecting::Impl : std::enable_shared_from_this<Connecting::Impl> {
  Impl(Loop& of_loop, const Address& of_address, ConnectHandler handler,
       std::shared_ptr<const Tls> of_tls)
      : loop(of_loop),
        address(of_address),
        done(std::move(handler)),
        tls(std::move(of_tls)),
        resolver(of_loop.impl().io),
        socket(of_loop.impl().io) {}

  void start(Nanos timeout) {
    timer = loop.after(timeout, [self = shared_from_this(), timeout] {
      self->end(fail(ErrorCode::kTimeout,
                     strf("no connection within {}", human_seconds(seconds(timeout))),
                     self->address.text(), "check host, port and firewall"));
    });
    if (const auto literal = literal_endpoint(address)) {
      endpoints.push_back(*literal);
      return try_next();
    }
    resolver.async_resolve(address.host, std::to_string(address.port),
                           [self = shared_from_this()](const asio::error_code& ec,
                                                       const tcp::resolver::results_type& found) {
                             self->on_resolved(ec, found);
                           });
  }

  void on_resolved(const asio::error_code& ec, const tcp::resolver::results_type& found) {
    if (ec || found.empty()) {
      return end(fail(ErrorCode::kUnreachable,
                      strf("cannot resolve the host name: {}", ec.message()), address.text(),
                      "check the name"));
    }
    for (const auto& entry : found) {
      endpoints.push_back(entry.endpoint());
    }
    try_next();
  }

  void try_next() {
    if (!done) {
      return;
    }
    socket = tcp::socket(loop.impl().io);
    socket.async_connect(endpoints[next++], [self = shared_from_this()](asio::error_code ec) {
      self->on_connected(ec);
    });
  }

  void on_connected(asio::error_code ec) {
    if (!done) {
      return;
    }
    // A port nobody listens on, out of the range the kernel picks from, can connect to itself.
    asio::error_code ignored;
    if (!ec && socket.local_endpoint(ignored) == socket.remote_endpoint(ignored)) {
      ec = asio::error::connection_refused;
    }
    if (!ec) {
      const auto connected = std::make_shared<Connection::Impl>(loop, std::move(socket));
      auto handle = std::make_unique<Connection>(connected);
      return tls ? prove(connected, std::move(handle)) : end(std::move(handle));
    }
    if (next < endpoints.size()) {
      return try_next();
    }
    end(fail(ErrorCode::kUnreachable, strf("cannot connect: {}", ec.message()), address.text(),
             "check that the peer is running and listens there"));
  }

  // The handshake. Another endpoint of the same name would show the same certificate, so a failure
  // is the end.
  void prove(const std::shared_ptr<Connection::Impl>& connected,
             std::unique_ptr<Connection> handle) {
    proving = std::move(handle);
    proving->set_close_handler([self = shared_from_this()](const Error& error) {
      Error told = error;
      told.where = self->address.text();
      self->end(fail(std::move(told)));
    });
    connected->start_tls(tls, TlsEngine::Side::kConnects, [self = shared_from_this()] {
      if (self->proving) {
        self->proving->set_close_handler(nullptr);
        self->end(std::move(self->proving));
      }
    });
  }

  void end(Result<std::unique_ptr<Connection>> result) {
    loop.cancel(timer);
    const auto handler = std::exchange(done, nullptr);
    close();
    if (handler) {
      handler(std::move(result));
    }
  }

  void close() {
    asio::error_code ignored;
    resolver.cancel();
    socket.close(ignored);
    proving.reset();
  }

  Loop& loop;
  Address address;
  ConnectHandler done;
  const std::shared_ptr<const Tls> tls;
  std::unique_ptr<Connection> proving;  // during the handshake
  tcp::resolver resolver;
  tcp::socket socket;
  std::vector<tcp::endpoint> endpoints;
  std::size_t next = 0;
  TimerId timer = 0;
};

Connecting::Connecting(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Connecting::~Connecting() {
  impl_->loop.cancel(impl_->timer);
  const auto dropped = std::exchange(impl_->done, nullptr);
  impl_->close();
}

std::unique_ptr<Connecting> connect(Loop& loop, const Address& address, Nanos timeout,
                                    ConnectHandler done, std::shared_ptr<const Tls> tls) {
  auto impl = std::make_shared<Connecting::Impl>(loop, address, std::move(done), std::move(tls));
  impl->start(timeout);
  return std::make_unique<Connecting>(std::move(impl));
}

}  // namespace yeto::net
