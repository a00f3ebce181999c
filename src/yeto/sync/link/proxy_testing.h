// SPDX-License-Identifier: Apache-2.0
// Proxy: a bad network in user space, for tests and benchmarks. It listens on a free loopback port
// and forwards every connection to a target, through one bottleneck for all of them (bytes per
// second and latency each way, first in first out, a short buffer) and one for each. Connections
// can be cut, all traffic can stand still (a partition: nothing is lost, nothing arrives), and
// flows over which nothing came for a while can be forgotten, as a NAT does: nothing passes any
// more and nobody is told.
//
// It has a thread of its own; all methods are thread-safe. Connections are numbered in the order
// they were accepted, from 0.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/base/clock.h"
#include "yeto/base/result.h"
#include "yeto/base/thread.h"
#include "yeto/net/address.h"

namespace yeto::sync {

struct ProxyRules {
  double bytes_per_second = 0.0;  // each way; 0: no limit
  Nanos latency = 0;              // each way
  bool stands_still = false;
  Nanos forget_idle = 0;  // a connection over which nothing came for so long; 0: never
};

struct ProxyCounters {
  std::size_t accepted = 0;
  std::size_t open = 0;
  std::size_t forgotten = 0;
  std::uint64_t bytes_up = 0;  // forwarded towards the target
  std::uint64_t bytes_down = 0;
};

class Proxy {
 public:
  // `socket_bytes`: receive buffers of its sockets; small ones keep bytes on the side of the
  // sender, as a long path does. 0: what the kernel thinks best.
  explicit Proxy(const net::Address& target, int socket_bytes = 0)
      : target_(target), socket_bytes_(socket_bytes) {
    YETO_CHECK(::pipe2(wake_.data(), O_CLOEXEC | O_NONBLOCK) == 0, "pipe");
    listener_ = make_socket();
    sockaddr_in at = address_of({"127.0.0.1", 0});
    socklen_t size = sizeof at;
    YETO_CHECK(::bind(listener_, as_sockaddr(&at), size) == 0 && ::listen(listener_, 1024) == 0 &&
                   ::getsockname(listener_, as_sockaddr(&at), &size) == 0,
               "a proxy cannot listen");
    address_ = {"127.0.0.1", ntohs(at.sin_port)};
    thread_ = JoiningThread([this] { run(); });
  }
  ~Proxy() {
    {
      MutexLock lock(mutex_);
      ended_ = true;
    }
    wake();
    thread_.join();
    flows_.clear();
    ::close(listener_);
    ::close(wake_[0]);
    ::close(wake_[1]);
  }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  net::Address address() const { return address_; }
  // For the bottleneck of all connections, present and future. While it stands still no connection
  // is accepted either.
  void set(const ProxyRules& rules) {
    MutexLock lock(mutex_);
    rules_ = rules;
    wake();
  }
  // For one connection, which may not be there yet, besides what holds for all.
  void set(std::size_t connection, const ProxyRules& rules) {
    MutexLock lock(mutex_);
    own_rules_[connection] = rules;
    wake();
  }
  void cut(std::size_t connection) {
    MutexLock lock(mutex_);
    cuts_.push_back(connection);
    wake();
  }
  void cut_all() {
    MutexLock lock(mutex_);
    for (const auto& [number, flow] : flows_) {
      cuts_.push_back(number);
    }
    wake();
  }
  // Forwarded over this connection, both ways.
  std::uint64_t bytes_of(std::size_t connection) {
    MutexLock lock(mutex_);
    return bytes_of_[connection];
  }
  ProxyCounters counters() {
    MutexLock lock(mutex_);
    ProxyCounters counters = counters_;
    counters.open = flows_.size();
    return counters;
  }

 private:
  static constexpr std::size_t kPiece = 16 << 10;
  // How much the bottleneck holds, in time of its rate.
  static constexpr Nanos kBacklog = 50 * kMillisecond;
  // Without a rate: what one way of a connection holds.
  static constexpr std::size_t kHeldMost = 1 << 20;

  // When the next byte may pass.
  struct Bottleneck {
    Nanos free_at = 0;
    Nanos pass(Nanos now, std::size_t bytes, double rate) {
      free_at = std::max(free_at, now);
      if (rate > 0.0) {
        free_at += static_cast<Nanos>(static_cast<double>(bytes) / rate * kSecond);
      }
      return free_at;
    }
    bool has_room(Nanos now) const { return free_at - now < kBacklog; }
  };
  struct Piece {
    Nanos due = 0;
    Bytes bytes;
    std::size_t sent = 0;
  };
  // One way of a connection.
  struct Way {
    int from = -1;
    int to = -1;
    Bottleneck bottleneck;
    std::deque<Piece> pieces;
    std::size_t held = 0;
    bool ended = false;    // nothing more comes from `from`
    bool blocked = false;  // `to` takes nothing now
    bool done() const { return ended && pieces.empty(); }
  };
  struct Flow {
    ~Flow() {
      ::close(ways[0].from);
      ::close(ways[0].to);
    }
    std::array<Way, 2> ways;  // up, down
    Nanos moved_at = 0;
    bool forgotten = false;
    bool broken = false;
  };

