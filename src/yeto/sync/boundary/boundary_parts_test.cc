// SPDX-License-Identifier: Apache-2.0
// Goal: the pieces under Boundary that need no socket: tensors by fragment, fragment values, error
// feedback, static rows, endpoint and key files, metric texts.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "yeto/base/files.h"
#include "yeto/base/rng.h"
#include "yeto/sync/boundary/endpoint.h"
#include "yeto/sync/boundary/fragment_values.h"
#include "yeto/sync/boundary/residuals.h"
#include "yeto/sync/boundary/row_source.h"
#include "yeto/sync/boundary/tensors.h"
#include "yeto/tensor/bf16.h"

namespace yeto::sync::client {
namespace {

using Floats = std::vector<float>;

class Folder {
 public:
  Folder()
      : path_(std::filesystem::path(testing::TempDir()) / ("boundary" + hex_of(random_u64()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::filesystem::path file(const std::string& name, const std::string& text,
                             unsigned mode = 0600) const {
    EXPECT_TRUE(write_file_atomic(path_ / name, std::string_view(text), mode));
    return path_ / name;
  }
  std::filesystem::path path() const { return path_; }

 private:
  static std::string hex_of(std::uint64_t value) {
    return hex({reinterpret_cast<const std::uint8_t*>(&value), sizeof(value)});
  }
  std::filesystem::path path_;
};

// Three tensors of 4, 3 and 5 values; the first is cut into two slices.
struct Sliced {
  Floats a = {0, 1, 2, 3};
  Floats b = {10, 11, 12};
  Floats c = {20, 21, 22, 23, 24};
  Layout layout;
  Sliced() {
    layout.tensors = {{"a", {4}, DType::kF32, MergeMode::kRda},
                      {"b", {3}, DType::kF32, MergeMode::kRda},
                      {"c", {5}, DType::kF32, MergeMode::kRda}};
    layout.fragments = {{{{0, 0, 3, 0}, {1, 0, 3, 3}}, 6}, {{{2, 0, 5, 0}, {0, 3, 1, 5}}, 6}};
  }
  std::vector<TensorView> views() { return {{"a", {4}, a}, {"b", {3}, b}, {"c", {5}, c}}; }
};

Floats gathered(const Tensors& tensors, std::uint32_t fragment) {
  Floats out(tensors.values(fragment));
  tensors.gather(fragment, out);
  return out;
}

TEST(TensorsTest, GatheringAndTilesFollowThePieces) {
  Sliced world;
  Tensors tensors(world.views(), world.layout);
  EXPECT_EQ(gathered(tensors, 0), (Floats{0, 1, 2, 10, 11, 12}));
  EXPECT_EQ(gathered(tensors, 1), (Floats{20, 21, 22, 23, 24, 3}));
  float next = 0.0F;
  tensors.each_tile(1, [&](std::span<float> local, std::uint64_t first) {
    EXPECT_EQ(static_cast<float>(first), next);
    for (float& value : local) {
      value = ++next;
    }
  });
  EXPECT_EQ(world.c, (Floats{1, 2, 3, 4, 5}));
  EXPECT_EQ(world.a, (Floats{0, 1, 2, 6}));
  EXPECT_EQ(world.b, (Floats{10, 11, 12}));
}

TEST(TensorsTest, TensorsOfSeveralFragmentsAreKnown) {
  Sliced world;
  const Tensors tensors(world.views(), world.layout);
  EXPECT_EQ(tensors.of_fragment(0), (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(tensors.of_fragment(1), (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(tensors.shared_of_fragment(0), (std::vector<std::uint32_t>{0}));
}

TEST(TensorsTest, TensorsThatCannotBeUsedAreNamed) {
  Floats values(6);
  const auto what = [](const std::vector<TensorView>& views) {
    const Status status = check_tensors(views);
    return status ? std::string() : status.error().what;
  };
  EXPECT_EQ(what({{"w", {2, 3}, values}}), "");
  EXPECT_NE(what({}), "");
  EXPECT_NE(what({{"", {6}, values}}), "");
  EXPECT_NE(what({{"w", {7}, values}}).find("tensor w"), std::string::npos);
  Floats other(2);
  EXPECT_NE(what({{"w", {6}, values}, {"w", {2}, other}}).find("w"), std::string::npos);
  const std::string overlap =
      what({{"u", {4}, std::span(values).first(4)}, {"v", {3}, std::span(values).last(3)}});
  EXPECT_NE(overlap.find("u and v share memory"), std::string::npos);
}

FlatValues shared(const Floats& values) {
  const ByteView bytes = as_bytes_view(std::span<const float>(values));
  return {std::make_shared<const Bytes>(bytes.begin(), bytes.end()), DType::kF32};
}

FlatValues shared_bf16(const Floats& values) {
  auto bytes = std::make_shared<Bytes>(values.size() * 2);
  bf16_from_f32(values.data(), as_bf16(*bytes).data(), values.size());
  return {bytes, DType::kBf16};
}

Floats floats(const FlatValues& values) {
  Floats out;
  Tile scratch;
  each_tile(values.size(), [&](std::uint64_t first, std::size_t count) {
    const auto part = values.tile(first, count, scratch);
    out.insert(out.end(), part.begin(), part.end());
  });
  return out;
}

TEST(FlatValuesTest, TilesOfBothTypesSayTheSame) {
  Floats values(2 * kTileValues + 3);
  std::iota(values.begin(), values.end(), 0.0F);
  for (float& value : values) {
    value = f32_from_bf16(bf16_from_f32(value));
  }
  EXPECT_EQ(floats(shared(values)), values);
  EXPECT_EQ(floats(shared_bf16(values)), values);
  EXPECT_TRUE(shared_bf16(values).all_finite());
  values.back() = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(shared(values).all_finite());
  EXPECT_FALSE(shared_bf16(values).all_finite());
}

class FragmentValuesTest : public testing::Test {
 protected:
  FragmentValuesTest() : values_(world_.views(), world_.layout, MemoryPool(4)) {
    values_.overwrite(0, shared(Floats(6, 1.0F)));
  }
  Floats local() const { return gathered(values_.tensors(), 0); }
  Apply applying(ApplyMode mode, double alpha, bool blended = false) const {
    Apply apply;
    apply.fragment = 0;
    apply.mode = mode;
    apply.alpha = alpha;
    apply.blended = blended;
    return apply;
  }
  // As the optimizer does: in the memory of the tensors.
  void set_local(float value) {
    values_.tensors().each_tile(0, [&](std::span<float> local, std::uint64_t /*first*/) {
      std::ranges::fill(local, value);
    });
  }

  Sliced world_;
  FragmentValues values_;
};

TEST_F(FragmentValuesTest, OverwritingTakesTheValueAndForgetsTheRest) {
  EXPECT_EQ(local(), Floats(6, 1.0F));
  const DeltaSource delta = values_.take_push(0);
  EXPECT_EQ(floats(delta.reference), floats(delta.snapshot));
}

TEST_F(FragmentValuesTest, AfterAPushLaterWorkStaysAndTheNextDeltaIsAgainstTheNewAnchor) {
  set_local(3.0F);
  const DeltaSource first = values_.take_push(0);
  EXPECT_EQ(floats(first.snapshot), Floats(6, 3.0F));
  set_local(3.5F);
  values_.apply(applying(ApplyMode::kAfterPush, 0.0), shared(Floats(6, 2.0F)));
  EXPECT_EQ(local(), Floats(6, 2.5F));
  const DeltaSource second = values_.take_push(0);
  EXPECT_EQ(floats(second.reference), Floats(6, 2.0F));
  // The worker may still read the first one.
  EXPECT_EQ(floats(first.reference), Floats(6, 1.0F));
}

TEST_F(FragmentValuesTest, TheImageItselfBecomesTheAnchor) {
  const FlatValues theta = shared_bf16(Floats(6, 2.0F));
  set_local(3.0F);
  values_.take_push(0);
  values_.apply(applying(ApplyMode::kAfterPush, 0.5), theta);
  EXPECT_EQ(local(), Floats(6, 2.5F));
  EXPECT_EQ(values_.take_push(0).reference.share(), theta.share());
}

TEST_F(FragmentValuesTest, ADeltaThatDidNotArriveIsTakenOnceMore) {
  set_local(3.0F);
  const DeltaSource first = values_.take_push(0);
  set_local(7.0F);
  const DeltaSource again = values_.take_push(0, true);
  EXPECT_EQ(again.snapshot.share(), first.snapshot.share());
  EXPECT_EQ(floats(again.reference), Floats(6, 1.0F));
}

TEST_F(FragmentValuesTest, TheBlendedReferenceHoldsTheRetainedShare) {
  set_local(3.0F);
  values_.take_push(0);
  values_.apply(applying(ApplyMode::kAfterPush, 0.5, true), shared(Floats(6, 2.0F)));
  EXPECT_EQ(local(), Floats(6, 2.5F));
  const DeltaSource delta = values_.take_push(0);
  EXPECT_EQ(floats(delta.reference), floats(delta.snapshot));
}

TEST_F(FragmentValuesTest, WithoutAPushTheShareIsOfTheLocalWork) {
  set_local(3.0F);
  values_.apply(applying(ApplyMode::kWithoutPush, 0.5), shared(Floats(6, 2.0F)));
  EXPECT_EQ(local(), Floats(6, 2.5F));
  EXPECT_EQ(floats(values_.take_push(0).reference), Floats(6, 2.0F));
}

// ---- error feedback
// ------------------------------------------------------------------------------

class ResidualsTest : public testing::Test {
 protected:
  // What the next push of the fragment would take.
  Floats next(std::uint32_t fragment) {
    const FlatValues taken = residuals_.lend(fragment, 1000);
    residuals_.settle(1000, false);
    return taken ? floats(taken) : Floats();
  }
  Residuals residuals_{2, MemoryPool(4)};
};

TEST_F(ResidualsTest, AKeptPushLeavesItsRoundingError) {
  EXPECT_FALSE(residuals_.lend(0, 1));
  residuals_.rounded(1, shared_bf16({0.5F, -0.25F}), 2.0);
  EXPECT_EQ(next(0), Floats());
  residuals_.settle(1, true);
  EXPECT_EQ(next(0), (Floats{0.5F, -0.25F}));
  EXPECT_EQ(next(1), Floats());
  EXPECT_DOUBLE_EQ(residuals_.norm(), 2.0);
}

TEST_F(ResidualsTest, APushThatIsNotKeptGivesBackWhatItTook) {
  residuals_.lend(0, 1);
  residuals_.rounded(1, shared_bf16({0.5F, 1.0F}), 1.0);
  residuals_.settle(1, true);
  EXPECT_EQ(floats(residuals_.lend(0, 2)), (Floats{0.5F, 1.0F}));
  EXPECT_EQ(next(0), Floats());  // lent out
  residuals_.rounded(2, shared_bf16({0.125F, 0.0F}), 1.0);
  residuals_.settle(2, false);
  residuals_.settle(2, true);  // settled once
  EXPECT_EQ(next(0), (Floats{0.5F, 1.0F}));
}

TEST_F(ResidualsTest, TwoPushesUnderWayNeverCountAResidualTwice) {
  residuals_.lend(0, 1);
  residuals_.rounded(1, shared_bf16({1.0F, 0.0F}), 1.0);
  residuals_.settle(1, true);
  residuals_.lend(0, 2);  // takes [1, 0]
  residuals_.lend(0, 3);  // takes nothing
  residuals_.rounded(2, shared_bf16({0.0F, 2.0F}), 1.0);
  residuals_.rounded(3, shared_bf16({0.25F, 0.25F}), 1.0);
  residuals_.settle(3, true);
  residuals_.settle(2, false);
  EXPECT_EQ(next(0), (Floats{1.25F, 0.25F}));
}

TEST_F(ResidualsTest, OverwritingVoidsAlsoWhatIsUnderWay) {
  residuals_.lend(0, 1);
  residuals_.clear(0);
  residuals_.rounded(1, shared_bf16({1.0F, 1.0F}), 1.0);
  residuals_.settle(1, true);
  EXPECT_EQ(next(0), Floats());
}

// ---- rows
// ----------------------------------------------------------------------------------------

TEST(StaticSplitTest, SeatsShareEveryEpochWithoutOverlap) {
  std::vector<int> seen(11, 0);
  for (std::uint32_t seat = 0; seat < 3; ++seat) {
    auto split = StaticSplit::make(11, seat, 3, 2);
    ASSERT_TRUE(split);
    for (auto range = split->next(2); range->count > 0; range = split->next(2)) {
      EXPECT_LE(range->count, 2U);
      for (std::uint64_t i = 0; i < range->count; ++i) {
        ++seen[range->first + i * range->stride];
      }
    }
    EXPECT_EQ(split->next(2)->count, 0U);
  }
  EXPECT_EQ(seen, std::vector<int>(11, 2));
}

TEST(StaticSplitTest, ARangeEndsWithItsEpochAndWithoutALimitTheNextBegins) {
  auto split = StaticSplit::make(5, 1, 2, 0);
  EXPECT_EQ(*split->next(10), (RowRange{0, 1, 2, 2}));
  EXPECT_EQ(*split->next(1), (RowRange{1, 1, 1, 2}));
  EXPECT_EQ(*split->next(10), (RowRange{1, 3, 1, 2}));
}

TEST(StaticSplitTest, WhatCannotBeSplitIsRefused) {
  EXPECT_EQ(StaticSplit::make(0, 0, 1, 1).error().code, ErrorCode::kRange);
  EXPECT_EQ(StaticSplit::make(5, 2, 2, 1).error().code, ErrorCode::kRange);
  EXPECT_EQ(StaticSplit::make(5, 0, 1, 1)->next(0).error().code, ErrorCode::kRange);
  EXPECT_EQ(StaticSplit::make(2, 3, 4, 0)->next(1)->count, 0U);  // more seats than rows
}

// ---- small inputs
// --------------------------------------------------------------------------------

TEST(EndpointTest, AnAddressIsTakenAsItIs) {
  const auto endpoint = Endpoint::parse("127.0.0.1:4000", "run");
  ASSERT_TRUE(endpoint);
  EXPECT_EQ(endpoint->resolve()->port, 4000);
  EXPECT_FALSE(Endpoint::parse("127.0.0.1", "run"));
  EXPECT_FALSE(Endpoint::parse("127.0.0.1:0", "run"));
  EXPECT_FALSE(Endpoint::parse("@", "run"));
}

TEST(EndpointTest, OnlyLoopbackIsTakenWithoutTls) {
  const auto endpoint = Endpoint::parse("10.1.2.3:4000", "run");
  ASSERT_FALSE(endpoint);
  EXPECT_EQ(endpoint.error().code, ErrorCode::kPermission);
  Folder folder;
  const auto file = folder.file("endpoint.json", R"({"host":"10.1.2.3","port":4000})");
  EXPECT_EQ(Endpoint::parse("@" + file.string(), "run")->resolve().error().code,
            ErrorCode::kPermission);
}

TEST(EndpointTest, TheFileIsReadAnewEachTime) {
  Folder folder;
  const auto endpoint = Endpoint::parse("@" + (folder.path() / "endpoint.json").string(), "run");
  ASSERT_TRUE(endpoint);
  EXPECT_EQ(endpoint->resolve().error().code, ErrorCode::kNotFound);
  folder.file("endpoint.json", R"({"host":"127.0.0.1","port":4000,"run_id":"run"})");
  EXPECT_EQ(endpoint->resolve()->port, 4000);
  folder.file("endpoint.json", R"({"host":"::1","port":4001,"run_id":"run"})");
  EXPECT_EQ(endpoint->resolve()->text(), "[::1]:4001");
}

TEST(EndpointTest, DamagedAndForeignFilesAreRefusedByName) {
  Folder folder;
  const auto code = [&](const std::string& text) {
    const auto file = folder.file("endpoint.json", text);
    return Endpoint::parse("@" + file.string(), "run")->resolve().error().code;
  };
  EXPECT_EQ(code("{"), ErrorCode::kConfig);
  EXPECT_EQ(code("[]"), ErrorCode::kConfig);
  EXPECT_EQ(code(R"({"host":"127.0.0.1"})"), ErrorCode::kConfig);
  EXPECT_EQ(code(R"({"host":"127.0.0.1","port":"x"})"), ErrorCode::kConfig);
  EXPECT_EQ(code(R"({"host":"127.0.0.1","port":70000})"), ErrorCode::kConfig);
  EXPECT_EQ(code(R"({"host":"127.0.0.1","port":4000,"run_id":"other"})"), ErrorCode::kConflict);
}

TEST(SeatKeyTest, SixtyFourHexDigitsInAPrivateFile) {
  Folder folder;
  const std::string digits(64, 'a');
  const auto key = read_seat_key(folder.file("key", digits + "\n"));
  ASSERT_TRUE(key);
  EXPECT_EQ((*key)[31], 0xaa);
  EXPECT_EQ(read_seat_key(folder.file("key", digits, 0644)).error().code, ErrorCode::kPermission);
  EXPECT_EQ(read_seat_key(folder.file("short", "abcd")).error().code, ErrorCode::kData);
  EXPECT_EQ(read_seat_key(folder.file("text", std::string(64, 'x'))).error().code,
            ErrorCode::kData);
  EXPECT_EQ(read_seat_key(folder.path() / "missing").error().code, ErrorCode::kNotFound);
}

TEST(MetricTest, OneObjectOnOneLineWithinTheLimit) {
  EXPECT_TRUE(check_metric(R"({"loss": 1.5})"));
  EXPECT_FALSE(check_metric("[1]"));
  EXPECT_FALSE(check_metric("{"));
  EXPECT_FALSE(check_metric("{\n}"));
  EXPECT_FALSE(check_metric(R"({"text":")" + std::string(8192, 'x') + R"("})"));
}

}  // namespace
}  // namespace yeto::sync::client
