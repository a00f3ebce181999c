// SPDX-License-Identifier: Apache-2.0
// Goal: extreme values and crowds are merged as they should be, what is not finite is reported, and
// bad input is refused. Method: made cases, and random ones from printed seeds.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/codec/codec.h"
#include "yeto/merge/merge.h"
#include "yeto/merge/merge_testing.h"

namespace yeto::merge {
namespace {

using namespace testing;

TEST(Merge, WhatIsNotFiniteIsReportedAndTheInputsStand) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 3e38F}) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(strf("seed {} value {}", seed, bad));
      Case c = random_case(seed);
      if (std::isfinite(bad)) {
        c.values.back() = -bad;  // the step overflows although both are finite
        simplify(c, CodecId::kF32, OuterKind::kDirect);
      }
      Values delta(c.values.size(), bad);
      c.pushes = {push_of(0, delta)};
      const Values before = c.values;
      Outcome out = outcome_room(c);
      const auto finite = merge_fragment(inputs_of(c), outputs_of(c, out));
      ASSERT_TRUE(finite);
      EXPECT_FALSE(*finite);
      EXPECT_EQ(c.values, before);
    }
  }
}

TEST(Merge, ValuesThatLeaveBf16AreNotFinite) {
  Case c = random_case(1);
  simplify(c, CodecId::kBf16, OuterKind::kSgd);
  std::fill(c.values.begin(), c.values.end(), 3.4e38F);  // finite in f32, infinite in bf16
  const Values delta(c.values.size(), 0.0F);
  c.pushes = {push_of(0, delta)};
  Outcome out = outcome_room(c);
  EXPECT_FALSE(*merge_fragment(inputs_of(c), {out.values, {}, c.codec, out.image}));
}

TEST(Merge, TinyDeltasStayFinite) {
  Case c = random_case(2);
  for (TensorSpec& tensor : c.layout.tensors) {
    tensor.merge = MergeMode::kRda;
  }
  simplify(c, CodecId::kF32, OuterKind::kSgd);
  const Values tiny(c.values.size(), 1e-45F);
  const Values other(c.values.size(), 1e-3F);
  c.pushes = {push_of(0, tiny), push_of(1, other)};
  c.deltas = {tiny, other};
  expect_near_reference(c, merged(c, inputs_of(c)));
  c.pushes.pop_back();
  c.deltas.pop_back();
  merged(c, inputs_of(c));
}

TEST(Merge, AChangeThatIsNotFiniteIsReported) {
  Case c = random_case(1);
  std::fill(c.values.begin(), c.values.end(), 3e38F);
  simplify(c, CodecId::kQ4, OuterKind::kSgd);
  const Values opposite(c.values.size(), -3e38F);
  c.old_public.resize(2 * c.values.size());
  ASSERT_TRUE(codec::encode(CodecId::kBf16, opposite, c.old_public));
  const Values delta(c.values.size(), 0.0F);
  c.pushes = {push_of(0, delta)};
  Outcome out = outcome_room(c);
  EXPECT_FALSE(*merge_fragment(inputs_of(c), outputs_of(c, out)));
}

TEST(Merge, SumsOf256LearnersHoldAtExtremeValues) {
  constexpr std::size_t kCrowd = 256;
  for (const float extreme : {std::numeric_limits<float>::max(), 1e30F, 1e-20F, 1e-37F}) {
    for (const MergeMode mode : {MergeMode::kAvg, MergeMode::kRda}) {
      SCOPED_TRACE(strf("{} {}", extreme, mode == MergeMode::kAvg ? "avg" : "rda"));
      Case c = random_case(11);
      for (TensorSpec& tensor : c.layout.tensors) {
        tensor.merge = mode;
      }
      std::fill(c.values.begin(), c.values.end(), 0.0F);
      simplify(c, CodecId::kF32, OuterKind::kDirect);
      c.weights = WeightRule::kEqual;
      Rng rng(11);
      c.deltas.assign(kCrowd, Values(c.values.size()));
      c.pushes.clear();
      for (std::uint32_t m = 0; m < kCrowd; ++m) {
        for (float& value : c.deltas[m]) {
          // A common direction, half of the length at random, so that nothing cancels to nothing.
          value = static_cast<float>(extreme * (0.5 + 0.5 * rng.uniform()));
        }
        c.pushes.push_back(push_of(m, c.deltas[m]));
      }
      const Outcome got = merged(c, inputs_of(c));
      for (const Piece& piece : c.layout.fragments[0].pieces) {
        const std::vector<double> want = reference_delta(c, piece);
        for (std::size_t i = 0; i < piece.count; ++i) {
          // 256 roundings of 2^-24 each, and of the weights; subnormals have their own step.
          ASSERT_NEAR(-got.values[piece.offset + i], want[i], 3e-5 * std::abs(want[i]) + 1e-43);
        }
      }
    }
  }
}