  static sockaddr* as_sockaddr(sockaddr_in* at) { return reinterpret_cast<sockaddr*>(at); }
  static sockaddr_in address_of(const net::Address& address) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(address.port);
    YETO_CHECK(::inet_pton(AF_INET, address.host.c_str(), &at.sin_addr) == 1,
               "a proxy needs an IPv4 address");
    return at;
  }
  int make_socket() const {
    const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    YETO_CHECK(made >= 0, "socket");
    if (socket_bytes_ > 0) {
      ::setsockopt(made, SOL_SOCKET, SO_RCVBUF, &socket_bytes_, sizeof socket_bytes_);
      ::setsockopt(made, SOL_SOCKET, SO_SNDBUF, &socket_bytes_, sizeof socket_bytes_);
      // Loopback's segments of 64 KiB would not fit, and wait for timers.
      const int segment = 1448;
      ::setsockopt(made, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment);
    }
    return made;
  }
  void wake() const {
    const char byte = 0;
    (void)!::write(wake_[1], &byte, 1);  // full: it will wake anyway
  }

  void run() {
    std::vector<pollfd> polled;
    while (true) {
      int timeout_ms = -1;
      {
        MutexLock lock(mutex_);
        if (ended_) {
          return;
        }
        timeout_ms = turn(polled);
      }
      ::poll(polled.data(), polled.size(), timeout_ms);
      std::array<char, 256> drained{};
      (void)!::read(wake_[0], drained.data(), drained.size());
    }
  }

  // Moves what can be moved; what to wait for next.
  int turn(std::vector<pollfd>& polled) YETO_REQUIRES(mutex_) {
    const Nanos now = monotonic_now();
    for (const std::size_t number : std::exchange(cuts_, {})) {
      flows_.erase(number);
    }
    polled.assign({{wake_[0], POLLIN, 0}});
    if (!rules_.stands_still) {
      accept_all(now);
      polled.push_back({listener_, POLLIN, 0});
    }
    Nanos next = now + kSecond;
    take_in_turns(now);
    for (auto it = flows_.begin(); it != flows_.end();) {
      give(it->first, *it->second, now);
      const Flow& flow = *it->second;
      const bool over = flow.broken || (flow.ways[0].done() && flow.ways[1].done());
      it = over ? flows_.erase(it) : std::next(it);
    }
    for (auto& [number, flow] : flows_) {
      next = std::min(next, wait_for(number, *flow, now, polled));
    }
    return static_cast<int>((std::max<Nanos>(next - now, 0) + kMillisecond - 1) / kMillisecond);
  }

