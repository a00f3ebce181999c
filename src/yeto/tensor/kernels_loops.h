// SPDX-License-Identifier: Apache-2.0
// The loops of kernels.h. Included by one .cc file per instruction set and by nothing else.
//
// Everything here has internal linkage and nothing is called that another file could share: a
// function of the standard library that is not inlined would be merged by the linker with the
// copies of all other files, and machines without this instruction set would run it.
#pragma once

#include "yeto/tensor/bf16.h"
#include "yeto/tensor/kernels.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace yeto {
namespace {

#define YETO_INLINE [[gnu::always_inline]] inline
#define YETO_ALWAYS __attribute__((always_inline))

// A step works on so many values at a time: few enough that they stay in the first-level cache next
// to one line of each of a dozen streams, whatever the streams' addresses are.
constexpr std::size_t kMini = 64;
constexpr std::size_t kLineBytes = 64;

YETO_INLINE std::uint32_t bits_of(float value) { return __builtin_bit_cast(std::uint32_t, value); }
YETO_INLINE float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

constexpr std::uint32_t kExponent = 0x7f800000U;
// 1 if the value is an infinity or NaN.
YETO_INLINE std::uint32_t not_finite(float value) {
  return (bits_of(value) & kExponent) == kExponent ? 1U : 0U;
}
YETO_INLINE std::uint32_t not_finite(std::uint16_t value) {
  return (value & 0x7f80U) == 0x7f80U ? 1U : 0U;
}

YETO_INLINE float as_f32(float value) { return value; }
YETO_INLINE float as_f32(std::uint16_t value) { return f32_from_bf16(value); }

// ---- sums
// ---------------------------------------------------------------------------------------

template <class X, class Y>
YETO_INLINE void add_products(double* lanes, std::size_t count, X&& x, Y&& y) {
  // A local copy stays in registers; the loop over lanes is what the compiler vectorises.
  double total[kLanes];
  __builtin_memcpy(total, lanes, sizeof(total));
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      total[lane] += static_cast<double>(x(i + lane)) * static_cast<double>(y(i + lane));
    }
  }
  for (std::size_t lane = 0; i < count; ++i, ++lane) {
    total[lane] += static_cast<double>(x(i)) * static_cast<double>(y(i));
  }
  __builtin_memcpy(lanes, total, sizeof(total));
}

template <class T>
void squares(double* lanes, const T* x, std::size_t count) {
  const auto at = [x](std::size_t i) { return as_f32(x[i]); };
  add_products(lanes, count, at, at);
}
// Not inlined into each of the sums.
[[gnu::noinline]] void add_squares(double* lanes, const float* x, std::size_t count) {
  squares(lanes, x, count);
}

void dots(double* lanes, const float* x, const float* y, std::size_t count) {
  add_products(
      lanes, count, [x](std::size_t i) { return x[i]; }, [y](std::size_t i) { return y[i]; });
}

// out = w0·x0 + w1·x1, or out + w0·x0 + w1·x1, from left to right; x1 may be null.
template <class T>
struct Pair {
  const T* x0 = nullptr;
  const T* x1 = nullptr;
  float w0 = 0.0F;
  float w1 = 0.0F;

  YETO_INLINE void begin(float* __restrict out, std::size_t at, std::size_t count) const {
    const T* __restrict a = x0 + at;
    if (x1 == nullptr) {
      for (std::size_t i = 0; i < count; ++i) {
        out[i] = w0 * as_f32(a[i]);
      }
      return;
    }
    const T* __restrict b = x1 + at;
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = w0 * as_f32(a[i]) + w1 * as_f32(b[i]);
    }
  }
  YETO_INLINE void add(float* __restrict out, std::size_t at, std::size_t count) const {
    const T* __restrict a = x0 + at;
    if (x1 == nullptr) {
      for (std::size_t i = 0; i < count; ++i) {
        out[i] = out[i] + w0 * as_f32(a[i]);
      }
      return;
    }
    const T* __restrict b = x1 + at;
    for (std::size_t i = 0; i < count; ++i) {
      out[i] = (out[i] + w0 * as_f32(a[i])) + w1 * as_f32(b[i]);
    }
  }
};

