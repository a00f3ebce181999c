// SPDX-License-Identifier: Apache-2.0
// Goal: a silent loop is reported once, with its end. Method: short limits, beats withheld on
// purpose, waits on the reports themselves.
#include "yeto/sync/server/watchdog.h"

#include <gtest/gtest.h>

#include <utility>

#include "yeto/base/queue.h"

namespace yeto::sync {
namespace {

TEST(WatchdogTest, StallIsReportedOnceAndItsEndOnce) {
  BoundedQueue<std::pair<Nanos, bool>> reports(16);
  constexpr Nanos kLimit = 40 * kMillisecond;
  Watchdog watchdog(kLimit, [&](Nanos silent, bool over) { reports.try_push({silent, over}); });
  const auto begun = reports.pop();
  ASSERT_TRUE(begun);
  EXPECT_FALSE(begun->second);
  EXPECT_GE(begun->first, kLimit);
  watchdog.beat();
  const auto over = reports.pop();
  ASSERT_TRUE(over);
  EXPECT_TRUE(over->second);
  EXPECT_GE(over->first, kLimit);
}

TEST(WatchdogTest, EndsWhileTheLoopIsStalled) {
  BoundedQueue<bool> reports(16);
  {
    Watchdog watchdog(10 * kMillisecond, [&](Nanos, bool over) { reports.try_push(over); });
    ASSERT_TRUE(reports.pop());
  }
  SUCCEED() << "the destructor came back";
}

}  // namespace
}  // namespace yeto::sync
