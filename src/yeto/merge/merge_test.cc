// SPDX-License-Identifier: Apache-2.0
// Goal: a merge is right, and the same bits whatever the order of arrival, the order of its parts,
// the threads that run them, the instruction set, or whether norms were known before. Method:
// random fragments from printed seeds, against an f64 reference and a recorded digest.
#include "yeto/merge/merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/base/thread.h"
#include "yeto/codec/codec.h"
#include "yeto/tensor/kernels.h"

namespace yeto::merge {
namespace {

using Values = std::vector<float>;

float normal(Rng& rng, double scale) {
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

Layout random_layout(Rng& rng) {
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

Case random_case(std::uint64_t seed) {
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
void simplify(Case& c, CodecId codec, OuterKind outer) {
  c.codec = codec;
  c.correction = Correction::kNone;
  c.outer = OuterRule::of(outer);
  c.momentum.assign(c.outer.keeps_momentum() ? c.values.size() : 0, 0.0F);
  c.old_public.clear();
}

Push push_of(std::uint32_t seat, const Values& delta) {
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

Inputs inputs_of(const Case& c) {
  return {&c.layout, 0,          c.first_commit, c.weights,   c.outer,
          c.values,  c.momentum, c.pushes,       c.correction};
}

Outcome outcome_room(const Case& c) {
  return {Values(c.values.size()), Values(c.momentum.size()),
          Bytes(codec::encoded_bytes(c.codec, c.values.size())), Bytes(c.old_public.size())};
}

Outputs outputs_of(const Case& c, Outcome& room) {
  return {room.values, room.momentum, c.codec, room.image, c.old_public, room.new_public};
}

Outcome merged(const Case& c, Inputs inputs) {
  Outcome out = outcome_room(c);
  const auto finite = merge_fragment(std::move(inputs), outputs_of(c, out));
  EXPECT_TRUE(finite) << finite.error().text();
  EXPECT_TRUE(*finite);
  return out;
}

double cosine64(const std::vector<double>& a, std::span<const float> b) {
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

double norm64(const std::vector<double>& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

// The delta of one push in one piece, corrected, in f64.
std::vector<double> reference_push(const Case& c, const Piece& piece, std::size_t m) {
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
std::vector<double> reference_delta(const Case& c, const Piece& piece) {
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

void expect_near_reference(const Case& c, const Outcome& got) {
  for (const Piece& piece : c.layout.fragments[0].pieces) {
    const std::vector<double> delta = reference_delta(c, piece);
    double mu = c.outer.momentum;
    if (c.outer.kind == OuterKind::kAuto) {
      const double agree =
          cosine64(delta, std::span<const float>(c.momentum).subspan(piece.offset, piece.count));
      mu = c.first_commit ? 0.0 : 0.9 * std::clamp((agree + 0.15) / 0.4, 0.0, 1.0);
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

TEST(Merge, EqualsTheReferenceInF64) {
  for (std::uint64_t seed = 1; seed <= 240; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    const Case c = random_case(seed);
    const Outcome got = merged(c, inputs_of(c));
    expect_near_reference(c, got);
    Bytes image(got.image.size());
    if (c.codec == CodecId::kQ4) {
      // What leads from the old public value to the new values, as exactly as the image can say.
      Values change(c.values.size());
      ASSERT_TRUE(codec::decode(CodecId::kBf16, c.old_public, change));
      for (std::size_t i = 0; i < change.size(); ++i) {
        change[i] = got.values[i] - change[i];
      }
      ASSERT_TRUE(codec::encode(CodecId::kQ4, change, image));
      Bytes next(c.old_public.size());
      ASSERT_TRUE(codec::apply_q4(got.image, c.old_public, next));
      EXPECT_EQ(next, got.new_public) << "what is broadcast is what is kept";
    } else {
      ASSERT_TRUE(codec::encode(c.codec, got.values, image));
    }
    EXPECT_EQ(image, got.image);
  }
}

// What one compiler and machine made; every other has to make it too.
TEST(Merge, TheBitsAreThoseRecorded) {
  Bytes all;
  for (std::uint64_t seed = 1; seed <= 240; ++seed) {
    const Case c = random_case(seed);
    const Outcome got = merged(c, inputs_of(c));
    for (const ByteView part : {as_bytes_view(std::span<const float>(got.values)),
                                as_bytes_view(std::span<const float>(got.momentum)),
                                ByteView(got.image), ByteView(got.new_public)}) {
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  EXPECT_EQ(hex(xxh3_128(all)), "c3243092658891576c8938e48fb52bf7") << kernels().name;
}

// Which values of `part` alone are written, over all parts: each exactly once, whatever the layout.
TEST(Merge, EveryValueOfRandomLayoutsIsWrittenByOnePart) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    Rng rng(seed);
    std::vector<TensorSpec> tensors(1 + rng.below(12));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const char* kind = rng.below(5) == 0 ? "embed" : "proj";
      tensors[i].name = strf("layers.{}.{}.t{}", rng.below(3), kind, i);
      tensors[i].shape = {1 + rng.below(rng.below(3) == 0 ? 20'000 : 50)};
    }
    LayoutOptions options;
    options.fragments = static_cast<std::uint32_t>(1 + rng.below(6));
    options.pattern = static_cast<FragmentPattern>(rng.below(2));
    Case c = random_case(seed);
    c.layout = *make_layout(tensors, options);
    const auto fragment = static_cast<std::uint32_t>(rng.below(c.layout.fragments.size()));
    const std::size_t count = c.layout.fragments[fragment].values;
    c.values.assign(count, 0.5F);
    simplify(c, static_cast<CodecId>(rng.below(3)),
             rng.below(2) == 0 ? OuterKind::kNesterov : OuterKind::kAuto);
    c.old_public.resize(c.codec == CodecId::kQ4 ? 2 * count : 0);
    const Values delta(count, 0.25F);
    c.pushes = {push_of(0, delta)};
    Inputs in = inputs_of(c);
    in.fragment = fragment;
    Outcome out = outcome_room(c);
    const auto merge = FragmentMerge::make(in, outputs_of(c, out));
    ASSERT_TRUE(merge);
    std::vector<int> written(count);
    for (std::size_t part = 0; part < merge->parts(); ++part) {
      std::fill(out.values.begin(), out.values.end(), std::nanf(""));
      std::fill(out.momentum.begin(), out.momentum.end(), std::nanf(""));
      ASSERT_TRUE(merge->run_part(part));
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(std::isnan(out.values[i]), std::isnan(out.momentum[i])) << i;
        written[i] += std::isnan(out.values[i]) ? 0 : 1;
      }
    }
    EXPECT_EQ(written, std::vector<int>(count, 1));
  }
}

TEST(Merge, ThreadsDoNotMatter) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    const Case c = random_case(seed);
    const Outcome want = merged(c, inputs_of(c));
    Outcome got = outcome_room(c);
    const auto merge = FragmentMerge::make(inputs_of(c), outputs_of(c, got));
    ASSERT_TRUE(merge);
    const auto on_threads = [](std::size_t parts, auto&& run) {
      std::atomic<std::size_t> next{0};
      std::vector<JoiningThread> threads;
      for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] {
          for (std::size_t part = next++; part < parts; part = next++) {
            EXPECT_TRUE(run(part));
          }
        });
      }
    };
    on_threads(merge->parts(), [&](std::size_t part) { return merge->run_part(part); });
    on_threads(merge->encode_parts(),
               [&](std::size_t part) { return merge->run_encode_part(part); });
    ASSERT_TRUE(got == want);
  }
}

TEST(Merge, OrderOfArrivalDoesNotMatter) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    const Case c = random_case(seed);
    const Outcome want = merged(c, inputs_of(c));
    Rng rng(seed);
    for (int turn = 0; turn < 4; ++turn) {
      Inputs in = inputs_of(c);
      for (std::size_t m = in.pushes.size(); m > 1; --m) {
        std::swap(in.pushes[m - 1], in.pushes[rng.below(m)]);
      }
      ASSERT_TRUE(merged(c, std::move(in)) == want);
    }
  }
}

TEST(Merge, OrderOfPartsAndKnownNormsDoNotMatter) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    Case c = random_case(seed);
    const Outcome want = merged(c, inputs_of(c));
    std::vector<Measured> measured;
    for (const Push& push : c.pushes) {
      measured.push_back(*measure(c.layout.fragments[0], push.codec, push.image));
      EXPECT_TRUE(measured.back().finite);
    }
    for (std::size_t m = 0; m < c.pushes.size(); ++m) {
      c.pushes[m].square_norms = measured[m].square_norms;
    }
    Outcome got = outcome_room(c);
    const auto merge = FragmentMerge::make(inputs_of(c), outputs_of(c, got));
    ASSERT_TRUE(merge);
    for (std::size_t part = merge->parts(); part-- > 0;) {
      EXPECT_TRUE(merge->run_part(part));
    }
    for (std::size_t part = merge->encode_parts(); part-- > 0;) {
      EXPECT_TRUE(merge->run_encode_part(part));
    }
    ASSERT_TRUE(got == want);
  }
}

TEST(Merge, LargeAveragesAreCutIntoParts) {
  Case c = random_case(3);
  const std::size_t count = 600'000;
  c.layout.tensors.resize(1);
  c.layout.tensors[0].shape = {count};
  c.layout.tensors[0].merge = MergeMode::kAvg;
  c.layout.fragments = {{{{0, 0, count, 0}}, count}};
  c.values.assign(count, 1.0F);
  simplify(c, CodecId::kF32, OuterKind::kNesterov);
  Values delta(count);
  Rng rng(3);
  for (float& value : delta) {
    value = normal(rng, 0.01);
  }
  c.pushes = {push_of(0, delta)};
  c.deltas = {delta};
  Outcome got = outcome_room(c);
  const auto merge = FragmentMerge::make(inputs_of(c), outputs_of(c, got));
  ASSERT_TRUE(merge);
  EXPECT_EQ(merge->parts(), 3U);
  EXPECT_TRUE(merged(c, inputs_of(c)).values.size() == count);
  expect_near_reference(c, merged(c, inputs_of(c)));
}

TEST(Merge, WhatIsNotFiniteIsReportedAndTheInputsStand) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 3e38F}) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(strf("seed {} value {}", seed, bad));
      Case c = random_case(seed);
      if (std::isfinite(bad)) {
        c.values.back() = -bad;  // the step overflows although both are finite
        simplify(c, CodecId::kF32, OuterKind::kDirect);
      }
      Values delta(c.values.size(), bad);
      c.pushes = {push_of(0, delta)};
      const Values before = c.values;
      Outcome out = outcome_room(c);
      const auto finite = merge_fragment(inputs_of(c), outputs_of(c, out));
      ASSERT_TRUE(finite);
      EXPECT_FALSE(*finite);
      EXPECT_EQ(c.values, before);
    }
  }
}