// The sources two by two. A pair works on minis behind those of the pair before it: then buffers
// that begin at the same place of a page, as large ones do, are not read at the same place of the
// first-level cache.
template <class T>
struct Pairs {
  static constexpr std::size_t kMost = (kSources + 1) / 2;
  Pair<T> pair[kMost];
  std::size_t count = 0;

  YETO_INLINE explicit Pairs(const Sources& sources) : count((sources.count + 1) / 2) {
    for (std::size_t p = 0; p < count; ++p) {
      const std::size_t m = 2 * p;
      pair[p].x0 = static_cast<const T*>(sources.at[m]);
      pair[p].w0 = sources.weight[m];
      if (m + 1 < sources.count) {
        pair[p].x1 = static_cast<const T*>(sources.at[m + 1]);
        pair[p].w1 = sources.weight[m + 1];
      }
    }
  }
  // All pairs, one after the other.
  YETO_INLINE void all(float* out, std::size_t at, std::size_t some, bool add) const {
    for (std::size_t p = 0; p < count; ++p) {
      if (p == 0 && !add) {
        pair[p].begin(out, at, some);
      } else {
        pair[p].add(out, at, some);
      }
    }
  }
};

template <class T>
void sum(float* out, const Sources& sources, bool add, std::size_t count, double* squares) {
  const Pairs<T> pairs(sources);
  const std::size_t minis = count / kMini;
  for (std::size_t turn = 0; turn < minis + pairs.count - 1; ++turn) {
    for (std::size_t p = 0; p < pairs.count; ++p) {
      const std::size_t mini = turn - p;  // wraps around where the pair has not begun
      if (mini < minis) {
        const std::size_t at = mini * kMini;
        if (p == 0 && !add) {
          pairs.pair[p].begin(out + at, at, kMini);
        } else {
          pairs.pair[p].add(out + at, at, kMini);
        }
        if (squares != nullptr && p + 1 == pairs.count) {
          add_squares(squares, out + at, kMini);
        }
      }
    }
  }
  const std::size_t done = minis * kMini;
  pairs.all(out + done, done, count - done, add);
  if (squares != nullptr) {
    add_squares(squares, out + done, count - done);
  }
}

void blend(float* __restrict out, const float* __restrict x, const float* __restrict v,
           const Blend& with, std::size_t count) {
  const Blend c = with;
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = c.s * (c.p * x[i] + c.q * v[i]);
  }
}

// ---- outer step
// ---------------------------------------------------------------------------------

// Values up to the next line of memory.
YETO_INLINE std::size_t values_to_line(const void* at, std::size_t value_bytes) {
  const auto past = reinterpret_cast<std::uintptr_t>(at) % kLineBytes;
  return (kLineBytes - past) % kLineBytes / value_bytes;
}

// Which results are written around the cache: those whose lines begin where those of the new values
// do, so that every line is written whole.
struct Streams {
  bool values = false;
  bool momentum = false;
  bool image_f32 = false;
  bool image_bf16 = false;
};

// `count` ≤ kMini values of T. A stream store skips the read of a line that is about to be
// overwritten; it is asked for whole minis only.
template <class T>
YETO_INLINE void store_values(T* out, const T* x, std::size_t count, bool stream) {
#if defined(__SSE2__)
  if (stream) {
    constexpr std::size_t kStep = sizeof(__m128i) / sizeof(T);
    for (std::size_t i = 0; i < kMini; i += kStep) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + i),
                       _mm_load_si128(reinterpret_cast<const __m128i*>(x + i)));
    }
    return;
  }