  void accept_all(Nanos now) YETO_REQUIRES(mutex_) {
    while (true) {
      const int here = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (here < 0) {
        return;
      }
      const int there = make_socket();
      sockaddr_in at = address_of(target_);
      const int on = 1;
      ::setsockopt(here, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      ::setsockopt(there, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      if (::connect(there, as_sockaddr(&at), sizeof at) != 0 && errno != EINPROGRESS) {
        ::close(here);
        ::close(there);
        continue;
      }
      auto flow = std::make_unique<Flow>();
      flow->ways[0].from = flow->ways[1].to = here;
      flow->ways[0].to = flow->ways[1].from = there;
      flow->moved_at = now;
      flows_[counters_.accepted++] = std::move(flow);
    }
  }

  bool is_still(std::size_t number, const Flow& flow) const YETO_REQUIRES(mutex_) {
    const auto own = own_rules_.find(number);
    return flow.forgotten || rules_.stands_still ||
           (own != own_rules_.end() && own->second.stands_still);
  }
  ProxyRules own_rules(std::size_t number) const YETO_REQUIRES(mutex_) {
    const auto own = own_rules_.find(number);
    return own == own_rules_.end() ? ProxyRules() : own->second;
  }
  bool may_take(const Way& way, std::size_t up_or_down, Nanos now) const YETO_REQUIRES(mutex_) {
    return !way.ended && way.held < kHeldMost && way.bottleneck.has_room(now) &&
           shared_[up_or_down].has_room(now);
  }

  // Piece by piece, beginning after the connection that was served last, so that all share the
  // bottleneck evenly.
  void take_in_turns(Nanos now) YETO_REQUIRES(mutex_) {
    std::size_t idle = 0;
    auto it = flows_.upper_bound(served_last_);
    while (idle < flows_.size()) {
      it = it == flows_.end() ? flows_.begin() : it;
      const bool came = take(it->first, *it->second, now);
      served_last_ = came ? it->first : served_last_;
      idle = came ? 0 : idle + 1;
      ++it;
    }
  }

  // Reads at most one piece each way; true if something came.
  bool take(std::size_t number, Flow& flow, Nanos now) YETO_REQUIRES(mutex_) {
    const ProxyRules own = own_rules(number);
    const Nanos forget = own.forget_idle > 0 ? own.forget_idle : rules_.forget_idle;
    if (!flow.forgotten && forget > 0 && now - flow.moved_at >= forget) {
      flow.forgotten = true;
      ++counters_.forgotten;
    }
    if (is_still(number, flow)) {
      return false;
    }
    bool came = false;
    for (std::size_t i = 0; i < 2; ++i) {
      Way& way = flow.ways[i];
      if (!may_take(way, i, now)) {
        continue;
      }
      Piece piece;
      piece.bytes.resize(kPiece);
      const ssize_t got = ::recv(way.from, piece.bytes.data(), kPiece, 0);
      if (got <= 0) {
        way.ended = way.ended || got == 0;
        flow.broken = flow.broken || (got < 0 && errno != EAGAIN && errno != ENOTCONN);
        continue;
      }
      piece.bytes.resize(static_cast<std::size_t>(got));
      const std::size_t bytes = piece.bytes.size();
      const Nanos passed = shared_[i].pass(now, bytes, rules_.bytes_per_second);
      piece.due =
          way.bottleneck.pass(passed, bytes, own.bytes_per_second) + own.latency + rules_.latency;
      way.held += piece.bytes.size();
      way.pieces.push_back(std::move(piece));
      flow.moved_at = now;
      came = true;
    }
    return came;
  }

  // Writes what is due.
  void give(std::size_t number, Flow& flow, Nanos now) YETO_REQUIRES(mutex_) {
    if (is_still(number, flow)) {
      return;
    }
    for (std::size_t i = 0; i < 2; ++i) {
      Way& way = flow.ways[i];
      way.blocked = false;
      while (!way.blocked && !way.pieces.empty() && way.pieces.front().due <= now) {
        Piece& piece = way.pieces.front();
        const ssize_t sent = ::send(way.to, piece.bytes.data() + piece.sent,
                                    piece.bytes.size() - piece.sent, MSG_NOSIGNAL);
        if (sent < 0) {
          way.blocked = errno == EAGAIN || errno == ENOTCONN;
          flow.broken = flow.broken || !way.blocked;
          break;
        }
        piece.sent += static_cast<std::size_t>(sent);
        (i == 0 ? counters_.bytes_up : counters_.bytes_down) += static_cast<std::uint64_t>(sent);
        bytes_of_[number] += static_cast<std::uint64_t>(sent);
        if (piece.sent == piece.bytes.size()) {
          way.held -= piece.bytes.size();
          way.pieces.pop_front();
        }
      }
      if (way.done()) {
        ::shutdown(way.to, SHUT_WR);
      }
    }
  }

  // Adds the flow's sockets to `polled`; when it wants a turn even if nothing happens on them.
  Nanos wait_for(std::size_t number, const Flow& flow, Nanos now, std::vector<pollfd>& polled)
      YETO_REQUIRES(mutex_) {
    Nanos next = now + kSecond;
    const Nanos own_forget = own_rules(number).forget_idle;
    const Nanos forget = own_forget > 0 ? own_forget : rules_.forget_idle;
    if (forget > 0 && !flow.forgotten) {
      next = std::min(next, flow.moved_at + forget);
    }
    if (is_still(number, flow)) {
      return next;
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const Way& way = flow.ways[i];
      if (may_take(way, i, now)) {
        polled.push_back({way.from, POLLIN, 0});
      } else if (!way.ended && way.held < kHeldMost) {
        next = std::min(next, std::max(way.bottleneck.free_at, shared_[i].free_at) - kBacklog + 1);
      }
      if (way.blocked) {
        polled.push_back({way.to, POLLOUT, 0});
      } else if (!way.pieces.empty()) {
        next = std::min(next, way.pieces.front().due);
      }
    }
    return next;
  }

  const net::Address target_;
  const int socket_bytes_;
  net::Address address_;
  int listener_ = -1;
  std::array<int, 2> wake_{};

  Mutex mutex_;
  bool ended_ YETO_GUARDED_BY(mutex_) = false;
  ProxyRules rules_ YETO_GUARDED_BY(mutex_);
  std::map<std::size_t, ProxyRules> own_rules_ YETO_GUARDED_BY(mutex_);
  std::vector<std::size_t> cuts_ YETO_GUARDED_BY(mutex_);
  std::size_t served_last_ YETO_GUARDED_BY(mutex_) = 0;
  std::array<Bottleneck, 2> shared_ YETO_GUARDED_BY(mutex_);
  std::map<std::size_t, std::unique_ptr<Flow>> flows_ YETO_GUARDED_BY(mutex_);
  ProxyCounters counters_ YETO_GUARDED_BY(mutex_);
  std::map<std::size_t, std::uint64_t> bytes_of_ YETO_GUARDED_BY(mutex_);
  JoiningThread thread_;
};

}  // namespace yeto::sync