TEST(Merge, ValuesThatLeaveBf16AreNotFinite) {
  Case c = random_case(1);
  simplify(c, CodecId::kBf16, OuterKind::kSgd);
  std::fill(c.values.begin(), c.values.end(), 3.4e38F);  // finite in f32, infinite in bf16
  const Values delta(c.values.size(), 0.0F);
  c.pushes = {push_of(0, delta)};
  Outcome out = outcome_room(c);
  EXPECT_FALSE(*merge_fragment(inputs_of(c), {out.values, {}, c.codec, out.image}));
}

TEST(Merge, TinyDeltasStayFinite) {
  Case c = random_case(2);
  for (TensorSpec& tensor : c.layout.tensors) {
    tensor.merge = MergeMode::kRda;
  }
  simplify(c, CodecId::kF32, OuterKind::kSgd);
  const Values tiny(c.values.size(), 1e-45F);
  const Values other(c.values.size(), 1e-3F);
  c.pushes = {push_of(0, tiny), push_of(1, other)};
  c.deltas = {tiny, other};
  expect_near_reference(c, merged(c, inputs_of(c)));
  c.pushes.pop_back();
  c.deltas.pop_back();
  merged(c, inputs_of(c));
}

TEST(Merge, AChangeThatIsNotFiniteIsReported) {
  Case c = random_case(1);
  std::fill(c.values.begin(), c.values.end(), 3e38F);
  simplify(c, CodecId::kQ4, OuterKind::kSgd);
  const Values opposite(c.values.size(), -3e38F);
  c.old_public.resize(2 * c.values.size());
  ASSERT_TRUE(codec::encode(CodecId::kBf16, opposite, c.old_public));
  const Values delta(c.values.size(), 0.0F);
  c.pushes = {push_of(0, delta)};
  Outcome out = outcome_room(c);
  EXPECT_FALSE(*merge_fragment(inputs_of(c), outputs_of(c, out)));
}

