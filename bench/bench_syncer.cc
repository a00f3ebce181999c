// SPDX-License-Identifier: Apache-2.0
// Push → merge → broadcast through a whole syncer against plain sockets with equally many streams.
// Two learners of this process answer every pull at once; each sample starts a fresh syncer, lets
// it commit a few rounds to warm up, and counts the bytes of pushes and broadcasts over the next
// ones. Checkpoints go to memory and stay out of the way (durability interval): the disk is not
// measured.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/figure.h"
#include "bench/loopback.h"
#include "yeto/base/clock.h"
#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/base/thread.h"
#include "yeto/store/object_store.h"
#include "yeto/sync/server/scripted_learner_testing.h"
#include "yeto/sync/server/server.h"

namespace yeto::bench {
namespace {

constexpr std::uint32_t kLearners = 2;
constexpr std::uint16_t kStreams = 4;  // data streams of each learner
constexpr std::uint32_t kFragments = 2;
constexpr std::uint64_t kValues = 8U << 20;  // of a fragment
constexpr std::size_t kWarmUp = 2;           // commits
constexpr std::size_t kCommits = 8;          // measured
constexpr int kSamples = 5;
constexpr Nanos kLimit = 120 * kSecond;

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

Layout layout() {
  std::vector<TensorSpec> tensors;
  for (std::uint32_t i = 0; i < kFragments; ++i) {
    tensors.push_back(
        {strf("layers.{}.weight", i), {kValues / 1024, 1024}, DType::kF32, MergeMode::kAvg});
  }
  LayoutOptions options;
  options.fragments = kFragments;
  options.matrix_merge = MergeMode::kAvg;
  Result<Layout> made = make_layout(std::move(tensors), options);
  if (!made) {
    give_up(made.error().text());
  }
  return std::move(*made);
}

sync::ServerOptions server_options() {
  sync::ServerOptions options;
  options.core.run_id = "bench";
  options.core.learners = kLearners;
  options.core.sync_interval_steps = 1;
  options.core.durability = sync::Durability::kInterval;
  options.core.checkpoint_every = 3600 * kSecond;
  options.core.push_codec = CodecId::kF32;
  options.core.broadcast_codec = CodecId::kF32;
  options.outer = merge::OuterRule::of(merge::OuterKind::kNesterov);
  options.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  options.checkpoint = std::make_shared<store::MemoryStore>();
  return options;
}

// A syncer and its learners, each side on a thread of its own.
class World {
 public:
  World() {
    auto server = sync::Server::open(server_options());
    if (!server) {
      give_up(server.error().text());
    }
    server_ = std::move(*server);
    thread_ = JoiningThread([this] { server_->run(); });
    for (std::uint32_t seat = 0; seat < kLearners; ++seat) {
      sync::ScriptedOptions options;
      options.syncer = server_->address();
      options.run_id = "bench";
      options.seat = seat;
      options.streams = kStreams;
      options.layout = layout();
      options.step_time = kMillisecond;
      learners_.push_back(std::make_unique<sync::ScriptedLearner>(loop_, std::move(options)));
      learners_.back()->connect();
    }
  }
  ~World() {
    learners_.clear();
    server_->interrupt(0);
    thread_.join();
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Bytes per second over kCommits commits.
  double rate() {
    wait_for(kFragments + kWarmUp);
    const Nanos start = monotonic_now();
    wait_for(kFragments + kWarmUp + kCommits);
    const double bytes = 2.0 * kLearners * kCommits * kValues * sizeof(float);
    return bytes / seconds(monotonic_now() - start);
  }

 private:
  // Every learner has received that many broadcasts.
  void wait_for(std::size_t broadcasts) {
    const auto here = [&] {
      for (const auto& learner : learners_) {
        if (learner->digests().size() < broadcasts) {
          return false;
        }
      }
      return true;
    };
    if (!loop_.run_until(here, kLimit)) {
      give_up("the syncer does not come forward");
    }
  }

  net::Loop loop_;
  std::unique_ptr<sync::Server> server_;
  JoiningThread thread_;
  std::vector<std::unique_ptr<sync::ScriptedLearner>> learners_;
};

void run() {
  set_log_level(LogLevel::kError);
  const std::vector<std::uint8_t> from(kLearners * kValues * sizeof(float), 7);
  std::vector<std::uint8_t> to(from.size());
  std::vector<double> ratios;
  for (int i = 0; i < kSamples; ++i) {
    const double raw = raw_loopback(std::size_t{kLearners} * kStreams, from, to);
    const double syncer = World().rate();
    std::printf("raw loopback %s/s, push to broadcast %s/s\n", human_bytes(raw).c_str(),
                human_bytes(syncer).c_str());
    ratios.push_back(syncer / raw);
  }
  print_figure({"syncer/push_to_broadcast", "x raw loopback", 0.6, 0.85}, ratios);
}

}  // namespace
}  // namespace yeto::bench

int main() { yeto::bench::run(); }
