// SPDX-License-Identifier: Apache-2.0
// The loops of this room as a table of functions, so that a build of them for another instruction
// set can stand behind the same names. Whatever the instruction set, the bits are the same: each
// f32 step is rounded on its own, and sums run over 16 fixed lanes. Internal to this room and its
// benchmark.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace yeto::merge {

// Element i of a sum goes to lane i mod 16. A sum over blocks stays the same if every block but the
// last has a multiple of 16 elements.
inline constexpr std::size_t kLanes = 16;
using Lanes = std::array<double, kLanes>;

// The lanes folded pairwise: 8, 4, 2, 1.
double fold(const Lanes& lanes);

// Up to this many deltas are summed in one pass, in registers.
inline constexpr std::size_t kSources = 8;
struct Sources {
  std::array<const void*, kSources> at{};  // f32 or bf16 values, aligned for them
  std::array<float, kSources> weight{};
  std::size_t count = 0;  // 1 … kSources
};

// Pointers of one call do not overlap; `count` may be anything.
struct Kernels {
  const char* name;
  // out = w0·x0 + w1·x1 + …, or out + w0·x0 + …, from left to right.
  void (*sum_f32)(float* out, const Sources& sources, bool add, std::size_t count);
  void (*sum_bf16)(float* out, const Sources& sources, bool add, std::size_t count);
  // out = scale·x
  void (*scale)(float* out, const float* x, float scale, std::size_t count);
  // lanes += x²; lanes += x·y (products and sums in f64)
  void (*squares_f32)(Lanes& lanes, const float* x, std::size_t count);
  void (*squares_bf16)(Lanes& lanes, const std::uint16_t* x, std::size_t count);
  void (*dots_f32)(Lanes& lanes, const float* x, const float* y, std::size_t count);
  // new_b = μb + Δ; new_Θ = Θ − lr·(Δ + μ·new_b).
  struct Step {
    const float* values;
    const float* momentum;
    const float* delta;
    float* new_values;
    float* new_momentum;
  };
  // Both return true if all they wrote is finite.
  bool (*nesterov)(const Step& step, float lr, float mu, std::size_t count);
  // new_Θ = Θ − lr·Δ; momentum is not touched.
  bool (*sgd)(const Step& step, float lr, std::size_t count);
  // Image of the values; true if it is finite.
  bool (*encode_bf16)(const float* values, std::uint16_t* image, std::size_t count);
};

// The loops as the compiler makes them for the oldest machine of this build.
const Kernels& kernels_base();
// Those in use.
inline const Kernels& kernels() { return kernels_base(); }

}  // namespace yeto::merge