#endif
  static_cast<void>(stream);
  __builtin_memcpy(out, x, count * sizeof(T));
}

YETO_INLINE void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// The step of values [at, at + count), count ≤ kMini; whole minis give it as a constant. Returns 0
// if all is finite.
YETO_INLINE std::uint32_t step_values(const Step& step, const Streams& streams, const float* delta,
                                      std::size_t at, std::size_t count) {
  alignas(kLineBytes) float values[kMini];
  alignas(kLineBytes) float momentum[kMini];
  alignas(kLineBytes) std::uint16_t half[kMini];
  const float lr = step.lr;
  const float mu = step.mu;
  const float* old_values = step.values + at;
  std::uint32_t bad = 0;
  if (step.momentum != nullptr) {
    const float* old_momentum = step.momentum + at;
    for (std::size_t i = 0; i < count; ++i) {
      const float b = mu * old_momentum[i] + delta[i];
      const float value = old_values[i] - lr * (delta[i] + mu * b);
      momentum[i] = b;
      values[i] = value;
      bad |= not_finite(b) | not_finite(value);
    }
    store_values(step.new_momentum + at, momentum, count, streams.momentum);
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      const float value = old_values[i] - lr * delta[i];
      values[i] = value;
      bad |= not_finite(value);
    }
  }
  store_values(step.new_values + at, values, count, streams.values);
  if (step.image_bf16 != nullptr) {
    std::uint16_t bad_half = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint16_t value = bf16_from_f32(values[i]);
      half[i] = value;
      bad_half = static_cast<std::uint16_t>(bad_half | not_finite(value));
    }
    bad |= bad_half;
    store_values(step.image_bf16 + at, half, count, streams.image_bf16);
  }
  if (step.image_f32 != nullptr) {
    store_values(step.image_f32 + at, values, count, streams.image_f32);
  }
  return bad;
}

// Not inlined into each of the sums: that would be many times the code for nothing measurable.
[[gnu::noinline]] std::uint32_t step_mini(const Step& step, const Streams& streams,
                                          const float* delta, std::size_t at) {
  return step_values(step, streams, delta, at, kMini);
}
[[gnu::noinline]] std::uint32_t step_rest(const Step& step, const float* delta, std::size_t at,
                                          std::size_t count) {
  return step_values(step, Streams{}, delta, at, count);
}

// How a step is cut: `head` values up to a line of memory, then whole minis, then the rest.
struct Cut {
  std::size_t head = 0;
  Streams streams;
};
[[gnu::noinline]] Cut cut_of(const Step& step, std::size_t count) {
  Cut cut;
  if (!step.stream) {
    return cut;
  }
  const std::size_t head = values_to_line(step.new_values, sizeof(float));
  const auto whole_lines = [head](const auto* out) {
    return out != nullptr && reinterpret_cast<std::uintptr_t>(out + head) % kLineBytes == 0;
  };
  cut.streams = {whole_lines(step.new_values), whole_lines(step.new_momentum),
                 whole_lines(step.image_f32), whole_lines(step.image_bf16)};
  cut.head = head < count ? head : count;
  return cut;
}

// `whole(out, at)` makes the kMini deltas from `at` on, `some(out, at, count)` fewer.
template <class Whole, class Some>
YETO_INLINE bool run_step(const Step& step, std::size_t count, Whole&& whole, Some&& some) {
  alignas(kLineBytes) float mini[kMini];
  std::uint32_t bad = 0;
  const Cut cut = cut_of(step, count);
  std::size_t at = cut.head;
  if (at > 0) {
    some(mini, 0, at);
    bad |= step_rest(step, mini, 0, at);
  }
  for (; at + kMini <= count; at += kMini) {
    whole(mini, at);
    bad |= step_mini(step, cut.streams, mini, at);
  }
  if (at < count) {
    some(mini, at, count - at);
    bad |= step_rest(step, mini, at, count - at);
  }
  if (step.stream) {
    stream_fence();
  }
  return bad == 0;
}

