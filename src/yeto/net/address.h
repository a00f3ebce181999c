// SPDX-License-Identifier: Apache-2.0
// Addresses "host:port"; an IPv6 literal stands in brackets: "[::1]:29400". Pure, thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "yeto/base/result.h"

namespace yeto::net {

struct Address {
  std::string host;  // name or literal, without brackets
  std::uint16_t port = 0;
  // "127.0.0.1:29400", "[::1]:29400".
  std::string text() const;
  bool operator==(const Address&) const = default;
};

// kUsage with the position of what is wrong. Port 0 is allowed (a listener then gets a free one).
Result<Address> parse_address(std::string_view text);

// True for 127.0.0.0/8, ::1, their v4-mapped form and the name "localhost"; any other name is not
// resolved and counts as not loopback.
bool is_loopback(const Address& address);

}  // namespace yeto::net
