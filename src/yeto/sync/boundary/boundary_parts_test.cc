// SPDX-License-Identifier: Apache-2.0
// Goal: the pieces under Boundary that need no socket: tensors by fragment, fragment values,
// endpoint and key files, metric texts.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "yeto/base/files.h"
#include "yeto/base/rng.h"
#include "yeto/sync/boundary/endpoint.h"
#include "yeto/sync/boundary/fragment_values.h"
#include "yeto/sync/boundary/tensors.h"

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

TEST(TensorsTest, GatherAndScatterFollowThePieces) {
  Sliced world;
  Tensors tensors(world.views(), world.layout);
  EXPECT_EQ(tensors.gather(0), (Floats{0, 1, 2, 10, 11, 12}));
  EXPECT_EQ(tensors.gather(1), (Floats{20, 21, 22, 23, 24, 3}));
  tensors.scatter(1, Floats{1, 2, 3, 4, 5, 6});
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

Values shared(Floats values) { return std::make_shared<const Floats>(std::move(values)); }

class FragmentValuesTest : public testing::Test {
 protected:
  FragmentValuesTest() : values_(world_.views(), world_.layout) {
    values_.overwrite(0, shared(Floats(6, 1.0F)));
  }
  Floats local() const { return values_.tensors().gather(0); }
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
    Tensors(world_.views(), world_.layout).scatter(0, Floats(6, value));
  }

  Sliced world_;
  FragmentValues values_;
};

TEST_F(FragmentValuesTest, OverwritingTakesTheValueAndForgetsTheRest) {
  EXPECT_EQ(local(), Floats(6, 1.0F));
  const DeltaSource delta = values_.take_push(0);
  EXPECT_EQ(*delta.reference, *delta.snapshot);
}

TEST_F(FragmentValuesTest, AfterAPushLaterWorkStaysAndTheNextDeltaIsAgainstTheNewAnchor) {
  set_local(3.0F);
  const DeltaSource first = values_.take_push(0);
  EXPECT_EQ(*first.snapshot, Floats(6, 3.0F));
  set_local(3.5F);
  values_.apply(applying(ApplyMode::kAfterPush, 0.0), shared(Floats(6, 2.0F)));
  EXPECT_EQ(local(), Floats(6, 2.5F));
  const DeltaSource second = values_.take_push(0);
  EXPECT_EQ(*second.reference, Floats(6, 2.0F));
  // The worker may still read the first one.
  EXPECT_EQ(*first.reference, Floats(6, 1.0F));
}

TEST_F(FragmentValuesTest, TheBlendedReferenceHoldsTheRetainedShare) {
  set_local(3.0F);
  values_.take_push(0);
  values_.apply(applying(ApplyMode::kAfterPush, 0.5, true), shared(Floats(6, 2.0F)));
  EXPECT_EQ(local(), Floats(6, 2.5F));
  const DeltaSource delta = values_.take_push(0);
  EXPECT_EQ(*delta.reference, *delta.snapshot);
}

TEST_F(FragmentValuesTest, WithoutAPushTheShareIsOfTheLocalWork) {
  set_local(3.0F);
  values_.apply(applying(ApplyMode::kWithoutPush, 0.5), shared(Floats(6, 2.0F)));
  EXPECT_EQ(local(), Floats(6, 2.5F));
  EXPECT_EQ(*values_.take_push(0).reference, Floats(6, 2.0F));
}

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
  EXPECT_EQ(endpoint.error().code, ErrorCode::kNotInBuild);
  Folder folder;
  const auto file = folder.file("endpoint.json", R"({"host":"10.1.2.3","port":4000})");
  EXPECT_EQ(Endpoint::parse("@" + file.string(), "run")->resolve().error().code,
            ErrorCode::kNotInBuild);
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
