// SPDX-License-Identifier: Apache-2.0
// Goal: a layout deals every value to exactly one place, the same way everywhere, and hostile bytes
// are refused. Method: random shapes from printed seeds, a golden fingerprint, every truncation and
// bit flip.
#include "yeto/tensor/layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"

namespace yeto {
namespace {

TensorSpec tensor(std::string name, std::vector<std::uint64_t> shape) {
  TensorSpec out;
  out.name = std::move(name);
  out.shape = std::move(shape);
  return out;
}

std::vector<TensorSpec> small_model() {
  return {tensor("model.embed_tokens.weight", {10, 4}),
          tensor("model.layers.0.a.weight", {4, 4}),
          tensor("model.layers.0.b.weight", {2, 4}),
          tensor("model.layers.1.a.weight", {4, 4}),
          tensor("model.layers.1.b.weight", {2, 4}),
          tensor("model.layers.2.a.weight", {4, 4}),
          tensor("model.norm.weight", {4})};
}

std::vector<std::vector<std::uint32_t>> members(const Layout& layout) {
  std::vector<std::vector<std::uint32_t>> out;
  for (const Fragment& fragment : layout.fragments) {
    out.emplace_back();
    for (const Piece& piece : fragment.pieces) {
      out.back().push_back(piece.tensor);
    }
  }
  return out;
}

void expect_every_value_once(const Layout& layout) {
  std::vector<std::vector<int>> seen(layout.tensors.size());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    seen[i].resize(layout.tensors[i].values());
  }
  for (const Fragment& fragment : layout.fragments) {
    std::uint64_t offset = 0;
    for (const Piece& piece : fragment.pieces) {
      EXPECT_EQ(piece.offset, offset);
      offset += piece.count;
      for (std::uint64_t i = 0; i < piece.count; ++i) {
        ++seen[piece.tensor].at(piece.first + i);
      }
    }
    EXPECT_EQ(fragment.values, offset);
    EXPECT_GT(fragment.values, 0U);
  }
  for (const auto& counts : seen) {
    EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; }));
  }
}

void expect_none_beyond_twice_the_mean(const Layout& layout) {
  EXPECT_LE(layout.largest_fragment() * layout.fragments.size(), 2 * layout.values());
}

bool has_slices(const Layout& layout) {
  for (const Fragment& fragment : layout.fragments) {
    for (const Piece& piece : fragment.pieces) {
      if (piece.count != layout.tensors[piece.tensor].values()) {
        return true;
      }
    }
  }
  return false;
}

TEST(Layout, EveryValueOfRandomShapesIsInExactlyOnePlace) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    Rng rng(seed);
    std::vector<TensorSpec> tensors;
    const std::size_t count = 1 + rng.below(30);
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<std::uint64_t> shape(rng.below(4));
      for (std::uint64_t& dimension : shape) {
        dimension = 1 + rng.below(9);
      }
      const char* kind = rng.below(8) == 0 ? "embed_tokens" : "proj";
      const std::string layer = rng.below(4) == 0 ? "" : strf(".layers.{}", rng.below(6));
      tensors.push_back(tensor(strf("model{}.{}.t{}", layer, kind, i), std::move(shape)));
    }
    LayoutOptions options;
    options.fragments = static_cast<std::uint32_t>(1 + rng.below(12));
    options.pattern = rng.below(2) == 0 ? FragmentPattern::kBinpack : FragmentPattern::kStrided;
    const auto layout = make_layout(tensors, options);
    ASSERT_TRUE(layout) << layout.error().text();
    expect_every_value_once(*layout);
    std::size_t alone = 0;
    for (const TensorSpec& spec : layout->tensors) {
      alone += is_embedding_like(spec.name) ? 1 : 0;
    }
    const std::size_t rest = count - alone;
    const std::size_t bins = options.fragments > alone ? options.fragments - alone : 1;
    EXPECT_LE(layout->fragments.size(), alone + std::min(bins, rest));
    expect_none_beyond_twice_the_mean(*layout);
    const auto again = Layout::decode(layout->encode());
    ASSERT_TRUE(again);
    EXPECT_EQ(*again, *layout);
    EXPECT_EQ(first_difference(*again, *layout), "");
  }
}

