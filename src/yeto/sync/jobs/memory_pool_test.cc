// SPDX-License-Identifier: Apache-2.0
// Goal: memory is used again, within limits, and never while somebody reads it.
// Method: addresses of taken buffers are compared; readers outlive the pool.
#include "yeto/sync/jobs/memory_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "yeto/base/thread.h"

namespace yeto::sync {
namespace {

constexpr std::uint64_t kSize = 1 << 20;

TEST(MemoryPoolTest, BufferComesBackWhenItsLastReaderLetsGo) {
  MemoryPool pool(4);
  std::shared_ptr<Bytes> first = pool.take(kSize);
  const Bytes* const address = first.get();
  std::shared_ptr<const Bytes> reader = first;
  first.reset();
  EXPECT_NE(pool.take(kSize).get(), address) << "a reader still holds it";
  reader.reset();
  EXPECT_EQ(pool.take(kSize).get(), address);
}

TEST(MemoryPoolTest, SizesAreExact) {
  MemoryPool pool(4);
  pool.take(kSize);
  EXPECT_EQ(pool.take(kSize + 1)->size(), kSize + 1);
  EXPECT_EQ(pool.take(0)->size(), 0U);
}

TEST(MemoryPoolTest, KeepsAtMostItsLimit) {
  MemoryPool pool(2);
  {
    std::vector<std::shared_ptr<Bytes>> taken;
    for (int i = 0; i < 5; ++i) {
      taken.push_back(pool.take(kSize));
    }
  }
  EXPECT_EQ(pool.kept(), 2U);
}

TEST(MemoryPoolTest, ABufferServesEverySizeThatFillsMostOfIt) {
  MemoryPool pool(8);
  const Bytes* const address = pool.take(kSize).get();
  for (const std::uint64_t size : {kSize - 1, kSize * 3 / 4, kSize}) {
    const std::shared_ptr<Bytes> again = pool.take(size);
    EXPECT_EQ(again.get(), address);
    EXPECT_EQ(again->size(), size);
  }
  const std::shared_ptr<Bytes> other = pool.take(kSize / 2);
  EXPECT_EQ(pool.kept(), 0U) << "one of half the size needs memory of its own, and the old goes";
}

TEST(MemoryPoolTest, ItNeverHoldsMoreThanWasInUseAtOnce) {
  MemoryPool pool(1000);
  std::uint64_t most = 0;
  for (std::uint64_t size = kSize; size < 12 * kSize; size += kSize) {
    std::vector<std::shared_ptr<Bytes>> taken;
    for (int i = 0; i < 4; ++i) {
      taken.push_back(pool.take(size));
    }
    most = std::max(most, 4 * size);
    EXPECT_LE(pool.held_bytes(), most);
  }
  EXPECT_LE(pool.held_bytes(), most);
  for (int i = 0; i < 100; ++i) {
    const std::shared_ptr<Bytes> small = pool.take(kSize);
    EXPECT_LE(pool.held_bytes(), most);
  }
}

TEST(MemoryPoolTest, BytesMadeElsewhereComeToThePoolAsWell) {
  MemoryPool pool(2);
  std::shared_ptr<Bytes> kept = pool.keep(Bytes(kSize, 7));
  EXPECT_EQ(kept->back(), 7);
  EXPECT_EQ(pool.held_bytes(), kSize);
  const Bytes* const address = kept.get();
  kept.reset();
  EXPECT_EQ(pool.take(kSize).get(), address);
}

TEST(MemoryPoolTest, BuffersMayOutliveThePool) {
  std::shared_ptr<Bytes> reader;
  {
    MemoryPool pool(2);
    reader = pool.take(kSize);
  }
  reader->back() = 1;
  EXPECT_EQ(reader->size(), kSize);
}

TEST(MemoryPoolTest, TakingAndGivingBackOnManyThreadsNeverSharesABuffer) {
  MemoryPool pool(4);
  const auto work = [&pool](std::uint8_t mark) {
    for (int i = 0; i < 200; ++i) {
      const std::shared_ptr<Bytes> mine = pool.take(kSize);
      mine->front() = mark;
      mine->back() = mark;
      ASSERT_EQ(mine->front(), mark);
      ASSERT_EQ(mine->back(), mark);
    }
  };
  JoiningThread a([&] { work(1); });
  JoiningThread b([&] { work(2); });
}

}  // namespace
}  // namespace yeto::sync
