// SPDX-License-Identifier: Apache-2.0
// Goal: a merge is right, and the same bits whatever the order of arrival, the order of its parts,
// or whether norms were known before. Method: random fragments from printed seeds, against an f64
// reference.
#include "yeto/merge/merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/tensor/bf16.h"

namespace yeto::merge {
namespace {

using Values = std::vector<float>;

float normal(Rng& rng, double scale) {
  double sum = -6.0;
  for (int i = 0; i < 12; ++i) {
    sum += rng.uniform();
  }
  return static_cast<float>(scale * sum);
}

struct Case {
  Layout layout;
  OuterRule outer;
  WeightRule weights = WeightRule::kTokens2;
  CodecId codec = CodecId::kF32;
  bool first_commit = false;
  Values values;
  Values momentum;
  std::vector<Values> deltas;  // as decoded
  std::vector<Bytes> images;
  std::vector<Push> pushes;
};

Layout random_layout(Rng& rng) {
  Layout layout;
  Fragment fragment;
  const std::size_t pieces = 1 + rng.below(4);
  for (std::uint32_t i = 0; i < pieces; ++i) {
    TensorSpec tensor;
    tensor.name = strf("t{}", i);
    const std::uint64_t count = 1 + rng.below(rng.below(2) == 0 ? 40 : 9000);
    tensor.shape = {count};
    tensor.merge = rng.below(2) == 0 ? MergeMode::kAvg : MergeMode::kRda;
    fragment.pieces.push_back({i, 0, count, fragment.values});
    fragment.values += count;
    layout.tensors.push_back(tensor);
  }
  layout.fragments = {fragment};
  return layout;
}

Case random_case(std::uint64_t seed) {
  Rng rng(seed);
  Case made;
  made.layout = random_layout(rng);
  made.outer = OuterRule::of(static_cast<OuterKind>(rng.below(4)));
  made.weights = static_cast<WeightRule>(rng.below(3));
  made.codec = static_cast<CodecId>(rng.below(2));
  made.first_commit = rng.below(4) == 0;
  const std::size_t values = made.layout.fragments[0].values;
  for (std::size_t i = 0; i < values; ++i) {
    made.values.push_back(normal(rng, 0.5));
  }
  for (std::size_t i = 0; made.outer.keeps_momentum() && i < values; ++i) {
    made.momentum.push_back(normal(rng, 0.02));
  }
  const std::size_t learners = 1 + rng.below(9);
  std::vector<std::uint32_t> seats(64);
  std::iota(seats.begin(), seats.end(), 0U);
  for (std::size_t m = 0; m < learners; ++m) {
    std::swap(seats[m], seats[m + rng.below(seats.size() - m)]);
    Values delta(values);
    for (float& value : delta) {
      value = normal(rng, 0.01);
    }
    if (rng.below(6) == 0) {
      std::fill(delta.begin(), delta.end(), 0.0F);
    }
    const bool half = made.codec == CodecId::kBf16;
    Bytes image(values * (half ? 2 : 4));
    for (std::size_t i = 0; i < values; ++i) {
      const std::uint16_t rounded = bf16_from_f32(delta[i]);
      delta[i] = half ? f32_from_bf16(rounded) : delta[i];
      std::memcpy(image.data() + i * (half ? 2 : 4),
                  half ? static_cast<const void*>(&rounded) : static_cast<const void*>(&delta[i]),
                  half ? 2 : 4);
    }
    made.deltas.push_back(std::move(delta));
    made.images.push_back(std::move(image));
    made.pushes.push_back({seats[m], 1 + rng.below(9), rng.below(5000), made.codec, {}, {}});
  }
  for (std::size_t m = 0; m < learners; ++m) {
    made.pushes[m].image = made.images[m];
  }
  return made;
}

struct Outcome {
  Values values;
  Values momentum;
  Bytes image;
  bool operator==(const Outcome& other) const {
    // Bits, not values: −0 is not 0 here.
    const auto same = [](const Values& a, const Values& b) {
      return std::ranges::equal(as_bytes_view(std::span<const float>(a)),
                                as_bytes_view(std::span<const float>(b)));
    };
    return same(values, other.values) && same(momentum, other.momentum) && image == other.image;
  }
};

Inputs inputs_of(const Case& c) {
  return {&c.layout, 0, c.first_commit, c.weights, c.outer, c.values, c.momentum, c.pushes};
}

Outcome outcome_room(const Case& c) {
  return {Values(c.values.size()), Values(c.momentum.size()),
          Bytes(c.values.size() * (c.codec == CodecId::kF32 ? 4 : 2))};
}

Outcome merged(const Case& c, Inputs inputs) {
  Outcome out = outcome_room(c);
  const auto finite =
      merge_fragment(std::move(inputs), {out.values, out.momentum, c.codec, out.image});
  EXPECT_TRUE(finite) << finite.error().text();
  EXPECT_TRUE(*finite);
  return out;
}

double cosine64(const std::vector<double>& a, std::span<const float> b) {
  double dot = 0;
  double aa = 0;
  double bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    dot += a[i] * b[i];
    aa += a[i] * a[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  return aa > 0 && bb > 0 ? dot / std::sqrt(aa * bb) : 0.0;
}

// The definition in f64, without lanes, tiles or order.
std::vector<double> reference_delta(const Case& c, const Piece& piece) {
  std::vector<double> w;
  for (const Push& push : c.pushes) {
    const auto tokens = static_cast<double>(push.c_tokens);
    w.push_back(c.weights == WeightRule::kEqual    ? 1.0
                : c.weights == WeightRule::kTokens ? tokens
                                                   : tokens * tokens / push.c_steps);
  }
  const double sum = std::accumulate(w.begin(), w.end(), 0.0);
  std::vector<double> avg(piece.count);
  std::vector<double> direction(piece.count);
  double length = 0;
  for (std::size_t m = 0; m < w.size(); ++m) {
    const double share = sum > 0 ? w[m] / sum : 1.0 / static_cast<double>(w.size());
    double square = 0;
    for (std::size_t i = 0; i < piece.count; ++i) {
      square += std::pow(c.deltas[m][piece.offset + i], 2);
    }
    const double norm = std::sqrt(square);
    length += share * norm;
    for (std::size_t i = 0; i < piece.count; ++i) {
      const double value = c.deltas[m][piece.offset + i];
      avg[i] += share * value;
      direction[i] += norm > 0 ? share * value / norm : 0.0;
    }
  }
  double square = 0;
  for (const double value : direction) {
    square += value * value;
  }
  if (c.layout.tensors[piece.tensor].merge == MergeMode::kAvg || std::sqrt(square) < 1e-12) {
    return avg;
  }
  for (double& value : direction) {
    value *= length / std::sqrt(square);
  }
  return direction;
}

void expect_near_reference(const Case& c, const Outcome& got) {
  for (const Piece& piece : c.layout.fragments[0].pieces) {
    const std::vector<double> delta = reference_delta(c, piece);
    double mu = c.outer.momentum;
    if (c.outer.kind == OuterKind::kAuto) {
      const double agree =
          cosine64(delta, std::span<const float>(c.momentum).subspan(piece.offset, piece.count));
      mu = c.first_commit ? 0.0 : 0.9 * std::clamp((agree + 0.15) / 0.4, 0.0, 1.0);
    }
    for (std::size_t i = 0; i < piece.count; ++i) {
      const std::size_t at = piece.offset + i;
      double move = delta[i];
      if (c.outer.keeps_momentum()) {
        const double b = mu * c.momentum[at] + delta[i];
        ASSERT_NEAR(got.momentum[at], b, 1e-6 * (std::abs(b) + 0.02)) << at;
        move = delta[i] + mu * b;
      }
      const double value = c.values[at] - static_cast<double>(c.outer.lr) * move;
      ASSERT_NEAR(got.values[at], value, 1e-6 * (std::abs(value) + 0.1)) << at;
    }
  }
}

TEST(Merge, EqualsTheReferenceInF64) {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    const Case c = random_case(seed);
    const Outcome got = merged(c, inputs_of(c));
    expect_near_reference(c, got);
    for (std::size_t i = 0; i < got.values.size(); ++i) {
      if (c.codec == CodecId::kF32) {
        ASSERT_EQ(std::memcmp(got.image.data() + 4 * i, &got.values[i], 4), 0);
      } else {
        const std::uint16_t want = bf16_from_f32(got.values[i]);
        ASSERT_EQ(std::memcmp(got.image.data() + 2 * i, &want, 2), 0);
      }
    }
  }
}

TEST(Merge, OrderOfArrivalDoesNotMatter) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    const Case c = random_case(seed);
    const Outcome want = merged(c, inputs_of(c));
    Rng rng(seed);
    for (int turn = 0; turn < 4; ++turn) {
      Inputs in = inputs_of(c);
      for (std::size_t m = in.pushes.size(); m > 1; --m) {
        std::swap(in.pushes[m - 1], in.pushes[rng.below(m)]);
      }
      ASSERT_TRUE(merged(c, std::move(in)) == want);
    }
  }
}