TEST(Layout, NoFragmentExceedsTwiceTheMeanHoweverUnevenTheTensorsAre) {
  int sliced_layouts = 0;
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    Rng rng(seed);
    std::vector<TensorSpec> tensors;
    const std::size_t count = 1 + rng.below(40);
    for (std::size_t i = 0; i < count; ++i) {
      // Sizes over four powers of ten.
      std::uint64_t values = 1 + rng.below(9);
      for (std::uint64_t power = rng.below(5); power > 0; --power) {
        values *= 1 + rng.below(10);
      }
      const char* kind = rng.below(6) == 0 ? "embed_tokens" : "proj";
      const std::string layer = rng.below(4) == 0 ? "" : strf(".layers.{}", rng.below(4));
      tensors.push_back(tensor(strf("model{}.{}.t{}", layer, kind, i), {values}));
    }
    LayoutOptions options;
    options.fragments = static_cast<std::uint32_t>(1 + rng.below(24));
    options.pattern = rng.below(2) == 0 ? FragmentPattern::kBinpack : FragmentPattern::kStrided;
    const auto layout = make_layout(tensors, options);
    ASSERT_TRUE(layout) << layout.error().text();
    expect_every_value_once(*layout);
    expect_none_beyond_twice_the_mean(*layout);
    for (const Fragment& fragment : layout->fragments) {
      const bool embedding = is_embedding_like(layout->tensors[fragment.pieces[0].tensor].name);
      for (const Piece& piece : fragment.pieces) {
        EXPECT_EQ(is_embedding_like(layout->tensors[piece.tensor].name), embedding)
            << "embedding-like tensors stay among themselves";
      }
    }
    sliced_layouts += has_slices(*layout) ? 1 : 0;
  }
  EXPECT_GT(sliced_layouts, 50) << "the sizes are to be so uneven that slices are needed";
}

TEST(Layout, ATensorLargerThanItsShareIsCutIntoSlices) {
  LayoutOptions options;
  options.fragments = 4;
  const auto layout = make_layout(
      {tensor("a", {100}), tensor("b", {4}), tensor("c", {4}), tensor("d", {4})}, options);
  ASSERT_TRUE(layout);
  // 112 values over 4 fragments: at most 56 each; a bin that holds its 28 has room for 28 more.
  ASSERT_EQ(layout->fragments.size(), 4U);
  expect_every_value_once(*layout);
  EXPECT_EQ(layout->fragments[0].pieces[0], (Piece{0, 0, 25, 0}));
  EXPECT_EQ(layout->fragments[3].pieces[0], (Piece{0, 75, 25, 0}));
  EXPECT_EQ(layout->largest_fragment(), 29U);
}

TEST(Layout, StridedLayersThatOverfillAFragmentGiveUpWhatIsTooMuch) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 8; ++i) {
    tensors.push_back(tensor(strf("model.layers.0.t{}", i), {10}));
  }
  for (int layer = 1; layer < 4; ++layer) {
    tensors.push_back(tensor(strf("model.layers.{}.t", layer), {10}));
  }
  LayoutOptions options;
  options.fragments = 4;
  options.pattern = FragmentPattern::kStrided;
  const auto layout = make_layout(tensors, options);
  ASSERT_TRUE(layout);
  // 110 values over 4 fragments: at most 55. Five tensors of layer 0 stay, three go elsewhere.
  EXPECT_EQ(members(*layout),
            (std::vector<std::vector<std::uint32_t>>{{0, 1, 2, 3, 4}, {5, 8}, {6, 9}, {7, 10}}));
}

TEST(Layout, BinpackPutsTheLargestFirstIntoTheEmptiestBin) {
  LayoutOptions options;
  options.fragments = 3;
  const auto layout = make_layout(small_model(), options);
  ASSERT_TRUE(layout);
  // 16 (layers.0.a) → 0, 16 (1.a) → 1, 16 (2.a) → 0 (tie: lowest), 8 (0.b) → 1, 8 (1.b) → 1, 4 → 0.
  EXPECT_EQ(members(*layout), (std::vector<std::vector<std::uint32_t>>{{1, 5, 6}, {2, 3, 4}, {0}}));
  EXPECT_EQ(layout->tensors[0].merge, MergeMode::kAvg);
  EXPECT_EQ(layout->tensors[1].merge, MergeMode::kRda);
  EXPECT_EQ(layout->largest_fragment(), 40U);
  EXPECT_EQ(layout->values(), 108U);
}

