// SPDX-License-Identifier: Apache-2.0
// Merge of one fragment: the learners' deltas are averaged, then the outer optimizer moves the
// master values.
//
// A delta is anchor − local (an outer gradient). The result does not depend on the order of
// `pushes` (they are reduced by ascending seat) nor on how the parts of the work are dealt to
// threads, bit for bit. Storage and sums are f32, norms and dots f64 over 16 lanes, every step
// rounded to f32 on its own. Pure: no clock, thread or file. Pointers are borrowed for the life of
// the object.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/base/result.h"
#include "yeto/tensor/dtype.h"
#include "yeto/tensor/layout.h"

namespace yeto {
struct Step;
}

namespace yeto::merge {

// Weight of a push: c_tokens²/c_steps, c_tokens, or 1. All zero → equal.
enum class WeightRule : std::uint8_t { kTokens2 = 0, kTokens = 1, kEqual = 2 };
std::string_view weight_rule_name(WeightRule rule);               // "tokens2", "tokens", "equal"
Result<WeightRule> weight_rule_from_name(std::string_view name);  // kType

// How the averaged delta Δ moves the values Θ (b is the momentum, one f32 per value):
//   nesterov  b ← μb + Δ; Θ ← Θ − lr·(Δ + μb)
//   sgd       Θ ← Θ − lr·Δ
//   direct    the same with lr 1
//   auto      nesterov with μ per tensor piece: 0.9·clamp((cos(Δ, b) − 0.3)/0.5, 0, 1), first
//             commit 0: momentum only where the deltas of successive rounds agree
enum class OuterKind : std::uint8_t { kNesterov = 0, kSgd = 1, kDirect = 2, kAuto = 3 };
std::string_view outer_kind_name(OuterKind kind);               // "nesterov", …
Result<OuterKind> outer_kind_from_name(std::string_view name);  // kType

struct OuterRule {
  OuterKind kind = OuterKind::kNesterov;
  float lr = 0.7F;
  float momentum = 0.9F;  // of nesterov
  // The defaults: nesterov 0.7/0.9, sgd 0.28, direct 1, auto 1.
  static OuterRule of(OuterKind kind);
  bool keeps_momentum() const { return kind == OuterKind::kNesterov || kind == OuterKind::kAuto; }
  // kRange for an lr or momentum that is not finite or out of (0, 10], [0, 1).
  Status check() const;
  bool operator==(const OuterRule&) const = default;
};

// How a delta Δ is turned towards the momentum v before the average, per tensor piece and push.
// What does not keep a momentum, or has none yet (‖v‖ < 1e-8), is left alone.
//   none    not at all
//   heloco  c = cos(Δ, v), conf = ‖Δ‖/(‖Δ‖ + 3‖v‖ + 1e-8); ‖Δ‖ < 1e-8 or c ≥ 0.2: left alone;
//           c < 0: Δ + min(0.5·(−c)·conf, 0.5)·(−c)·(‖Δ‖/‖v‖)·v;
//           else the unit vectors blended, (1 − λ)·Δ/‖Δ‖ + λ·v/‖v‖ with λ = min((1 − c)·conf, 1),
//           at the length of Δ
enum class Correction : std::uint8_t { kNone = 0, kHeloco = 1 };
std::string_view correction_name(Correction correction);         // "none", "heloco"
Result<Correction> correction_from_name(std::string_view name);  // kType

// A push as it came: `image` holds the deltas of the whole fragment in `codec`.
struct Push {
  std::uint32_t seat = 0;
  std::uint64_t c_steps = 0;
  std::uint64_t c_tokens = 0;
  CodecId codec = CodecId::kF32;
  ByteView image;
  // Squared norm of each piece as `measure` gave it, or empty: then computed here where needed.
  std::span<const double> square_norms;
  std::uint64_t base_version = 0;  // orders the pushes of one seat: a carried one comes first
  double factor = 1.0;             // of its weight, 0 … 1: less than 1 for late work
};

struct Measured {
  bool finite = false;
  double norm = 0.0;                 // of the whole fragment
  std::vector<double> square_norms;  // one per piece of the fragment
};
// Norms of a delta. kData if the image has the wrong size or is no image of its codec.
Result<Measured> measure(const Fragment& fragment, CodecId codec, ByteView image);

// What a merge reads and where it writes. Inputs and outputs must not overlap; nothing is written
// in place, so that a merge that turns out not to be finite has changed nothing.
struct Inputs {
  const Layout* layout = nullptr;
  std::uint32_t fragment = 0;
  bool first_commit = false;  // of this fragment
  WeightRule weights = WeightRule::kTokens2;
  OuterRule outer;
  std::span<const float> values;    // Θ
  std::span<const float> momentum;  // b; empty if the outer rule keeps none
  std::vector<Push> pushes;
  Correction correction = Correction::kNone;
};
struct Outputs {
  std::span<float> values;
  std::span<float> momentum;  // empty if the outer rule keeps none
  CodecId codec = CodecId::kF32;
  // encoded_bytes(codec, values). f32 and bf16: the new public value. q4: what leads from the old
  // public value to the new one, q4(Θ − θ̂_old).
  MutableByteView image;
  // Only under q4, else empty: the public value before and after, bf16, 2 bytes a value.
  ByteView old_public{};
  MutableByteView new_public{};
};

struct SeatWeight {
  std::uint32_t seat = 0;
  double weight = 0.0;  // share of the sum, 0 … 1
  bool operator==(const SeatWeight&) const = default;
};

// A merge cut into parts that may run on different threads:
//   make() → run_part(0 … parts()-1), each once, in any order
//          → run_encode_part(0 … encode_parts()-1), each once, in any order, after the last
//          run_part.
// The second set makes the image of a codec whose blocks run through tensor borders (q4); under f32
// and bf16 it is empty, because the image is made while the values are in cache.
class FragmentMerge {
 public:
  // kInternal if sizes do not fit (a caller's bug); kData for no push, two pushes of one seat with
  // one base version, a factor out of range, or an image that is none of its codec.
  static Result<FragmentMerge> make(Inputs inputs, Outputs outputs);
  std::size_t parts() const { return parts_.size(); }
  // True if everything it wrote is finite. Thread-safe for different parts.
  bool run_part(std::size_t part) const;
  std::size_t encode_parts() const { return encode_parts_; }
  bool run_encode_part(std::size_t part) const;
  // Shares by ascending seat.
  const std::vector<SeatWeight>& weights() const { return weights_; }

 private:
  // Values [first, first + count) of one piece of the fragment.
  struct Part {
    std::uint32_t piece = 0;
    std::uint64_t first = 0;
    std::uint64_t count = 0;
  };
  FragmentMerge(Inputs inputs, Outputs outputs);
  bool needs_whole(const Piece& piece) const;
  void make_parts();
  Step step_at(std::uint64_t at, float mu) const;
  bool run_elementwise(const Part& part) const;
  bool run_whole_piece(const Part& part) const;

  Inputs in_;
  Outputs out_;
  std::vector<SeatWeight> weights_;
  std::vector<Part> parts_;
  std::size_t encode_parts_ = 0;
};

// All parts, one after the other. False: something was not finite, the outputs are to be thrown
// away.
Result<bool> merge_fragment(Inputs inputs, Outputs outputs);

}  // namespace yeto::merge