// Sources [kFirst, kFirst + kCount) in one expression: their number is a constant here, so that the
// sum of one element stays in its register.
template <class T, std::size_t kFirst, std::size_t kCount>
struct Some {
  const T* x[kCount];
  float weight[kCount];

  YETO_INLINE explicit Some(const Sources& sources) {
    for (std::size_t m = 0; m < kCount; ++m) {
      x[m] = static_cast<const T*>(sources.at[kFirst + m]);
      weight[m] = sources.weight[kFirst + m];
    }
  }
  // `out` of kMini values from `at` on; the first sources begin it, the others add to it.
  YETO_INLINE void mini(float* __restrict out, std::size_t at) const {
    for (std::size_t i = 0; i < kMini; ++i) {
      constexpr std::size_t kBegun = kFirst == 0 ? 1 : 0;
      float sum = kFirst == 0 ? weight[0] * as_f32(x[0][at + i]) : out[i];
      for (std::size_t m = kBegun; m < kCount; ++m) {
        sum += weight[m] * as_f32(x[m][at + i]);
      }
      out[i] = sum;
    }
  }
};

// More sources than this in one expression read so many lines of the same place of the cache, where
// all buffers begin at one place of a page, that they drive out each other.
constexpr std::size_t kTogether = 4;

template <class T, std::size_t kCount>
bool mean_step_of(const Sources& sources, const Step& step, std::size_t count) {
  constexpr std::size_t kHead = kCount < kTogether ? kCount : kTogether;
  const Some<T, 0, kHead> head(sources);
  const auto rest = [&sources](float* out, std::size_t at, std::size_t some)
                        YETO_ALWAYS { Pairs<T>(sources).all(out, at, some, false); };
  if constexpr (kCount > kTogether) {
    const Some<T, kHead, kCount - kHead> tail(sources);
    return run_step(
        step, count,
        [&head, &tail](float* out, std::size_t at) YETO_ALWAYS {
          head.mini(out, at);
          tail.mini(out, at);
        },
        rest);
  } else {
    return run_step(
        step, count, [&head](float* out, std::size_t at) YETO_ALWAYS { head.mini(out, at); }, rest);
  }
}

template <class T>
bool mean_step(const Sources& sources, const Step& step, std::size_t count) {
  using MeanStep = bool (*)(const Sources&, const Step&, std::size_t);
  static constexpr MeanStep kSteps[kSources] = {
      mean_step_of<T, 1>, mean_step_of<T, 2>, mean_step_of<T, 3>, mean_step_of<T, 4>,
      mean_step_of<T, 5>, mean_step_of<T, 6>, mean_step_of<T, 7>, mean_step_of<T, 8>};
  return kSteps[sources.count - 1](sources, step, count);
}

bool scaled_step(const float* x, float scale, const Step& step, std::size_t count) {
  return run_step(
      step, count,
      [x, scale](float* out, std::size_t at) YETO_ALWAYS {
        for (std::size_t i = 0; i < kMini; ++i) {
          out[i] = scale * x[at + i];
        }
      },
      [x, scale](float* out, std::size_t at, std::size_t some) YETO_ALWAYS {
        for (std::size_t i = 0; i < some; ++i) {
          out[i] = scale * x[at + i];
        }
      });
}

// ---- bf16
// ---------------------------------------------------------------------------------------

bool encode_bf16(const float* __restrict x, std::uint16_t* __restrict image, std::size_t count) {
  std::uint16_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t value = bf16_from_f32(x[i]);
    image[i] = value;
    bad = static_cast<std::uint16_t>(bad | not_finite(value));
  }
  return bad == 0;
}

void decode_bf16(const std::uint16_t* __restrict image, float* __restrict out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = f32_from_bf16(image[i]);
  }
}

// ---- q4
// -----------------------------------------------------------------------------------------