TEST(Layout, StridedDealsLayersRoundRobinThenPacksTheRest) {
  LayoutOptions options;
  options.fragments = 3;
  options.pattern = FragmentPattern::kStrided;
  const auto layout = make_layout(small_model(), options);
  ASSERT_TRUE(layout);
  // Layers 0 and 2 → 0, layer 1 → 1; the norm goes to the emptier bin 1.
  EXPECT_EQ(members(*layout), (std::vector<std::vector<std::uint32_t>>{{1, 2, 5}, {3, 4, 6}, {0}}));
}

TEST(Layout, FragmentsAreLoweredToTheNumberOfTensors) {
  LayoutOptions options;
  options.fragments = 8;
  const auto layout = make_layout({tensor("a", {3}), tensor("b", {})}, options);
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->fragments.size(), 2U);
  EXPECT_EQ(layout->values(), 4U);
}

TEST(Layout, FingerprintIsGolden) {
  LayoutOptions options;
  options.fragments = 3;
  const auto layout = make_layout(small_model(), options);
  ASSERT_TRUE(layout);
  EXPECT_EQ(hex(layout->fingerprint()),
            "3148a0354c075a5fb36505c20c28350e782274dc446051a4ac23675d5b5229e3");
  const auto one = make_layout({tensor("w", {2, 3})}, options);
  ASSERT_TRUE(one);
  EXPECT_EQ(hex(one->encode()),
            "594c4159"
            "01000000"
            "01000000"
            "0100"
            "77"
            "00"
            "01"
            "02"
            "0200000000000000"
            "0300000000000000"
            "01000000"
            "01000000"
            "00000000"
            "0000000000000000"
            "0600000000000000");
}

TEST(Layout, EmbeddingLikeNames) {
  for (const char* name : {"model.embed_tokens.weight", "transformer.wte.weight", "wpe",
                           "shared.weight", "lm_head.lora_A.weight", "base.model.shared.weight"}) {
    EXPECT_TRUE(is_embedding_like(name)) << name;
  }
  for (const char* name : {"model.layers.0.mlp.shared_expert.weight", "wtex.weight",
                           "unshared.weight", "model.layers.0.self_attn.q_proj.lora_A.weight"}) {
    EXPECT_FALSE(is_embedding_like(name)) << name;
  }
}

TEST(Layout, BadTensorsAndOptionsAreRefusedByName) {
  LayoutOptions options;
  EXPECT_EQ(make_layout({}, options).error().code, ErrorCode::kModel);
  options.fragments = 0;
  EXPECT_EQ(make_layout({tensor("a", {1})}, options).error().code, ErrorCode::kRange);
  options.fragments = 4;
  const auto doubled = make_layout({tensor("a", {1}), tensor("a", {1})}, options);
  ASSERT_FALSE(doubled);
  EXPECT_NE(doubled.error().what.find("two tensors are called a"), std::string::npos);
  const auto empty = make_layout({tensor("e", {3, 0})}, options);
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().where, "tensor e");
  EXPECT_FALSE(make_layout({tensor("", {1})}, options));
  EXPECT_FALSE(make_layout({tensor(std::string(70000, 'n'), {1})}, options));
  EXPECT_FALSE(make_layout({tensor("huge", {1ULL << 40, 1ULL << 40})}, options));
}

TEST(Layout, EveryTruncationIsRefused) {
  const Bytes bytes = make_layout(small_model(), {})->encode();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(Layout::decode(ByteView(bytes).first(size))) << size;
  }
  Bytes longer = bytes;
  longer.push_back(0);
  EXPECT_FALSE(Layout::decode(longer));
}

TEST(Layout, EveryBitFlipIsRefusedOrAnotherCanonicalLayout) {
  const Bytes bytes = make_layout(small_model(), {})->encode();
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    Bytes flipped = bytes;
    flipped[bit / 8] = static_cast<std::uint8_t>(flipped[bit / 8] ^ (1U << (bit % 8)));
    const auto layout = Layout::decode(flipped);
    if (layout) {
      EXPECT_EQ(layout->encode(), flipped) << "bit " << bit;
    }
  }
}