TEST(Merge, TheLargestMeanOf256EqualDeltasIsThatDelta) {
  Case c = random_case(12);
  for (TensorSpec& tensor : c.layout.tensors) {
    tensor.merge = MergeMode::kAvg;
  }
  std::fill(c.values.begin(), c.values.end(), 0.0F);
  simplify(c, CodecId::kF32, OuterKind::kDirect);
  c.weights = WeightRule::kEqual;
  const Values most(c.values.size(), std::numeric_limits<float>::max());
  c.pushes.clear();
  for (std::uint32_t m = 0; m < 256; ++m) {
    c.pushes.push_back(push_of(m, most));
  }
  EXPECT_EQ(merged(c, inputs_of(c)).values, Values(c.values.size(), -most[0]));
}

TEST(Measure, OfAQ4PushIsThatOfItsValues) {
  const Fragment fragment{{{0, 0, 700, 0}, {1, 0, 333, 700}}, 1033};
  Values delta(fragment.values);
  Rng rng(3);
  for (float& value : delta) {
    value = normal(rng, 0.01);
  }
  Bytes image(codec::encoded_bytes(CodecId::kQ4, delta.size()));
  ASSERT_TRUE(codec::encode(CodecId::kQ4, delta, image));
  ASSERT_TRUE(codec::decode(CodecId::kQ4, image, delta));
  const auto want = measure(fragment, CodecId::kF32, as_bytes_view(std::span<const float>(delta)));
  const auto got = measure(fragment, CodecId::kQ4, image);
  ASSERT_TRUE(got);
  EXPECT_TRUE(got->finite);
  EXPECT_EQ(got->square_norms, want->square_norms);
  EXPECT_EQ(got->norm, want->norm);
  delta[500] = std::nanf("");
  ASSERT_TRUE(codec::encode(CodecId::kQ4, delta, image));
  EXPECT_FALSE(measure(fragment, CodecId::kQ4, image)->finite);
  const float negative = -1.0F;
  std::memcpy(image.data() + 132, &negative, 4);
  std::memcpy(image.data(), &negative, 4);
  EXPECT_EQ(measure(fragment, CodecId::kQ4, image).error().code, ErrorCode::kData);
}

TEST(Measure, NormsAndFiniteness) {
  Fragment fragment{{{0, 0, 2, 0}, {1, 0, 3, 2}}, 5};
  Values delta{3, 4, 1, 2, 2};
  const auto view = as_bytes_view(std::span<const float>(delta));
  const auto measured = measure(fragment, CodecId::kF32, view);
  ASSERT_TRUE(measured);
  EXPECT_TRUE(measured->finite);
  EXPECT_EQ(measured->square_norms, (std::vector<double>{25, 9}));
  EXPECT_EQ(measured->norm, std::sqrt(34.0));
  delta[4] = std::numeric_limits<float>::max();
  EXPECT_TRUE(measure(fragment, CodecId::kF32, view)->finite);
  delta[4] = -std::numeric_limits<float>::infinity();
  EXPECT_FALSE(measure(fragment, CodecId::kF32, view)->finite);
  delta[4] = std::nanf("");
  EXPECT_FALSE(measure(fragment, CodecId::kF32, view)->finite);
  EXPECT_EQ(measure(fragment, CodecId::kF32, view.first(19)).error().code, ErrorCode::kData);
  EXPECT_EQ(measure(fragment, CodecId::kQ4, view).error().code, ErrorCode::kData);
}

