// SPDX-License-Identifier: Apache-2.0
// Goal: golden mode. Two learners in lockstep over the real server and real loopback sockets end
// with the very bits of a loop in one process that uses the same merge and codec functions.
// Method: both worlds train the same toy model; after every step and at the end all values are
// compared as bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/codec/codec.h"
#include "yeto/merge/merge.h"
#include "yeto/store/object_store.h"
#include "yeto/sync/boundary/boundary.h"
#include "yeto/sync/server/server.h"
#include "yeto/tensor/bf16.h"

namespace yeto::sync {
namespace {

using Floats = std::vector<float>;

constexpr std::uint32_t kLearners = 2;
constexpr Nanos kPatience = 60 * kSecond;

struct Case {
  const char* name;
  CodecId codec;
  MergeMode merge;
  std::uint32_t interval;  // H
  std::uint32_t fragments;
  std::uint64_t total_steps;
  std::uint64_t local_steps;  // 0: the run ends by total_steps; else every learner's limit
};

void PrintTo(const Case& value, std::ostream* out) { *out << value.name; }

std::vector<std::uint32_t> bits(const Floats& values) {
  std::vector<std::uint32_t> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(),
                 [](float value) { return std::bit_cast<std::uint32_t>(value); });
  return out;
}

// ---- the toy model: every value moves towards a target of its seat, with noise
// -------------------

struct Shape {
  const char* name;
  std::vector<std::uint64_t> shape;
};

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> kShapes = {
      {"layers.0.lora_A", {4, 33}}, {"layers.0.lora_B", {33, 4}}, {"layers.1.lora_A", {4, 17}},
      {"layers.1.lora_B", {17, 4}}, {"norm.weight", {7}},         {"embed.weight", {5, 3}}};
  return kShapes;
}

// All tensors of one island; the memory does not move.
struct Island {
  std::uint32_t seat;
  std::vector<Floats> tensors;

  explicit Island(std::uint32_t number) : seat(number) {
    Rng rng(17);  // the same first values on every island
    for (const Shape& shape : shapes()) {
      std::uint64_t count = 1;
      for (const std::uint64_t size : shape.shape) {
        count *= size;
      }
      Floats values(count);
      for (float& value : values) {
        value = static_cast<float>(rng.uniform() - 0.5);
      }
      tensors.push_back(std::move(values));
    }
  }

  std::vector<TensorView> views() {
    std::vector<TensorView> out;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      out.push_back({shapes()[i].name, shapes()[i].shape, tensors[i]});
    }
    return out;
  }

  void optimizer_step(std::uint64_t step) {
    Rng rng(mix64(step * kLearners + seat));
    for (Floats& values : tensors) {
      for (float& value : values) {
        const auto target = static_cast<float>(seat) * 0.25F - 0.125F;
        const auto noise = static_cast<float>(rng.uniform() * 0.02 - 0.01);
        const float pull = 0.05F * (target - value);
        value += pull + noise;
      }
    }
  }

  std::uint64_t tokens(std::uint64_t step) const { return 100 + 10 * seat + step; }

  Floats gather(const Fragment& fragment) const {
    Floats out(fragment.values);
    for (const Piece& piece : fragment.pieces) {
      std::copy_n(tensors[piece.tensor].begin() + static_cast<long>(piece.first), piece.count,
                  out.begin() + static_cast<long>(piece.offset));
    }
    return out;
  }
  void scatter(const Fragment& fragment, const Floats& values) {
    for (const Piece& piece : fragment.pieces) {
      std::copy_n(values.begin() + static_cast<long>(piece.offset), piece.count,
                  tensors[piece.tensor].begin() + static_cast<long>(piece.first));
    }
  }
  Floats flat() const {
    Floats out;
    for (const Floats& values : tensors) {
      out.insert(out.end(), values.begin(), values.end());
    }
    return out;
  }
};

// What one island was after each of its steps, and at the end.
struct Track {
  std::vector<Floats> after_step;
  Floats final;
};

// ---- the reference: one process, one loop
// --------------------------------------------------------