TEST(Layout, HugeCountsAreRefusedBeforeAllocating) {
  Bytes bytes = make_layout({tensor("w", {2})}, {})->encode();
  bytes[8] = bytes[9] = bytes[10] = bytes[11] = 0xff;  // number of tensors
  EXPECT_FALSE(Layout::decode(bytes));
}

Layout sliced(std::vector<std::vector<Piece>> pieces) {
  Layout layout;
  layout.tensors = {tensor("w", {10})};
  for (auto& list : pieces) {
    Fragment fragment;
    for (Piece& piece : list) {
      piece.offset = fragment.values;
      fragment.values += piece.count;
      fragment.pieces.push_back(piece);
    }
    layout.fragments.push_back(fragment);
  }
  return layout;
}

TEST(Layout, SlicesOfOneTensorAreAllowedHolesAndOverlapsAreNot) {
  EXPECT_TRUE(Layout::decode(sliced({{{0, 0, 4, 0}}, {{0, 4, 6, 0}}}).encode()));
  const auto hole = Layout::decode(sliced({{{0, 0, 4, 0}}, {{0, 5, 5, 0}}}).encode());
  ASSERT_FALSE(hole);
  EXPECT_NE(hole.error().what.find("value 4 of tensor 0 is in no piece"), std::string::npos);
  const auto overlap = Layout::decode(sliced({{{0, 0, 4, 0}}, {{0, 3, 7, 0}}}).encode());
  ASSERT_FALSE(overlap);
  EXPECT_NE(overlap.error().what.find("value 3 of tensor 0 is in two pieces"), std::string::npos);
  EXPECT_FALSE(Layout::decode(sliced({{{0, 0, 4, 0}}, {{0, 4, 5, 0}}}).encode()));
  EXPECT_FALSE(Layout::decode(sliced({{{0, 0, 10, 0}}, {}}).encode()));
  EXPECT_FALSE(Layout::decode(sliced({{{0, 4, 6, 0}, {0, 0, 4, 0}}}).encode())) << "out of order";
  EXPECT_FALSE(Layout::decode(sliced({{{0, 0, 11, 0}}}).encode()));
}

TEST(Layout, FirstDifferenceIsInWords) {
  const auto here = make_layout(small_model(), {});
  auto other = small_model();
  other[3].shape = {4, 5};
  EXPECT_EQ(first_difference(*here, *make_layout(other, {})),
            "tensor 3: model.layers.1.a.weight: shape [4, 4] here, [4, 5] there");
  other = small_model();
  other[1].name = "x";
  EXPECT_EQ(first_difference(*here, *make_layout(other, {})),
            "tensor 1: name model.layers.0.a.weight here, x there");
  LayoutOptions avg;
  avg.matrix_merge = MergeMode::kAvg;
  EXPECT_EQ(first_difference(*here, *make_layout(small_model(), avg)),
            "tensor 1: model.layers.0.a.weight: merge mode rda here, avg there");
  LayoutOptions fewer;
  fewer.fragments = 2;
  EXPECT_EQ(first_difference(*here, *make_layout(small_model(), fewer)),
            "7 fragments here, 2 there");
}

TEST(LayoutTest, TensorHashesTellTheTensorThatDiffers) {
  std::vector<TensorSpec> tensors = {{.name = "a", .shape = {4}}, {.name = "b", .shape = {2, 3}}};
  const Layout layout = *make_layout(tensors, {.fragments = 2});
  tensors[1].shape = {3, 2};
  const Layout other = *make_layout(tensors, {.fragments = 2});
  const auto here = tensor_hashes(layout);
  const auto there = tensor_hashes(other);
  ASSERT_EQ(here.size(), 2u);
  EXPECT_EQ(here[0], there[0]);
  EXPECT_NE(here[1], there[1]);
  // The same tensors dealt over other fragments differ too.
  EXPECT_NE(tensor_hashes(*make_layout(tensors, {.fragments = 1})), there);
}

}  // namespace
}  // namespace yeto
