// SPDX-License-Identifier: Apache-2.0
// Goal: the worked values that define the merge come out bit for bit. Method: one fragment of one
// tensor.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "yeto/merge/merge.h"

namespace yeto::merge {
namespace {

using Values = std::vector<float>;

Layout one_tensor(std::uint64_t values, MergeMode mode) {
  Layout layout;
  TensorSpec tensor;
  tensor.name = "w";
  tensor.shape = {values};
  tensor.merge = mode;
  layout.tensors = {tensor};
  layout.fragments = {{{{0, 0, values, 0}}, values}};
  return layout;
}

struct Learner {
  Values delta;
  std::uint64_t tokens = 1;
};

struct Server {
  Layout layout;
  OuterRule outer;
  Values values;
  Values momentum;
  WeightRule weights = WeightRule::kTokens;
  bool first_commit = false;
  Correction correction = Correction::kNone;

  Server(MergeMode mode, OuterRule rule, Values start)
      : layout(one_tensor(start.size(), mode)), outer(rule), values(std::move(start)) {
    momentum.resize(rule.keeps_momentum() ? values.size() : 0);
  }
  bool merge(const std::vector<Learner>& learners) {
    Inputs in;
    in.layout = &layout;
    in.weights = weights;
    in.outer = outer;
    in.first_commit = first_commit;
    in.values = values;
    in.momentum = momentum;
    in.correction = correction;
    std::uint32_t seat = 0;
    for (const Learner& learner : learners) {
      Push push;
      push.seat = seat++;
      push.c_steps = 1;
      push.c_tokens = learner.tokens;
      push.image = as_bytes_view(std::span<const float>(learner.delta));
      in.pushes.push_back(push);
    }
    Values new_values(values.size());
    Values new_momentum(momentum.size());
    Bytes image(4 * values.size());
    const Result<bool> finite =
        merge_fragment(std::move(in), {new_values, new_momentum, CodecId::kF32, image});
    EXPECT_TRUE(finite) << finite.error().text();
    values = new_values;
    momentum = new_momentum;
    EXPECT_EQ(Bytes(image), Bytes(as_bytes_view(std::span<const float>(values)).begin(),
                                  as_bytes_view(std::span<const float>(values)).end()));
    return *finite;
  }
};

// From zero with `direct` the new values are minus the mean delta.
Values mean_delta(MergeMode mode, const std::vector<Learner>& learners) {
  Server server(mode, OuterRule::of(OuterKind::kDirect), Values(learners[0].delta.size()));
  EXPECT_TRUE(server.merge(learners));
  for (float& value : server.values) {
    value = 0.0F - value;
  }
  return server.values;
}

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

TEST(WorkedValues, RadialDirectionalAveraging) {
  EXPECT_EQ(mean_delta(MergeMode::kRda, {{{2, 0}, 1}, {{0, 2}, 1}}),
            (Values{1.4142135F, 1.4142135F}));
  EXPECT_EQ(mean_delta(MergeMode::kRda, {{{3, 4}, 3}, {{0, 1}, 1}}),
            (Values{1.8715509F, 3.5351517F}));
}

TEST(WorkedValues, PlainAverage) {
  EXPECT_EQ(mean_delta(MergeMode::kAvg, {{{1}, 3}, {{-3}, 1}}), Values{0.0F});
}

TEST(WorkedValues, OppositeDirectionsFallBackToThePlainAverage) {
  // The unit vectors cancel; the average of the deltas does not.
  EXPECT_EQ(mean_delta(MergeMode::kRda, {{{4, 0}, 1}, {{-2, 0}, 1}}), (Values{1.0F, 0.0F}));
  EXPECT_EQ(mean_delta(MergeMode::kRda, {{{0, 0}, 1}, {{0, 0}, 1}}), (Values{0.0F, 0.0F}));
}

TEST(WorkedValues, AZeroDeltaAddsNoDirectionButItsWeightStaysInTheLength) {
  EXPECT_EQ(mean_delta(MergeMode::kRda, {{{0, 0}, 1}, {{0, 2}, 1}}), (Values{0.0F, 1.0F}));
}

TEST(WorkedValues, NesterovBits) {
  Server server(MergeMode::kAvg, OuterRule::of(OuterKind::kNesterov), {1.0F});
  std::vector<std::uint32_t> got;
  for (const float delta : {0.5F, 0.5F, -0.25F}) {
    ASSERT_TRUE(server.merge({{{delta}, 1}}));
    got.push_back(bits(server.values[0]));
  }
  EXPECT_EQ(got, (std::vector<std::uint32_t>{0x3eab8520, 0xbf1d0e55, 0xbf51d493}));
}

TEST(WorkedValues, SgdAndDirect) {
  Server sgd(MergeMode::kAvg, OuterRule::of(OuterKind::kSgd), {1.0F});
  ASSERT_TRUE(sgd.merge({{{0.5F}, 1}}));
  EXPECT_EQ(sgd.values[0], 1.0F - 0.28F * 0.5F);
  EXPECT_TRUE(sgd.momentum.empty());
  Server direct(MergeMode::kAvg, OuterRule::of(OuterKind::kDirect), {1.0F});
  ASSERT_TRUE(direct.merge({{{0.5F}, 1}}));
  EXPECT_EQ(direct.values[0], 0.5F);
}

TEST(WorkedValues, AutoFollowsTheAgreementWithItsMomentum) {
  Server server(MergeMode::kAvg, OuterRule::of(OuterKind::kAuto), {0.0F, 0.0F});
  server.first_commit = true;
  ASSERT_TRUE(server.merge({{{1, 0}, 1}}));
  EXPECT_EQ(server.values[0], -1.0F) << "the first commit has no momentum";
  EXPECT_EQ(server.momentum, (Values{1, 0}));
  server.first_commit = false;

  // Same direction: c = 1, μ = 0.9.
  Server agree = server;
  ASSERT_TRUE(agree.merge({{{1, 0}, 1}}));
  EXPECT_EQ(agree.momentum[0], 0.9F + 1.0F);
  // Half way: c = 0.6, μ = 0.9·(0.6 − 0.3)/0.5.
  Server half = server;
  ASSERT_TRUE(half.merge({{{3, 4}, 1}}));
  EXPECT_FLOAT_EQ(half.momentum[0], 0.54F + 3.0F);
  EXPECT_EQ(half.momentum[1], 4.0F);
  // At a right angle: c = 0, μ = 0.
  Server side = server;
  ASSERT_TRUE(side.merge({{{0, 1}, 1}}));
  EXPECT_EQ(side.momentum, (Values{0, 1}));
  // Against it: c = −1, μ = 0.
  Server against = server;
  ASSERT_TRUE(against.merge({{{-1, 0}, 1}}));
  EXPECT_EQ(against.momentum, (Values{-1, 0}));
  EXPECT_EQ(against.values[0], -1.0F + 1.0F);
}

// What is left of one delta beside a momentum: without a share of the old momentum the new one is
// the delta.
Values corrected(const Values& delta, const Values& momentum) {
  Server server(MergeMode::kAvg, {OuterKind::kNesterov, 0.7F, 0.0F}, Values(delta.size()));
  server.momentum = momentum;
  server.correction = Correction::kHeloco;
  EXPECT_TRUE(server.merge({{delta, 1}}));
  return server.momentum;
}

TEST(WorkedValues, DeltasAreTurnedTowardsTheMomentum) {
  EXPECT_EQ(corrected({-1, 0}, {1, 0}), (Values{-0.875F, 0.0F}));
  EXPECT_EQ(corrected({0, 1}, {1, 0}), (Values{0.31622776F, 0.94868326F}));
  EXPECT_EQ(corrected({1, 1}, {1, 0}), (Values{1.0F, 1.0F}));
}

TEST(WorkedValues, WithoutAMomentumNothingIsTurned) {
  EXPECT_EQ(corrected({-1, 0}, {0, 0}), (Values{-1.0F, 0.0F}));
  EXPECT_EQ(corrected({-1, 0}, {1e-9F, 0}), (Values{-1.0F, 0.0F}));
  EXPECT_EQ(corrected({-1e-9F, 0}, {1, 0}), (Values{-1e-9F, 0.0F}));
  Server sgd(MergeMode::kAvg, OuterRule::of(OuterKind::kDirect), {0.0F, 0.0F});
  sgd.correction = Correction::kHeloco;
  ASSERT_TRUE(sgd.merge({{{-1, 0}, 1}}));
  EXPECT_EQ(sgd.values, (Values{1.0F, 0.0F}));
}

TEST(WorkedValues, SlicesOfOneTensorHaveTheirOwnNorms) {
  // One tensor of four values, both halves in one fragment, apart from each other.
  Layout layout = one_tensor(6, MergeMode::kRda);
  layout.fragments = {{{{0, 0, 2, 0}, {0, 4, 2, 2}}, 4}, {{{0, 2, 2, 0}}, 2}};
  ASSERT_TRUE(Layout::decode(layout.encode()));
  const Values a{2, 0, 3, 4};
  const Values b{0, 2, 0, 1};
  const Values start(4);
  Values out(4);
  Bytes image(16);
  Inputs in;
  in.layout = &layout;
  in.weights = WeightRule::kTokens;
  in.outer = OuterRule::of(OuterKind::kDirect);
  in.values = start;
  for (std::uint32_t seat = 0; seat < 2; ++seat) {
    Push push;
    push.seat = seat;
    push.c_steps = 1;
    push.c_tokens = 1;
    push.image = as_bytes_view(std::span<const float>(seat == 0 ? a : b));
    in.pushes.push_back(push);
  }
  ASSERT_TRUE(*merge_fragment(std::move(in), {out, {}, CodecId::kF32, image}));
  EXPECT_EQ(out[0], -1.4142135F);
  EXPECT_EQ(out[1], -1.4142135F);
  // Unit vectors (0.6, 0.8) and (0, 1): their mean has the direction (0.6, 1.8); mean length 3.
  EXPECT_NEAR(out[2], -3.0 * 0.6 / std::sqrt(0.36 + 3.24), 1e-6);
  EXPECT_NEAR(out[3], -3.0 * 1.8 / std::sqrt(0.36 + 3.24), 1e-6);
}

TEST(WorkedValues, LateWorkWeighsLess) {
  const Layout layout = one_tensor(1, MergeMode::kAvg);
  const Values start{0};
  const Values one{1};
  Values out(1);
  Bytes image(4);
  const auto shares_of = [&](std::vector<double> factors) {
    Inputs in;
    in.layout = &layout;
    in.weights = WeightRule::kTokens;
    in.outer = OuterRule::of(OuterKind::kSgd);
    in.values = start;
    for (std::uint32_t i = 0; i < factors.size(); ++i) {
      Push push{0, 1, 100, CodecId::kF32, as_bytes_view(std::span<const float>(one)), {}};
      push.base_version = i;
      push.factor = factors[i];
      in.pushes.push_back(push);
    }
    const auto merge = FragmentMerge::make(std::move(in), {out, {}, CodecId::kF32, image});
    EXPECT_TRUE(merge);
    std::vector<double> shares;
    for (const SeatWeight& weight : merge->weights()) {
      shares.push_back(weight.weight);
    }
    return shares;
  };
  EXPECT_EQ(shares_of({0.25, 1.0}), (std::vector<double>{0.2, 0.8}));
  EXPECT_EQ(shares_of({0.0, 1.0}), (std::vector<double>{0.0, 1.0}));
  EXPECT_EQ(shares_of({0.0, 0.0}), (std::vector<double>{0.5, 0.5})) << "all zero";
}

TEST(WorkedValues, WeightRules) {
  // tokens2: 100²/10 = 1000 and 300²/10 = 9000; shares 0.1 and 0.9.
  const Layout layout = one_tensor(1, MergeMode::kAvg);
  const Values start{0};
  const Values one{1};
  Values out(1);
  Bytes image(4);
  const auto shares_of = [&](WeightRule rule, std::uint64_t scale) {
    Inputs in;
    in.layout = &layout;
    in.weights = rule;
    in.outer = OuterRule::of(OuterKind::kSgd);
    in.values = start;
    for (std::uint32_t seat = 0; seat < 2; ++seat) {
      in.pushes.push_back({seat,
                           10,
                           scale * (seat == 0 ? 100U : 300U),
                           CodecId::kF32,
                           as_bytes_view(std::span<const float>(one)),
                           {}});
    }
    const auto merge = FragmentMerge::make(std::move(in), {out, {}, CodecId::kF32, image});
    EXPECT_TRUE(merge);
    return std::vector<double>{merge->weights()[0].weight, merge->weights()[1].weight};
  };
  EXPECT_EQ(shares_of(WeightRule::kTokens2, 1), (std::vector<double>{0.1, 0.9}));
  EXPECT_EQ(shares_of(WeightRule::kTokens, 1), (std::vector<double>{0.25, 0.75}));
  EXPECT_EQ(shares_of(WeightRule::kEqual, 1), (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(shares_of(WeightRule::kTokens2, 0), (std::vector<double>{0.5, 0.5})) << "all zero";
}

}  // namespace
}  // namespace yeto::merge
