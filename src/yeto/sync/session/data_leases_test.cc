// SPDX-License-Identifier: Apache-2.0
// Goal: every position of the sample order is trained exactly once per epoch, whatever learners
// die. Method: one DataLeases; a model counts grants and settlements position by position.
#include "yeto/sync/session/data_leases.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "yeto/base/rng.h"

namespace yeto::sync {
namespace {

using Ranges = std::vector<DataRange>;

std::uint64_t completed(DataLeases& leases, std::uint32_t seat, const DataRange& range) {
  std::uint64_t count = 0;
  for (const DataRange& part : leases.complete(seat, range)) {
    count += part.count;
  }
  return count;
}

TEST(DataLeasesTest, PositionsAreGivenOutInOrderAndRangesStayInTheirEpoch) {
  DataLeases leases(2);
  EXPECT_EQ(leases.grant(0, 4, 10), (DataRange{0, 0, 4}));
  EXPECT_EQ(leases.grant(1, 4, 10), (DataRange{0, 4, 4}));
  EXPECT_EQ(leases.grant(0, 4, 10), (DataRange{0, 8, 2})) << "the epoch ends";
  EXPECT_EQ(leases.grant(1, 10, 10), (DataRange{1, 0, 10}));
  EXPECT_EQ(leases.grant(0, 1, 10).count, 0u) << "two epochs are all";
  EXPECT_EQ(leases.state().repeated, 0u);
}

TEST(DataLeasesTest, RangeOfALostLearnerIsGivenOutFirst) {
  DataLeases leases;
  leases.grant(0, 4, 100);
  leases.grant(1, 4, 100);
  leases.grant(0, 4, 100);
  EXPECT_EQ(completed(leases, 0, {0, 0, 2}), 2u);
  EXPECT_EQ(leases.lose(0), (Ranges{{0, 2, 2}, {0, 8, 4}})) << "settled positions stay settled";
  EXPECT_TRUE(leases.held_by(0).empty());
  EXPECT_EQ(leases.grant(1, 3, 100), (DataRange{0, 2, 2}));
  EXPECT_EQ(leases.grant(1, 3, 100), (DataRange{0, 8, 3}));
  EXPECT_EQ(leases.grant(2, 3, 100), (DataRange{0, 11, 1}));
  EXPECT_EQ(leases.grant(2, 3, 100), (DataRange{0, 12, 3}));
  EXPECT_EQ(leases.state().repeated, 6u);
}

TEST(DataLeasesTest, ReturnedPartGoesBackAndTheRestStaysWithTheSeat) {
  DataLeases leases;
  leases.grant(0, 10, 100);
  EXPECT_EQ(leases.give_back(0, {0, 3, 4}), (Ranges{{0, 3, 4}}));
  EXPECT_EQ(leases.held_by(0), (Ranges{{0, 0, 3}, {0, 7, 3}}));
  EXPECT_TRUE(leases.give_back(1, {0, 0, 3}).empty()) << "of another seat";
  EXPECT_EQ(leases.grant(1, 10, 100), (DataRange{0, 3, 4}));
}

TEST(DataLeasesTest, OnlyWhatASeatHoldsIsSettledAndOnlyOnce) {
  DataLeases leases;
  leases.grant(0, 10, 100);
  EXPECT_EQ(completed(leases, 1, {0, 0, 10}), 0u) << "seat 1 holds nothing";
  EXPECT_EQ(completed(leases, 0, {0, 0, 10}), 10u);
  EXPECT_EQ(completed(leases, 0, {0, 0, 10}), 0u);
  EXPECT_EQ(completed(leases, 0, {0, 50, 10}), 0u) << "never given out";
  EXPECT_EQ(completed(leases, 0, {0, 90, 1000}), 0u) << "outside of the epoch";
  EXPECT_EQ(leases.state().settled, (Ranges{{0, 0, 10}}));
}

TEST(DataLeasesTest, LateCompletionOfALostProcessCountsUnlessTheRangeIsOutAgain) {
  DataLeases leases;
  leases.grant(0, 10, 100);
  leases.lose(0);
  EXPECT_EQ(leases.grant(1, 4, 100), (DataRange{0, 0, 4}));
  EXPECT_EQ(completed(leases, 0, {0, 0, 10}), 6u) << "4 to 9 wait; 0 to 3 are seat 1's now";
  EXPECT_EQ(leases.grant(1, 4, 100), (DataRange{0, 10, 4})) << "nothing is left to give again";
  EXPECT_EQ(completed(leases, 1, {0, 0, 4}), 4u);
  EXPECT_EQ(leases.state().settled, (Ranges{{0, 0, 10}}));
}

TEST(DataLeasesTest, OtherDataIsRefused) {
  DataLeases leases;
  EXPECT_NE(leases.objection(0, 4, 0), "");
  EXPECT_NE(leases.objection(0, 0, 10), "");
  EXPECT_EQ(leases.objection(0, 4, 10), "");
  leases.grant(0, 4, 10);
  EXPECT_EQ(leases.objection(1, 4, 10), "");
  EXPECT_NE(leases.objection(1, 4, 12).find("12 positions an epoch, the run's 10"),
            std::string::npos);
  for (std::size_t i = 1; i < DataLeases::kMaxOpenRanges; ++i) {
    leases.grant(0, 1, 10);
  }
  EXPECT_NE(leases.objection(0, 1, 10), "") << "too many open ranges";
}

TEST(DataLeasesTest, RestartGivesOutAgainWhatWasNotSettledAndHonoursLaterWork) {
  DataLeases first;
  first.grant(0, 4, 20);
  first.grant(1, 4, 20);
  first.complete(0, {0, 0, 4});
  const DataState saved = first.state();
  first.grant(0, 4, 20);  // after the checkpoint: 8 to 11

  DataLeases second;
  second.restore(saved);
  EXPECT_EQ(completed(second, 0, {0, 8, 4}), 4u) << "its process lived through the restart";
  EXPECT_EQ(completed(second, 0, {0, 8, 4}), 0u);
  EXPECT_EQ(second.grant(2, 10, 20), (DataRange{0, 4, 4}));
  EXPECT_EQ(second.grant(2, 10, 20), (DataRange{0, 12, 8})) << "8 to 11 are done";
  EXPECT_EQ(second.grant(2, 20, 20), (DataRange{1, 0, 20}));
}

// Seats take, settle, return and die at random; in the end what is left is taken and settled.
TEST(DataLeasesTest, EveryPositionIsSettledExactlyOncePerEpochUnderRandomDeaths) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    constexpr std::uint64_t kRows = 97;
    DataLeases leases(3);
    std::map<std::pair<std::uint64_t, std::uint64_t>, int> settled;
    const auto settle = [&](std::uint32_t seat, const DataRange& range) {
      EXPECT_EQ(completed(leases, seat, range), range.count);
      for (std::uint64_t i = 0; i < range.count; ++i) {
        ++settled[{range.epoch, range.first + i}];
      }
    };
    for (int turn = 0; turn < 600; ++turn) {
      const auto seat = static_cast<std::uint32_t>(rng.below(4));
      const auto held = leases.held_by(seat);
      const auto choice = rng.below(10);
      if (choice < 5) {
        leases.grant(seat, 1 + rng.below(9), kRows);
      } else if (choice < 8 && !held.empty()) {
        DataRange range = held[rng.below(held.size())];
        const std::uint64_t end = range.first + range.count;
        range.first += rng.below(range.count);
        range.count = 1 + rng.below(end - range.first);
        settle(seat, range);
      } else if (choice == 8) {
        leases.lose(seat);
      } else if (!held.empty()) {
        leases.give_back(seat, held.back());
      }
    }
    for (std::uint32_t seat = 0; seat < 4; ++seat) {
      leases.lose(seat);
    }
    for (;;) {
      const DataRange range = leases.grant(0, 50, kRows);
      if (range.count == 0) {
        break;
      }
      settle(0, range);
    }
    EXPECT_EQ(settled.size(), 3 * kRows);
    for (const auto& [position, count] : settled) {
      EXPECT_EQ(count, 1) << "epoch " << position.first << " position " << position.second;
    }
    EXPECT_EQ(leases.state().settled, (Ranges{{0, 0, kRows}, {1, 0, kRows}, {2, 0, kRows}}));
    if (HasFailure()) {
      return;
    }
  }
}

}  // namespace
}  // namespace yeto::sync
