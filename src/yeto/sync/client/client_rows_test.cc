// SPDX-License-Identifier: Apache-2.0
// Goal: positions of the sample order are told to be complete exactly when their work is merged and
// durable in every fragment, go back when it is lost, and none is forgotten over a break. Method:
// as in client_test.cc; the bookkeeping alone, and under the client.
#include "yeto/base/rng.h"
#include "yeto/sync/client/client_testing.h"

namespace yeto::sync::client {
namespace {

using namespace testing_world;
using wire::Data;
using wire::DataAction;

Data data(DataAction action, std::uint64_t first, std::uint64_t count) {
  Data out;
  out.action = action;
  out.first = first;
  out.count = count;
  return out;
}

TEST(RowRangeTest, WithoutLeavesWhatNobodyHas) {
  EXPECT_EQ(without({0, 10, 10, 1}, {}), (std::vector<RowRange>{{0, 10, 10, 1}}));
  EXPECT_EQ(without({0, 10, 10, 1}, {{0, 12, 3, 1}, {0, 18, 9, 1}, {1, 10, 10, 1}}),
            (std::vector<RowRange>{{0, 10, 2, 1}, {0, 15, 3, 1}}));
  EXPECT_TRUE(without({0, 10, 10, 1}, {{0, 0, 15, 1}, {0, 15, 5, 1}}).empty());
}

TEST(RowRangeTest, NeighboursAreJoined) {
  std::vector<RowRange> ranges;
  add_range(ranges, {0, 20, 5, 1});
  add_range(ranges, {0, 10, 5, 1});
  add_range(ranges, {1, 25, 5, 1});
  EXPECT_EQ(ranges.size(), 3U);
  add_range(ranges, {0, 15, 5, 1});
  EXPECT_EQ(ranges, (std::vector<RowRange>{{0, 10, 15, 1}, {1, 25, 5, 1}}));
}

class RowBookTest : public testing::Test {
 protected:
  // Eight rows, trained in one step.
  void train_eight() {
    EXPECT_TRUE(book_.want(100, 8));
    EXPECT_TRUE(book_.granted(data(DataAction::kGrant, 40, 8)).empty());
    EXPECT_EQ(book_.take(8), (RowRange{0, 40, 8, 1}));
    book_.step_ended();
  }
  RowBook book_{2};
};

TEST_F(RowBookTest, RowsAreAskedForBeforeTheyRunOut) {
  EXPECT_TRUE(book_.want(100, 8));
  EXPECT_FALSE(book_.want(100, 8));  // one request at a time
  EXPECT_GE(book_.open_request()->count, 8U);
  EXPECT_EQ(book_.open_request()->rows, 100U);
  EXPECT_FALSE(book_.take(8));
  book_.granted(data(DataAction::kGrant, 0, 20));
  EXPECT_FALSE(book_.open_request());
  EXPECT_EQ(book_.take(8)->first, 0U);
  EXPECT_FALSE(book_.want(100, 8));
  EXPECT_EQ(book_.take(8)->first, 8U);
  EXPECT_TRUE(book_.want(100, 8));  // four are left
  EXPECT_EQ(book_.take(8), (RowRange{0, 16, 4, 1}));
}

TEST_F(RowBookTest, AnEmptyGrantSaysThatNothingIsLeft) {
  book_.want(100, 8);
  book_.granted(data(DataAction::kGrant, 0, 0));
  EXPECT_TRUE(book_.exhausted());
  EXPECT_FALSE(book_.want(100, 8));
}

TEST_F(RowBookTest, RowsAreCompleteOnceEveryFragmentIsMergedAndDurable) {
  train_eight();
  book_.taken(0, 7, false);
  book_.kept(0, 7, 1);
  EXPECT_TRUE(book_.settle(9).empty());
  book_.taken(1, 8, false);
  book_.kept(1, 8, 4);
  EXPECT_TRUE(book_.settle(3).empty());
  EXPECT_EQ(book_.settle(4), (std::vector<Data>{data(DataAction::kComplete, 40, 8)}));
  EXPECT_TRUE(book_.settle(9).empty());
}

TEST_F(RowBookTest, ACarriedPushIsDurableWithTheStepOfTheNextHeartbeat) {
  train_eight();
  for (const std::uint32_t fragment : {0U, 1U}) {
    book_.taken(fragment, 7 + fragment, false);
    book_.kept(fragment, 7 + fragment, 0);
  }
  EXPECT_TRUE(book_.settle(100).empty());
  book_.beat(120);
  EXPECT_TRUE(book_.settle(119).empty());
  EXPECT_EQ(book_.settle(120).size(), 1U);
}

TEST_F(RowBookTest, RowsGoBackWhenOneFragmentsWorkIsLost) {
  train_eight();
  book_.taken(0, 7, false);
  book_.kept(0, 7, 1);
  book_.taken(1, 8, false);
  book_.lost(1, 8);
  EXPECT_EQ(book_.settle(0), (std::vector<Data>{data(DataAction::kReturn, 40, 8)}));
}

TEST_F(RowBookTest, ReturnedWorkTravelsInTheNextDeltaOrIsReplaced) {
  train_eight();
  book_.taken(0, 7, false);
  book_.returned(0, 7);
  book_.taken(0, 9, true);
  book_.kept(0, 9, 1);
  book_.taken(1, 8, false);
  book_.returned(1, 8);
  EXPECT_TRUE(book_.settle(9).empty());
  book_.applied(1, false);
  EXPECT_EQ(book_.settle(9).front().action, DataAction::kReturn);
}

TEST_F(RowBookTest, WorkSinceAPushOutlivesAnApplication) {
  train_eight();
  book_.applied(0, false);
  book_.applied(1, false);
  EXPECT_TRUE(book_.settle(9).empty());
  book_.applied(1, true);
  EXPECT_EQ(book_.settle(9).front().action, DataAction::kReturn);
}

TEST_F(RowBookTest, AfterABreakOnlyTheUnknownIsNewAndTheMissedIsToldAgain) {
  train_eight();
  for (const std::uint32_t fragment : {0U, 1U}) {
    book_.taken(fragment, 7, false);
    book_.kept(fragment, 7, 1);
  }
  EXPECT_EQ(book_.settle(1).size(), 1U);  // [40, 48) is complete, and the message is lost
  book_.want(100, 8);
  book_.granted(data(DataAction::kGrant, 48, 8));
  book_.take(8);
  const std::vector<Data> missed = book_.granted(data(DataAction::kGrant, 40, 20));
  EXPECT_EQ(missed, (std::vector<Data>{data(DataAction::kComplete, 40, 8)}));
  EXPECT_EQ(book_.take(100), (RowRange{0, 56, 4, 1}));
  EXPECT_FALSE(book_.take(100));
}

// Whatever the order of pushes and losses: each position ends once, complete or returned.
TEST(RowBookPropertyTest, EveryPositionEndsExactlyOnce) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    constexpr std::uint32_t kFragments = 3;
    constexpr std::uint64_t kRows = 240;
    RowBook book(kFragments);
    std::vector<int> ends(kRows, 0);
    std::vector<std::vector<Ticket>> open(kFragments);
    std::uint64_t granted = 0;
    Ticket next = 1;
    std::uint64_t round = 1;
    const auto note = [&](const std::vector<Data>& told) {
      for (const Data& item : told) {
        for (std::uint64_t i = 0; i < item.count; ++i) {
          ++ends[item.first + i];
        }
      }
    };
    const auto push = [&](std::uint32_t fragment) {
      book.taken(fragment, next, rng.below(8) == 0);
      open[fragment].push_back(next++);
    };
    const auto decide = [&](std::uint32_t fragment, std::uint64_t what) {
      if (open[fragment].empty()) {
        return;
      }
      const Ticket ticket = open[fragment].front();
      open[fragment].erase(open[fragment].begin());
      if (what == 0) {
        book.lost(fragment, ticket);
      } else if (what == 1) {
        book.returned(fragment, ticket);
      } else {
        book.kept(fragment, ticket, what == 2 ? 0 : round);
      }
    };
    while (granted < kRows) {
      if (book.want(kRows, 5)) {
        const std::uint64_t count = std::min<std::uint64_t>(1 + rng.below(12), kRows - granted);
        note(book.granted(data(DataAction::kGrant, granted, count)));
        granted += count;
      }
      book.take(5);
      book.step_ended();
      const auto fragment = static_cast<std::uint32_t>(rng.below(kFragments));
      push(fragment);
      decide(static_cast<std::uint32_t>(rng.below(kFragments)), rng.below(9));
      if (rng.below(10) == 0) {
        book.applied(fragment, rng.below(2) == 0);
      }
      book.beat(++round);
      note(book.settle(round));
    }
    while (book.take(5)) {
      book.step_ended();
    }
    for (std::uint32_t fragment = 0; fragment < kFragments; ++fragment) {
      book.taken(fragment, next, false);
      open[fragment].push_back(next++);
      while (!open[fragment].empty()) {
        decide(fragment, 3);
      }
    }
    book.beat(++round);
    note(book.settle(round));
    note(book.give_up());
    EXPECT_EQ(ends, std::vector<int>(kRows, 1));
  }
}

