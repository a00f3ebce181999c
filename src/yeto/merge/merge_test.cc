// SPDX-License-Identifier: Apache-2.0
// Goal: a merge is right, and the same bits whatever the order of arrival, the order of its parts,
// the threads that run them, the instruction set, or whether norms were known before. Method:
// random fragments from printed seeds, against an f64 reference and a recorded digest.
#include "yeto/merge/merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/base/thread.h"
#include "yeto/codec/codec.h"
#include "yeto/merge/merge_testing.h"
#include "yeto/tensor/kernels.h"

namespace yeto::merge {
namespace {

using namespace testing;

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
  EXPECT_EQ(hex(xxh3_128(all)), "7d91db7950c6f3d18cd5a9d24f451271") << kernels().name;
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

}  // namespace
}  // namespace yeto::merge