TEST(Merge, OrderOfPartsAndKnownNormsDoNotMatter) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    Case c = random_case(seed);
    const Outcome want = merged(c, inputs_of(c));
    std::vector<Measured> measured;
    for (const Push& push : c.pushes) {
      measured.push_back(*measure(c.layout.fragments[0], push.codec, push.image));
      EXPECT_TRUE(measured.back().finite);
    }
    for (std::size_t m = 0; m < c.pushes.size(); ++m) {
      c.pushes[m].square_norms = measured[m].square_norms;
    }
    Outcome got = outcome_room(c);
    const auto merge =
        FragmentMerge::make(inputs_of(c), {got.values, got.momentum, c.codec, got.image});
    ASSERT_TRUE(merge);
    for (std::size_t part = merge->parts(); part-- > 0;) {
      EXPECT_TRUE(merge->run_part(part));
    }
    ASSERT_TRUE(got == want);
  }
}

TEST(Merge, LargeAveragesAreCutIntoParts) {
  Case c = random_case(3);
  const std::size_t count = 600'000;
  c.layout.tensors.resize(1);
  c.layout.tensors[0].shape = {count};
  c.layout.tensors[0].merge = MergeMode::kAvg;
  c.layout.fragments = {{{{0, 0, count, 0}}, count}};
  c.outer = OuterRule::of(OuterKind::kNesterov);
  c.codec = CodecId::kF32;
  c.values.assign(count, 1.0F);
  c.momentum.assign(count, 0.0F);
  Values delta(count);
  Rng rng(3);
  for (float& value : delta) {
    value = normal(rng, 0.01);
  }
  c.pushes = {{0, 1, 1, CodecId::kF32, as_bytes_view(std::span<const float>(delta)), {}}};
  c.deltas = {delta};
  Outcome got = outcome_room(c);
  const auto merge =
      FragmentMerge::make(inputs_of(c), {got.values, got.momentum, c.codec, got.image});
  ASSERT_TRUE(merge);
  EXPECT_EQ(merge->parts(), 3U);
  EXPECT_TRUE(merged(c, inputs_of(c)).values.size() == count);
  expect_near_reference(c, merged(c, inputs_of(c)));
}

