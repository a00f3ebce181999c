// SPDX-License-Identifier: Apache-2.0
#include "yeto/merge/pushes.h"

#include <algorithm>
#include <cmath>

#include "yeto/tensor/image.h"

namespace yeto::merge {
namespace {

// Below this length a delta or a momentum has no direction worth following.
constexpr double kLeastLength = 1e-8;
// A delta that agrees so far with the momentum is left alone.
constexpr double kAgreed = 0.2;
constexpr double kAgainst = 0.5;     // strength where a delta opposes the momentum
constexpr double kAgainstMax = 0.5;  // … and its limit
constexpr double kAcross = 1.0;      // strength where it goes across
constexpr double kMomentumShare = 3.0;

}  // namespace

PiecePushes::PiecePushes(const std::vector<Push>& pushes, const Fragment& fragment,
                         std::uint32_t piece)
    : pushes_(pushes), piece_(fragment.pieces[piece]), piece_index_(piece) {}

bool PiecePushes::is_raw(std::size_t m) const {
  return pushes_[m].codec != CodecId::kQ4 && (turned_.empty() || !turned_[m]);
}

const std::uint8_t* PiecePushes::raw(std::size_t m, std::uint64_t first) const {
  const Push& push = pushes_[m];
  return push.image.data() + image_bytes(push.codec, piece_.offset + first);
}

const float* PiecePushes::plain(std::size_t m, std::uint64_t first, std::size_t count,
                                float* tile) const {
  const Push& push = pushes_[m];
  switch (push.codec) {
    case CodecId::kF32:
      return reinterpret_cast<const float*>(raw(m, first));
    case CodecId::kBf16:
      kernels().decode_bf16(reinterpret_cast<const std::uint16_t*>(raw(m, first)), tile, count);
      return tile;
    case CodecId::kQ4:
      decode_q4_values(push.image, piece_.offset + first, {tile, count});
      return tile;
  }
  YETO_CHECK(false, "a CodecId is not one of its enumerators");
}

void PiecePushes::corrected(std::size_t m, std::uint64_t first, std::size_t count,
                            float* tile) const {
  alignas(64) float decoded[kTile];
  const float* x = plain(m, first, count, decoded);
  if (turned_.empty() || !turned_[m]) {
    std::copy_n(x, count, tile);
    return;
  }
  kernels().blend(tile, x, momentum_.data() + first, turned_[m]->blend, count);
}

double PiecePushes::square_norm(std::size_t m) const {
  const Push& push = pushes_[m];
  if (!push.square_norms.empty()) {
    return push.square_norms[piece_index_];
  }
  Lanes lanes{};
  each_tile(0, piece_.count, [&](std::uint64_t first, std::size_t count) {
    if (push.codec == CodecId::kBf16) {
      kernels().squares_bf16(lanes.data(), reinterpret_cast<const std::uint16_t*>(raw(m, first)),
                             count);
    } else {
      alignas(64) float tile[kTile];
      kernels().squares_f32(lanes.data(), plain(m, first, count, tile), count);
    }
  });
  return fold(lanes);
}

double PiecePushes::norm(std::size_t m) const {
  return turned_.empty() || !turned_[m] ? std::sqrt(square_norm(m)) : turned_[m]->norm;
}

void PiecePushes::sum(std::span<const float> weights, std::uint64_t first, std::size_t count,
                      float* out, double* squares) const {
  alignas(64) float tile[kTile];
  for (std::size_t begin = 0; begin < pushes_.size();) {
    Sources sources;
    std::size_t end = begin;
    CodecId codec = pushes_[begin].codec;
    if (is_raw(begin)) {
      for (; end < pushes_.size() && sources.count < kSources && pushes_[end].codec == codec &&
             is_raw(end);
           ++end) {
        sources.at[sources.count] = raw(end, first);
        sources.weight[sources.count++] = weights[end];
      }
    } else {
      corrected(begin, first, count, tile);
      codec = CodecId::kF32;
      sources.at[0] = tile;
      sources.weight[0] = weights[begin];
      sources.count = 1;
      end = begin + 1;
    }
    const auto sum_up = codec == CodecId::kF32 ? kernels().sum_f32 : kernels().sum_bf16;
    sum_up(out, sources, begin > 0, count, end == pushes_.size() ? squares : nullptr);
    begin = end;
  }
}

std::optional<PiecePushes::OnePass> PiecePushes::one_pass(std::span<const float> weights,
                                                          std::uint64_t first) const {
  OnePass out{pushes_[0].codec, {}};
  if (pushes_.size() > kSources) {
    return std::nullopt;
  }
  for (std::size_t m = 0; m < pushes_.size(); ++m) {
    if (!is_raw(m) || pushes_[m].codec != out.codec) {
      return std::nullopt;
    }
    out.sources.at[m] = raw(m, first);
    out.sources.weight[m] = weights[m];
  }
  out.sources.count = pushes_.size();
  return out;
}

void PiecePushes::correct(std::span<const float> momentum) {
  Lanes lanes{};
  kernels().squares_f32(lanes.data(), momentum.data(), momentum.size());
  const double momentum_norm = std::sqrt(fold(lanes));
  if (momentum_norm < kLeastLength) {
    return;
  }
  momentum_ = momentum;
  turned_.resize(pushes_.size());
  for (std::size_t m = 0; m < pushes_.size(); ++m) {
    correct_one(m, momentum_norm);
  }
}

void PiecePushes::correct_one(std::size_t m, double momentum_norm) {
  const double length = std::sqrt(square_norm(m));
  if (length < kLeastLength) {
    return;
  }
  Lanes dot{};
  alignas(64) float tile[kTile];
  each_tile(0, piece_.count, [&](std::uint64_t first, std::size_t count) {
    kernels().dots_f32(dot.data(), plain(m, first, count, tile), momentum_.data() + first, count);
  });
  const double c = fold(dot) / (length * momentum_norm);
  if (!(c < kAgreed)) {  // also where it is not a number: the merge will say so
    return;
  }
  const double confidence = length / (length + kMomentumShare * momentum_norm + kLeastLength);
  Turned turned;
  const bool against = c < 0.0;
  if (against) {
    const double beta = std::min(kAgainst * -c * confidence, kAgainstMax);
    turned.blend.q = static_cast<float>(beta * -c * (length / momentum_norm));
  } else {
    const double lambda = std::min(kAcross * (1.0 - c) * confidence, 1.0);
    turned.blend.p = static_cast<float>((1.0 - lambda) / length);
    turned.blend.q = static_cast<float>(lambda / momentum_norm);
  }
  turned_[m] = turned;
  Lanes squares{};
  each_tile(0, piece_.count, [&](std::uint64_t first, std::size_t count) {
    corrected(m, first, count, tile);
    kernels().squares_f32(squares.data(), tile, count);
  });
  const double blended = std::sqrt(fold(squares));
  if (against) {
    turned_[m]->norm = blended;
  } else {
    turned_[m]->blend.s = static_cast<float>(length / blended);
    turned_[m]->norm = length;
  }
}

}  // namespace yeto::merge
