// SPDX-License-Identifier: Apache-2.0
// What plain blocking TCP sockets carry over loopback: the yardstick of everything that moves
// values.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

namespace yeto::bench {

inline void die_if(bool wrong, const char* what) {
  if (wrong) {
    std::perror(what);
    std::exit(1);
  }
}

// A connected pair of TCP sockets on 127.0.0.1.
inline std::pair<int, int> loopback_pair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  die_if(::bind(listener, generic, size) != 0 || ::listen(listener, 1) != 0, "listen");
  die_if(::getsockname(listener, generic, &size) != 0, "getsockname");
  const int here = ::socket(AF_INET, SOCK_STREAM, 0);
  die_if(::connect(here, generic, size) != 0, "connect");
  const int there = ::accept(listener, nullptr, nullptr);
  die_if(there < 0, "accept");
  const int on = 1;
  ::setsockopt(here, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(there, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::close(listener);
  return {here, there};
}

inline void send_all(int socket, const std::uint8_t* bytes, std::size_t count) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  while (count > 0) {
    const ssize_t sent = ::send(socket, bytes, std::min(count, kPiece), MSG_NOSIGNAL);
    die_if(sent <= 0, "send");
    bytes += sent;
    count -= static_cast<std::size_t>(sent);
  }
}

// In pieces of 128 KiB, which is faster than larger ones: they stay in the core's cache.
inline void receive_all(int socket, std::uint8_t* bytes, std::size_t count) {
  constexpr std::size_t kPiece = std::size_t{128} << 10;
  while (count > 0) {
    const ssize_t got = ::recv(socket, bytes, std::min(count, kPiece), 0);
    die_if(got <= 0, "recv");
    bytes += got;
    count -= static_cast<std::size_t>(got);
  }
}

// Sends `from` to `to` (equally long) over `streams` connections in equal shares, one sending and
// one receiving thread for each connection; bytes per second from the first byte to the last.
inline double raw_loopback(std::size_t streams, const std::vector<std::uint8_t>& from,
                           std::vector<std::uint8_t>& to) {
  std::vector<std::pair<int, int>> sockets;
  for (std::size_t i = 0; i < streams; ++i) {
    sockets.push_back(loopback_pair());
  }
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < streams; ++i) {
    const std::size_t first = from.size() * i / streams;
    const std::size_t count = from.size() * (i + 1) / streams - first;
    threads.emplace_back(
        [&, i, first, count] { send_all(sockets[i].first, from.data() + first, count); });
    threads.emplace_back(
        [&, i, first, count] { receive_all(sockets[i].second, to.data() + first, count); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  for (const auto& [here, there] : sockets) {
    ::close(here);
    ::close(there);
  }
  return static_cast<double>(from.size()) / took.count();
}

}  // namespace yeto::bench
