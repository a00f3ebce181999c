// SPDX-License-Identifier: Apache-2.0
#include "yeto/merge/merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include "yeto/base/format.h"
#include "yeto/merge/kernels.h"

namespace yeto::merge {
namespace {

// Values of one tile: sums, values and momentum of a tile stay in the first-level cache while every
// delta is read once. A multiple of kLanes.
constexpr std::size_t kTile = 2048;
static_assert(kTile % kLanes == 0);
// Elementwise work is cut into parts of so many values, so that threads have something to share.
constexpr std::uint64_t kPartValues = std::uint64_t{1} << 18;
static_assert(kPartValues % kTile == 0);
// Below this length the mean direction says nothing; the plain average is taken.
constexpr double kLeastDirection = 1e-12;
// auto: μ = 0.9·clamp((c + 0.15)/0.4, 0, 1)
constexpr double kAutoMomentum = 0.9;
constexpr double kAutoShift = 0.15;
constexpr double kAutoRange = 0.4;

std::size_t value_bytes(CodecId codec) { return codec == CodecId::kF32 ? 4 : 2; }

Status check_image(CodecId codec, std::size_t image_bytes, std::uint64_t values) {
  if (codec != CodecId::kF32 && codec != CodecId::kBf16) {
    return fail(ErrorCode::kNotInBuild, "the codec of a push is not in this build", "merge",
                "use f32 or bf16");
  }
  if (image_bytes != values * value_bytes(codec)) {
    return fail(ErrorCode::kData,
                strf("a push has {} bytes, its fragment needs {}", image_bytes,
                     values * value_bytes(codec)),
                "merge");
  }
  return Unit{};
}

double square_norm(CodecId codec, const std::uint8_t* x, std::uint64_t count) {
  Lanes lanes{};
  if (codec == CodecId::kF32) {
    kernels().squares_f32(lanes, reinterpret_cast<const float*>(x), count);
  } else {
    kernels().squares_bf16(lanes, reinterpret_cast<const std::uint16_t*>(x), count);
  }
  return fold(lanes);
}

bool aligned(CodecId codec, const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % value_bytes(codec) == 0;
}

double raw_weight(WeightRule rule, const Push& push) {
  const auto tokens = static_cast<double>(push.c_tokens);
  switch (rule) {
    case WeightRule::kTokens2:
      // A push without steps carries no work, whatever it claims.
      return push.c_steps == 0 ? 0.0 : tokens * tokens / static_cast<double>(push.c_steps);
    case WeightRule::kTokens:
      return tokens;
    case WeightRule::kEqual:
      return 1.0;
  }
  YETO_CHECK(false, "a WeightRule is not one of its enumerators");
}

std::vector<SeatWeight> shares(WeightRule rule, const std::vector<Push>& pushes) {
  std::vector<SeatWeight> weights;
  double sum = 0.0;
  for (const Push& push : pushes) {
    weights.push_back({push.seat, push.factor * raw_weight(rule, push)});
    sum += weights.back().weight;
  }
  for (SeatWeight& weight : weights) {
    weight.weight = sum > 0.0 ? weight.weight / sum : 1.0 / static_cast<double>(weights.size());
  }
  return weights;
}

double cosine(double dot, double square_a, double square_b) {
  return square_a > 0.0 && square_b > 0.0 ? dot / (std::sqrt(square_a) * std::sqrt(square_b)) : 0.0;
}

Status check_pushes(const Fragment& fragment, const std::vector<Push>& pushes) {
  if (pushes.empty()) {
    return fail(ErrorCode::kData, "a merge needs at least one push", "merge");
  }
  for (std::size_t i = 0; i < pushes.size(); ++i) {
    const Push& push = pushes[i];
    YETO_TRY(check_image(push.codec, push.image.size(), fragment.values));
    if (i > 0 && pushes[i - 1].seat == push.seat &&
        pushes[i - 1].base_version == push.base_version) {
      return fail(ErrorCode::kData,
                  strf("seat {} has two pushes of base version {}", push.seat, push.base_version),
                  "merge");
    }
    if (!(push.factor >= 0.0 && push.factor <= 1.0)) {
      return fail(
          ErrorCode::kData,
          strf("a push of seat {} has the factor {}: must be 0 to 1", push.seat, push.factor),
          "merge");
    }
    if (!aligned(push.codec, push.image.data())) {
      return fail(ErrorCode::kInternal, "a push begins at an odd address", "merge");
    }
    if (!push.square_norms.empty() && push.square_norms.size() != fragment.pieces.size()) {
      return fail(ErrorCode::kInternal, "the norms of a push are not one per piece", "merge");
    }
  }
  return Unit{};
}

Status check_buffers(const Inputs& in, const Outputs& out, std::uint64_t values) {
  const std::uint64_t momentum = in.outer.keeps_momentum() ? values : 0;
  YETO_TRY(in.outer.check());
  if (in.values.size() != values || in.momentum.size() != momentum || out.values.size() != values ||
      out.momentum.size() != momentum || out.image.size() != values * value_bytes(out.codec) ||
      !aligned(out.codec, out.image.data())) {
    return fail(ErrorCode::kInternal, "a buffer of the merge has not the size of the fragment",
                "merge");
  }
  return Unit{};
}

// One piece's share of a merge: f32 weights of the pushes and where to read and write.
class PieceSum {
 public:
  PieceSum(const std::vector<Push>& pushes, const Piece& piece) : pushes_(pushes), piece_(piece) {}

