// SPDX-License-Identifier: Apache-2.0
// Goal: the loops give the same bits for every instruction set of this machine, for every length
// and place of the data, written around the cache or not. Method: all tables against the first one,
// and against the definition written value by value; values of all kinds from printed seeds.
#include "yeto/tensor/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/tensor/bf16.h"

namespace yeto {
namespace {

using Values = std::vector<float>;
using Halves = std::vector<std::uint16_t>;

// Fractions of powers of two, so that no compiler rounds the inputs differently.
float some_value(Rng& rng) {
  const auto numerator = static_cast<double>(rng.below(1 << 24)) - (1 << 23);
  return static_cast<float>(std::ldexp(numerator, -24 - static_cast<int>(rng.below(30))));
}

Values some_values(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  Values out(count);
  for (float& value : out) {
    value = some_value(rng);
  }
  return out;
}

// Zeros of both signs, subnormals, the largest, infinities: everything but NaN, whose payload is
// the machine's own.
Values wild_values(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  Values out(count);
  for (float& value : out) {
    auto bits = static_cast<std::uint32_t>(rng.next());
    if ((bits & 0x7fffffffU) > 0x7f800000U) {
      bits &= 0xff800000U;
    }
    value = std::bit_cast<float>(bits);
  }
  return out;
}

Halves halves_of(const Values& values) {
  Halves out(values.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = bf16_from_f32(values[i]);
  }
  return out;
}

template <class T>
void append(std::vector<std::uint8_t>& out, const std::vector<T>& values) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(values.data());
  out.insert(out.end(), bytes, bytes + values.size() * sizeof(T));
}

constexpr std::size_t kCounts[] = {0,   1,   15,  16,  17,  63,  64,  65,  127,
                                   128, 255, 256, 257, 300, 512, 999, 2048};

struct Material {
  std::size_t count;
  std::vector<Values> deltas;
  std::vector<Halves> halves;  // the same as bf16
  Values values;
  Values momentum;
  Values residual;
  Values wild;

