// SPDX-License-Identifier: Apache-2.0
// The loops over values that merges and codecs are made of, as a table of functions: the same plain
// loops compiled once per instruction set. Whatever the instruction set and compiler, the bits are
// the same: each f32 step is rounded on its own (no fused multiply-add), and sums run over 16 fixed
// lanes.
//
// `kernels()` gives the best table this machine can run; the environment variable YETO_ISA (base,
// v3) asks for another one. Thread-safe; the functions keep no state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace yeto {

// Element i of a sum goes to lane i mod 16. A sum over blocks stays the same if every block but the
// last has a multiple of 16 elements.
inline constexpr std::size_t kLanes = 16;
using Lanes = std::array<double, kLanes>;

// The lanes folded pairwise: 8, 4, 2, 1.
double fold(const Lanes& lanes);

// q4 (E3M0) block: an f32 scale = max|x|, then 256 nibbles, low nibble first. Nibble: sign in bit
// 3, level L in bits 0 to 2: 0 → 0, else 2^(L−7)·scale. The sign of level 0 is written as 0.
inline constexpr std::size_t kQ4BlockValues = 256;
inline constexpr std::size_t kQ4BlockBytes = 4 + kQ4BlockValues / 2;

// Up to this many deltas are summed in one pass, in registers.
inline constexpr std::size_t kSources = 8;
struct Sources {
  const void* at[kSources] = {};  // f32 or bf16 values, aligned for them
  float weight[kSources] = {};
  std::size_t count = 0;  // 1 … kSources
};

// The outer step of values [0, count): where it reads and writes, and by what rule.
//   momentum: b' = μb + Δ; Θ' = Θ − lr·(Δ + μb').   none: Θ' = Θ − lr·Δ.
struct Step {
  const float* values = nullptr;
  const float* momentum = nullptr;  // null: the rule keeps none
  float* new_values = nullptr;
  float* new_momentum = nullptr;
  float* image_f32 = nullptr;           // a copy of the new values, or null
  std::uint16_t* image_bf16 = nullptr;  // the new values as bf16, or null
  float lr = 0.0F;
  float mu = 0.0F;
  bool stream = false;  // write around the cache: for results far larger than it
};

// y = s·(p·x + q·v)
struct Blend {
  float p = 1.0F;
  float q = 0.0F;
  float s = 1.0F;
};

// Pointers of one call do not overlap (but where said); `count` may be anything. What returns a
// bool returns true if all it wrote is finite.
struct Kernels {
  const char* name;
  // out = w0·x0 + w1·x1 + …, or out + w0·x0 + …, from left to right. Where `squares` is not null,
  // squares[0 … kLanes) += out².
  void (*sum_f32)(float* out, const Sources& sources, bool add, std::size_t count, double* squares);
  void (*sum_bf16)(float* out, const Sources& sources, bool add, std::size_t count,
                   double* squares);
  // The step by Δ = w0·x0 + w1·x1 + …, each source read once.
  bool (*mean_step_f32)(const Sources& sources, const Step& step, std::size_t count);
  bool (*mean_step_bf16)(const Sources& sources, const Step& step, std::size_t count);
  // The step by Δ = scale·x; new_values may be x.
  bool (*step)(const float* x, float scale, const Step& step, std::size_t count);
  void (*blend)(float* out, const float* x, const float* v, const Blend& blend, std::size_t count);
  // lanes[0 … kLanes) += x²; += x·y (products and sums in f64)
  void (*squares_f32)(double* lanes, const float* x, std::size_t count);
  void (*squares_bf16)(double* lanes, const std::uint16_t* x, std::size_t count);
  void (*dots_f32)(double* lanes, const float* x, const float* y, std::size_t count);
  bool (*encode_bf16)(const float* x, std::uint16_t* image, std::size_t count);
  void (*decode_bf16)(const std::uint16_t* image, float* out, std::size_t count);
  // Whole blocks from the start of an image; the last one is filled up with zeros. A block with a
  // value that is not finite gets a scale that is not finite and zero nibbles.
  void (*encode_q4)(const float* x, std::uint8_t* image, std::size_t count);
  void (*decode_q4)(const std::uint8_t* image, float* out, std::size_t count);
  // y = x + residual; image of y; residual = y − dec(image).
  void (*encode_q4_feedback)(const float* x, float* residual, std::uint8_t* image,
                             std::size_t count);
  // image of x − before; after = bf16(before + dec(image)).
  bool (*encode_q4_change)(const float* x, const std::uint16_t* before, std::uint16_t* after,
                           std::uint8_t* image, std::size_t count);
  // after = bf16(before + dec(image)).
  bool (*apply_q4)(const std::uint8_t* image, const std::uint16_t* before, std::uint16_t* after,
                   std::size_t count);
};

// Those in use.
const Kernels& kernels();
// All that this build has and this machine can run, the best one last.
std::vector<const Kernels*> supported_kernels();
// The table of that name, or null. An empty name means the best.
const Kernels* kernels_by_name(std::string_view name, const std::vector<const Kernels*>& among);

// The tables this build has; `kernels_v3` is null where it is not for x86-64.
const Kernels* kernels_base();
const Kernels* kernels_v3();

}  // namespace yeto
