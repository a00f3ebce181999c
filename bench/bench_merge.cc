// SPDX-License-Identifier: Apache-2.0
// How well a merge uses the memory of the machine.
//   merge/mean_m8  weighted mean of 8 f32 deltas + Nesterov step + bf16 image, in bytes per second
//                  over those of an f32 triad (a = b + s·c), both on one thread and both on two;
//                  the lower of the two medians
//   merge/rda_m8   radial-directional averaging of 8 deltas over tensors of 64 Ki values with the
//                  same step and image, against a textbook merge: one pass over the fragment for
//                  each operation (a square, a sum, a product …) and each learner, into buffers
//                  that exist already; one thread
// Bytes counted: what an algorithm has to read and write once, 4 a value. Triad: 2 reads and 1
// write, 12; that its stores also read the line first is not counted. Merge: 8 deltas, values and
// momentum read, values and momentum written, 2 for the image, 50.
// The norms that RDA needs are known before the merge, as in the syncer, where each push is
// measured as it arrives; the line for people says what it takes with them measured first. The
// textbook merge has no such moment and computes them. All buffers, those of the triad and of the
// textbook too, come from the pool of the syncer's jobs. Sizes are far out of cache. Both sides of
// a ratio run one right after the other.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>

#include "bench/figure.h"
#include "yeto/base/rng.h"
#include "yeto/base/thread.h"
#include "yeto/merge/merge.h"
#include "yeto/sync/jobs/memory_pool.h"
#include "yeto/tensor/bf16.h"
#include "yeto/tensor/kernels.h"

namespace yeto::bench {
namespace {

// `count` floats of the pool.
struct Values {
  std::shared_ptr<Bytes> memory;
  float* at = nullptr;
  std::size_t count = 0;

  explicit Values(std::size_t values, float start = 0.0F);
  float& operator[](std::size_t i) const { return at[i]; }
  float* data() const { return at; }
  std::size_t size() const { return count; }
  float* begin() const { return at; }
  float* end() const { return at + count; }
  std::span<float> span() const { return {at, count}; }
};

sync::MemoryPool& pool() {
  static sync::MemoryPool one(64);
  return one;
}

Values::Values(std::size_t values, float start)
    : memory(pool().take(values * sizeof(float))),
      at(reinterpret_cast<float*>(memory->data())),
      count(values) {
  std::fill(begin(), end(), start);
}

constexpr std::size_t kLearners = 8;
constexpr std::size_t kValues = std::size_t{8} << 20;
constexpr std::size_t kTensorValues = std::size_t{64} << 10;  // a low-rank factor of a common size
constexpr int kRuns = 5;
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
  std::shared_ptr<Bytes> image;
  std::vector<merge::Measured> measured;  // empty: the merge computes what it needs

  explicit Work(MergeMode mode)
      : values(kValues, 1.0F),
        momentum(kValues),
        new_values(kValues),
        new_momentum(kValues),
        image(pool().take(2 * kValues)) {
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
    merge::Inputs in{&layout,         0, false, merge::WeightRule::kTokens2, outer, values.span(),
                     momentum.span(), {}};
    for (std::uint32_t m = 0; m < kLearners; ++m) {
      merge::Push push{m, 24, 1000 + m, CodecId::kF32, delta_bytes(m), {}};
      if (!measured.empty()) {
        push.square_norms = measured[m].square_norms;
      }
      in.pushes.push_back(push);
    }
    const auto job = merge::FragmentMerge::make(
        std::move(in), {new_values.span(), new_momentum.span(), CodecId::kBf16, *image});
    YETO_CHECK(job, "the benchmark's own input");
    std::atomic<bool> finite{true};
    on_threads(job->parts(), threads, [&](std::size_t part) {
      if (!job->run_part(part)) {
        finite = false;
      }
    });
    YETO_CHECK(finite, "the benchmark's own input");
    std::swap(values, new_values);
    std::swap(momentum, new_momentum);
  }

  ByteView delta_bytes(std::size_t m) const {
    return as_bytes_view(std::span<const float>(deltas[m].span()));
  }
  void measure() {
    measured.clear();
    for (std::size_t m = 0; m < kLearners; ++m) {
      auto one = merge::measure(layout.fragments[0], CodecId::kF32, delta_bytes(m));
      YETO_CHECK(one && one->finite, "the benchmark's own input");
      measured.push_back(std::move(*one));
    }
  }
};

// The same merge as a textbook writes it, with its temporaries.
class Textbook {
 public:
  explicit Textbook(Work& work) : work_(work) {}
  void merge() {
    const auto& pieces = work_.layout.fragments[0].pieces;
    std::vector<double> lengths(pieces.size());
    std::fill(direction_.begin(), direction_.end(), 0.0F);
    for (const Values& delta : work_.deltas) {
      add_direction(delta, lengths);
    }
    const std::vector<double> norms = norms_of(direction_);
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      const auto scale = static_cast<float>(lengths[p] / norms[p]);
      for (std::uint64_t i = pieces[p].offset; i < pieces[p].offset + pieces[p].count; ++i) {
        direction_[i] *= scale;
      }
    }
    step();
  }