  // out = Σ weights[m]·Δ_m over values [first, first + count) of the piece, in the order of the
  // pushes.
  void sum(std::span<const float> weights, std::uint64_t first, std::size_t count,
           float* out) const {
    for (std::size_t begin = 0; begin < pushes_.size();) {
      const CodecId codec = pushes_[begin].codec;
      Sources sources;
      std::size_t end = begin;
      for (; end < pushes_.size() && sources.count < kSources && pushes_[end].codec == codec;
           ++end) {
        sources.at[sources.count] = source(end, first);
        sources.weight[sources.count++] = weights[end];
      }
      const auto sum_up = codec == CodecId::kF32 ? kernels().sum_f32 : kernels().sum_bf16;
      sum_up(out, sources, begin > 0, count);
      begin = end;
    }
  }
  double square_norm_of(std::size_t m, std::size_t piece_index) const {
    const Push& push = pushes_[m];
    return push.square_norms.empty() ? square_norm(push.codec, source(m, 0), piece_.count)
                                     : push.square_norms[piece_index];
  }

 private:
  const std::uint8_t* source(std::size_t m, std::uint64_t first) const {
    const Push& push = pushes_[m];
    return push.image.data() + (piece_.offset + first) * value_bytes(push.codec);
  }
  const std::vector<Push>& pushes_;
  const Piece& piece_;
};

std::vector<float> rounded(const std::vector<SeatWeight>& weights) {
  std::vector<float> out;
  for (const SeatWeight& weight : weights) {
    out.push_back(static_cast<float>(weight.weight));
  }
  return out;
}

// Calls `visit(first, count)` for each tile of [first, first + count).
template <class Visit>
void each_tile(std::uint64_t first, std::uint64_t count, Visit&& visit) {
  for (std::uint64_t done = 0; done < count; done += kTile) {
    visit(first + done, static_cast<std::size_t>(std::min<std::uint64_t>(kTile, count - done)));
  }
}

// The outer step and the image of one tile; `delta` is the tile's mean delta, `at` its place in the
// fragment.
bool finish_tile(const Inputs& in, const Outputs& out, float mu, const float* delta,
                 std::uint64_t at, std::size_t count) {
  const Kernels& k = kernels();
  const bool with_momentum = in.outer.keeps_momentum();
  const Kernels::Step step{in.values.data() + at, with_momentum ? in.momentum.data() + at : nullptr,
                           delta, out.values.data() + at,
                           with_momentum ? out.momentum.data() + at : nullptr};
  bool finite =
      with_momentum ? k.nesterov(step, in.outer.lr, mu, count) : k.sgd(step, in.outer.lr, count);
  std::uint8_t* image = out.image.data() + at * value_bytes(out.codec);
  if (out.codec == CodecId::kF32) {
    std::memcpy(image, step.new_values, 4 * count);
  } else {
    finite =
        k.encode_bf16(step.new_values, reinterpret_cast<std::uint16_t*>(image), count) && finite;
  }
  return finite;
}

// Mean direction of the pushes into `out` (one piece). Returns the factor that gives it the mean
// length, or nothing if it has no direction.
std::optional<float> mean_direction(const PieceSum& pushes, const std::vector<SeatWeight>& weights,
                                    std::uint32_t piece_index, std::span<float> out) {
  std::vector<float> by_length;
  double length = 0.0;
  for (std::size_t m = 0; m < weights.size(); ++m) {
    const double norm = std::sqrt(pushes.square_norm_of(m, piece_index));
    length += weights[m].weight * norm;
    // A zero delta adds no direction, nor does one so short that its factor leaves f32.
    const auto factor = static_cast<float>(weights[m].weight / norm);
    by_length.push_back(std::isfinite(factor) ? factor : 0.0F);
  }
  Lanes lanes{};
  each_tile(0, out.size(), [&](std::uint64_t first, std::size_t count) {
    pushes.sum(by_length, first, count, out.data() + first);
    kernels().squares_f32(lanes, out.data() + first, count);
  });
  const double norm = std::sqrt(fold(lanes));
  if (!(norm >= kLeastDirection)) {
    return std::nullopt;
  }
  return static_cast<float>(length / norm);
}

// μ of `auto` for one piece: how far the delta goes the way of the momentum.
float agreed_momentum(std::span<const float> delta, std::span<const float> momentum) {
  Lanes dot{};
  Lanes delta_square{};
  Lanes momentum_square{};
  each_tile(0, delta.size(), [&](std::uint64_t first, std::size_t count) {
    kernels().dots_f32(dot, delta.data() + first, momentum.data() + first, count);
    kernels().squares_f32(delta_square, delta.data() + first, count);
    kernels().squares_f32(momentum_square, momentum.data() + first, count);
  });
  const double c = cosine(fold(dot), fold(delta_square), fold(momentum_square));
  return static_cast<float>(kAutoMomentum * std::clamp((c + kAutoShift) / kAutoRange, 0.0, 1.0));
}

}  // namespace

Result<Measured> measure(const Fragment& fragment, CodecId codec, ByteView image) {
  YETO_TRY(check_image(codec, image.size(), fragment.values));
  if (!aligned(codec, image.data())) {
    return fail(ErrorCode::kInternal, "a push begins at an odd address", "merge");
  }
  Measured out;
  double sum = 0.0;
  for (const Piece& piece : fragment.pieces) {
    const std::uint8_t* x = image.data() + piece.offset * value_bytes(codec);
    out.square_norms.push_back(square_norm(codec, x, piece.count));
    sum += out.square_norms.back();
  }
  // Squares of finite f32 values stay far from the end of f64, so a sum that is finite has only
  // finite terms.
  out.finite = std::isfinite(sum);
  out.norm = std::sqrt(sum);
  return out;
}

FragmentMerge::FragmentMerge(Inputs inputs, Outputs outputs)
    : in_(std::move(inputs)), out_(outputs), weights_(shares(in_.weights, in_.pushes)) {
  make_parts();
}

Result<FragmentMerge> FragmentMerge::make(Inputs inputs, Outputs outputs) {
  if (inputs.layout == nullptr || inputs.fragment >= inputs.layout->fragments.size()) {
    return fail(ErrorCode::kInternal, "a merge of a fragment that the layout does not have",
                "merge");
  }
  const Fragment& fragment = inputs.layout->fragments[inputs.fragment];
  std::sort(inputs.pushes.begin(), inputs.pushes.end(), [](const Push& a, const Push& b) {
    return a.seat != b.seat ? a.seat < b.seat : a.base_version < b.base_version;
  });
  if (inputs.correction != Correction::kNone) {
    return fail(ErrorCode::kNotInBuild, "the correction heloco is not in this build", "merge",
                "use none");
  }
  if (outputs.codec != CodecId::kF32 && outputs.codec != CodecId::kBf16) {
    return fail(ErrorCode::kNotInBuild, "the codec of the image is not in this build", "merge",
                "use f32 or bf16");
  }
  YETO_TRY(check_pushes(fragment, inputs.pushes));
  YETO_TRY(check_buffers(inputs, outputs, fragment.values));
  return FragmentMerge(std::move(inputs), outputs);
}

void FragmentMerge::make_parts() {
  const Fragment& fragment = in_.layout->fragments[in_.fragment];
  for (std::uint32_t i = 0; i < fragment.pieces.size(); ++i) {
    const Piece& piece = fragment.pieces[i];
    // A length or a cosine needs the whole piece; everything else can be cut.
    const bool whole = in_.layout->tensors[piece.tensor].merge == MergeMode::kRda ||
                       in_.outer.kind == OuterKind::kAuto;
    const std::uint64_t size = whole ? piece.count : kPartValues;
    for (std::uint64_t first = 0; first < piece.count; first += size) {
      parts_.push_back({i, first, std::min(size, piece.count - first)});
    }
  }
}

bool FragmentMerge::run_part(std::size_t part) const {
  const Part& work = parts_.at(part);
  const Piece& piece = in_.layout->fragments[in_.fragment].pieces[work.piece];
  const bool rda = in_.layout->tensors[piece.tensor].merge == MergeMode::kRda;
  return rda || in_.outer.kind == OuterKind::kAuto ? run_whole_piece(work) : run_elementwise(work);
}

bool FragmentMerge::run_encode_part(std::size_t part) const {
  YETO_CHECK(part < encode_parts_, "an encode part that does not exist");
  return true;
}

bool FragmentMerge::run_elementwise(const Part& part) const {
  const Piece& piece = in_.layout->fragments[in_.fragment].pieces[part.piece];
  const PieceSum pushes(in_.pushes, piece);
  const std::vector<float> weights = rounded(weights_);
  bool finite = true;
  each_tile(part.first, part.count, [&](std::uint64_t first, std::size_t count) {
    alignas(64) float delta[kTile];
    pushes.sum(weights, first, count, delta);
    finite =
        finish_tile(in_, out_, in_.outer.momentum, delta, piece.offset + first, count) && finite;
  });
  return finite;
}

bool FragmentMerge::run_whole_piece(const Part& part) const {
  const Piece& piece = in_.layout->fragments[in_.fragment].pieces[part.piece];
  const PieceSum pushes(in_.pushes, piece);
  // The piece's place among the new values holds its mean delta until the outer step replaces it.
  const std::span<float> delta = out_.values.subspan(piece.offset, piece.count);
  std::optional<float> scale;
  if (in_.layout->tensors[piece.tensor].merge == MergeMode::kRda) {
    scale = mean_direction(pushes, weights_, part.piece, delta);
  }
  if (!scale) {
    pushes.sum(rounded(weights_), 0, delta.size(), delta.data());
  }
  const bool is_auto = in_.outer.kind == OuterKind::kAuto;
  float mu = in_.outer.momentum;
  alignas(64) float tile[kTile];
  if (is_auto) {
    if (scale) {
      each_tile(0, delta.size(), [&](std::uint64_t first, std::size_t count) {
        kernels().scale(tile, delta.data() + first, *scale, count);
        std::copy(tile, tile + count, delta.data() + first);
      });
      scale.reset();
    }
    mu = in_.first_commit ? 0.0F
                          : agreed_momentum(delta, in_.momentum.subspan(piece.offset, piece.count));
  }
  bool finite = true;
  each_tile(0, delta.size(), [&](std::uint64_t first, std::size_t count) {
    if (scale) {
      kernels().scale(tile, delta.data() + first, *scale, count);
    } else {
      std::copy_n(delta.data() + first, count, tile);
    }
    finite = finish_tile(in_, out_, mu, tile, piece.offset + first, count) && finite;
  });
  return finite;
}

Result<bool> merge_fragment(Inputs inputs, Outputs outputs) {
  YETO_ASSIGN(const FragmentMerge merge, FragmentMerge::make(std::move(inputs), outputs));
  bool finite = true;
  for (std::size_t part = 0; part < merge.parts(); ++part) {
    finite = merge.run_part(part) && finite;
  }
  for (std::size_t part = 0; finite && part < merge.encode_parts(); ++part) {
    finite = merge.run_encode_part(part) && finite;
  }
  return finite;
}

}  // namespace yeto::merge
