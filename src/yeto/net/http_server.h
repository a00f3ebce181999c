// SPDX-License-Identifier: Apache-2.0
// HttpServer: a few read-only pages for people and monitors on this machine. HTTP/1.1, GET and
// HEAD, one request per connection, on a thread of its own. It listens on loopback only, and a
// request whose Host is another name is refused, so that no web page can read it through a browser.
//
// Limits: kMaxHttpConnections at once (others wait in the kernel's backlog), a head of at most
// kMaxHttpHeadBytes within `head_timeout`, no bodies.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "yeto/base/bytes.h"
#include "yeto/base/clock.h"
#include "yeto/base/result.h"
#include "yeto/net/address.h"

namespace yeto::net {

inline constexpr std::size_t kMaxHttpConnections = 16;
inline constexpr std::size_t kMaxHttpHeadBytes = std::size_t{8} << 10;

struct HttpRequest {
  bool head_only = false;
  std::string path;  // without the query
};

struct HttpResponse {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

// The request in a whole head (its last four bytes are CR LF CR LF), or what to answer instead.
// Pure; takes any bytes.
struct HttpParse {
  HttpRequest request;
  HttpResponse refusal;  // status 200: there is none
};
HttpParse parse_http_head(std::string_view head);

class HttpServer {
 public:
  // Called on the server's thread, one request after the other; must not wait and not throw.
  using Handler = std::function<HttpResponse(const HttpRequest&)>;

  // kPermission for an address that is not loopback; else as Listener::open.
  static Result<std::unique_ptr<HttpServer>> open(const Address& address, Handler handler,
                                                  Nanos head_timeout = 10 * kSecond);
  // Ends the thread; no handler runs afterwards.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // With the real port. Any thread.
  Address address() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace yeto::net
