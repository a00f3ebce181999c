// SPDX-License-Identifier: Apache-2.0
// Goal: newest wins, one transfer at a time, holdings are exact, chains of deltas end in the newest
// version, buffers are freed exactly when nobody needs them. Method: calls in the order the core
// makes them; for chains a model of what each reader holds.
#include "yeto/sync/broadcast/broadcast.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "yeto/base/rng.h"

namespace yeto::sync {
namespace {

using Buffers = Broadcasts::Buffers;

BroadcastImage image(std::uint64_t version, std::uint64_t buffer, std::uint64_t bytes = 8) {
  return {.version = version, .buffer = buffer, .bytes = bytes, .digest = {}};
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

TEST(BroadcastTest, NewestWinsAndAnImageUnderWayIsKeptUntilItsTransferEnds) {
  Broadcasts broadcasts(1);
  EXPECT_TRUE(broadcasts.publish(0, image(0, 10)).empty());
  broadcasts.join(0, {std::nullopt});
  broadcasts.join(1, {std::nullopt});
  EXPECT_EQ(broadcasts.next(0)->image.version, 0u);
  EXPECT_EQ(broadcasts.next(1)->image.version, 0u);
  EXPECT_TRUE(broadcasts.publish(0, image(1, 11)).empty()) << "two transfers read it";
  EXPECT_EQ(broadcasts.retired_bytes(), 8u) << "counted once";
  EXPECT_EQ(broadcasts.publish(0, image(2, 12)), Buffers{11}) << "nobody began to read it";
  EXPECT_TRUE(broadcasts.sent(0, true).empty());
  EXPECT_EQ(broadcasts.pause(1), Buffers{10});
  EXPECT_EQ(broadcasts.retired_bytes(), 0u);
  EXPECT_EQ(broadcasts.next(0)->image.version, 2u) << "version 1 is never sent";
  EXPECT_TRUE(broadcasts.sent(0, true).empty());
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

TEST(BroadcastTest, SlowestReaderOfAnOldImageIsBrokenOff) {
  Broadcasts broadcasts(1);
  broadcasts.publish(0, image(0, 10));
  broadcasts.join(0, {std::nullopt});
  broadcasts.join(1, {std::nullopt});
  broadcasts.next(1);
  broadcasts.next(0);
  EXPECT_FALSE(broadcasts.abort_slowest()) << "the image is needed anyway";
  broadcasts.publish(0, image(1, 11));
  auto aborted = broadcasts.abort_slowest();
  ASSERT_TRUE(aborted);
  EXPECT_EQ(aborted->seat, 1u) << "it began first";
  EXPECT_TRUE(aborted->free.empty()) << "seat 0 reads it still";
  aborted = broadcasts.abort_slowest();
  EXPECT_EQ(aborted->seat, 0u);
  EXPECT_EQ(aborted->free, Buffers{10});
  EXPECT_EQ(broadcasts.next(1)->image.version, 1u) << "it goes on with the newest";
}

// ---- chains of deltas
// ---------------------------------------------------------------------------

TEST(BroadcastChainTest, ReaderThatKeepsUpGetsDeltas) {
  Broadcasts broadcasts(1);
  broadcasts.publish(0, image(0, 1, 100));
  broadcasts.join(0, {0});
  EXPECT_EQ(broadcasts.publish(0, image(1, 2, 100), image(1, 3, 26)), Buffers{1});
  const auto order = broadcasts.next(0);
  EXPECT_TRUE(order->delta);
  EXPECT_EQ(order->image.buffer, 3u);
  EXPECT_EQ(order->image.version, 1u);
  broadcasts.sent(0, true);
  EXPECT_TRUE(broadcasts.holds(0, 0, 1));
}

TEST(BroadcastChainTest, LaggingReaderGetsTheChainWhileItIsSmallerElseTheWhole) {
  Broadcasts broadcasts(1);
  broadcasts.publish(0, image(0, 1, 100));
  broadcasts.join(0, {0});
  broadcasts.join(1, {std::nullopt});
  broadcasts.publish(0, image(1, 2, 100), image(1, 11, 26));
  broadcasts.publish(0, image(2, 3, 100), image(2, 12, 26));
  broadcasts.publish(0, image(3, 4, 100), image(3, 13, 26));
  for (std::uint64_t version = 1; version <= 3; ++version) {
    const auto order = broadcasts.next(0);
    ASSERT_TRUE(order->delta);
    EXPECT_EQ(order->image.version, version);
    broadcasts.sent(0, true);
  }
  EXPECT_FALSE(broadcasts.next(1)->delta) << "who holds nothing gets the whole";
  broadcasts.sent(1, true);
  EXPECT_TRUE(broadcasts.holds(1, 0, 3));
  broadcasts.join(0, {0});
  EXPECT_EQ(broadcasts.publish(0, image(4, 5, 100), image(4, 14, 26)), (Buffers{4, 11}))
      << "a chain has three deltas at most";
  EXPECT_FALSE(broadcasts.next(0)->delta) << "version 1's delta is gone";
  broadcasts.sent(0, true);
  broadcasts.publish(0, image(5, 6, 100), image(5, 15, 26));
  EXPECT_TRUE(broadcasts.next(0)->delta) << "the slow reader is back at deltas";
}

TEST(BroadcastChainTest, DeltasThatAreNoSmallerThanTheWholeAreNotKept) {
  Broadcasts broadcasts(1);
  broadcasts.publish(0, image(0, 1, 60));
  broadcasts.join(0, {0});
  broadcasts.publish(0, image(1, 2, 60), image(1, 11, 26));
  broadcasts.publish(0, image(2, 3, 60), image(2, 12, 26));
  EXPECT_EQ(broadcasts.publish(0, image(3, 4, 60), image(3, 13, 26)), (Buffers{3, 11}))
      << "three times 26 is more than 60";
  EXPECT_FALSE(broadcasts.next(0)->delta);
  Broadcasts tiny(1);
  tiny.publish(0, image(0, 1, 8));
  tiny.join(0, {0});
  EXPECT_EQ(tiny.publish(0, image(1, 2, 8), image(1, 3, 132)), (Buffers{1, 3}));
  EXPECT_FALSE(tiny.next(0)->delta) << "a block of a tiny fragment is larger than its values";
}

TEST(BroadcastChainTest, DeltaThatWasNotTakenIsFollowedByTheWhole) {
  Broadcasts broadcasts(1);
  broadcasts.publish(0, image(0, 1, 100));
  broadcasts.join(0, {0});
  broadcasts.publish(0, image(1, 2, 100), image(1, 11, 26));
  EXPECT_TRUE(broadcasts.next(0)->delta);
  broadcasts.sent(0, false);
  EXPECT_FALSE(broadcasts.next(0)->delta);
  broadcasts.sent(0, true);
  broadcasts.publish(0, image(2, 3, 100), image(2, 12, 26));
  EXPECT_TRUE(broadcasts.next(0)->delta);
  broadcasts.pause(0);
  EXPECT_TRUE(broadcasts.next(0)->delta) << "a lost socket says nothing against deltas";
}

TEST(BroadcastChainTest, WholeImagesAloneEndTheChain) {
  Broadcasts broadcasts(1);
  broadcasts.publish(0, image(0, 1, 100));
  broadcasts.publish(0, image(1, 2, 100), image(1, 11, 26));
  EXPECT_EQ(broadcasts.publish(0, image(5, 3, 100)), (Buffers{2, 11}));
  EXPECT_TRUE(broadcasts.deltas(0).empty());
}

// Readers that come, go, fail and stall at random: what a reader takes always fits on what it
// holds, every reader ends at the newest version, and no buffer is freed too early, twice or never.
TEST(BroadcastChainTest, ReadersEndAtTheNewestVersionAndBuffersAreFreedExactlyOnce) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    Broadcasts broadcasts(2);
    std::set<std::uint64_t> alive;
    std::uint64_t next_buffer = 1;
    std::uint64_t versions[2] = {0, 0};
    std::map<std::uint32_t, BroadcastOrder> under_way;
    std::map<std::uint32_t, std::vector<std::optional<std::uint64_t>>> held;
    const auto make = [&](std::uint64_t version, std::uint64_t bytes) {
      alive.insert(next_buffer);
      return image(version, next_buffer++, bytes);
    };
    const auto freed = [&](const Buffers& buffers) {
      for (const std::uint64_t buffer : buffers) {
        EXPECT_EQ(alive.erase(buffer), 1u);
      }
      for (const auto& [seat, order] : under_way) {
        EXPECT_TRUE(alive.contains(order.image.buffer)) << "freed under a transfer";
      }
    };
    const auto end = [&](std::uint32_t seat, bool ok) {
      const BroadcastOrder order = under_way.at(seat);
      under_way.erase(seat);
      if (ok) {
        if (order.delta) {
          EXPECT_EQ(held[seat][order.fragment], order.image.version - 1);
        }
        held[seat][order.fragment] = order.image.version;
      }
      freed(broadcasts.sent(seat, ok));
    };
    for (std::uint32_t fragment = 0; fragment < 2; ++fragment) {
      freed(broadcasts.publish(fragment, make(0, 100)));
    }
    const auto act = [&](std::uint32_t seat) {
      const auto choice = rng.below(10);
      if (choice < 5 && under_way.contains(seat)) {
        end(seat, rng.below(8) != 0);
      } else if (choice == 8) {
        under_way.erase(seat);
        freed(broadcasts.pause(seat));
      } else if (choice == 9) {
        under_way.erase(seat);
        held[seat].assign(2, std::nullopt);
        freed(broadcasts.join(seat, held[seat]));
      } else if (const auto order = held.contains(seat) ? broadcasts.next(seat) : std::nullopt) {
        under_way[seat] = *order;
      }
    };
    for (int turn = 0; turn < 400; ++turn) {
      if (rng.below(4) == 0) {
        const auto fragment = static_cast<std::uint32_t>(rng.below(2));
        const std::uint64_t version = ++versions[fragment];
        const BroadcastImage whole = make(version, 100);
        freed(broadcasts.publish(fragment, whole, make(version, 26)));
      } else if (rng.below(20) == 0) {
        if (auto aborted = broadcasts.abort_slowest()) {
          under_way.erase(aborted->seat);
          freed(aborted->free);
        }
      } else {
        act(static_cast<std::uint32_t>(rng.below(3)));
      }
    }
    for (auto& [seat, versions_held] : held) {
      while (under_way.contains(seat) || [&, seat = seat] {
        const auto order = broadcasts.next(seat);
        if (order) {
          under_way[seat] = *order;
        }
        return order.has_value();
      }()) {
        end(seat, true);
      }
      EXPECT_EQ(versions_held[0], versions[0]);
      EXPECT_EQ(versions_held[1], versions[1]);
      EXPECT_EQ(broadcasts.lag(seat), 0u);
    }
    EXPECT_EQ(broadcasts.retired_bytes(), 0u);
    EXPECT_EQ(alive.size(), 2 + broadcasts.deltas(0).size() + broadcasts.deltas(1).size());
    if (HasFailure()) {
      return;
    }
  }
}

TEST(BroadcastTest, TransferSizes) {
  EXPECT_EQ(transfer_bytes(CodecId::kF32, 3), 12u);
  EXPECT_EQ(transfer_bytes(CodecId::kBf16, 3), 6u);
  EXPECT_EQ(whole_codec(CodecId::kF32), CodecId::kF32);
  EXPECT_EQ(whole_codec(CodecId::kBf16), CodecId::kBf16);
  EXPECT_EQ(whole_codec(CodecId::kQ4), CodecId::kBf16);
}

}  // namespace
}  // namespace yeto::sync
