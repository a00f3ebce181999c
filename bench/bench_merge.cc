// SPDX-License-Identifier: Apache-2.0
// How well a merge uses the memory of the machine.
//   merge/mean_m8  weighted mean of 8 f32 deltas + Nesterov step + bf16 image, as bytes that must
//   move per second
//                  over the bytes per second of an f32 triad (a = b + s·c) on as many threads; the
//                  lower of the medians with one and with two threads
//   merge/rda_m8   radial-directional averaging of 8 deltas over many tensors, with the same step
//   and image,
//                  against the same arithmetic written as one pass after the other over the whole
//                  fragment
// Sizes are far out of cache. Both sides of a ratio run one right after the other.
#include <atomic>
#include <bit>
#include <cmath>
#include <memory>

#include "bench/figure.h"
#include "yeto/base/rng.h"
#include "yeto/base/thread.h"
#include "yeto/merge/merge.h"
#include "yeto/tensor/bf16.h"

namespace yeto::bench {
namespace {

using Values = std::vector<float>;

constexpr std::size_t kLearners = 8;
constexpr std::size_t kValues = std::size_t{8} << 20;
constexpr std::size_t kTensorValues = std::size_t{64} << 10;  // a low-rank factor of a common size
constexpr int kRuns = 5;
// 8 deltas, values and momentum read; values, momentum and the bf16 image written.
constexpr double kMeanBytes = 4.0 * kLearners + 8 + 8 + 2;

// Runs parts 0 … parts − 1 on `threads` threads.
template <class Run>
void on_threads(std::size_t parts, int threads, Run&& run) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t part = next++; part < parts; part = next++) {
      run(part);
    }
  };
  std::vector<JoiningThread> others;
  for (int i = 1; i < threads; ++i) {
    others.emplace_back(work);
  }
  work();
}

void triad(float* __restrict a, const float* __restrict b, const float* __restrict c, float s,
           std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    a[i] = b[i] + s * c[i];
  }
}

// One fragment with everything a merge reads and writes.
struct Work {
  Layout layout;
  merge::OuterRule outer = merge::OuterRule::of(merge::OuterKind::kNesterov);
  std::vector<Values> deltas;
  Values values;
  Values momentum;
  Values new_values;
  Values new_momentum;
  Bytes image;

  explicit Work(MergeMode mode)
      : values(kValues, 1.0F),
        momentum(kValues),
        new_values(kValues),
        new_momentum(kValues),
        image(2 * kValues) {
    const std::size_t tensor_values = mode == MergeMode::kRda ? kTensorValues : kValues;
    Fragment fragment;
    for (std::size_t first = 0; first < kValues; first += tensor_values) {
      TensorSpec tensor;
      tensor.name = strf("t{}", layout.tensors.size());
      tensor.shape = {tensor_values};
      tensor.merge = mode;
      fragment.pieces.push_back(
          {static_cast<std::uint32_t>(layout.tensors.size()), 0, tensor_values, first});
      layout.tensors.push_back(tensor);
    }
    fragment.values = kValues;
    layout.fragments = {fragment};
    for (std::size_t m = 0; m < kLearners; ++m) {
      Rng rng(m + 1);
      Values& delta = deltas.emplace_back(kValues);
      for (float& value : delta) {
        value = static_cast<float>(0.01 * (rng.uniform() - 0.5));
      }
    }
  }

  void merge(int threads) {
    merge::Inputs in{&layout, 0, false, merge::WeightRule::kTokens2, outer, values, momentum, {}};
    for (std::uint32_t m = 0; m < kLearners; ++m) {
      in.pushes.push_back(
          {m, 24, 1000 + m, CodecId::kF32, as_bytes_view(std::span<const float>(deltas[m])), {}});
    }
    const auto job = merge::FragmentMerge::make(std::move(in),
                                                {new_values, new_momentum, CodecId::kBf16, image});
    YETO_CHECK(job, "the benchmark's own input");
    std::atomic<bool> finite{true};
    on_threads(job->parts(), threads, [&](std::size_t part) {
      if (!job->run_part(part)) {
        finite = false;
      }
    });
    YETO_CHECK(finite, "the benchmark's own input");
    values.swap(new_values);
    momentum.swap(new_momentum);
  }

  // The same as it is written first: one pass after the other, over the whole fragment.
  void merge_naively();
};