class ClientRowsTest : public World {
 protected:
  void join_leased() {
    wire::Welcome start = welcome({0, 0});
    start.settings.data_leases = 1;
    client_.on(Admitted{start});
    broadcast(0, 0);
    broadcast(1, 0);
    client_.boundary();
  }
  void grant(std::uint64_t first, std::uint64_t count) {
    client_.on(MessageArrived{data(DataAction::kGrant, first, count)});
  }
  void push(std::uint32_t fragment, std::uint64_t round) {
    pull(fragment, round, 0);
    for (const TakePush& take : all<TakePush>(client_.boundary())) {
      client_.on(PushEncoded{take.ticket, true, 1.0});
      client_.on(BodySent{take.ticket, true});
    }
  }
  Actions merged(std::uint32_t fragment, std::uint64_t round) {
    wire::Verdict verdict;
    verdict.term = kTerm;
    verdict.fragment = fragment;
    verdict.round = round;
    verdict.attempt = 1;
    return client_.on(MessageArrived{verdict});
  }
  Actions beat(std::uint64_t global_step, std::uint64_t durable_step) {
    wire::SyncerBeat beat;
    beat.term = kTerm;
    beat.global_step = global_step;
    beat.durable_step = durable_step;
    return client_.on(MessageArrived{beat});
  }
};

