// SPDX-License-Identifier: Apache-2.0
// Layout: the ordered trainable tensors of a run and how their values are dealt over fragments.
// Every learner of a run has the same layout; its fingerprint (SHA-256 of the canonical encoding)
// says so. A fragment's buffer is the flat f32 vector of its pieces, one after the other.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/base/digest.h"
#include "yeto/base/result.h"
#include "yeto/tensor/dtype.h"

namespace yeto {

inline constexpr std::uint32_t kMaxFragments = 512;
inline constexpr std::size_t kMaxLayoutBytes = std::size_t{256} << 20;
inline constexpr std::size_t kMaxTensorNameBytes = 1024;
inline constexpr std::size_t kMaxDimensions = 16;

// How the deltas of one tensor are averaged (merge room).
enum class MergeMode : std::uint8_t { kAvg = 0, kRda = 1 };
enum class FragmentPattern : std::uint8_t { kBinpack = 0, kStrided = 1 };

struct TensorSpec {
  std::string name;
  std::vector<std::uint64_t> shape;
  DType dtype = DType::kF32;
  MergeMode merge = MergeMode::kRda;
  std::uint64_t values() const;  // product of the shape; 1 for a scalar
  // kData for an empty or too long name, a shape without values or with more than 2^60 of them.
  Status check() const;
  bool operator==(const TensorSpec&) const = default;
};

// `count` values of the flattened tensor from `first` on, at `offset` of the fragment's vector.
struct Piece {
  std::uint32_t tensor = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t offset = 0;
  bool operator==(const Piece&) const = default;
};

struct Fragment {
  std::vector<Piece> pieces;
  std::uint64_t values = 0;
  bool operator==(const Fragment&) const = default;
};

struct Layout {
  std::vector<TensorSpec> tensors;
  std::vector<Fragment> fragments;

  std::uint64_t values() const;
  std::uint64_t largest_fragment() const;  // in values
  Bytes encode() const;
  // Refuses (kData) what is not canonical: unknown codes, pieces that do not cover every value
  // exactly once, more than kMaxFragments fragments, doubled or empty names.
  static Result<Layout> decode(ByteView bytes);
  Sha256 fingerprint() const;
  bool operator==(const Layout&) const = default;
};

struct LayoutOptions {
  std::uint32_t fragments = 8;  // lowered to the number of tensors
  FragmentPattern pattern = FragmentPattern::kBinpack;
  MergeMode matrix_merge = MergeMode::kRda;  // embedding-like tensors always use avg
};

// embed, wte, wpe, lm_head, shared.weight.
bool is_embedding_like(std::string_view tensor_name);

// Binpack: largest first into the emptiest bin, ties by name, then lowest bin. Strided: distinct
// layer numbers are dealt round-robin, tensors without one are bin-packed after them.
// Embedding-like tensors form fragments of their own, one each. `tensors` keep their order in the
// layout; their merge mode is set here. Where whole tensors would make a fragment of more than
// twice the mean, tensors are cut into slices so that none is: then embedding-like ones share their
// fragments among themselves, and strided layers that would overfill a fragment give up what is too
// much. Layouts that need no cut are made of whole tensors.
Result<Layout> make_layout(std::vector<TensorSpec> tensors, const LayoutOptions& options);

// First 8 bytes of the SHA-256 of each tensor's name, shape, dtype, merge mode and pieces with
// their fragments: lets a refused learner name the first tensor that differs.
std::vector<std::array<std::uint8_t, 8>> tensor_hashes(const Layout& layout);

// The first difference in words ("tensor 3: name a, there b"), empty if equal.
std::string first_difference(const Layout& here, const Layout& there);

}  // namespace yeto
