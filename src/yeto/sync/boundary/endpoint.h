// SPDX-License-Identifier: Apache-2.0
// Small inputs of the boundary: where the syncer is, the key of the seat, a metric's text. Pure but
// for reading files; thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "yeto/base/digest.h"
#include "yeto/base/result.h"
#include "yeto/net/address.h"

namespace yeto::sync::client {

using SeatKey = Sha256;

// Addresses that may be connected to: without TLS, and unless the user asks for plain TCP, only
// those of this machine.
enum class Reach : std::uint8_t { kLoopback, kAnywhere };

// Where a syncer says it is, from "host:port" or "@FILE" (endpoint.json, written by the syncer at
// each of its starts).
class Endpoint {
 public:
  // kUsage for text that is neither; kPermission for an address out of reach.
  static Result<Endpoint> parse(std::string_view text, std::string run_id,
                                Reach reach = Reach::kLoopback);
  // Reads the file again. kNotFound while it is missing, kConfig for one that cannot be understood
  // (both may pass), kConflict for another run, kPermission as above.
  Result<net::Address> resolve() const;
  std::string text() const;

 private:
  std::filesystem::path file_;  // empty: a fixed address
  net::Address address_;
  std::string run_id_;
  Reach reach_ = Reach::kLoopback;
};

// 32 bytes as 64 hex digits in a file that nobody else can read. kNotFound, kData, kPermission.
Result<SeatKey> read_seat_key(const std::filesystem::path& path);

// kData unless the text is one JSON object of at most 8 KiB on one line.
Status check_metric(std::string_view text);

}  // namespace yeto::sync::client