class Reference {
 public:
  explicit Reference(const Case& what) : case_(what) {
    for (std::uint32_t seat = 0; seat < kLearners; ++seat) {
      islands_.emplace_back(seat);
    }
    tracks_.resize(kLearners);
    std::vector<TensorSpec> specs;
    for (const Shape& shape : shapes()) {
      specs.push_back({shape.name, shape.shape, DType::kF32, MergeMode::kRda});
    }
    layout_ =
        make_layout(std::move(specs), {case_.fragments, FragmentPattern::kBinpack, case_.merge})
            .value();
    for (const Fragment& fragment : layout_.fragments) {
      State state;
      state.values = islands_[0].gather(fragment);
      state.momentum = Floats(fragment.values, 0.0F);
      state.steps.assign(kLearners, 0);
      state.tokens.assign(kLearners, 0);
      state.residuals.assign(kLearners, std::vector<std::uint16_t>(fragment.values, 0));
      states_.push_back(std::move(state));
    }
  }

  std::vector<Track> run() {
    for (std::uint32_t p = 0; p < states_.size(); ++p) {
      Bytes first(codec::encoded_bytes(whole_codec(), states_[p].values.size()));
      EXPECT_TRUE(codec::encode(whole_codec(), states_[p].values, first));
      publish(p, std::move(first));
    }
    std::uint64_t round = 1;
    for (std::uint64_t step = 1; !ended(step, round); ++step) {
      train(step);
      while (due(round) == step && !all_rounds_done(round)) {
        merge_round(round++);
      }
      for (std::uint32_t seat = 0; seat < kLearners; ++seat) {
        tracks_[seat].after_step.push_back(islands_[seat].flat());
      }
    }
    sweep(round);
    for (std::uint32_t seat = 0; seat < kLearners; ++seat) {
      for (std::uint32_t p = 0; p < states_.size(); ++p) {
        islands_[seat].scatter(layout_.fragments[p], states_[p].values);
      }
      tracks_[seat].final = islands_[seat].flat();
    }
    return tracks_;
  }

 private:
  struct State {
    Floats values;  // Θ
    Floats momentum;
    Bytes public_value;                                 // θ̂ in the anchor dtype
    Floats anchor;                                      // the same as f32
    std::vector<std::vector<std::uint16_t>> residuals;  // per seat, bf16 (q4)
    std::uint64_t version = 0;
    std::vector<std::uint64_t> steps;  // per seat, since the last delta
    std::vector<std::uint64_t> tokens;
  };

  CodecId whole_codec() const { return case_.codec == CodecId::kQ4 ? CodecId::kBf16 : case_.codec; }
  std::uint64_t due(std::uint64_t round) const {
    const std::uint64_t fragments = states_.size();
    return (round * case_.interval + fragments - 1) / fragments;
  }
  bool all_rounds_done(std::uint64_t round) const {
    return case_.total_steps != 0 && round > case_.total_steps;
  }
  bool ended(std::uint64_t step, std::uint64_t round) const {
    return case_.local_steps != 0 ? step > case_.local_steps : all_rounds_done(round);
  }

  void train(std::uint64_t step) {
    for (Island& island : islands_) {
      island.optimizer_step(step);
      for (State& state : states_) {
        state.steps[island.seat] += 1;
        state.tokens[island.seat] += island.tokens(step);
      }
    }
  }

  void merge_round(std::uint64_t round) {
    const auto p = static_cast<std::uint32_t>((round - 1) % states_.size());
    State& state = states_[p];
    std::vector<Bytes> images;
    merge::Inputs in;
    in.layout = &layout_;
    in.fragment = p;
    in.first_commit = state.version == 0;
    in.weights = merge::WeightRule::kEqual;
    in.outer = merge::OuterRule::of(merge::OuterKind::kNesterov);
    in.values = state.values;
    in.momentum = state.momentum;
    for (const Island& island : islands_) {
      images.push_back(delta_image(island, p));
      in.pushes.push_back(
          {island.seat, state.steps[island.seat], state.tokens[island.seat], case_.codec, {}, {}});
    }
    for (std::uint32_t seat = 0; seat < kLearners; ++seat) {
      in.pushes[seat].image = images[seat];
      state.steps[seat] = 0;
      state.tokens[seat] = 0;
    }
    Floats values(state.values.size());
    Floats momentum(state.values.size());
    Bytes image(codec::encoded_bytes(case_.codec, values.size()));
    merge::Outputs out{values, momentum, case_.codec, image};
    Bytes next;
    if (case_.codec == CodecId::kQ4) {
      next.resize(state.public_value.size());
      out.old_public = state.public_value;
      out.new_public = next;
    }
    const auto merged = merge::merge_fragment(in, out);
    ASSERT_TRUE(merged && *merged);
    state.values = std::move(values);
    state.momentum = std::move(momentum);
    ++state.version;
    publish(p, next.empty() ? std::move(image) : std::move(next));
  }

