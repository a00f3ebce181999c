// SPDX-License-Identifier: Apache-2.0
// Plain loops; compiled with -O3 so that they vectorise and -ffp-contract=off so that they round
// alike.
#include <algorithm>
#include <bit>

#include "yeto/merge/kernels.h"
#include "yeto/tensor/bf16.h"

namespace yeto::merge {

double fold(const Lanes& lanes) {
  Lanes sum = lanes;
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) {
      sum[i] += sum[i + half];
    }
  }
  return sum[0];
}

namespace {

constexpr std::uint32_t kExponent = 0x7f800000U;
// 1 if the value is an infinity or NaN.
inline std::uint32_t not_finite(float value) {
  return (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1U : 0U;
}

inline float as_f32(float value) { return value; }
inline float as_f32(std::uint16_t value) { return f32_from_bf16(value); }

// The number of sources is a constant here, so that the sum of one element never leaves its
// register.
template <class T, std::size_t kCount>
void sum_of(float* __restrict out, const Sources& sources, bool add, std::size_t count) {
  const T* x[kCount];
  float weight[kCount];
  for (std::size_t m = 0; m < kCount; ++m) {
    x[m] = static_cast<const T*>(sources.at[m]);
    weight[m] = sources.weight[m];
  }
  const auto run = [&](auto begin) {
    for (std::size_t i = 0; i < count; ++i) {
      float sum = begin(i);
      for (std::size_t m = 1; m < kCount; ++m) {
        sum += weight[m] * as_f32(x[m][i]);
      }
      out[i] = sum;
    }
  };
  if (add) {
    run([&](std::size_t i) { return out[i] + weight[0] * as_f32(x[0][i]); });
  } else {
    run([&](std::size_t i) { return weight[0] * as_f32(x[0][i]); });
  }
}

template <class T>
void sum(float* out, const Sources& sources, bool add, std::size_t count) {
  using Sum = void (*)(float*, const Sources&, bool, std::size_t);
  static constexpr Sum kSums[kSources] = {sum_of<T, 1>, sum_of<T, 2>, sum_of<T, 3>, sum_of<T, 4>,
                                          sum_of<T, 5>, sum_of<T, 6>, sum_of<T, 7>, sum_of<T, 8>};
  kSums[sources.count - 1](out, sources, add, count);
}

void scale(float* __restrict out, const float* __restrict x, float factor, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = factor * x[i];
  }
}

void dots_f32(Lanes& lanes, const float* __restrict x, const float* __restrict y,
              std::size_t count) {
  // A local copy stays in registers; the loop over lanes is what the compiler vectorises.
  double sum[kLanes];
  std::copy(lanes.begin(), lanes.end(), sum);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sum[lane] += static_cast<double>(x[i + lane]) * static_cast<double>(y[i + lane]);
    }
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) {
    sum[lane] += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  }
  std::copy(sum, sum + kLanes, lanes.begin());
}

template <class T>
void squares(Lanes& lanes, const T* __restrict x, std::size_t count) {
  double sum[kLanes];
  std::copy(lanes.begin(), lanes.end(), sum);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(as_f32(x[i + lane]));
      sum[lane] += value * value;
    }
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) {
    const auto value = static_cast<double>(as_f32(x[i]));
    sum[lane] += value * value;
  }
  std::copy(sum, sum + kLanes, lanes.begin());
}

bool nesterov(const Kernels::Step& step, float lr, float mu, std::size_t count) {
  const float* __restrict values = step.values;
  const float* __restrict momentum = step.momentum;
  const float* __restrict delta = step.delta;
  float* __restrict new_values = step.new_values;
  float* __restrict new_momentum = step.new_momentum;
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float b = mu * momentum[i] + delta[i];
    const float value = values[i] - lr * (delta[i] + mu * b);
    new_momentum[i] = b;
    new_values[i] = value;
    bad |= not_finite(b) | not_finite(value);
  }
  return bad == 0;
}

bool sgd(const Kernels::Step& step, float lr, std::size_t count) {
  const float* __restrict values = step.values;
  const float* __restrict delta = step.delta;
  float* __restrict new_values = step.new_values;
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = values[i] - lr * delta[i];
    new_values[i] = value;
    bad |= not_finite(value);
  }
  return bad == 0;
}

bool encode_bf16(const float* __restrict values, std::uint16_t* __restrict image,
                 std::size_t count) {
  std::uint16_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t value = bf16_from_f32(values[i]);
    image[i] = value;
    bad = static_cast<std::uint16_t>(bad | ((value & 0x7f80U) == 0x7f80U ? 1U : 0U));
  }
  return bad == 0;
}

}  // namespace

const Kernels& kernels_base() {
  static const Kernels table{"base",     sum<float>,     sum<std::uint16_t>,
                             scale,      squares<float>, squares<std::uint16_t>,
                             dots_f32,   nesterov,       sgd,
                             encode_bf16};
  return table;
}

}  // namespace yeto::merge