TEST(Merge, SumsOf256LearnersHoldAtExtremeValues) {
  constexpr std::size_t kCrowd = 256;
  for (const float extreme : {std::numeric_limits<float>::max(), 1e30F, 1e-20F, 1e-37F}) {
    for (const MergeMode mode : {MergeMode::kAvg, MergeMode::kRda}) {
      SCOPED_TRACE(strf("{} {}", extreme, mode == MergeMode::kAvg ? "avg" : "rda"));
      Case c = random_case(11);
      for (TensorSpec& tensor : c.layout.tensors) {
        tensor.merge = mode;
      }
      std::fill(c.values.begin(), c.values.end(), 0.0F);
      simplify(c, CodecId::kF32, OuterKind::kDirect);
      c.weights = WeightRule::kEqual;
      Rng rng(11);
      c.deltas.assign(kCrowd, Values(c.values.size()));
      c.pushes.clear();
      for (std::uint32_t m = 0; m < kCrowd; ++m) {
        for (float& value : c.deltas[m]) {
          // A common direction, half of the length at random, so that nothing cancels to nothing.
          value = static_cast<float>(extreme * (0.5 + 0.5 * rng.uniform()));
        }
        c.pushes.push_back(push_of(m, c.deltas[m]));
      }
      const Outcome got = merged(c, inputs_of(c));
      for (const Piece& piece : c.layout.fragments[0].pieces) {
        const std::vector<double> want = reference_delta(c, piece);
        for (std::size_t i = 0; i < piece.count; ++i) {
          // 256 roundings of 2^-24 each, and of the weights; subnormals have their own step.
          ASSERT_NEAR(-got.values[piece.offset + i], want[i], 3e-5 * std::abs(want[i]) + 1e-43);
        }
      }
    }
  }
}