double norm_of(const float* x, std::size_t count) {
  double sum = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  return std::sqrt(sum);
}

void Work::merge_naively() {
  const auto& pieces = layout.fragments[0].pieces;
  std::vector<double> weights(kLearners, 1.0 / kLearners);
  std::vector<double> lengths(pieces.size());
  Values unit(kValues);
  Values direction(kValues);
  for (std::size_t m = 0; m < kLearners; ++m) {
    std::vector<double> norms;
    for (const Piece& piece : pieces) {
      norms.push_back(norm_of(deltas[m].data() + piece.offset, piece.count));
    }
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      lengths[p] += weights[m] * norms[p];
      for (std::uint64_t i = 0; i < pieces[p].count; ++i) {
        unit[pieces[p].offset + i] = static_cast<float>(deltas[m][pieces[p].offset + i] / norms[p]);
      }
    }
    for (std::size_t i = 0; i < kValues; ++i) {
      direction[i] += static_cast<float>(weights[m]) * unit[i];
    }
  }
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    float* d = direction.data() + pieces[p].offset;
    const auto scale = static_cast<float>(lengths[p] / norm_of(d, pieces[p].count));
    for (std::uint64_t i = 0; i < pieces[p].count; ++i) {
      d[i] *= scale;
    }
  }
  for (std::size_t i = 0; i < kValues; ++i) {
    new_momentum[i] = outer.momentum * momentum[i] + direction[i];
  }
  for (std::size_t i = 0; i < kValues; ++i) {
    new_values[i] = values[i] - outer.lr * (direction[i] + outer.momentum * new_momentum[i]);
  }
  for (std::size_t i = 0; i < kValues; ++i) {
    const std::uint16_t half = bf16_from_f32(new_values[i]);
    std::memcpy(image.data() + 2 * i, &half, 2);
  }
  values.swap(new_values);
  momentum.swap(new_momentum);
}

void bench_mean() {
  auto work = std::make_unique<Work>(MergeMode::kAvg);
  const std::size_t count = 4 * kValues;
  Values a(count, 0.0F);
  const Values b(count, 1.0F);
  const Values c(count, 2.0F);
  constexpr std::size_t kParts = 64;
  std::vector<double> worst;
  for (const int threads : {1, 2}) {
    std::vector<double> ratios;
    double triad_rate = 0.0;
    double mean_rate = 0.0;
    for (int run = -1; run < kRuns; ++run) {  // the first one warms up
      const double triad_s = time_of([&] {
        on_threads(kParts, threads, [&](std::size_t part) {
          const std::size_t size = count / kParts;
          triad(a.data() + part * size, b.data() + part * size, c.data() + part * size, 0.5F, size);
        });
      });
      const double merge_s = time_of([&] { work->merge(threads); });
      triad_rate = 12.0 * static_cast<double>(count) / triad_s;
      mean_rate = kMeanBytes * static_cast<double>(kValues) / merge_s;
      if (run >= 0) {
        ratios.push_back(mean_rate / triad_rate);
      }
    }
    std::puts(strf("mean of {} deltas, {} thread(s): {:.1f} GB/s; triad {:.1f} GB/s; ratio {:.2f}",
                   kLearners, threads, mean_rate * 1e-9, triad_rate * 1e-9, median(ratios))
                  .c_str());
    if (worst.empty() || median(ratios) < median(worst)) {
      worst = ratios;
    }
  }
  print_figure({"merge/mean_m8", "x triad", 1.0, 1.2}, worst);
}

void bench_rda() {
  auto work = std::make_unique<Work>(MergeMode::kRda);
  std::vector<double> ratios;
  double tiled_s = 0.0;
  double naive_s = 0.0;
  for (int run = -1; run < kRuns; ++run) {
    tiled_s = time_of([&] { work->merge(1); });
    naive_s = time_of([&] { work->merge_naively(); });
    if (run >= 0) {
      ratios.push_back(naive_s / tiled_s);
    }
  }
  std::puts(strf("rda of {} deltas, 1 thread: {:.1f} ms, naive {:.1f} ms", kLearners, tiled_s * 1e3,
                 naive_s * 1e3)
                .c_str());
  print_figure({"merge/rda_m8", "x naive", 10.0, 13.0}, ratios);
}

}  // namespace
}  // namespace yeto::bench

int main() {
  yeto::bench::bench_mean();
  yeto::bench::bench_rda();
  return 0;
}
