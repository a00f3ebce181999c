// SPDX-License-Identifier: Apache-2.0
#include "yeto/net/http_server.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/base/thread.h"
#include "yeto/net/connection.h"
#include "yeto/net/loop.h"

namespace yeto::net {
namespace {

constexpr Nanos kSendLimit = 10 * kSecond;
constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kHeadEnd = "\r\n\r\n";

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 431:
      return "Request Header Fields Too Large";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Service Unavailable";
  }
}

HttpParse refuse(int status, std::string text) {
  HttpParse parse;
  parse.refusal.status = status;
  parse.refusal.body = std::move(text) + "\n";
  return parse;
}

bool equal_without_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) {
    text.remove_prefix(1);
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) {
    text.remove_suffix(1);
  }
  return text;
}

// "127.0.0.1:9090", "[::1]", "localhost": a name that only this machine answers to.
bool is_own_host(std::string_view host) {
  const bool has_port = !host.empty() && host.back() != ']' && host.find(':') != host.npos;
  const std::string text = has_port ? std::string(host) : std::string(host) + ":0";
  const Result<Address> address = parse_address(text);
  return address && is_loopback(*address);
}

// The one Host of the header lines; nothing if there is none, or more than one.
std::optional<std::string_view> host_of(std::string_view lines) {
  std::optional<std::string_view> host;
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find(kLineEnd), lines.size());
    const std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + kLineEnd.size(), lines.size()));
    const std::size_t colon = line.find(':');
    if (colon != line.npos && equal_without_case(line.substr(0, colon), "host")) {
      if (host) {
        return std::nullopt;
      }
      host = trimmed(line.substr(colon + 1));
    }
  }
  return host;
}

std::string head_of(const HttpResponse& response) {
  return strf(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}Cache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
      response.status, reason_of(response.status), response.type, response.body.size(),
      response.status == 405 ? "Allow: GET, HEAD\r\n" : "");
}

}  // namespace

HttpParse parse_http_head(std::string_view head) {
  const std::size_t line_end = head.find(kLineEnd);
  const std::string_view line = head.substr(0, line_end);
  const std::size_t first = line.find(' ');
  const std::size_t second = first == line.npos ? line.npos : line.find(' ', first + 1);
  if (second == line.npos || line.find(' ', second + 1) != line.npos) {
    return refuse(400, "this is not an HTTP request");
  }
  const std::string_view method = line.substr(0, first);
  std::string_view target = line.substr(first + 1, second - first - 1);
  const std::string_view version = line.substr(second + 1);
  if (!version.starts_with("HTTP/")) {
    return refuse(400, "this is not an HTTP request");
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return refuse(505, "HTTP/1.1 and HTTP/1.0 are understood here");
  }
  if (!target.starts_with('/') || std::any_of(target.begin(), target.end(), [](char c) {
        return static_cast<unsigned char>(c) <= ' ' || static_cast<unsigned char>(c) >= 127;
      })) {
    return refuse(400, "the path must begin with / and be plain ASCII");
  }
  const std::optional<std::string_view> host = host_of(head.substr(line_end + kLineEnd.size()));
  if (!host && version == "HTTP/1.1") {
    return refuse(400, "one Host is needed");
  }
  if (host && !is_own_host(*host)) {
    return refuse(403, "the Host must be a loopback address or localhost");
  }
  if (method != "GET" && method != "HEAD") {
    return refuse(405, "only GET and HEAD are answered here");
  }
  HttpParse parse;
  parse.request.head_only = method == "HEAD";
  parse.request.path = std::string(target.substr(0, target.find('?')));
  return parse;
}

class HttpServer::Impl {
 public:
  Impl(Handler handler, Nanos head_timeout)
      : handler_(std::move(handler)), head_timeout_(head_timeout) {}
  ~Impl() {
    loop_.post([this] {
      listener_.reset();
      for (auto& [id, visit] : visits_) {
        loop_.cancel(visit.timer);
      }
      visits_.clear();
      loop_.stop();
    });
    thread_.join();
  }

