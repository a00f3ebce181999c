// SPDX-License-Identifier: Apache-2.0
// Goal: the formulas of the step boundary, to the bit. Method: worked values, and equality with the
// written formula evaluated step by step on random values.
#include "yeto/sync/client/values.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "yeto/base/rng.h"

namespace yeto::sync::client {
namespace {

using Values = std::vector<float>;

std::vector<std::uint32_t> bits(const Values& values) {
  std::vector<std::uint32_t> out;
  for (const float value : values) {
    out.push_back(std::bit_cast<std::uint32_t>(value));
  }
  return out;
}

Values random_values(Rng& rng, std::size_t count) {
  Values values(count);
  for (float& value : values) {
    value = static_cast<float>(rng.uniform() * 4.0 - 2.0);
  }
  return values;
}

// Keeps the compiler from joining two operations.
float rounded(float value) {
  volatile float out = value;
  return out;
}

TEST(ValuesTest, TheDeltaIsReferenceMinusSnapshot) {
  const Values reference = {1.0F, 2.0F, -3.0F};
  const Values snapshot = {0.5F, 2.0F, 1.0F};
  Values out(3);
  outer_gradient(reference, snapshot, out);
  EXPECT_EQ(out, (Values{0.5F, 0.0F, -4.0F}));
}

TEST(ValuesTest, AfterAPushTheShareAndTheLaterWorkStay) {
  const Values theta = {1.0F};
  const Values pushed = {3.0F};
  Values local = {3.5F};
  apply_after_push(theta, pushed, 0.25F, local);
  EXPECT_EQ(local, (Values{1.0F + 0.25F * 2.0F + 0.5F}));
  local = {3.5F};
  apply_after_push(theta, pushed, 0.0F, local);
  EXPECT_EQ(local, (Values{1.5F}));
}

TEST(ValuesTest, WithoutAPushOnlyTheShareStays) {
  const Values theta = {1.0F};
  Values local = {3.0F};
  apply_without_push(theta, 0.25F, local);
  EXPECT_EQ(local, (Values{1.5F}));
  apply_without_push(theta, 0.0F, local);
  EXPECT_EQ(local, theta);
}

TEST(ValuesTest, WithoutLaterWorkTheResultIsThePublicValueToTheBit) {
  const Values theta = {-0.0F, 1e-42F, std::nextafter(1.0F, 2.0F)};
  const Values pushed = {5.0F, -7.0F, 0.0F};
  Values local = pushed;
  apply_after_push(theta, pushed, 0.0F, local);
  EXPECT_EQ(bits(local), bits(theta));
  local = pushed;
  apply_without_push(theta, 0.0F, local);
  EXPECT_EQ(bits(local), bits(theta));
}

TEST(ValuesTest, TheBlendedReferenceLeavesOutTheRetainedShare) {
  // After the application local = θ̂ + α(P − θ̂) when nothing was done since: no delta is left.
  Rng rng(4);
  const Values theta = random_values(rng, 100);
  const Values pushed = random_values(rng, 100);
  Values local = pushed;
  apply_after_push(theta, pushed, 0.3F, local);
  Values reference(100);
  blended_reference(theta, pushed, 0.3F, reference);
  Values delta(100);
  outer_gradient(reference, local, delta);
  EXPECT_EQ(delta, Values(100, 0.0F));
  // Without a push the reference is what the local values have become.
  local = pushed;
  apply_without_push(theta, 0.3F, local);
  EXPECT_EQ(bits(local), bits(reference));
}

TEST(ValuesTest, EveryOperationIsRoundedOnItsOwn) {
  const std::uint64_t seed = 11;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  const float alpha = 0.37F;
  const Values theta = random_values(rng, 4099);
  const Values pushed = random_values(rng, 4099);
  const Values before = random_values(rng, 4099);
  Values local = before;
  apply_after_push(theta, pushed, alpha, local);
  for (std::size_t i = 0; i < local.size(); ++i) {
    const float share = rounded(alpha * rounded(pushed[i] - theta[i]));
    const float expected = rounded(rounded(theta[i] + share) + rounded(before[i] - pushed[i]));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(local[i]), std::bit_cast<std::uint32_t>(expected)) << i;
  }
}

TEST(ValuesTest, FiniteMeansNoInfinityAndNoNan) {
  Values values(100, 3e38F);
  EXPECT_TRUE(all_finite(values));
  EXPECT_TRUE(all_finite({}));
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    values[73] = bad;
    EXPECT_FALSE(all_finite(values));
  }
}

}  // namespace
}  // namespace yeto::sync::client
