// SPDX-License-Identifier: Apache-2.0
// A whole syncer and scripted learners for benchmarks, each side on a thread of its own. Learners
// answer every pull at their next step; when all that are watched have a version, its commit
// counts. Checkpoints go to memory unless told otherwise, and stay out of the way (durability
// interval): the disk is not measured.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "yeto/base/clock.h"
#include "yeto/base/format.h"
#include "yeto/base/thread.h"
#include "yeto/store/object_store.h"
#include "yeto/sync/link/proxy_testing.h"
#include "yeto/sync/server/scripted_learner_testing.h"
#include "yeto/sync/server/server.h"

namespace yeto::bench {

struct WorldOptions {
  std::uint32_t learners = 2;
  std::uint32_t quorum = 0;  // 0: all
  std::uint16_t streams = 4;
  std::uint32_t fragments = 2;
  std::uint64_t values = 8U << 20;  // of a fragment
  CodecId push_codec = CodecId::kF32;
  CodecId broadcast_codec = CodecId::kF32;
  Nanos step_time = kMillisecond;
  Nanos lease = 5 * kSecond;
  Nanos heartbeat = kSecond;
  // This seat reaches the syncer through a proxy.
  std::optional<std::uint32_t> behind_proxy;
  std::uint32_t watched = 0;     // the first so many seats; 0: all
  std::filesystem::path status;  // of the syncer; empty: not written
};

[[noreturn]] inline void give_up(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

inline Layout layout_of(const WorldOptions& options) {
  std::vector<TensorSpec> tensors;
  for (std::uint32_t i = 0; i < options.fragments; ++i) {
    tensors.push_back(
        {strf("layers.{}.weight", i), {options.values / 1024, 1024}, DType::kF32, MergeMode::kAvg});
  }
  LayoutOptions layout;
  layout.fragments = options.fragments;
  layout.matrix_merge = MergeMode::kAvg;
  Result<Layout> made = make_layout(std::move(tensors), layout);
  if (!made) {
    give_up(made.error().text());
  }
  return std::move(*made);
}

inline std::unique_ptr<sync::Server> open_server(
    const WorldOptions& of,
    std::shared_ptr<store::ObjectStore> checkpoint = std::make_shared<store::MemoryStore>()) {
  sync::ServerOptions options;
  options.core.run_id = "bench";
  options.core.learners = of.learners;
  options.core.quorum = of.quorum;
  options.core.quorum_all = of.quorum == 0;
  options.core.grace_cap = 0;
  options.core.lease = of.lease;
  options.core.heartbeat = of.heartbeat;
  options.core.sync_interval_steps = 1;
  options.core.durability = sync::Durability::kInterval;
  options.core.checkpoint_every = 3600 * kSecond;
  options.core.push_codec = of.push_codec;
  options.core.broadcast_codec = of.broadcast_codec;
  options.outer = merge::OuterRule::of(merge::OuterKind::kNesterov);
  options.threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  options.checkpoint = std::move(checkpoint);
  options.status = of.status;
  auto server = sync::Server::open(std::move(options));
  if (!server) {
    give_up(server.error().text());
  }
  return std::move(*server);
}

class World {
 public:
  // With the address of a syncer that runs elsewhere, or with one of its own.
  explicit World(WorldOptions options, std::optional<net::Address> syncer = std::nullopt)
      : options_(std::move(options)) {
    if (!syncer) {
      server_ = open_server(options_);
      thread_ = JoiningThread([this] { server_->run(); });
    }
    const net::Address address = syncer ? *syncer : server_->address();
    const Layout layout = layout_of(options_);
    for (std::uint32_t seat = 0; seat < options_.learners; ++seat) {
      sync::ScriptedOptions learner;
      learner.syncer = address;
      if (options_.behind_proxy == seat) {
        proxy_ = std::make_unique<sync::Proxy>(address);
        learner.syncer = proxy_->address();
      }
      learner.run_id = "bench";
      learner.seat = seat;
      learner.streams = options_.streams;
      learner.layout = layout;
      learner.step_time = options_.step_time;
      learner.beat_every = 200 * kMillisecond;
      if (options_.watched == 0 || seat < options_.watched) {
        learner.on_version = [this](const wire::Offer& offer) { note(offer); };
      }
      learners_.push_back(std::make_unique<sync::ScriptedLearner>(loop_, std::move(learner)));
      learners_.back()->connect();
    }
  }
  ~World() {
    learners_.clear();
    if (server_) {
      server_->interrupt(0);
      thread_.join();
    }
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  sync::ScriptedLearner& learner(std::uint32_t seat) { return *learners_[seat]; }
  sync::Proxy& proxy() { return *proxy_; }
  std::size_t commits() const { return times_.size(); }

  void wait(const std::function<bool()>& done) {
    constexpr Nanos kLimit = 120 * kSecond;
    if (!loop_.run_until(done, kLimit)) {
      give_up("the syncer does not come forward");
    }
  }
  void pass_time(Nanos time) {
    (void)loop_.run_until([] { return false; }, time);
  }
  // The initial values are not a commit.
  void wait_for_commits(std::size_t count) {
    wait([&] { return times_.size() >= count; });
  }
  // Seconds from each commit to the next one.
  std::vector<double> intervals(std::size_t count) {
    const std::size_t first = times_.size();
    wait_for_commits(first + count + 1);
    std::vector<double> out;
    for (std::size_t i = first + 1; i <= first + count; ++i) {
      out.push_back(seconds(times_[i] - times_[i - 1]));
    }
    return out;
  }

 private:
  void note(const wire::Offer& offer) {
    const std::uint32_t all = options_.watched == 0 ? options_.learners : options_.watched;
    if (offer.version > 0 && ++here_[{offer.fragment, offer.version}] == all) {
      here_.erase({offer.fragment, offer.version});
      times_.push_back(monotonic_now());
    }
  }

  const WorldOptions options_;
  net::Loop loop_;
  std::unique_ptr<sync::Server> server_;
  JoiningThread thread_;
  std::unique_ptr<sync::Proxy> proxy_;
  std::vector<std::unique_ptr<sync::ScriptedLearner>> learners_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> here_;
  std::vector<Nanos> times_;
};

}  // namespace yeto::bench
