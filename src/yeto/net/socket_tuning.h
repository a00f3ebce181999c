// SPDX-License-Identifier: Apache-2.0
// What is set on, and asked of, a TCP socket beyond the portable options. For this room only.
// A system that lacks one of them goes without: the functions then do nothing, or know nothing (0).
#pragma once

#include <cstddef>

#include "yeto/base/clock.h"

namespace yeto::net {

// A peer that acknowledges nothing for `silence` (at least 4 s), be it data or keep-alive probes,
// is lost. Idle connections are probed every quarter of that, which also keeps NATs from forgetting
// them.
void set_liveness(int socket, Nanos silence);
// The kernel reports a socket as writable only below so many unsent bytes: what waits stays with
// us, where it can still go another way.
void set_unsent_limit(int socket, std::size_t bytes);
// Bytes in the kernel that the peer has not acknowledged.
std::size_t unacknowledged_bytes(int socket);
// The shortest round trip seen on this connection; 0: unknown.
Nanos shortest_round_trip(int socket);

}  // namespace yeto::net
