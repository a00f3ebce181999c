// SPDX-License-Identifier: Apache-2.0
#include "yeto/net/socket_tuning.h"

#ifdef __linux__
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#endif
#include <sys/socket.h>

#include <algorithm>

namespace yeto::net {
#ifdef __linux__
namespace {

// Errors do not matter here: a socket without the option works, only with other delays.
void set(int socket, int option, unsigned value) {
  ::setsockopt(socket, IPPROTO_TCP, option, &value, sizeof value);
}

}  // namespace

void set_liveness(int socket, Nanos silence) {
  constexpr Nanos kLeast = 4 * kSecond;
  const auto whole = static_cast<unsigned>(std::max(silence, kLeast) / kSecond);
  set(socket, TCP_USER_TIMEOUT, whole * 1000);
  set(socket, TCP_KEEPIDLE, whole / 4);
  set(socket, TCP_KEEPINTVL, whole / 4);
  set(socket, TCP_KEEPCNT, 3);
}

void set_unsent_limit(int socket, std::size_t bytes) {
  set(socket, TCP_NOTSENT_LOWAT, static_cast<unsigned>(bytes));
}

std::size_t unacknowledged_bytes(int socket) {
  int bytes = 0;
  return ::ioctl(socket, SIOCOUTQ, &bytes) == 0 ? static_cast<std::size_t>(bytes) : 0;
}

Nanos shortest_round_trip(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      info.tcpi_min_rtt == 0xffffffff) {
    return 0;
  }
  return static_cast<Nanos>(info.tcpi_min_rtt) * 1000;
}

#else

void set_liveness(int, Nanos) {}
void set_unsent_limit(int, std::size_t) {}
std::size_t unacknowledged_bytes(int) { return 0; }
Nanos shortest_round_trip(int) { return 0; }

#endif

}  // namespace yeto::net