constexpr std::size_t kBlock = kQ4BlockValues;
constexpr std::uint32_t kMagnitude = 0x7fffffffU;
// Levels change at 2^(k+½) in f32, k = −7 … −1: bits k+127 and 0x3504f3. Adding this carries into
// the exponent exactly there.
constexpr std::uint32_t kToNextLevel = 0x00800000U - 0x003504f3U;
constexpr std::int32_t kLevelZero = 127 - 7;

// max|x| of a block; infinite or NaN if a value is.
YETO_INLINE float block_scale(const float* x) {
  std::int32_t most[kLanes] = {};
  for (std::size_t i = 0; i < kBlock; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      const auto bits = static_cast<std::int32_t>(bits_of(x[i + lane]) & kMagnitude);
      most[lane] = bits > most[lane] ? bits : most[lane];
    }
  }
  std::int32_t scale = 0;
  for (const std::int32_t bits : most) {
    scale = bits > scale ? bits : scale;
  }
  return float_of(static_cast<std::uint32_t>(scale));
}

// One block: scale and nibbles.
YETO_INLINE void encode_block(const float* x, std::uint8_t* image) {
  const float scale = block_scale(x);
  __builtin_memcpy(image, &scale, sizeof(scale));
  image += sizeof(scale);
  if (bits_of(scale) == 0 || not_finite(scale) != 0) {
    __builtin_memset(image, 0, kBlock / 2);
    return;
  }
  std::uint8_t nibbles[kBlock];
  for (std::size_t i = 0; i < kBlock; ++i) {
    const std::uint32_t bits = bits_of(x[i]);
    const std::uint32_t ratio = bits_of(float_of(bits & kMagnitude) / scale);
    const auto level = static_cast<std::int32_t>((ratio + kToNextLevel) >> 23) - kLevelZero;
    const auto signed_level = static_cast<std::uint32_t>(level) | ((bits >> 28) & 8U);
    nibbles[i] = static_cast<std::uint8_t>(level > 0 ? signed_level : 0U);
  }
  for (std::size_t i = 0; i < kBlock / 2; ++i) {
    image[i] = static_cast<std::uint8_t>(nibbles[2 * i] | (nibbles[2 * i + 1] << 4));
  }
}

YETO_INLINE void decode_block(const std::uint8_t* image, float* out) {
  float scale = 0.0F;
  __builtin_memcpy(&scale, image, sizeof(scale));
  image += sizeof(scale);
  std::uint8_t nibbles[kBlock];
  for (std::size_t i = 0; i < kBlock / 2; ++i) {
    nibbles[2 * i] = image[i] & 15U;
    nibbles[2 * i + 1] = image[i] >> 4;
  }
  for (std::size_t i = 0; i < kBlock; ++i) {
    const std::uint32_t nibble = nibbles[i];
    const std::uint32_t level = nibble & 7U;
    const std::uint32_t power = ((level + kLevelZero) << 23) | ((nibble & 8U) << 28);
    out[i] = float_of(level != 0 ? power : 0U) * scale;
  }
}

// Calls `whole(first)` for each whole block and `rest(first, count)` for what is left.
template <class Whole, class Rest>
YETO_INLINE void each_block(std::size_t count, Whole&& whole, Rest&& rest) {
  std::size_t first = 0;
  for (; first + kBlock <= count; first += kBlock) {
    whole(first);
  }
  if (first < count) {
    rest(first, count - first);
  }
}

// The block of a whole image that begins at value `first`.
YETO_INLINE std::size_t block_at(std::size_t first) { return first / kBlock * kQ4BlockBytes; }

void encode_q4(const float* x, std::uint8_t* image, std::size_t count) {
  each_block(
      count, [=](std::size_t first) { encode_block(x + first, image + block_at(first)); },
      [=](std::size_t first, std::size_t n) {
        float block[kBlock] = {};
        __builtin_memcpy(block, x + first, n * sizeof(float));
        encode_block(block, image + block_at(first));
      });
}