TEST(Merge, BadInputIsRefused) {
  Case c = random_case(5);
  simplify(c, CodecId::kBf16, OuterKind::kNesterov);
  const Values delta(c.values.size(), 0.01F);
  c.pushes = {push_of(3, delta)};
  Outcome out = outcome_room(c);
  const Outputs outputs = outputs_of(c, out);
  const auto code_of = [&](const Inputs& in) { return merge_fragment(in, outputs).error().code; };
  Inputs none = inputs_of(c);
  none.pushes.clear();
  EXPECT_EQ(code_of(none), ErrorCode::kData);
  Inputs doubled = inputs_of(c);
  doubled.pushes.push_back(doubled.pushes[0]);
  EXPECT_EQ(code_of(doubled), ErrorCode::kData) << "same seat, same base";
  doubled.pushes[1].base_version = 1;
  EXPECT_TRUE(merge_fragment(doubled, outputs)) << "late work of the same seat";
  for (const double factor : {-0.5, 1.5, std::nan("")}) {
    doubled.pushes[1].factor = factor;
    EXPECT_EQ(code_of(doubled), ErrorCode::kData) << factor;
  }
  Inputs truncated = inputs_of(c);
  truncated.pushes[0].image = truncated.pushes[0].image.subspan(2);
  EXPECT_EQ(code_of(truncated), ErrorCode::kData);
  Inputs other = inputs_of(c);
  other.pushes[0].codec = CodecId::kQ4;
  EXPECT_EQ(code_of(other), ErrorCode::kData) << "not the size of such an image";
  Bytes image(codec::encoded_bytes(CodecId::kQ4, c.values.size()));
  ASSERT_TRUE(codec::encode(CodecId::kQ4, delta, image));
  other.pushes[0].image = image;
  EXPECT_TRUE(merge_fragment(other, outputs));
  image[3] = 0xff;  // the sign of the first scale
  EXPECT_EQ(code_of(other), ErrorCode::kData);
  Inputs missing = inputs_of(c);
  missing.fragment = 1;
  EXPECT_EQ(code_of(missing), ErrorCode::kInternal);
}

TEST(Merge, OutputsOfAnotherSizeAreRefused) {
  Case c = random_case(6);
  simplify(c, CodecId::kQ4, OuterKind::kNesterov);
  c.old_public.resize(2 * c.values.size());
  const Values delta(c.values.size(), 0.01F);
  c.pushes = {push_of(3, delta)};
  Outcome out = outcome_room(c);
  const Outputs good = outputs_of(c, out);
  EXPECT_TRUE(merge_fragment(inputs_of(c), good));
  const auto refused = [&](auto&& change) {
    Outputs bad = good;
    change(bad);
    const auto merge = merge_fragment(inputs_of(c), bad);
    return !merge && merge.error().code == ErrorCode::kInternal;
  };
  EXPECT_TRUE(refused([](Outputs& o) { o.values = o.values.first(o.values.size() - 1); }));
  EXPECT_TRUE(refused([](Outputs& o) { o.momentum = {}; }));
  EXPECT_TRUE(refused([](Outputs& o) { o.image = o.image.first(o.image.size() - 1); }));
  EXPECT_TRUE(refused([](Outputs& o) { o.old_public = {}; }));
  EXPECT_TRUE(refused([](Outputs& o) { o.new_public = o.new_public.first(2); }));
  EXPECT_TRUE(refused([](Outputs& o) { o.codec = CodecId::kBf16; }));
}

TEST(Rules, NamesComeBackAndBoundsHold) {
  for (const auto kind :
       {OuterKind::kNesterov, OuterKind::kSgd, OuterKind::kDirect, OuterKind::kAuto}) {
    EXPECT_EQ(*outer_kind_from_name(outer_kind_name(kind)), kind);
    EXPECT_TRUE(OuterRule::of(kind).check());
  }
  for (const auto rule : {WeightRule::kTokens2, WeightRule::kTokens, WeightRule::kEqual}) {
    EXPECT_EQ(*weight_rule_from_name(weight_rule_name(rule)), rule);
  }
  for (const auto correction : {Correction::kNone, Correction::kHeloco}) {
    EXPECT_EQ(*correction_from_name(correction_name(correction)), correction);
  }
  EXPECT_EQ(correction_from_name("always").error().code, ErrorCode::kType);
  EXPECT_EQ(outer_kind_from_name("adam").error().code, ErrorCode::kType);
  OuterRule rule = OuterRule::of(OuterKind::kNesterov);
  rule.lr = 0.0F;
  EXPECT_EQ(rule.check().error().code, ErrorCode::kRange);
  rule.lr = std::nanf("");
  EXPECT_FALSE(rule.check());
  rule = OuterRule::of(OuterKind::kNesterov);
  rule.momentum = 1.0F;
  EXPECT_FALSE(rule.check());
  rule = OuterRule::of(OuterKind::kDirect);
  rule.lr = 0.5F;
  EXPECT_EQ(rule.check().error().code, ErrorCode::kConflict);
}

}  // namespace
}  // namespace yeto::merge
