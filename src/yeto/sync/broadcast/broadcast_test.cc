// SPDX-License-Identifier: Apache-2.0
// Goal: newest wins, one transfer at a time, holdings are exact. Method: calls in the order the
// core makes them.
#include <gtest/gtest.h>

#include "yeto/sync/broadcast/broadcast.h"

namespace yeto::sync {
namespace {

BroadcastImage image(std::uint64_t version, std::uint64_t buffer) {
  return {.version = version, .buffer = buffer, .bytes = 8, .digest = {}};
}

TEST(BroadcastTest, JoinerGetsEveryFragmentOneAtATime) {
  Broadcasts broadcasts(2);
  broadcasts.publish(0, image(3, 10));
  broadcasts.publish(1, image(4, 11));
  broadcasts.join(0, {std::nullopt, std::nullopt});
  EXPECT_FALSE(broadcasts.complete(0));
  EXPECT_EQ(broadcasts.lag(0), std::nullopt);
  const auto first = broadcasts.next(0);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->fragment, 1u) << "it lags most there";
  EXPECT_FALSE(broadcasts.next(0)) << "one at a time";
  broadcasts.sent(0, true);
  EXPECT_TRUE(broadcasts.holds(0, 1, 4));
  EXPECT_EQ(broadcasts.next(0)->fragment, 0u);
  broadcasts.sent(0, true);
  EXPECT_FALSE(broadcasts.next(0));
  EXPECT_TRUE(broadcasts.complete(0));
  EXPECT_EQ(broadcasts.lag(0), 0u);
}

TEST(BroadcastTest, NewestWinsForASlowReader) {
  Broadcasts broadcasts(1);
  EXPECT_FALSE(broadcasts.publish(0, image(0, 10)));
  broadcasts.join(0, {std::nullopt});
  EXPECT_EQ(broadcasts.next(0)->image.version, 0u);
  EXPECT_EQ(broadcasts.publish(0, image(1, 11)), 10u) << "the old image is given back";
  EXPECT_EQ(broadcasts.publish(0, image(2, 12)), 11u);
  broadcasts.sent(0, true);
  EXPECT_EQ(broadcasts.next(0)->image.version, 2u) << "version 1 is never sent";
  broadcasts.sent(0, true);
  EXPECT_FALSE(broadcasts.next(0));
}

TEST(BroadcastTest, FailedTransferIsTriedAgainAndHeldVersionsNeedNone) {
  Broadcasts broadcasts(2);
  broadcasts.publish(0, image(5, 1));
  broadcasts.publish(1, image(5, 2));
  broadcasts.join(7, {5, 4});
  EXPECT_EQ(broadcasts.next(7)->fragment, 1u);
  broadcasts.sent(7, false);
  EXPECT_EQ(broadcasts.next(7)->fragment, 1u);
  broadcasts.pause(7);
  EXPECT_EQ(broadcasts.next(7)->fragment, 1u) << "a resumed session starts it again";
  broadcasts.sent(7, true);
  EXPECT_FALSE(broadcasts.next(7));
  broadcasts.leave(7);
  EXPECT_FALSE(broadcasts.next(7));
}

TEST(BroadcastTest, TransferSizes) {
  EXPECT_EQ(transfer_bytes(CodecId::kF32, 3), 12u);
  EXPECT_EQ(transfer_bytes(CodecId::kBf16, 3), 6u);
}

}  // namespace
}  // namespace yeto::sync
