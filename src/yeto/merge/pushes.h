// SPDX-License-Identifier: Apache-2.0
// The pushes of a merge as one piece of the fragment sees them: their values, norms and weighted
// sums, whatever their codec, corrected or not. Internal to this room.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "yeto/merge/merge.h"
#include "yeto/tensor/kernels.h"

namespace yeto::merge {

// Values of one tile: what is made of a tile stays in the first-level cache while the next step of
// the work reads it. A multiple of kLanes.
inline constexpr std::size_t kTile = 1024;
static_assert(kTile % kLanes == 0);

// Calls `visit(first, count)` for each tile of [first, first + count).
template <class Visit>
void each_tile(std::uint64_t first, std::uint64_t count, Visit&& visit) {
  for (std::uint64_t done = 0; done < count; done += kTile) {
    visit(first + done, static_cast<std::size_t>(count - done < kTile ? count - done : kTile));
  }
}

// Not thread-safe; one for each part that runs. Borrows the pushes and the piece.
class PiecePushes {
 public:
  PiecePushes(const std::vector<Push>& pushes, const Fragment& fragment, std::uint32_t piece);

  // Turns each push towards the momentum of this piece (Correction::kHeloco).
  void correct(std::span<const float> momentum);

  std::size_t size() const { return pushes_.size(); }
  // Squared length of push m in this piece, not corrected: as it was measured, or computed.
  double square_norm(std::size_t m) const;
  // Length of push m in this piece, after correction.
  double norm(std::size_t m) const;
  // out = Σ weights[m]·Δ_m over values [first, first + count) of the piece, in the order of the
  // pushes; count ≤ kTile unless one_pass. Where `squares` is not null, its kLanes are increased by
  // out².
  void sum(std::span<const float> weights, std::uint64_t first, std::size_t count, float* out,
           double* squares) const;
  // The same as sources of one pass from value `first` on, if they are few enough and all of them
  // f32 or all bf16.
  struct OnePass {
    CodecId codec;
    Sources sources;
  };
  std::optional<OnePass> one_pass(std::span<const float> weights, std::uint64_t first) const;

 private:
  // Read straight from the image by the kernels.
  bool is_raw(std::size_t m) const;
  const std::uint8_t* raw(std::size_t m, std::uint64_t first) const;
  // Values of push m, not corrected; in `tile` unless the image holds them as f32.
  const float* plain(std::size_t m, std::uint64_t first, std::size_t count, float* tile) const;
  // Corrected values of push m into `tile`.
  void corrected(std::size_t m, std::uint64_t first, std::size_t count, float* tile) const;
  void correct_one(std::size_t m, double momentum_norm);

  const std::vector<Push>& pushes_;
  const Piece& piece_;
  std::uint32_t piece_index_;
  std::span<const float> momentum_;
  struct Turned {
    Blend blend;
    double norm = 0.0;
  };
  std::vector<std::optional<Turned>> turned_;  // empty: no correction
};

}  // namespace yeto::merge
