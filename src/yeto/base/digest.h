// SPDX-License-Identifier: Apache-2.0
// Digests: SHA-256 for identities, XXH3-128 for equality of values, CRC-32C for damage on the wire,
// HMAC and HKDF (RFC 2104, RFC 5869) for the proof of a session. All functions are thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "yeto/base/bytes.h"
#include "yeto/base/result.h"

namespace yeto {

using Sha256 = std::array<std::uint8_t, 32>;
using Xxh128 = std::array<std::uint8_t, 16>;  // canonical (big-endian) form

Sha256 sha256(ByteView bytes);
// SHA-256 of a file's content, read in pieces. kNotFound or kIo.
Result<Sha256> sha256_file(const std::filesystem::path& path);

// SHA-256 of bytes given in pieces. Not thread-safe.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  Sha256Stream(const Sha256Stream&) = delete;
  Sha256Stream& operator=(const Sha256Stream&) = delete;
  void update(ByteView bytes);
  Sha256 finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

Sha256 hmac_sha256(ByteView key, ByteView message);
// 32 bytes of HKDF-SHA256 with an empty salt.
Sha256 hkdf_sha256(ByteView key, ByteView info);
// Comparison whose time does not depend on the content.
bool equal_constant_time(ByteView a, ByteView b);

Xxh128 xxh3_128(ByteView bytes);

// CRC-32C (Castagnoli), by instruction where the CPU has it. crc32c("123456789") = 0xe3069283.
std::uint32_t crc32c(ByteView bytes, std::uint32_t before = 0);
// The CRC of two pieces, one after the other, from the CRCs of each. About a microsecond.
std::uint32_t crc32c_join(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes);

}  // namespace yeto
