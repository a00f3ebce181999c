// SPDX-License-Identifier: Apache-2.0
// Goal: chunks cover a body exactly once, in any order, and nothing lands outside its place.
// Method: random sizes and orders against a plain copy.
#include <gtest/gtest.h>

#include <algorithm>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/wire/transfer.h"

namespace yeto::wire {
namespace {

Bytes random_body(Rng& rng, std::size_t size) {
  Bytes body(size);
  for (auto& byte : body) {
    byte = static_cast<std::uint8_t>(rng.next());
  }
  return body;
}

TEST(Transfer, ShuffledChunksRebuildTheBody) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    Rng rng(seed);
    const auto chunk_bytes = static_cast<std::uint32_t>(1 + rng.below(300));
    const Bytes body = random_body(rng, rng.below(3000));
    OutgoingTransfer out(body.size(), chunk_bytes);
    std::vector<std::uint32_t> order;
    while (const auto index = out.next(1)) {
      order.push_back(*index);
    }
    EXPECT_TRUE(out.exhausted());
    EXPECT_EQ(order.size(), (body.size() + chunk_bytes - 1) / chunk_bytes);
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[rng.below(i)]);
    }
    Bytes target(body.size());
    IncomingTransfer in(target, chunk_bytes);
    EXPECT_EQ(in.complete(), body.empty());
    for (const std::uint32_t index : order) {
      EXPECT_FALSE(in.complete());
      const ChunkRange range = out.plan().range(index);
      const auto place = in.place(index, range.bytes);
      ASSERT_TRUE(place && *place);
      std::copy_n(body.begin() + static_cast<std::ptrdiff_t>(range.offset), range.bytes,
                  (*place)->begin());
      in.mark(index);
    }
    EXPECT_TRUE(in.complete());
    EXPECT_EQ(target, body);
  }
}

TEST(Transfer, OutOfRangeAndWrongSizeAreErrors) {
  Bytes target(250);
  IncomingTransfer in(target, 100);
  EXPECT_EQ(in.place(3, 100).error().what, "chunk 3 of a transfer of 3");
  EXPECT_EQ(in.place(0, 99).error().what, "chunk 0 has 99 bytes where 100 are due");
  EXPECT_EQ(in.place(2, 100).error().what, "chunk 2 has 100 bytes where 50 are due");
  EXPECT_TRUE(in.place(2, 50));
  IncomingTransfer empty(MutableByteView{}, 100);
  EXPECT_FALSE(empty.place(0, 0));
}

TEST(Transfer, DuplicateIsNotPlacedAgain) {
  Bytes target(250);
  IncomingTransfer in(target, 100);
  ASSERT_TRUE(*in.place(1, 100));
  EXPECT_FALSE(*in.place(1, 100)) << "on its way";
  in.mark(1);
  EXPECT_FALSE(*in.place(1, 100)) << "held";
  EXPECT_FALSE(in.complete());
  EXPECT_EQ(hex(in.held_chunks()), "02");
}

TEST(Transfer, HeldChunksAreSkipped) {
  OutgoingTransfer out(950, 100);
  EXPECT_FALSE(out.skip(Bytes{1}));
  EXPECT_TRUE(out.skip(Bytes{0x03, 0x02}));
  std::vector<std::uint32_t> sent;
  while (const auto index = out.next(1)) {
    sent.push_back(*index);
  }
  EXPECT_EQ(sent, (std::vector<std::uint32_t>{2, 3, 4, 5, 6, 7, 8}));
  OutgoingTransfer all(100, 100);
  EXPECT_TRUE(all.skip(Bytes{1}));
  EXPECT_TRUE(all.exhausted());
  EXPECT_FALSE(all.next(1));
}

TEST(Transfer, WhatALostStreamCarriedIsSentAgainUnlessItArrived) {
  OutgoingTransfer out(500, 100);
  for (const Carrier carrier : {1U, 2U, 1U, 2U, 1U}) {
    ASSERT_TRUE(out.next(carrier));
  }
  EXPECT_TRUE(out.exhausted());
  const auto first_is_lost = [](Carrier carrier) { return carrier == 1; };
  EXPECT_TRUE(out.skip(Bytes{0x03}));  // chunk 0 came by stream 1, chunk 1 by stream 2
  out.reclaim(first_is_lost);
  EXPECT_EQ(out.left(), 2u);
  EXPECT_TRUE(out.may_be_complete()) << "DONE may come: both may have arrived after HAVE";
  EXPECT_EQ(out.next(3), 2u);
  EXPECT_EQ(out.next(3), 4u);
  out.reclaim(first_is_lost);
  EXPECT_TRUE(out.exhausted());
  out.give_back(3);
  out.give_back(0);
  EXPECT_EQ(out.next(3), 3u) << "a held chunk is not sent again";
  EXPECT_FALSE(out.next(3));
}

TEST(Transfer, CompleteIsPossibleOnlyWhenAllWasHandedOut) {
  OutgoingTransfer out(200, 100);
  EXPECT_FALSE(out.may_be_complete());
  EXPECT_TRUE(out.next(1));
  EXPECT_FALSE(out.may_be_complete());
  EXPECT_TRUE(out.skip(Bytes{0x02}));
  EXPECT_TRUE(out.may_be_complete());
  EXPECT_TRUE(OutgoingTransfer(0, 100).may_be_complete());
}

TEST(Transfer, ChunkOfALostStreamIsPlacedAgain) {
  Bytes target(200);
  IncomingTransfer in(target, 100);
  ASSERT_TRUE(*in.place(1, 100));
  EXPECT_TRUE(in.arriving(1));
  in.unplace(1);
  EXPECT_FALSE(in.arriving(1));
  EXPECT_TRUE(*in.place(1, 100));
}

}  // namespace
}  // namespace yeto::wire