  Material(std::size_t size, std::uint64_t seed)
      : count(size),
        values(some_values(size, seed * 100 + 50)),
        momentum(some_values(size, seed * 100 + 51)),
        residual(some_values(size, seed * 100 + 52)),
        wild(wild_values(size, seed)) {
    for (std::size_t m = 0; m < kSources; ++m) {
      deltas.push_back(some_values(size, seed * 100 + m));
      halves.push_back(halves_of(deltas.back()));
    }
  }
};

// What a table makes of the material with each number of sources.
void append_sums(std::vector<std::uint8_t>& out, const Kernels& k, const Material& of) {
  const std::size_t count = of.count;
  for (std::size_t sources = 1; sources <= kSources; ++sources) {
    Sources f32;
    Sources bf16;
    for (std::size_t m = 0; m < sources; ++m) {
      f32.at[m] = of.deltas[m].data();
      bf16.at[m] = of.halves[m].data();
      f32.weight[m] = bf16.weight[m] = 1.0F / static_cast<float>(m + 3);
    }
    f32.count = bf16.count = sources;
    for (const bool add : {false, true}) {
      Values sum = of.values;
      std::vector<double> squares(kLanes);
      std::vector<double> want(kLanes);
      k.sum_f32(sum.data(), f32, add, count, squares.data());
      k.squares_f32(want.data(), sum.data(), count);
      append(out, sum);
      k.sum_bf16(sum.data(), bf16, add, count, nullptr);
      append(out, sum);
      EXPECT_EQ(squares, want) << "the squares of the sum itself";
    }
    for (const bool half : {false, true}) {
      Values new_values(count);
      Values new_momentum(count);
      Halves image(count);
      Step step{of.values.data(),
                of.momentum.data(),
                new_values.data(),
                new_momentum.data(),
                nullptr,
                image.data(),
                0.7F,
                0.9F,
                sources % 2 == 0};
      out.push_back(half ? k.mean_step_bf16(bf16, step, count) : k.mean_step_f32(f32, step, count));
      append(out, new_values);
      append(out, new_momentum);
      append(out, image);
    }
  }
}

void append_rest(std::vector<std::uint8_t>& out, const Kernels& k, const Material& of) {
  const std::size_t count = of.count;
  Values made(count);
  k.blend(made.data(), of.deltas[0].data(), of.momentum.data(), {0.3F, 0.6F, 1.1F}, count);
  append(out, made);
  std::vector<double> lanes(kLanes);
  k.squares_f32(lanes.data(), of.deltas[0].data(), count);
  k.squares_bf16(lanes.data(), of.halves[1].data(), count);
  k.dots_f32(lanes.data(), of.deltas[2].data(), of.momentum.data(), count);
  append(out, lanes);
  Halves half(count);
  out.push_back(k.encode_bf16(of.wild.data(), half.data(), count));
  append(out, half);
  k.decode_bf16(half.data(), made.data(), count);
  append(out, made);
}

void append_q4(std::vector<std::uint8_t>& out, const Kernels& k, const Material& of) {
  const std::size_t count = of.count;
  Values made(count);
  std::vector<std::uint8_t> image((count + kQ4BlockValues - 1) / kQ4BlockValues * kQ4BlockBytes);
  for (const Values& x : {of.deltas[3], of.wild}) {
    k.encode_q4(x.data(), image.data(), count);
    append(out, image);
  }
  k.encode_q4(of.deltas[3].data(), image.data(), count);
  k.decode_q4(image.data(), made.data(), count);
  append(out, made);
  Values residual = of.residual;
  k.encode_q4_feedback(of.deltas[4].data(), residual.data(), image.data(), count);
  append(out, image);
  append(out, residual);
  const Halves before = halves_of(of.values);
  Halves after(count);
  out.push_back(
      k.encode_q4_change(of.deltas[5].data(), before.data(), after.data(), image.data(), count));
  append(out, image);
  append(out, after);
  Halves applied(count);
  out.push_back(k.apply_q4(image.data(), before.data(), applied.data(), count));
  EXPECT_EQ(applied, after) << "the learner's step is the syncer's";
}

// Everything a table makes of one set of inputs, as bytes.
std::vector<std::uint8_t> all_of(const Kernels& k, std::size_t count, std::uint64_t seed) {
  const Material of(count, seed);
  std::vector<std::uint8_t> out;
  append_sums(out, k, of);
  append_rest(out, k, of);
  append_q4(out, k, of);
  return out;
}

TEST(Kernels, EveryInstructionSetGivesTheSameBits) {
  const std::vector<const Kernels*> tables = supported_kernels();
  for (const std::size_t count : kCounts) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      const auto want = all_of(*tables[0], count, seed);
      for (const Kernels* table : tables) {
        ASSERT_TRUE(all_of(*table, count, seed) == want)
            << table->name << ", count " << count << ", seed " << seed;
      }
    }
  }
}

TEST(Kernels, SumsGoFromLeftToRight) {
  for (const Kernels* k : supported_kernels()) {
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      SCOPED_TRACE(strf("{} seed {}", k->name, seed));
      Rng rng(seed);
      const std::size_t count = rng.below(600);
      std::vector<Values> deltas;
      Sources sources;
      sources.count = 1 + rng.below(kSources);
      for (std::size_t m = 0; m < sources.count; ++m) {
        deltas.push_back(some_values(count, seed * 10 + m));
        sources.at[m] = deltas[m].data();
        sources.weight[m] = some_value(rng);
      }
      const bool add = rng.below(2) == 0;
      Values got(count, 0.5F);
      k->sum_f32(got.data(), sources, add, count, nullptr);
      Values stepped(count);
      const Values zeros(count);
      Step step;
      step.values = zeros.data();
      step.new_values = stepped.data();
      step.lr = 1.0F;
      ASSERT_TRUE(k->mean_step_f32(sources, step, count));
      for (std::size_t i = 0; i < count; ++i) {
        const auto sum_from = [&](float sum, std::size_t m) {
          for (; m < sources.count; ++m) {
            const float product = sources.weight[m] * deltas[m][i];
            sum += product;
          }
          return sum;
        };
        const float first = sources.weight[0] * deltas[0][i];
        ASSERT_EQ(got[i], add ? sum_from(0.5F, 0) : sum_from(first, 1)) << i;
        ASSERT_EQ(stepped[i], 0.0F - sum_from(first, 1)) << i;
      }
    }
  }
}