  Bytes delta_image(const Island& island, std::uint32_t p) {
    const Floats local = island.gather(layout_.fragments[p]);
    Floats delta(local.size());
    for (std::size_t i = 0; i < delta.size(); ++i) {
      delta[i] = states_[p].anchor[i] - local[i];
    }
    Bytes image(codec::encoded_bytes(case_.codec, delta.size()));
    if (case_.codec != CodecId::kQ4) {
      EXPECT_TRUE(codec::encode(case_.codec, delta, image));
      return image;
    }
    // Every push is merged, so every rounding error goes into the next delta.
    std::vector<std::uint16_t>& kept = states_[p].residuals[island.seat];
    Floats residual(delta.size());
    f32_from_bf16(kept.data(), residual.data(), residual.size());
    EXPECT_TRUE(codec::encode_q4_feedback(delta, residual, image));
    bf16_from_f32(residual.data(), kept.data(), residual.size());
    return image;
  }

  // All islands take the public value; nothing was done since the push.
  void publish(std::uint32_t p, Bytes public_value) {
    State& state = states_[p];
    state.public_value = std::move(public_value);
    state.anchor.resize(state.values.size());
    EXPECT_TRUE(codec::decode(whole_codec(), state.public_value, state.anchor));
    for (Island& island : islands_) {
      island.scatter(layout_.fragments[p], state.anchor);
    }
  }

  // One last merge of every fragment that was trained since its last one.
  void sweep(std::uint64_t round) {
    for (std::size_t i = 0; i < states_.size(); ++i, ++round) {
      if (states_[(round - 1) % states_.size()].steps[0] > 0) {
        merge_round(round);
      }
    }
  }

  const Case case_;
  Layout layout_;
  std::vector<Island> islands_;
  std::vector<State> states_;
  std::vector<Track> tracks_;
};

// ---- the real thing
// ------------------------------------------------------------------------------

class Real {
 public:
  explicit Real(const Case& what) : case_(what) {
    random_bytes(token_);
    const std::string name = hex(ByteView(token_).first(8));
    folder_ = std::filesystem::path(testing::TempDir()) / ("yeto-golden-" + name);
    std::filesystem::create_directories(folder_);
  }
  ~Real() { std::filesystem::remove_all(folder_); }

  std::vector<Track> run() {
    auto server = open_server();
    if (!server) {
      ADD_FAILURE() << server.error().text();
      return {};
    }
    const std::string address = (*server)->address().text();
    int exit_code = -1;
    std::thread serving([&] { exit_code = (*server)->run(); });
    std::vector<Track> tracks(kLearners);
    std::vector<std::thread> learners;
    for (std::uint32_t seat = 0; seat < kLearners; ++seat) {
      learners.emplace_back([&, seat] { learn(seat, address, tracks[seat]); });
    }
    for (std::thread& learner : learners) {
      learner.join();
    }
    if (testing::Test::HasFailure()) {
      (*server)->interrupt(1);
    }
    serving.join();
    EXPECT_EQ(exit_code, 0);
    return tracks;
  }

 private:
  Result<std::unique_ptr<Server>> open_server() const {
    ServerOptions options;
    options.core.run_id = "golden";
    options.core.learners = kLearners;
    options.core.quorum_all = true;
    options.core.lockstep = true;
    options.core.sync_interval_steps = case_.interval;
    options.core.total_steps = case_.total_steps;
    options.core.push_codec = case_.codec;
    options.core.broadcast_codec = case_.codec;
    options.core.heartbeat = from_millis(50);
    // Under a sanitizer on a busy machine a thread may stand still for seconds.
    options.core.lease = kPatience;
    options.outer = merge::OuterRule::of(merge::OuterKind::kNesterov);
    options.weights = merge::WeightRule::kEqual;
    options.run_token = token_;
    options.checkpoint = std::make_shared<store::MemoryStore>();
    return Server::open(std::move(options));
  }