TEST(Merge, TheLargestMeanOf256EqualDeltasIsThatDelta) {
  Case c = random_case(12);
  for (TensorSpec& tensor : c.layout.tensors) {
    tensor.merge = MergeMode::kAvg;
  }
  std::fill(c.values.begin(), c.values.end(), 0.0F);
  simplify(c, CodecId::kF32, OuterKind::kDirect);
  c.weights = WeightRule::kEqual;
  const Values most(c.values.size(), std::numeric_limits<float>::max());
  c.pushes.clear();
  for (std::uint32_t m = 0; m < 256; ++m) {
    c.pushes.push_back(push_of(m, most));
  }
  EXPECT_EQ(merged(c, inputs_of(c)).values, Values(c.values.size(), -most[0]));
}

// Fragments whose results are written around the cache, with a piece too large to wait in it.
TEST(Merge, LargeFragmentsEqualTheReference) {
  for (const CodecId codec : {CodecId::kF32, CodecId::kBf16, CodecId::kQ4}) {
    Case c = random_case(13);
    const std::uint64_t sizes[] = {300'001, 1'100'003, 77};
    c.layout = {};
    Fragment fragment;
    for (std::uint32_t i = 0; i < 3; ++i) {
      TensorSpec tensor;
      tensor.name = strf("t{}", i);
      tensor.shape = {sizes[i]};
      tensor.merge = i == 0 ? MergeMode::kAvg : MergeMode::kRda;
      c.layout.tensors.push_back(tensor);
      fragment.pieces.push_back({i, 0, sizes[i], fragment.values});
      fragment.values += sizes[i];
    }
    c.layout.fragments = {fragment};
    Rng rng(13);
    const auto fill = [&](Values& values, double scale) {
      values.resize(fragment.values);
      for (float& value : values) {
        value = static_cast<float>(scale * (rng.uniform() - 0.5));
      }
    };
    fill(c.values, 1.0);
    simplify(c, codec, OuterKind::kAuto);
    fill(c.momentum, 0.02);
    c.first_commit = false;
    c.weights = WeightRule::kEqual;
    c.deltas.resize(3);
    c.pushes.clear();
    for (std::uint32_t m = 0; m < 3; ++m) {
      fill(c.deltas[m], 0.02);
      c.pushes.push_back(push_of(m, c.deltas[m]));
    }
    if (codec == CodecId::kQ4) {
      c.old_public.resize(2 * c.values.size());
      ASSERT_TRUE(codec::encode(CodecId::kBf16, c.values, c.old_public));
    }
    expect_near_reference(c, merged(c, inputs_of(c)));
  }
}

TEST(Measure, OfAQ4PushIsThatOfItsValues) {
  const Fragment fragment{{{0, 0, 700, 0}, {1, 0, 333, 700}}, 1033};
  Values delta(fragment.values);
  Rng rng(3);
  for (float& value : delta) {
    value = normal(rng, 0.01);
  }
  Bytes image(codec::encoded_bytes(CodecId::kQ4, delta.size()));
  ASSERT_TRUE(codec::encode(CodecId::kQ4, delta, image));
  ASSERT_TRUE(codec::decode(CodecId::kQ4, image, delta));
  const auto want = measure(fragment, CodecId::kF32, as_bytes_view(std::span<const float>(delta)));
  const auto got = measure(fragment, CodecId::kQ4, image);
  ASSERT_TRUE(got);
  EXPECT_TRUE(got->finite);
  EXPECT_EQ(got->square_norms, want->square_norms);
  EXPECT_EQ(got->norm, want->norm);
  delta[500] = std::nanf("");
  ASSERT_TRUE(codec::encode(CodecId::kQ4, delta, image));
  EXPECT_FALSE(measure(fragment, CodecId::kQ4, image)->finite);
  const float negative = -1.0F;
  std::memcpy(image.data() + 132, &negative, 4);
  std::memcpy(image.data(), &negative, 4);
  EXPECT_EQ(measure(fragment, CodecId::kQ4, image).error().code, ErrorCode::kData);
}

TEST(Measure, NormsAndFiniteness) {
  Fragment fragment{{{0, 0, 2, 0}, {1, 0, 3, 2}}, 5};
  Values delta{3, 4, 1, 2, 2};
  const auto view = as_bytes_view(std::span<const float>(delta));
  const auto measured = measure(fragment, CodecId::kF32, view);
  ASSERT_TRUE(measured);
  EXPECT_TRUE(measured->finite);
  EXPECT_EQ(measured->square_norms, (std::vector<double>{25, 9}));
  EXPECT_EQ(measured->norm, std::sqrt(34.0));
  delta[4] = std::numeric_limits<float>::max();
  EXPECT_TRUE(measure(fragment, CodecId::kF32, view)->finite);
  delta[4] = -std::numeric_limits<float>::infinity();
  EXPECT_FALSE(measure(fragment, CodecId::kF32, view)->finite);
  delta[4] = std::nanf("");
  EXPECT_FALSE(measure(fragment, CodecId::kF32, view)->finite);
  EXPECT_EQ(measure(fragment, CodecId::kF32, view.first(19)).error().code, ErrorCode::kData);
  EXPECT_EQ(measure(fragment, CodecId::kQ4, view).error().code, ErrorCode::kData);
}

TEST(Merge, BadInputIsRefused) {
  Case c = random_case(5);
  simplify(c, CodecId::kBf16, OuterKind::kNesterov);
  const Values delta(c.values.size(), 0.01F);
  c.pushes = {push_of(3, delta)};
  Outcome out = outcome_room(c);
  const Outputs outputs = outputs_of(c, out);
  const auto code_of = [&](const Inputs& in) { return merge_fragment(in, outputs).error().code; };
  Inputs none = inputs_of(c);
  none.pushes.clear();
  EXPECT_EQ(code_of(none), ErrorCode::kData);
  Inputs doubled = inputs_of(c);
  doubled.pushes.push_back(doubled.pushes[0]);
  EXPECT_EQ(code_of(doubled), ErrorCode::kData) << "same seat, same base";
  doubled.pushes[1].base_version = 1;
  EXPECT_TRUE(merge_fragment(doubled, outputs)) << "late work of the same seat";
  for (const double factor : {-0.5, 1.5, std::nan("")}) {
    doubled.pushes[1].factor = factor;
    EXPECT_EQ(code_of(doubled), ErrorCode::kData) << factor;
  }
  Inputs truncated = inputs_of(c);
  truncated.pushes[0].image = truncated.pushes[0].image.subspan(2);
  EXPECT_EQ(code_of(truncated), ErrorCode::kData);
  Inputs other = inputs_of(c);
  other.pushes[0].codec = CodecId::kQ4;
  EXPECT_EQ(code_of(other), ErrorCode::kData) << "not the size of such an image";
  Bytes image(codec::encoded_bytes(CodecId::kQ4, c.values.size()));
  ASSERT_TRUE(codec::encode(CodecId::kQ4, delta, image));
  other.pushes[0].image = image;
  EXPECT_TRUE(merge_fragment(other, outputs));
  image[3] = 0xff;  // the sign of the first scale
  EXPECT_EQ(code_of(other), ErrorCode::kData);
  Inputs missing = inputs_of(c);
  missing.fragment = 1;
  EXPECT_EQ(code_of(missing), ErrorCode::kInternal);
}

TEST(Merge, OutputsOfAnotherSizeAreRefused) {
  Case c = random_case(6);
  simplify(c, CodecId::kQ4, OuterKind::kNesterov);
  c.old_public.resize(2 * c.values.size());
  const Values delta(c.values.size(), 0.01F);
  c.pushes = {push_of(3, delta)};
  Outcome out = outcome_room(c);
  const Outputs good = outputs_of(c, out);
  EXPECT_TRUE(merge_fragment(inputs_of(c), good));
  const auto refused = [&](auto&& change) {
    Outputs bad = good;
    change(bad);
    const auto merge = merge_fragment(inputs_of(c), bad);
    return !merge && merge.error().code == ErrorCode::kInternal;
  };
  EXPECT_TRUE(refused([](Outputs& o) { o.values = o.values.first(o.values.size() - 1); }));
  EXPECT_TRUE(refused([](Outputs& o) { o.momentum = {}; }));
  EXPECT_TRUE(refused([](Outputs& o) { o.image = o.image.first(o.image.size() - 1); }));
  EXPECT_TRUE(refused([](Outputs& o) { o.old_public = {}; }));
  EXPECT_TRUE(refused([](Outputs& o) { o.new_public = o.new_public.first(2); }));
  EXPECT_TRUE(refused([](Outputs& o) { o.codec = CodecId::kBf16; }));
}

TEST(Rules, NamesComeBackAndBoundsHold) {
  for (const auto kind :
       {OuterKind::kNesterov, OuterKind::kSgd, OuterKind::kDirect, OuterKind::kAuto}) {
    EXPECT_EQ(*outer_kind_from_name(outer_kind_name(kind)), kind);
    EXPECT_TRUE(OuterRule::of(kind).check());
  }
  for (const auto rule : {WeightRule::kTokens2, WeightRule::kTokens, WeightRule::kEqual}) {
    EXPECT_EQ(*weight_rule_from_name(weight_rule_name(rule)), rule);
  }
  for (const auto correction : {Correction::kNone, Correction::kHeloco}) {
    EXPECT_EQ(*correction_from_name(correction_name(correction)), correction);
  }
  EXPECT_EQ(correction_from_name("always").error().code, ErrorCode::kType);
  EXPECT_EQ(outer_kind_from_name("adam").error().code, ErrorCode::kType);
  OuterRule rule = OuterRule::of(OuterKind::kNesterov);
  rule.lr = 0.0F;
  EXPECT_EQ(rule.check().error().code, ErrorCode::kRange);
  rule.lr = std::nanf("");
  EXPECT_FALSE(rule.check());
  rule = OuterRule::of(OuterKind::kNesterov);
  rule.momentum = 1.0F;
  EXPECT_FALSE(rule.check());
  rule = OuterRule::of(OuterKind::kDirect);
  rule.lr = 0.5F;
  EXPECT_EQ(rule.check().error().code, ErrorCode::kConflict);
}

}  // namespace
}  // namespace yeto::merge