TEST(Merge, WhatIsNotFiniteIsReportedAndTheInputsStand) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 3e38F}) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(strf("seed {} value {}", seed, bad));
      Case c = random_case(seed);
      if (std::isfinite(bad)) {
        c.values.back() = -bad;  // the step overflows although both are finite
        c.outer = OuterRule::of(OuterKind::kDirect);
        c.momentum.clear();
      }
      Values delta(c.values.size(), bad);
      c.pushes = {{0, 1, 1, CodecId::kF32, as_bytes_view(std::span<const float>(delta)), {}}};
      const Values before = c.values;
      Outcome out = outcome_room(c);
      const auto finite =
          merge_fragment(inputs_of(c), {out.values, out.momentum, c.codec, out.image});
      ASSERT_TRUE(finite);
      EXPECT_FALSE(*finite);
      EXPECT_EQ(c.values, before);
    }
  }
}

TEST(Merge, ValuesThatLeaveBf16AreNotFinite) {
  Case c = random_case(1);
  c.codec = CodecId::kBf16;
  c.outer = OuterRule::of(OuterKind::kSgd);
  c.momentum.clear();
  std::fill(c.values.begin(), c.values.end(), 3.4e38F);  // finite in f32, infinite in bf16
  const Values delta(c.values.size(), 0.0F);
  c.pushes = {{0, 1, 1, CodecId::kF32, as_bytes_view(std::span<const float>(delta)), {}}};
  Outcome out = outcome_room(c);
  EXPECT_FALSE(*merge_fragment(inputs_of(c), {out.values, {}, c.codec, out.image}));
}

TEST(Merge, TinyDeltasStayFinite) {
  Case c = random_case(2);
  for (TensorSpec& tensor : c.layout.tensors) {
    tensor.merge = MergeMode::kRda;
  }
  c.outer = OuterRule::of(OuterKind::kSgd);
  c.momentum.clear();
  c.codec = CodecId::kF32;
  const Values tiny(c.values.size(), 1e-45F);
  const Values other(c.values.size(), 1e-3F);
  c.pushes = {{0, 1, 1, CodecId::kF32, as_bytes_view(std::span<const float>(tiny)), {}},
              {1, 1, 1, CodecId::kF32, as_bytes_view(std::span<const float>(other)), {}}};
  c.deltas = {tiny, other};
  expect_near_reference(c, merged(c, inputs_of(c)));
  c.pushes.pop_back();
  c.deltas.pop_back();
  merged(c, inputs_of(c));
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
  const Case c = random_case(5);
  Outcome out = outcome_room(c);
  const Outputs outputs{out.values, out.momentum, c.codec, out.image};
  Inputs none = inputs_of(c);
  none.pushes.clear();
  EXPECT_EQ(merge_fragment(none, outputs).error().code, ErrorCode::kData);
  Inputs doubled = inputs_of(c);
  doubled.pushes.push_back(doubled.pushes[0]);
  EXPECT_EQ(merge_fragment(doubled, outputs).error().code, ErrorCode::kData);
  Inputs truncated = inputs_of(c);
  truncated.pushes[0].image = truncated.pushes[0].image.subspan(2);
  EXPECT_EQ(merge_fragment(truncated, outputs).error().code, ErrorCode::kData);
  Inputs other = inputs_of(c);
  other.pushes[0].codec = CodecId::kQ4;
  EXPECT_EQ(merge_fragment(other, outputs).error().code, ErrorCode::kData);
  Inputs missing = inputs_of(c);
  missing.fragment = 1;
  EXPECT_EQ(merge_fragment(missing, outputs).error().code, ErrorCode::kInternal);
  Outputs q4 = outputs;
  q4.codec = CodecId::kQ4;
  EXPECT_EQ(merge_fragment(inputs_of(c), q4).error().code, ErrorCode::kInternal)
      << "no place for the public value";
  Outputs small = outputs;
  small.values = small.values.first(small.values.size() - 1);
  EXPECT_EQ(merge_fragment(inputs_of(c), small).error().code, ErrorCode::kInternal);
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