  std::filesystem::path key_file(std::uint32_t seat) const {
    const Sha256 key = hkdf_sha256(token_, as_bytes_view(strf("yeto-seat-{}", seat)));
    const std::filesystem::path path = folder_ / strf("seat-{}.key", seat);
    EXPECT_TRUE(write_file_atomic(path, hex(key), 0600));
    return path;
  }

  void learn(std::uint32_t seat, const std::string& address, Track& track) const {
    Island island(seat);
    BoundaryOptions options;
    options.syncer = address;
    options.run_id = "golden";
    options.seat = seat;
    options.token_file = key_file(seat);
    options.layout = {case_.fragments, FragmentPattern::kBinpack, case_.merge};
    options.contract = {{"loss", "toy"}};
    options.streams = static_cast<std::uint16_t>(seat);  // none and one: chunks on either
    auto boundary = Boundary::open(options, island.views());
    ASSERT_TRUE(boundary) << boundary.error().text();
    const auto ready = (*boundary)->wait_ready(kPatience);
    ASSERT_TRUE(ready) << ready.error().text();
    bool draining = false;
    std::uint64_t step = 0;
    while (!draining && (case_.local_steps == 0 || step < case_.local_steps)) {
      island.optimizer_step(++step);
      const auto report = (*boundary)->step(island.tokens(step));
      ASSERT_TRUE(report) << report.error().text();
      draining = report->draining;
      track.after_step.push_back(island.flat());
    }
    const auto final = (*boundary)->finalize(
        draining ? FinalizeReason::kDrain : FinalizeReason::kLimit, kPatience);
    ASSERT_TRUE(final) << final.error().text();
    track.final = island.flat();
  }

  const Case case_;
  SessionKey token_{};
  std::filesystem::path folder_;
};

class GoldenTest : public testing::TestWithParam<Case> {};

TEST_P(GoldenTest, TwoLearnersInLockstepEqualOneProcessBitForBit) {
  const std::vector<Track> expected = Reference(GetParam()).run();
  const std::vector<Track> real = Real(GetParam()).run();
  ASSERT_EQ(real.size(), expected.size());
  for (std::uint32_t seat = 0; seat < kLearners; ++seat) {
    ASSERT_EQ(real[seat].after_step.size(), expected[seat].after_step.size()) << "seat " << seat;
    for (std::size_t step = 0; step < expected[seat].after_step.size(); ++step) {
      ASSERT_EQ(bits(real[seat].after_step[step]), bits(expected[seat].after_step[step]))
          << "seat " << seat << " after step " << step + 1;
    }
    EXPECT_EQ(bits(real[seat].final), bits(expected[seat].final)) << "seat " << seat;
  }
  EXPECT_EQ(bits(real[0].final), bits(real[1].final));
}

INSTANTIATE_TEST_SUITE_P(
    Runs, GoldenTest,
    testing::Values(Case{"F32Rda", CodecId::kF32, MergeMode::kRda, 4, 3, 11, 0},
                    Case{"Bf16Rda", CodecId::kBf16, MergeMode::kRda, 4, 3, 11, 0},
                    Case{"Q4Rda", CodecId::kQ4, MergeMode::kRda, 4, 3, 17, 0},
                    Case{"Q4AvgByLimit", CodecId::kQ4, MergeMode::kAvg, 4, 3, 0, 14},
                    Case{"F32Avg", CodecId::kF32, MergeMode::kAvg, 6, 4, 8, 0},
                    // More fragments than steps between syncs: several rounds at one step.
                    Case{"Bf16AvgSeveralRoundsAStep", CodecId::kBf16, MergeMode::kAvg, 1, 3, 12, 0},
                    // The learners stop by their own limit, in the middle of a cycle.
                    Case{"F32RdaByLimit", CodecId::kF32, MergeMode::kRda, 4, 3, 0, 10}),
    [](const testing::TestParamInfo<Case>& which) { return std::string(which.param.name); });

}  // namespace
}  // namespace yeto::sync