 private:
  // One operation, one pass: out[i] = f(i).
  template <class F>
  static void each(Values& out, F&& f) {
    float* const to = out.data();
    for (std::size_t i = 0; i < kValues; ++i) {
      to[i] = f(i);
    }
  }
  std::vector<double> norms_of(const Values& x) {
    each(square_, [&](std::size_t i) { return x[i] * x[i]; });
    std::vector<double> out;
    for (const Piece& piece : work_.layout.fragments[0].pieces) {
      double sum = 0.0;
      for (std::uint64_t i = piece.offset; i < piece.offset + piece.count; ++i) {
        sum += static_cast<double>(square_[i]);
      }
      out.push_back(std::sqrt(sum));
    }
    return out;
  }
  void add_direction(const Values& delta, std::vector<double>& lengths) {
    constexpr float kWeight = 1.0F / kLearners;
    const auto& pieces = work_.layout.fragments[0].pieces;
    const std::vector<double> norms = norms_of(delta);
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      lengths[p] += kWeight * norms[p];
      const auto norm = static_cast<float>(norms[p]);
      for (std::uint64_t i = pieces[p].offset; i < pieces[p].offset + pieces[p].count; ++i) {
        unit_[i] = delta[i] / norm;
      }
    }
    each(unit_, [&](std::size_t i) { return kWeight * unit_[i]; });
    each(direction_, [&](std::size_t i) { return direction_[i] + unit_[i]; });
  }
  void step() {
    const float mu = work_.outer.momentum;
    const float lr = work_.outer.lr;
    Values& b = work_.new_momentum;
    each(b, [&](std::size_t i) { return mu * work_.momentum[i]; });
    each(b, [&](std::size_t i) { return b[i] + direction_[i]; });
    each(unit_, [&](std::size_t i) { return mu * b[i]; });
    each(unit_, [&](std::size_t i) { return unit_[i] + direction_[i]; });
    each(unit_, [&](std::size_t i) { return lr * unit_[i]; });
    each(work_.new_values, [&](std::size_t i) { return work_.values[i] - unit_[i]; });
    for (const Values* made : {&b, &work_.new_values}) {
      bool finite = true;
      for (const float value : *made) {
        finite &= std::isfinite(value);
      }
      YETO_CHECK(finite, "the benchmark's own input");
    }
    bf16_from_f32(work_.new_values.data(), reinterpret_cast<std::uint16_t*>(work_.image->data()),
                  kValues);
    std::swap(work_.values, work_.new_values);
    std::swap(work_.momentum, work_.new_momentum);
  }

  Work& work_;
  Values square_ = Values(kValues);
  Values unit_ = Values(kValues);
  Values direction_ = Values(kValues);
};

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
  auto textbook = std::make_unique<Textbook>(*work);
  std::vector<double> ratios;
  std::vector<double> merge_ms;
  std::vector<double> measure_ms;
  std::vector<double> textbook_ms;
  for (int run = -1; run < kRuns; ++run) {  // the first one warms up
    const double measure_s = time_of([&] { work->measure(); });
    const double merge_s = time_of([&] { work->merge(1); });
    const double textbook_s = time_of([&] { textbook->merge(); });
    if (run >= 0) {
      ratios.push_back(textbook_s / merge_s);
      measure_ms.push_back(measure_s * 1e3);
      merge_ms.push_back(merge_s * 1e3);
      textbook_ms.push_back(textbook_s * 1e3);
    }
  }
  const double merge = median(merge_ms);
  const double measure = median(measure_ms);
  const double naive = median(textbook_ms);
  std::puts(strf("rda of {} deltas, 1 thread: {:.1f} ms, and {:.1f} ms to measure the pushes; "
                 "textbook {:.1f} ms, {:.1f} x merge and measure together",
                 kLearners, merge, measure, naive, naive / (merge + measure))
                .c_str());
  print_figure({"merge/rda_m8", "x naive", 10.0, 13.0}, ratios);
}

}  // namespace
}  // namespace yeto::bench

int main() {
  std::puts(yeto::strf("loops: {}", yeto::kernels().name).c_str());
  yeto::bench::bench_mean();
  yeto::bench::bench_rda();
  return 0;
}