// What one compiler and machine made; every other has to make it too.
TEST(Kernels, TheBitsAreThoseRecorded) {
  for (const Kernels* table : supported_kernels()) {
    std::vector<std::uint8_t> all;
    for (const std::size_t count : kCounts) {
      append(all, all_of(*table, count, 7));
    }
    EXPECT_EQ(hex(xxh3_128(all)), "25b878255d69a3b931aa155c1e1faf7a") << table->name;
  }
}

// Θ and b after the step, one value at a time.
struct Stepped {
  float value;
  float momentum;
};
Stepped step_of(const Step& step, std::size_t i, float delta) {
  if (step.momentum == nullptr) {
    const float move = step.lr * delta;
    return {step.values[i] - move, 0.0F};
  }
  const float kept = step.mu * step.momentum[i];
  const float b = kept + delta;
  const float look = step.mu * b;
  const float move = step.lr * (delta + look);
  return {step.values[i] - move, b};
}

TEST(Kernels, TheStepIsTheSameWhereverItWritesAndHowever) {
  for (const Kernels* k : supported_kernels()) {
    for (std::uint64_t seed = 1; seed <= 200; ++seed) {
      SCOPED_TRACE(strf("{} seed {}", k->name, seed));
      Rng rng(seed);
      const std::size_t count = rng.below(700);
      const Values x = some_values(count, seed);
      const Values values = some_values(count, seed + 1);
      const Values momentum = some_values(count, seed + 2);
      const bool with_momentum = rng.below(2) == 0;
      const float scale = some_value(rng);
      // Results begin anywhere in a line.
      const auto room = [&rng, count] {
        return std::pair(rng.below(32), Values(count + 32, 9.0F));
      };
      auto [at_values, new_values] = room();
      auto [at_momentum, new_momentum] = room();
      auto [at_image, image] = room();
      const std::size_t at_half = rng.below(32);
      Halves half(count + 32, 9);
      const bool as_f32 = rng.below(2) == 0;
      Step step;
      step.values = values.data();
      step.new_values = new_values.data() + at_values;
      step.momentum = with_momentum ? momentum.data() : nullptr;
      step.new_momentum = with_momentum ? new_momentum.data() + at_momentum : nullptr;
      step.image_f32 = as_f32 ? image.data() + at_image : nullptr;
      step.image_bf16 = as_f32 ? nullptr : half.data() + at_half;
      step.lr = 0.7F;
      step.mu = 0.9F;
      step.stream = rng.below(2) == 0;
      ASSERT_TRUE(k->step(x.data(), scale, step, count));
      for (std::size_t i = 0; i < count; ++i) {
        const Stepped want = step_of(step, i, scale * x[i]);
        ASSERT_EQ(step.new_values[i], want.value) << i;
        if (with_momentum) {
          ASSERT_EQ(step.new_momentum[i], want.momentum) << i;
        }
        if (as_f32) {
          ASSERT_EQ(step.image_f32[i], want.value) << i;
        } else {
          ASSERT_EQ(step.image_bf16[i], bf16_from_f32(want.value)) << i;
        }
      }
      // Nothing else is written.
      for (std::size_t i = 0; i < new_values.size(); ++i) {
        const bool inside = i >= at_values && i < at_values + count;
        ASSERT_TRUE(inside || new_values[i] == 9.0F) << i;
      }
      EXPECT_EQ(std::accumulate(half.begin(), half.begin() + static_cast<long>(at_half), 0U),
                9U * at_half);
    }
  }
}

