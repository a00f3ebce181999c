// SPDX-License-Identifier: Apache-2.0
#include "yeto/base/digest.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace yeto {

struct Sha256Stream::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
};

Sha256Stream::Sha256Stream() : impl_(std::make_unique<Impl>()) {
  YETO_CHECK(EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) == 1, "SHA-256 is missing");
}
Sha256Stream::~Sha256Stream() = default;

void Sha256Stream::update(ByteView bytes) {
  EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size());
}

Sha256 Sha256Stream::finish() {
  Sha256 out{};
  unsigned size = 0;
  EVP_DigestFinal_ex(impl_->context, out.data(), &size);
  return out;
}

Sha256 sha256(ByteView bytes) {
  Sha256Stream stream;
  stream.update(bytes);
  return stream.finish();
}

Result<Sha256> sha256_file(const std::filesystem::path& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    if (errno == ENOENT) {
      return fail(ErrorCode::kNotFound, "file does not exist", path.string());
    }
    return fail(io_error("cannot open file", path.string(), errno));
  }
  Sha256Stream stream;
  Bytes piece(1 << 20);
  std::size_t count = 0;
  while ((count = std::fread(piece.data(), 1, piece.size(), file)) > 0) {
    stream.update({piece.data(), count});
  }
  const bool bad = std::ferror(file) != 0;
  std::fclose(file);
  if (bad) {
    return fail(io_error("cannot read file", path.string(), errno));
  }
  return stream.finish();
}

Sha256 hmac_sha256(ByteView key, ByteView message) {
  Sha256 out{};
  unsigned size = 0;
  YETO_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), message.data(),
                  message.size(), out.data(), &size) != nullptr,
             "HMAC failed");
  return out;
}

Sha256 hkdf_sha256(ByteView key, ByteView info) {
  // RFC 5869 with an empty salt and one block of output, which is all that is needed here.
  const Sha256 salt{};
  const Sha256 extracted = hmac_sha256(salt, key);
  Bytes block(info.begin(), info.end());
  block.push_back(1);
  return hmac_sha256(extracted, block);
}

bool equal_constant_time(ByteView a, ByteView b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Xxh128 xxh3_128(ByteView bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  Xxh128 out{};
  std::memcpy(out.data(), canonical.digest, out.size());
  return out;
}

namespace {

constexpr std::uint32_t kCastagnoli = 0x82f63b78;

std::uint32_t crc32c_table(ByteView bytes, std::uint32_t crc) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> made{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) {
        value = (value >> 1) ^ ((value & 1) != 0 ? kCastagnoli : 0);
      }
      made[i] = value;
    }
    return made;
  }();
  for (const std::uint8_t byte : bytes) {
    crc = table[(crc ^ byte) & 255] ^ (crc >> 8);
  }
  return crc;
}

#if defined(__x86_64__)
// Three streams hide the instruction's latency of three cycles; their CRCs are joined by moving
// each over the zero bytes that follow it, with a table made once for the fixed stream length.
constexpr std::size_t kStream = 4096;
constexpr std::size_t kCacheLine = 64;

std::uint32_t times_matrix(const std::array<std::uint32_t, 32>& matrix, std::uint32_t vector) {
  std::uint32_t sum = 0;
  for (int bit = 0; vector != 0; ++bit, vector >>= 1) {
    if ((vector & 1) != 0) {
      sum ^= matrix[static_cast<std::size_t>(bit)];
    }
  }
  return sum;
}

struct ShiftTable {
  std::uint32_t byte[4][256];
  ShiftTable() {
    // Column k of the matrix is what kStream zero bytes make of the CRC 1 << k.
    std::array<std::uint32_t, 32> matrix{};
    const Bytes zeros(kStream, 0);
    for (int bit = 0; bit < 32; ++bit) {
      matrix[static_cast<std::size_t>(bit)] = crc32c_table(zeros, 1U << bit);
    }
    for (int lane = 0; lane < 4; ++lane) {
      for (std::uint32_t value = 0; value < 256; ++value) {
        byte[lane][value] = times_matrix(matrix, value << (8 * lane));
      }
    }
  }
  std::uint32_t shift(std::uint32_t crc) const {
    return byte[0][crc & 255] ^ byte[1][crc >> 8 & 255] ^ byte[2][crc >> 16 & 255] ^
           byte[3][crc >> 24];
  }
};

std::uint64_t load64(const std::uint8_t* at) {
  std::uint64_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(ByteView bytes, std::uint32_t crc) {
  static const ShiftTable table;
  const std::uint8_t* at = bytes.data();
  std::size_t left = bytes.size();
  while (left >= 3 * kStream) {
    std::uint64_t a = crc;
    std::uint64_t b = 0;
    std::uint64_t c = 0;
    for (std::size_t i = 0; i < kStream; i += kCacheLine) {
      // The processor's own prefetching begins anew at each page, that is, for every stream.
      for (std::size_t next = 3; next < 6; ++next) {
        _mm_prefetch(reinterpret_cast<const char*>(at + next * kStream + i), _MM_HINT_T0);
      }
      for (std::size_t j = i; j < i + kCacheLine; j += 8) {
        a = _mm_crc32_u64(a, load64(at + j));
        b = _mm_crc32_u64(b, load64(at + kStream + j));
        c = _mm_crc32_u64(c, load64(at + 2 * kStream + j));
      }
    }
    crc = table.shift(table.shift(static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b)) ^
          static_cast<std::uint32_t>(c);
    at += 3 * kStream;
    left -= 3 * kStream;
  }
  std::uint64_t wide = crc;
  for (; left >= 8; left -= 8, at += 8) {
    wide = _mm_crc32_u64(wide, load64(at));
  }
  crc = static_cast<std::uint32_t>(wide);
  for (; left > 0; --left, ++at) {
    crc = _mm_crc32_u8(crc, *at);
  }
  return crc;
}
#endif

}  // namespace

std::uint32_t crc32c(ByteView bytes, std::uint32_t before) {
#if defined(__x86_64__)
  static const bool fast = __builtin_cpu_supports("sse4.2");
  if (fast) {
    return ~crc32c_sse42(bytes, ~before);
  }
#endif
  return ~crc32c_table(bytes, ~before);
}

std::uint32_t crc32c_join(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes) {
  // Appending a byte multiplies the polynomial of what is before it by x^8: squares of that give
  // the factor for any count of bytes. Bit 31 is the coefficient of x^0.
  const auto times = [](std::uint32_t a, std::uint32_t b) {
    std::uint32_t product = 0;
    for (std::uint32_t bit = 0x80000000; bit != 0; bit >>= 1) {
      product ^= (a & bit) != 0 ? b : 0;
      b = (b >> 1) ^ ((b & 1) != 0 ? kCastagnoli : 0);
    }
    return product;
  };
  std::uint32_t factor = 0x80000000 >> 8;
  for (; second_bytes != 0; second_bytes >>= 1) {
    if ((second_bytes & 1) != 0) {
      first = times(first, factor);
    }
    factor = times(factor, factor);
  }
  return first ^ second;
}

}  // namespace yeto
