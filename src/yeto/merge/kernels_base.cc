// SPDX-License-Identifier: Apache-2.0
// Plain loops; compiled with -O3 so that they vectorise and -ffp-contract=off so that they round
// alike.
#include <algorithm>
#include <bit>
#include <cstring>

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
// bf16 sources are moved through an aligned block of this many values; a multiple of kLanes.
constexpr std::size_t kBlock = 512;

// 1 if the value is an infinity or NaN.
inline std::uint32_t not_finite(float value) {
  return (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1U : 0U;
}

template <class Visit>
void each_bf16_block(const std::uint8_t* x, std::size_t count, Visit&& visit) {
  std::uint16_t packed[kBlock];
  float block[kBlock];
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t size = std::min(kBlock, count - first);
    std::memcpy(packed, x + 2 * first, 2 * size);
    for (std::size_t i = 0; i < size; ++i) {
      block[i] = f32_from_bf16(packed[i]);
    }
    visit(first, block, size);
  }
}

void scale_f32(float* __restrict out, const float* __restrict x, float weight, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = weight * x[i];
  }
}

void add_f32(float* __restrict out, const float* __restrict x, float weight, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] += weight * x[i];
  }
}

void scale_bf16(float* out, const std::uint8_t* x, float weight, std::size_t count) {
  each_bf16_block(x, count, [=](std::size_t first, const float* block, std::size_t size) {
    scale_f32(out + first, block, weight, size);
  });
}

void add_bf16(float* out, const std::uint8_t* x, float weight, std::size_t count) {
  each_bf16_block(x, count, [=](std::size_t first, const float* block, std::size_t size) {
    add_f32(out + first, block, weight, size);
  });
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

void squares_f32(Lanes& lanes, const float* __restrict x, std::size_t count) {
  double sum[kLanes];
  std::copy(lanes.begin(), lanes.end(), sum);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<double>(x[i + lane]);
      sum[lane] += value * value;
    }
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) {
    const auto value = static_cast<double>(x[i]);
    sum[lane] += value * value;
  }
  std::copy(sum, sum + kLanes, lanes.begin());
}

void squares_bf16(Lanes& lanes, const std::uint8_t* x, std::size_t count) {
  each_bf16_block(x, count, [&](std::size_t, const float* block, std::size_t size) {
    squares_f32(lanes, block, size);
  });
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

bool encode_bf16(const float* __restrict values, std::uint8_t* __restrict image,
                 std::size_t count) {
  std::uint16_t block[kBlock];
  std::uint32_t bad = 0;
  for (std::size_t first = 0; first < count; first += kBlock) {
    const std::size_t size = std::min(kBlock, count - first);
    for (std::size_t i = 0; i < size; ++i) {
      block[i] = bf16_from_f32(values[first + i]);
      bad |= (block[i] & 0x7f80U) == 0x7f80U ? 1U : 0U;
    }
    std::memcpy(image + 2 * first, block, 2 * size);
  }
  return bad == 0;
}

}  // namespace

const Kernels& kernels_base() {
  static const Kernels table{"base",       scale_f32, scale_bf16, add_f32, add_bf16,   squares_f32,
                             squares_bf16, dots_f32,  nesterov,   sgd,     encode_bf16};
  return table;
}

}  // namespace yeto::merge