  Status listen(const Address& address) {
    YETO_ASSIGN(listener_, Listener::open(loop_, address, [this](auto connection) {
                  on_accept(std::move(connection));
                }));
    address_ = listener_->address();
    thread_ = JoiningThread([this] { loop_.run(); });
    return Unit{};
  }
  const Address& address() const { return address_; }

 private:
  struct Visit {
    std::unique_ptr<Connection> connection;
    std::array<std::uint8_t, kMaxHttpHeadBytes> head{};
    std::size_t filled = 0;
    TimerId timer = 0;
  };

  void on_accept(std::unique_ptr<Connection> connection) {
    const std::uint64_t id = ++last_visit_;
    Visit& visit = visits_[id];
    visit.connection = std::move(connection);
    visit.connection->set_close_handler([this, id](const Error&) { end(id); });
    visit.timer = loop_.after(head_timeout_, [this, id] {
      answer(id, {408, "text/plain; charset=utf-8", "no request came in time\n"}, false);
    });
    read(id);
    count_changed();
  }

  void read(std::uint64_t id) {
    Visit& visit = visits_.at(id);
    visit.connection->read_some(MutableByteView(visit.head).subspan(visit.filled),
                                [this, id](std::size_t bytes) { on_bytes(id, bytes); });
  }

  void on_bytes(std::uint64_t id, std::size_t bytes) {
    Visit& visit = visits_.at(id);
    visit.filled += bytes;
    const std::string_view text(reinterpret_cast<const char*>(visit.head.data()), visit.filled);
    const std::size_t end = text.find(kHeadEnd);
    if (end != text.npos) {
      const HttpParse parse = parse_http_head(text.substr(0, end + kHeadEnd.size()));
      const bool refused = parse.refusal.status != 200;
      answer(id, refused ? parse.refusal : handler_(parse.request), parse.request.head_only);
    } else if (visit.filled == visit.head.size()) {
      answer(id, {431, "text/plain; charset=utf-8", "the head of the request is too long\n"},
             false);
    } else {
      read(id);
    }
  }

  void answer(std::uint64_t id, const HttpResponse& response, bool head_only) {
    const auto found = visits_.find(id);
    if (found == visits_.end()) {
      return;
    }
    Visit& visit = found->second;
    const auto owner =
        std::make_shared<const std::string>(head_of(response) + (head_only ? "" : response.body));
    const ByteView part = as_bytes_view(*owner);
    visit.connection->write({&part, 1}, owner);
    ++farewells_;
    visit.connection->close_gracefully(kSendLimit, [this] {
      --farewells_;
      count_changed();
    });
    end(id);
  }

  void end(std::uint64_t id) {
    const auto found = visits_.find(id);
    if (found == visits_.end()) {
      return;
    }
    loop_.cancel(found->second.timer);
    visits_.erase(found);
    count_changed();
  }

  void count_changed() {
    if (!listener_) {
      return;
    }
    const bool full = visits_.size() + farewells_ >= kMaxHttpConnections;
    if (full && !listener_->paused()) {
      listener_->pause();
    } else if (!full && listener_->paused()) {
      listener_->resume();
    }
  }

  const Handler handler_;
  const Nanos head_timeout_;
  Address address_;
  std::size_t farewells_ = 0;  // answers that are still being sent
  std::uint64_t last_visit_ = 0;
  Loop loop_;
  std::unique_ptr<Listener> listener_;
  std::map<std::uint64_t, Visit> visits_;
  JoiningThread thread_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
Address HttpServer::address() const { return impl_->address(); }

Result<std::unique_ptr<HttpServer>> HttpServer::open(const Address& address, Handler handler,
                                                     Nanos head_timeout) {
  if (!is_loopback(address)) {
    return fail(ErrorCode::kPermission, "status pages are served on loopback only", address.text(),
                "give 127.0.0.1:PORT or [::1]:PORT; from another machine, forward that port "
                "(ssh -L)");
  }
  auto impl = std::make_unique<Impl>(std::move(handler), head_timeout);
  YETO_TRY(impl->listen(address));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

}  // namespace yeto::net