void decode_q4(const std::uint8_t* image, float* out, std::size_t count) {
  each_block(
      count, [=](std::size_t first) { decode_block(image + block_at(first), out + first); },
      [=](std::size_t first, std::size_t n) {
        float block[kBlock];
        decode_block(image + block_at(first), block);
        __builtin_memcpy(out + first, block, n * sizeof(float));
      });
}

YETO_INLINE void feedback_block(const float* x, float* residual, std::uint8_t* image,
                                std::size_t count) {
  float wanted[kBlock] = {};
  float sent[kBlock];
  for (std::size_t i = 0; i < count; ++i) {
    wanted[i] = x[i] + residual[i];
  }
  encode_block(wanted, image);
  decode_block(image, sent);
  for (std::size_t i = 0; i < count; ++i) {
    residual[i] = wanted[i] - sent[i];
  }
}

void encode_q4_feedback(const float* x, float* residual, std::uint8_t* image, std::size_t count) {
  each_block(
      count,
      [=](std::size_t first) {
        feedback_block(x + first, residual + first, image + block_at(first), kBlock);
      },
      [=](std::size_t first, std::size_t n) {
        feedback_block(x + first, residual + first, image + block_at(first), n);
      });
}

// after = bf16(before + dec(image)); 0 if all is finite.
YETO_INLINE std::uint32_t apply_block(const std::uint8_t* image, const std::uint16_t* before,
                                      std::uint16_t* after, std::size_t count) {
  float change[kBlock];
  std::uint16_t next[kBlock];
  decode_block(image, change);
  std::uint16_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    next[i] = bf16_from_f32(f32_from_bf16(before[i]) + change[i]);
    bad = static_cast<std::uint16_t>(bad | not_finite(next[i]));
  }
  __builtin_memcpy(after, next, count * sizeof(std::uint16_t));
  return bad;
}

bool apply_q4(const std::uint8_t* image, const std::uint16_t* before, std::uint16_t* after,
              std::size_t count) {
  std::uint32_t bad = 0;
  each_block(
      count,
      [=, &bad](std::size_t first) {
        bad |= apply_block(image + block_at(first), before + first, after + first, kBlock);
      },
      [=, &bad](std::size_t first, std::size_t n) {
        bad |= apply_block(image + block_at(first), before + first, after + first, n);
      });
  return bad == 0;
}

YETO_INLINE std::uint32_t change_block(const float* x, const std::uint16_t* before,
                                       std::uint16_t* after, std::uint8_t* image,
                                       std::size_t count) {
  float change[kBlock] = {};
  for (std::size_t i = 0; i < count; ++i) {
    change[i] = x[i] - f32_from_bf16(before[i]);
  }
  encode_block(change, image);
  return apply_block(image, before, after, count);
}

bool encode_q4_change(const float* x, const std::uint16_t* before, std::uint16_t* after,
                      std::uint8_t* image, std::size_t count) {
  std::uint32_t bad = 0;
  each_block(
      count,
      [=, &bad](std::size_t first) {
        bad |=
            change_block(x + first, before + first, after + first, image + block_at(first), kBlock);
      },
      [=, &bad](std::size_t first, std::size_t n) {
        bad |= change_block(x + first, before + first, after + first, image + block_at(first), n);
      });
  return bad == 0;
}

constexpr Kernels table_of(const char* name) {
  return {name,
          sum<float>,
          sum<std::uint16_t>,
          mean_step<float>,
          mean_step<std::uint16_t>,
          scaled_step,
          blend,
          squares<float>,
          squares<std::uint16_t>,
          dots,
          encode_bf16,
          decode_bf16,
          encode_q4,
          decode_q4,
          encode_q4_feedback,
          encode_q4_change,
          apply_q4};
}

}  // namespace
}  // namespace yeto
