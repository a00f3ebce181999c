// SPDX-License-Identifier: Apache-2.0
#include "yeto/merge/merge.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "yeto/base/format.h"
#include "yeto/merge/pushes.h"
#include "yeto/tensor/image.h"
#include "yeto/tensor/kernels.h"

namespace yeto::merge {
namespace {

// Work is cut into parts of so many values where it can be, so that threads have something to
// share. Whole q4 blocks.
constexpr std::uint64_t kPartValues = std::uint64_t{1} << 18;
static_assert(kPartValues % kTile == 0 && kPartValues % kQ4BlockValues == 0);
// Results of fragments this large leave the cache before anyone reads them, so they are written
// around it.
constexpr std::uint64_t kStreamFrom = std::uint64_t{1} << 20;
// The mean of a piece waits in a buffer of the thread, at most this many values (4 MiB), for what
// only the whole piece tells; the mean of a larger one waits in the place of the new values.
constexpr std::uint64_t kWaitingValues = std::uint64_t{1} << 20;
// Below this length the mean direction says nothing; the plain average is taken.
constexpr double kLeastDirection = 1e-12;
// Directions are summed at the length of the longest delta, so that neither tiny nor huge ones
// leave f32; within these powers of two.
constexpr int kUnitExponentMax = 100;
// auto: μ = 0.9·clamp((c − 0.3)/0.5, 0, 1); docs/LM_BENCHMARK.md has what it was chosen by.
constexpr double kAutoMomentum = 0.9;
constexpr double kAutoLeast = 0.3;
constexpr double kAutoRange = 0.5;

// What the kernels read as numbers must begin at a multiple of their size; q4 images are bytes.
bool aligned(CodecId codec, const void* pointer) {
  const std::uintptr_t size = codec == CodecId::kF32 ? 4 : codec == CodecId::kBf16 ? 2 : 1;
  return reinterpret_cast<std::uintptr_t>(pointer) % size == 0;
}

Status check_push_place(CodecId codec, ByteView image) {
  if (!aligned(codec, image.data())) {
    return fail(ErrorCode::kInternal, "a push begins at an odd address", "merge");
  }
  return Unit{};
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

Status check_push(const Fragment& fragment, const Push& push) {
  // What `measure` has seen needs no second look at its scales.
  const std::uint64_t wanted = image_bytes(push.codec, fragment.values);
  if (push.square_norms.empty() || push.image.size() != wanted) {
    YETO_TRY(check_image(push.codec, push.image, fragment.values));
  }
  YETO_TRY(check_push_place(push.codec, push.image));
  if (!push.square_norms.empty() && push.square_norms.size() != fragment.pieces.size()) {
    return fail(ErrorCode::kInternal, "the norms of a push are not one per piece", "merge");
  }
  if (!(push.factor >= 0.0 && push.factor <= 1.0)) {
    return fail(ErrorCode::kData,
                strf("a push of seat {} has the factor {}: must be 0 to 1", push.seat, push.factor),
                "merge");
  }
  return Unit{};
}

// `pushes` in their order of reduction.
Status check_pushes(const Fragment& fragment, const std::vector<Push>& pushes) {
  if (pushes.empty()) {
    return fail(ErrorCode::kData, "a merge needs at least one push", "merge");
  }
  for (std::size_t i = 0; i < pushes.size(); ++i) {
    const Push& push = pushes[i];
    YETO_TRY(check_push(fragment, push));
    if (i > 0 && pushes[i - 1].seat == push.seat &&
        pushes[i - 1].base_version == push.base_version) {
      return fail(ErrorCode::kData,
                  strf("seat {} has two pushes of base version {}", push.seat, push.base_version),
                  "merge");
    }
  }
  return Unit{};
}

Status check_buffers(const Inputs& in, const Outputs& out, std::uint64_t values) {
  const std::uint64_t momentum = in.outer.keeps_momentum() ? values : 0;
  const std::uint64_t public_bytes = out.codec == CodecId::kQ4 ? 2 * values : 0;
  YETO_TRY(in.outer.check());
  const bool sizes = in.values.size() == values && in.momentum.size() == momentum &&
                     out.values.size() == values && out.momentum.size() == momentum &&
                     out.image.size() == image_bytes(out.codec, values) &&
                     out.old_public.size() == public_bytes && out.new_public.size() == public_bytes;
  if (!sizes || !aligned(out.codec, out.image.data()) ||
      !aligned(CodecId::kBf16, out.old_public.data()) ||
      !aligned(CodecId::kBf16, out.new_public.data())) {
    return fail(ErrorCode::kInternal, "a buffer of the merge has not the size of the fragment",
                "merge");
  }
  return Unit{};
}

std::vector<float> rounded(const std::vector<SeatWeight>& weights) {
  std::vector<float> out;
  for (const SeatWeight& weight : weights) {
    out.push_back(static_cast<float>(weight.weight));
  }
  return out;
}

// Values from `at` on to the next line of memory.
std::size_t values_to_line(const float* at) {
  constexpr std::uintptr_t kLine = 64;
  return (kLine - reinterpret_cast<std::uintptr_t>(at) % kLine) % kLine / sizeof(float);
}

// The mean of a piece as it waits for its step: the factor still missing, and what `auto` asks.
struct PieceMean {
  float scale = 1.0F;
  double square = 0.0;  // of the mean without the factor
  double dot = 0.0;     // … with the momentum
  double momentum_square = 0.0;
};

// Which sums a pass over a piece makes besides the mean.
struct Wanted {
  bool square = false;
  std::span<const float> agreement;  // the momentum, or empty
};

// out = Σ weights·Δ, one pass over all pushes; the sums are taken while the mean is in cache.
PieceMean pass(const PiecePushes& pushes, std::span<const float> weights, const Wanted& wanted,
               std::span<float> out) {
  Lanes square{};
  Lanes dot{};
  Lanes momentum_square{};
  double* const squares = wanted.square ? square.data() : nullptr;
  if (wanted.agreement.empty() && pushes.one_pass(weights, 0)) {
    pushes.sum(weights, 0, out.size(), out.data(), squares);
    return {1.0F, fold(square), 0.0, 0.0};
  }
  each_tile(0, out.size(), [&](std::uint64_t first, std::size_t count) {
    float* const mean = out.data() + first;
    pushes.sum(weights, first, count, mean, squares);
    if (!wanted.agreement.empty()) {
      const float* momentum = wanted.agreement.data() + first;
      kernels().dots_f32(dot.data(), mean, momentum, count);
      kernels().squares_f32(momentum_square.data(), momentum, count);
    }
  });
  return {1.0F, fold(square), fold(dot), fold(momentum_square)};
}

// Weights that make the mean direction of the pushes, and the mean length.
struct Directions {
  std::vector<float> weights;
  double unit = 1.0;  // the length of a direction in the sum, a power of two
  double length = 0.0;
};

Directions directions_of(const PiecePushes& pushes, const std::vector<SeatWeight>& weights) {
  Directions out;
  std::vector<double> norms;
  double longest = 0.0;
  for (std::size_t m = 0; m < weights.size(); ++m) {
    norms.push_back(pushes.norm(m));
    out.length += weights[m].weight * norms[m];
    longest = std::max(longest, norms[m]);
  }
  if (longest > 0.0 && std::isfinite(longest)) {
    out.unit =
        std::ldexp(1.0, std::clamp(std::ilogb(longest), -kUnitExponentMax, kUnitExponentMax));
  }
  for (std::size_t m = 0; m < weights.size(); ++m) {
    // A zero delta adds no direction, nor does one so short that its factor leaves f32.
    const auto factor = static_cast<float>(weights[m].weight * out.unit / norms[m]);
    out.weights.push_back(std::isfinite(factor) ? factor : 0.0F);
  }
  return out;
}

// The radial-directional average: mean direction times mean length, or the plain average where
// there is no direction.
PieceMean radial_pass(const PiecePushes& pushes, const std::vector<SeatWeight>& weights,
                      Wanted wanted, std::span<float> out) {
  const bool square = wanted.square;
  wanted.square = true;
  const Directions directions = directions_of(pushes, weights);
  PieceMean mean = pass(pushes, directions.weights, wanted, out);
  const double norm = std::sqrt(mean.square);
  if (!(norm >= kLeastDirection * directions.unit)) {
    wanted.square = square;
    return pass(pushes, rounded(weights), wanted, out);
  }
  mean.scale = static_cast<float>(directions.length / norm);
  return mean;
}

// μ of `auto`: how far the mean goes the way of the momentum.
float agreed_momentum(const PieceMean& mean) {
  const double c = cosine(mean.dot, mean.square, mean.momentum_square);
  return static_cast<float>(kAutoMomentum * std::clamp((c - kAutoLeast) / kAutoRange, 0.0, 1.0));
}

}  // namespace

Result<Measured> measure(const Fragment& fragment, CodecId codec, ByteView image) {
  Measured out;
  if (codec == CodecId::kQ4 && image.size() == image_bytes(codec, fragment.values) &&
      !q4_scales_finite(image)) {
    out.norm = std::numeric_limits<double>::infinity();
    out.square_norms.assign(fragment.pieces.size(), out.norm);
    return out;
  }
  YETO_TRY(check_image(codec, image, fragment.values));
  YETO_TRY(check_push_place(codec, image));
  Push push;
  push.codec = codec;
  push.image = image;
  const std::vector<Push> pushes{push};
  double sum = 0.0;
  for (std::uint32_t piece = 0; piece < fragment.pieces.size(); ++piece) {
    out.square_norms.push_back(PiecePushes(pushes, fragment, piece).square_norm(0));
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
  YETO_TRY(check_pushes(fragment, inputs.pushes));
  YETO_TRY(check_buffers(inputs, outputs, fragment.values));
  return FragmentMerge(std::move(inputs), outputs);
}

// A length or a cosine needs the whole piece; everything else can be cut.
bool FragmentMerge::needs_whole(const Piece& piece) const {
  const bool corrected = in_.correction == Correction::kHeloco && in_.outer.keeps_momentum();
  return in_.layout->tensors[piece.tensor].merge == MergeMode::kRda ||
         in_.outer.kind == OuterKind::kAuto || corrected;
}

void FragmentMerge::make_parts() {
  const Fragment& fragment = in_.layout->fragments[in_.fragment];
  for (std::uint32_t i = 0; i < fragment.pieces.size(); ++i) {
    const Piece& piece = fragment.pieces[i];
    const std::uint64_t size = needs_whole(piece) ? piece.count : kPartValues;
    for (std::uint64_t first = 0; first < piece.count; first += size) {
      parts_.push_back({i, first, std::min(size, piece.count - first)});
    }
  }
  if (out_.codec == CodecId::kQ4) {
    encode_parts_ = (fragment.values + kPartValues - 1) / kPartValues;
  }
}

bool FragmentMerge::run_part(std::size_t part) const {
  const Part& work = parts_.at(part);
  const Piece& piece = in_.layout->fragments[in_.fragment].pieces[work.piece];
  return needs_whole(piece) ? run_whole_piece(work) : run_elementwise(work);
}

bool FragmentMerge::run_encode_part(std::size_t part) const {
  YETO_CHECK(part < encode_parts_, "an encode part that does not exist");
  const std::uint64_t first = part * kPartValues;
  const std::uint64_t count = std::min(kPartValues, out_.values.size() - first);
  return kernels().encode_q4_change(
      out_.values.data() + first,
      reinterpret_cast<const std::uint16_t*>(out_.old_public.data()) + first,
      reinterpret_cast<std::uint16_t*>(out_.new_public.data()) + first,
      out_.image.data() + image_bytes(CodecId::kQ4, first), count);
}

// The outer step of values from `at` on.
Step FragmentMerge::step_at(std::uint64_t at, float mu) const {
  Step step;
  step.values = in_.values.data() + at;
  step.new_values = out_.values.data() + at;
  if (in_.outer.keeps_momentum()) {
    step.momentum = in_.momentum.data() + at;
    step.new_momentum = out_.momentum.data() + at;
  }
  if (out_.codec == CodecId::kF32) {
    step.image_f32 = reinterpret_cast<float*>(out_.image.data()) + at;
  } else if (out_.codec == CodecId::kBf16) {
    step.image_bf16 = reinterpret_cast<std::uint16_t*>(out_.image.data()) + at;
  }
  step.lr = in_.outer.lr;
  step.mu = mu;
  step.stream = out_.values.size() >= kStreamFrom;
  return step;
}

bool FragmentMerge::run_elementwise(const Part& part) const {
  const Fragment& fragment = in_.layout->fragments[in_.fragment];
  const std::uint64_t offset = fragment.pieces[part.piece].offset;
  const PiecePushes pushes(in_.pushes, fragment, part.piece);
  const std::vector<float> weights = rounded(weights_);
  const float mu = in_.outer.momentum;
  if (const auto all = pushes.one_pass(weights, part.first)) {
    const auto mean_step =
        all->codec == CodecId::kF32 ? kernels().mean_step_f32 : kernels().mean_step_bf16;
    return mean_step(all->sources, step_at(offset + part.first, mu), part.count);
  }
  bool finite = true;
  const auto tile = [&](std::uint64_t first, std::size_t count) {
    alignas(64) float delta[kTile];
    pushes.sum(weights, first, count, delta, nullptr);
    finite = kernels().step(delta, 1.0F, step_at(offset + first, mu), count) && finite;
  };
  // Tiles that begin where lines do are written in whole lines.
  const std::uint64_t head =
      std::min<std::uint64_t>(values_to_line(out_.values.data() + offset + part.first), part.count);
  if (head > 0) {
    tile(part.first, head);
  }
  each_tile(part.first + head, part.count - head, tile);
  return finite;
}

bool FragmentMerge::run_whole_piece(const Part& part) const {
  const Fragment& fragment = in_.layout->fragments[in_.fragment];
  const Piece& piece = fragment.pieces[part.piece];
  const bool with_momentum = in_.outer.keeps_momentum();
  const auto momentum =
      with_momentum ? in_.momentum.subspan(piece.offset, piece.count) : in_.momentum;
  PiecePushes pushes(in_.pushes, fragment, part.piece);
  if (in_.correction == Correction::kHeloco && with_momentum) {
    pushes.correct(momentum);
  }
  thread_local std::vector<float> waiting;
  std::span<float> mean = out_.values.subspan(piece.offset, piece.count);
  if (piece.count <= kWaitingValues) {
    waiting.resize(std::max<std::size_t>(waiting.size(), piece.count));
    mean = std::span<float>(waiting).first(piece.count);
  }
  const bool asks_agreement = in_.outer.kind == OuterKind::kAuto && !in_.first_commit;
  Wanted wanted{asks_agreement, {}};
  if (asks_agreement) {
    wanted.agreement = momentum;
  }
  const PieceMean made = in_.layout->tensors[piece.tensor].merge == MergeMode::kRda
                             ? radial_pass(pushes, weights_, wanted, mean)
                             : pass(pushes, rounded(weights_), wanted, mean);
  float mu = in_.outer.momentum;
  if (in_.outer.kind == OuterKind::kAuto) {
    mu = asks_agreement ? agreed_momentum(made) : 0.0F;
  }
  Step step = step_at(piece.offset, mu);
  // A line that was just read as the mean is in cache already.
  step.stream = step.stream && piece.count <= kWaitingValues;
  return kernels().step(mean.data(), made.scale, step, piece.count);
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