TEST(Kernels, TheStepMayWriteOverItsDelta) {
  for (const Kernels* k : supported_kernels()) {
    const Values x = some_values(500, 4);
    const Values values = some_values(500, 5);
    Values apart(500);
    Values over = x;
    Step step;
    step.values = values.data();
    step.lr = 0.28F;
    step.new_values = apart.data();
    ASSERT_TRUE(k->step(x.data(), 0.5F, step, 500));
    step.new_values = over.data();
    ASSERT_TRUE(k->step(over.data(), 0.5F, step, 500));
    EXPECT_EQ(over, apart);
  }
}

TEST(Kernels, WhatIsNotFiniteIsSeenAtEveryPlace) {
  for (const Kernels* k : supported_kernels()) {
    for (std::size_t bad = 0; bad < 150; ++bad) {
      Values x(150, 0.5F);
      x[bad] = bad % 2 == 0 ? std::nanf("") : -HUGE_VALF;
      const Values values(150, 1.0F);
      Values new_values(150);
      Values new_momentum(150);
      for (const bool with_momentum : {false, true}) {
        Step step;
        step.values = values.data();
        step.new_values = new_values.data();
        step.momentum = with_momentum ? values.data() : nullptr;
        step.new_momentum = with_momentum ? new_momentum.data() : nullptr;
        step.lr = 0.5F;
        step.stream = bad % 3 == 0;
        EXPECT_FALSE(k->step(x.data(), 1.0F, step, 150)) << k->name << " " << bad;
      }
      Halves half(150);
      EXPECT_FALSE(k->encode_bf16(x.data(), half.data(), 150));
    }
  }
}

TEST(Kernels, SumsRunOverSixteenLanes) {
  for (std::size_t count = 0; count < 70; ++count) {
    const Values x = some_values(count, count + 1);
    const Values y = some_values(count, count + 1000);
    Lanes want{};
    Lanes want_dot{};
    for (std::size_t i = 0; i < count; ++i) {
      want[i % kLanes] += static_cast<double>(x[i]) * x[i];
      want_dot[i % kLanes] += static_cast<double>(x[i]) * y[i];
    }
    Lanes got{};
    Lanes got_dot{};
    // In two blocks, the first a multiple of the lanes.
    const std::size_t cut = count / 2 / kLanes * kLanes;
    kernels().squares_f32(got.data(), x.data(), cut);
    kernels().squares_f32(got.data(), x.data() + cut, count - cut);
    kernels().dots_f32(got_dot.data(), x.data(), y.data(), cut);
    kernels().dots_f32(got_dot.data(), x.data() + cut, y.data() + cut, count - cut);
    EXPECT_EQ(got, want);
    EXPECT_EQ(got_dot, want_dot);
  }
  Lanes lanes{};
  std::iota(lanes.begin(), lanes.end(), 1.0);
  EXPECT_EQ(fold(lanes), 136.0);
  // The pairs are (0, 8), (4, 12) …: what is lost next to 1e16 shows the order.
  Lanes order{};
  order[0] = 1e16;
  order[8] = 1.0;
  order[4] = -1e16;
  order[12] = 1.0;
  EXPECT_EQ(fold(order), (1e16 + 1.0) + (-1e16 + 1.0));
}

TEST(Kernels, AreChosenByNameAndTheBestIsTheDefault) {
  const std::vector<const Kernels*> tables = supported_kernels();
  ASSERT_FALSE(tables.empty());
  EXPECT_STREQ(tables[0]->name, "base");
  for (const Kernels* table : tables) {
    EXPECT_EQ(kernels_by_name(table->name, tables), table);
  }
  EXPECT_EQ(kernels_by_name("", tables), tables.back());
  EXPECT_EQ(kernels_by_name("v9", tables), nullptr);
  EXPECT_EQ(kernels_by_name("v3", {kernels_base()}), nullptr) << "a machine without it";
  const char* wanted = std::getenv("YETO_ISA");
  const Kernels* named = kernels_by_name(wanted == nullptr ? "" : wanted, tables);
  EXPECT_EQ(&kernels(), named == nullptr ? tables.back() : named);
}

}  // namespace
}  // namespace yeto
