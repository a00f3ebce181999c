// SPDX-License-Identifier: Apache-2.0
// Random merges from a seed, and what they must give by the definition in f64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/codec/codec.h"
#include "yeto/merge/merge.h"

namespace yeto::merge::testing {

using Values = std::vector<float>;

inline float normal(Rng& rng, double scale) {
  double sum = -6.0;
  for (int i = 0; i < 12; ++i) {
    sum += rng.uniform();
  }
  return static_cast<float>(scale * sum);
}

struct Case {
  Layout layout;
  OuterRule outer;
  WeightRule weights = WeightRule::kTokens2;
  CodecId codec = CodecId::kF32;  // of the broadcast
  Correction correction = Correction::kNone;
  bool first_commit = false;
  Values values;
  Values momentum;
  Bytes old_public;            // q4 only
  std::vector<Values> deltas;  // as decoded
  std::vector<Bytes> images;
  std::vector<Push> pushes;
};

inline Layout random_layout(Rng& rng) {
  Layout layout;
  Fragment fragment;
  const std::size_t pieces = 1 + rng.below(4);
  for (std::uint32_t i = 0; i < pieces; ++i) {
    TensorSpec tensor;
    tensor.name = strf("t{}", i);
    const std::uint64_t count = 1 + rng.below(rng.below(2) == 0 ? 40 : 9000);
    tensor.shape = {count};
    tensor.merge = rng.below(2) == 0 ? MergeMode::kAvg : MergeMode::kRda;
    fragment.pieces.push_back({i, 0, count, fragment.values});
    fragment.values += count;
    layout.tensors.push_back(tensor);
  }
  layout.fragments = {fragment};
  return layout;
}

inline Case random_case(std::uint64_t seed) {
  Rng rng(seed);
  Case made;
  made.layout = random_layout(rng);
  made.outer = OuterRule::of(static_cast<OuterKind>(rng.below(4)));
  made.weights = static_cast<WeightRule>(rng.below(3));
  made.codec = static_cast<CodecId>(rng.below(3));
  made.correction = static_cast<Correction>(rng.below(2));
  const auto push_codec = static_cast<CodecId>(rng.below(3));
  made.first_commit = rng.below(4) == 0;
  const std::size_t values = made.layout.fragments[0].values;
  for (std::size_t i = 0; i < values; ++i) {
    made.values.push_back(normal(rng, 0.5));
  }
  for (std::size_t i = 0; made.outer.keeps_momentum() && i < values; ++i) {
    made.momentum.push_back(normal(rng, 0.02));
  }
  const std::size_t learners = 1 + rng.below(rng.below(4) == 0 ? 20 : 8);
  std::vector<std::uint32_t> seats(64);
  std::iota(seats.begin(), seats.end(), 0U);
  for (std::size_t m = 0; m < learners; ++m) {
    std::swap(seats[m], seats[m + rng.below(seats.size() - m)]);
    Values delta(values);
    for (float& value : delta) {
      value = normal(rng, 0.01);
    }
    if (rng.below(6) == 0) {
      std::fill(delta.begin(), delta.end(), 0.0F);
    }
    // A few learners push with another codec.
    const CodecId codec = rng.below(8) == 0 ? static_cast<CodecId>(rng.below(3)) : push_codec;
    Bytes image(codec::encoded_bytes(codec, values));
    EXPECT_TRUE(codec::encode(codec, delta, image));
    EXPECT_TRUE(codec::decode(codec, image, delta));
    made.deltas.push_back(std::move(delta));
    made.images.push_back(std::move(image));
    Push push{seats[m], 1 + rng.below(9), rng.below(5000), codec, {}, {}};
    if (m > 0 && rng.below(5) == 0) {  // the seat before has a late push too
      push.seat = seats[m - 1];
      push.base_version = m;
      push.factor = 0.5;
    }
    made.pushes.push_back(push);
  }
  if (made.codec == CodecId::kQ4) {
    made.old_public.resize(2 * values);
    EXPECT_TRUE(codec::encode(CodecId::kBf16, made.values, made.old_public));
    for (float& value : made.values) {  // the public value lags behind
      value += normal(rng, 0.001);
    }
  }
  for (std::size_t m = 0; m < learners; ++m) {
    made.pushes[m].image = made.images[m];
  }
  return made;
}

// For tests that say themselves what is pushed: no correction, no late work.
inline void simplify(Case& c, CodecId codec, OuterKind outer) {
  c.codec = codec;
  c.correction = Correction::kNone;
  c.outer = OuterRule::of(outer);
  c.momentum.assign(c.outer.keeps_momentum() ? c.values.size() : 0, 0.0F);
  c.old_public.clear();
}

inline Push push_of(std::uint32_t seat, const Values& delta) {
  return {seat, 1, 1, CodecId::kF32, as_bytes_view(std::span<const float>(delta)), {}};
}

struct Outcome {
  Values values;
  Values momentum;
  Bytes image;
  Bytes new_public;
  bool operator==(const Outcome& other) const {
    // Bits, not values: −0 is not 0 here.
    const auto same = [](const Values& a, const Values& b) {
      return std::ranges::equal(as_bytes_view(std::span<const float>(a)),
                                as_bytes_view(std::span<const float>(b)));
    };
    return same(values, other.values) && same(momentum, other.momentum) && image == other.image &&
           new_public == other.new_public;
  }
};

inline Inputs inputs_of(const Case& c) {
  return {&c.layout, 0,          c.first_commit, c.weights,   c.outer,
          c.values,  c.momentum, c.pushes,       c.correction};
}

inline Outcome outcome_room(const Case& c) {
  return {Values(c.values.size()), Values(c.momentum.size()),
          Bytes(codec::encoded_bytes(c.codec, c.values.size())), Bytes(c.old_public.size())};
}

inline Outputs outputs_of(const Case& c, Outcome& room) {
  return {room.values, room.momentum, c.codec, room.image, c.old_public, room.new_public};
}

inline Outcome merged(const Case& c, Inputs inputs) {
  Outcome out = outcome_room(c);
  const auto finite = merge_fragment(std::move(inputs), outputs_of(c, out));
  EXPECT_TRUE(finite) << finite.error().text();
  EXPECT_TRUE(*finite);
  return out;
}

inline double cosine64(const std::vector<double>& a, std::span<const float> b) {
  double dot = 0;
  double aa = 0;
  double bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    dot += a[i] * b[i];
    aa += a[i] * a[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  return aa > 0 && bb > 0 ? dot / std::sqrt(aa * bb) : 0.0;
}

inline double norm64(const std::vector<double>& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

// The delta of one push in one piece, corrected, in f64.
inline std::vector<double> reference_push(const Case& c, const Piece& piece, std::size_t m) {
  std::vector<double> x(piece.count);
  for (std::size_t i = 0; i < piece.count; ++i) {
    x[i] = c.deltas[m][piece.offset + i];
  }
  if (c.correction == Correction::kNone || c.momentum.empty()) {
    return x;
  }
  const auto momentum = std::span<const float>(c.momentum).subspan(piece.offset, piece.count);
  const std::vector<double> v(momentum.begin(), momentum.end());
  const double cosine = cosine64(x, momentum);
  const double nx = norm64(x);
  const double nv = norm64(v);
  if (nx < 1e-8 || nv < 1e-8 || cosine >= 0.2) {
    return x;
  }
  const double conf = nx / (nx + 3.0 * nv + 1e-8);
  std::vector<double> out(piece.count);
  if (cosine < 0) {
    const double beta = std::min(0.5 * -cosine * conf, 0.5);
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = x[i] + beta * -cosine * (nx / nv) * v[i];
    }
    return out;
  }
  const double lambda = std::min((1.0 - cosine) * conf, 1.0);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = (1.0 - lambda) * x[i] / nx + lambda * v[i] / nv;
  }
  const double scale = nx / norm64(out);
  for (double& value : out) {
    value *= scale;
  }
  return out;
}

// The definition in f64, without lanes, tiles or order.
inline std::vector<double> reference_delta(const Case& c, const Piece& piece) {
  std::vector<double> w;
  for (const Push& push : c.pushes) {
    const auto tokens = static_cast<double>(push.c_tokens);
    w.push_back(push.factor * (c.weights == WeightRule::kEqual ? 1.0
                               : c.weights == WeightRule::kTokens
                                   ? tokens
                                   : tokens * tokens / push.c_steps));
  }
  const double sum = std::accumulate(w.begin(), w.end(), 0.0);
  std::vector<double> avg(piece.count);
  std::vector<double> direction(piece.count);
  double length = 0;
  for (std::size_t m = 0; m < w.size(); ++m) {
    const double share = sum > 0 ? w[m] / sum : 1.0 / static_cast<double>(w.size());
    const std::vector<double> x = reference_push(c, piece, m);
    const double norm = norm64(x);
    length += share * norm;
    for (std::size_t i = 0; i < piece.count; ++i) {
      avg[i] += share * x[i];
      direction[i] += norm > 0 ? share * x[i] / norm : 0.0;
    }
  }
  const double norm = norm64(direction);
  if (c.layout.tensors[piece.tensor].merge == MergeMode::kAvg || norm < 1e-12) {
    return avg;
  }
  for (double& value : direction) {
    value *= length / norm;
  }
  return direction;
}

inline void expect_near_reference(const Case& c, const Outcome& got) {
  for (const Piece& piece : c.layout.fragments[0].pieces) {
    const std::vector<double> delta = reference_delta(c, piece);
    double mu = c.outer.momentum;
    if (c.outer.kind == OuterKind::kAuto) {
      const double agree =
          cosine64(delta, std::span<const float>(c.momentum).subspan(piece.offset, piece.count));
      mu = c.first_commit ? 0.0 : 0.9 * std::clamp((agree - 0.3) / 0.5, 0.0, 1.0);
    }
    for (std::size_t i = 0; i < piece.count; ++i) {
      const std::size_t at = piece.offset + i;
      double move = delta[i];
      if (c.outer.keeps_momentum()) {
        const double b = mu * c.momentum[at] + delta[i];
        ASSERT_NEAR(got.momentum[at], b, 1e-6 * (std::abs(b) + 0.02)) << at;
        move = delta[i] + mu * b;
      }
      const double value = c.values[at] - static_cast<double>(c.outer.lr) * move;
      ASSERT_NEAR(got.values[at], value, 1e-6 * (std::abs(value) + 0.1)) << at;
    }
  }
}

}  // namespace yeto::merge::testing
