// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/client/values.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace yeto::sync::client {

void outer_gradient(std::span<const float> reference, std::span<const float> snapshot,
                    std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = reference[i] - snapshot[i];
  }
}

void apply_after_push(std::span<const float> theta, std::span<const float> pushed, float alpha,
                      std::span<float> local) {
  if (alpha == 0.0F) {
    for (std::size_t i = 0; i < local.size(); ++i) {
      const float since = local[i] - pushed[i];
      local[i] = since == 0.0F ? theta[i] : theta[i] + since;
    }
    return;
  }
  for (std::size_t i = 0; i < local.size(); ++i) {
    const float share = alpha * (pushed[i] - theta[i]);
    const float kept = theta[i] + share;
    local[i] = kept + (local[i] - pushed[i]);
  }
}

void apply_without_push(std::span<const float> theta, float alpha, std::span<float> local) {
  if (alpha == 0.0F) {
    std::copy(theta.begin(), theta.end(), local.begin());
    return;
  }
  for (std::size_t i = 0; i < local.size(); ++i) {
    const float share = alpha * (local[i] - theta[i]);
    local[i] = theta[i] + share;
  }
}

void blended_reference(std::span<const float> theta, std::span<const float> kept, float alpha,
                       std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float share = alpha * (kept[i] - theta[i]);
    out[i] = theta[i] + share;
  }
}

bool all_finite(std::span<const float> values) {
  // A value is finite unless all bits of its exponent are set. Without a branch the loop is
  // vectorised.
  constexpr std::uint32_t kExponent = 0x7f800000;
  std::uint32_t bad = 0;
  for (const float value : values) {
    bad |=
        static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent);
  }
  return bad == 0;
}

double square_sum(std::span<const float> values) {
  // Lanes, so that the loop is vectorised without changing the order of the sum.
  constexpr std::size_t kLanes = 16;
  double lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= values.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      lanes[lane] += value * value;
    }
  }
  double sum = 0.0;
  for (; i < values.size(); ++i) {
    sum += static_cast<double>(values[i]) * values[i];
  }
  for (const double lane : lanes) {
    sum += lane;
  }
  return sum;
}

}  // namespace yeto::sync::client
