// SPDX-License-Identifier: Apache-2.0
// Sums of products and weighted sums of deltas. See kernels_loops.h.
#pragma once

#include "yeto/tensor/kernels_loops_base.h"

namespace yeto {
namespace {

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

}  // namespace
}  // namespace yeto
