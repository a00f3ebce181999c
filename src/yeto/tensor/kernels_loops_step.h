// SPDX-License-Identifier: Apache-2.0
// The outer step: values, momentum and image in one pass. See kernels_loops.h.
#pragma once

#include "yeto/tensor/kernels_loops_sum.h"

namespace yeto {
namespace {

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

}  // namespace
}  // namespace yeto
