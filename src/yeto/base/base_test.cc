// SPDX-License-Identifier: Apache-2.0
// Goal: the primitives every room stands on give known values. Method: published vectors and round
// trips.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <thread>

#include "yeto/base/bytes.h"
#include "yeto/base/clock.h"
#include "yeto/base/digest.h"
#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/base/queue.h"
#include "yeto/base/rng.h"

namespace yeto {
namespace {

TEST(Digest, KnownVectors) {
  EXPECT_EQ(crc32c(as_bytes_view("123456789")), 0xe3069283u);
  EXPECT_EQ(hex(sha256(as_bytes_view("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // RFC 4231, case 2.
  EXPECT_EQ(hex(hmac_sha256(as_bytes_view("Jefe"), as_bytes_view("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  // RFC 5869, case 3: empty salt and info; the first 32 bytes of its output.
  EXPECT_EQ(hex(hkdf_sha256(Bytes(22, 0x0b), {})),
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d");
  EXPECT_EQ(hex(xxh3_128({})), "99aa06d3014798d86001c324468d497f");
}

TEST(Digest, Crc32cOfPiecesEqualsCrcOfWholeAtEveryLength) {
  Rng rng(1);
  Bytes bytes(40'000);
  for (auto& byte : bytes) {
    byte = static_cast<std::uint8_t>(rng.next());
  }
  for (const std::size_t size : {0ul, 1ul, 7ul, 8ul, 4096ul, 12287ul, 12288ul, 12289ul, 40'000ul}) {
    std::uint32_t piecewise = 0;
    for (std::size_t at = 0; at < size; at += 1000) {
      piecewise =
          crc32c(ByteView(bytes).subspan(at, std::min<std::size_t>(1000, size - at)), piecewise);
    }
    EXPECT_EQ(crc32c(ByteView(bytes).first(size)), piecewise) << size;
    const ByteView head = ByteView(bytes).first(size / 3);
    const ByteView tail = ByteView(bytes).subspan(size / 3, size - size / 3);
    EXPECT_EQ(crc32c_join(crc32c(head), crc32c(tail), tail.size()), piecewise) << size;
  }
}

TEST(Bytes, HexRoundTripAndRefusals) {
  EXPECT_EQ(hex(*from_hex("00ffA1")), "00ffa1");
  EXPECT_FALSE(from_hex("0"));
  EXPECT_FALSE(from_hex("0g"));
}

TEST(Bytes, ReaderNeverReadsPastTheEnd) {
  const Bytes bytes{1, 2, 3};
  ByteReader reader(bytes);
  std::uint16_t first = 0;
  std::uint32_t second = 0;
  EXPECT_TRUE(reader.number(first));
  EXPECT_EQ(first, 0x0201);
  EXPECT_FALSE(reader.number(second));
  EXPECT_EQ(reader.left(), 1u);
}

TEST(Files, AtomicWriteReplacesAndKeepsMode) {
  const auto dir = std::filesystem::temp_directory_path() / strf("yeto-base-{:x}", random_u64());
  std::filesystem::create_directories(dir);
  const auto path = dir / "file.txt";
  ASSERT_TRUE(write_file_atomic(path, std::string_view("one")));
  ASSERT_TRUE(write_file_atomic(path, std::string_view("two"), 0600));
  EXPECT_EQ(*read_text_file(path), "two");
  struct stat info{};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
  const auto missing = read_text_file(dir / "none");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(write_file_atomic(dir / "no" / "dir", std::string_view("x")));
  std::size_t left = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir)) {
    ++left;
  }
  EXPECT_EQ(left, 1u) << "no temporary file may stay";
  std::filesystem::remove_all(dir);
}

TEST(Rng, SplitMixKnownValues) {
  Rng rng(1234567);
  EXPECT_EQ(rng.next(), 6457827717110365317ull);
  EXPECT_EQ(rng.next(), 3203168211198807973ull);
}

TEST(Clock, UtcText) { EXPECT_EQ(utc_text(1767225600.5), "2026-01-01T00:00:00.500Z"); }

TEST(Queue, CloseEndsWaitsAndLimitRefuses) {
  BoundedQueue<int> queue(1);
  EXPECT_TRUE(queue.try_push(1));
  EXPECT_FALSE(queue.try_push(2));
  EXPECT_EQ(queue.pop(), 1);
  std::thread closer([&] { queue.close(); });
  EXPECT_EQ(queue.pop(), std::nullopt);
  closer.join();
  EXPECT_FALSE(queue.push(3));
}

TEST(ErrorText, SaysWhatWhereAndHint) {
  const Error error{ErrorCode::kData, "row has no target", "rows.jsonl:3", "add an assistant turn"};
  EXPECT_EQ(
      error.text(),
      "error[E_DATA]: row has no target\n  where: rows.jsonl:3\n  hint: add an assistant turn\n");
  EXPECT_EQ(error_exit_code(error.code), 65);
}

TEST(HumanText, UnitsAndDurations) {
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1.5e6), "1.5 MB");
  EXPECT_EQ(human_seconds(4.24), "4.2s");
  EXPECT_EQ(human_seconds(185), "3m05s");
  EXPECT_EQ(human_seconds(3720), "1h02m");
}

}  // namespace
}  // namespace yeto
