// SPDX-License-Identifier: Apache-2.0
// Goal: memory is used again, within limits, and never while somebody reads it.
// Method: addresses of taken buffers are compared; readers outlive the pool.
#include "yeto/sync/jobs/memory_pool.h"

#include <gtest/gtest.h>

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