TEST_F(ClientRowsTest, AHeartbeatWithTheDurableStepSettlesRows) {
  join_leased();
  const auto request = sent<Data>(client_.want_rows(50, 4));
  ASSERT_TRUE(request);
  EXPECT_EQ(request->rows, 50U);
  EXPECT_EQ(request->action, DataAction::kRequest);
  grant(8, 4);
  EXPECT_EQ(client_.take_rows(4), (RowRange{0, 8, 4, 1}));
  step();
  push(0, 1);
  push(1, 2);
  EXPECT_FALSE(sent<Data>(merged(0, 1)));
  EXPECT_FALSE(sent<Data>(merged(1, 2)));
  EXPECT_FALSE(sent<Data>(beat(2, 1)));
  EXPECT_EQ(sent<Data>(beat(3, 2)), data(DataAction::kComplete, 8, 4));
}

TEST_F(ClientRowsTest, OverwrittenWorkSendsItsRowsBack) {
  join_leased();
  client_.want_rows(50, 4);
  grant(8, 4);
  client_.take_rows(4);
  step();
  broadcast(0, 1);  // nobody asked for this step's work
  EXPECT_EQ(sent<Data>(client_.boundary()), data(DataAction::kReturn, 8, 4));
}

TEST_F(ClientRowsTest, AResumedSessionAsksAgainAndAnotherForgets) {
  join_leased();
  client_.want_rows(50, 4);
  client_.on(SessionLost{"cable"});
  wire::Welcome again = welcome({0, 0});
  again.settings.data_leases = 1;
  again.resumed = 1;
  EXPECT_EQ(sent<Data>(client_.on(Admitted{again}))->action, DataAction::kRequest);
  grant(0, 16);
  client_.on(SessionLost{"lease"});
  again.resumed = 0;
  client_.on(Admitted{again});
  EXPECT_FALSE(client_.take_rows(4));
}

TEST_F(ClientRowsTest, WhatWasNotTrainedGoesBackAtTheEnd) {
  join_leased();
  client_.want_rows(50, 4);
  grant(0, 16);
  client_.take_rows(4);
  step();
  client_.take_rows(4);
  const auto back = all<Send>(client_.finalize(false));
  ASSERT_EQ(back.size(), 2U);
  EXPECT_EQ(std::get<Data>(back[0].message), data(DataAction::kReturn, 4, 4));
  EXPECT_EQ(std::get<Data>(back[1].message), data(DataAction::kReturn, 8, 8));
}

TEST_F(ClientRowsTest, OnlyGrantsMayCome) {
  join_leased();
  EXPECT_TRUE(one<EndSession>(client_.on(MessageArrived{data(DataAction::kComplete, 0, 1)})));
  EXPECT_TRUE(
      one<EndSession>(client_.on(MessageArrived{data(DataAction::kGrant, ~std::uint64_t{0}, 2)})));
}

}  // namespace
}  // namespace yeto::sync::client
