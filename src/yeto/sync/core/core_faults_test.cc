// SPDX-License-Identifier: Apache-2.0
// Goal: whatever fails, the invariants hold at every event (the core checks them itself) and the
// run ends once all faults heal. Method: the core in a made-up world (core_world.h), random faults
// by seed.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "yeto/base/rng.h"
#include "yeto/sync/core/core_world.h"

namespace yeto::sync {
namespace {

// ---- random faults
// ---------------------------------------------------------------------------------------

// Three seats under random closes, silences, returns, slow and broken pushes and failing
// checkpoints; then all faults heal and the run must end well. Ledger, versions and buffers must be
// right all the time.
class RandomFaults {
 public:
  explicit RandomFaults(std::uint64_t seed) : rng_(seed), world_(faulty_options(seed)) {
    world_.must_be_saved = seed % 2 == 0;
    for (Seat seat = 0; seat < 3; ++seat) {
      current_[seat] = &world_.connect(seat, ++incarnation_);
    }
  }
  void run() {
    for (int turn = 0; turn < 400 && !world_.ended; ++turn) {
      fault();
      work(0.7);
      world_.pass(static_cast<Nanos>(1 + rng_.below(1500)) * kMillisecond, 250 * kMillisecond);
      check();
    }
    heal();
    for (int turn = 0; turn < 4000 && !world_.ended; ++turn) {
      work(1.0);
      world_.pass(kSecond, 500 * kMillisecond);
    }
    check();
    ASSERT_TRUE(world_.ended) << "phase " << static_cast<int>(world_.core.status(world_.now).phase)
                              << ": " << world_.core.status(world_.now).waiting_for;
    EXPECT_EQ(world_.ended->exit_code, 0) << world_.ended->reason;
  }
  std::size_t late() const { return late_; }
  std::size_t unasked() const { return unasked_; }

 private:
  static CoreOptions faulty_options(std::uint64_t seed) {
    CoreOptions options = options_for(3);
    options.total_steps = 60;
    options.quorum = seed % 3 == 0 ? 0 : 2;
    options.max_lag = seed % 5 == 0 ? 0 : 2;
    // Automatic, exactly one round, or one round and a little.
    const std::uint64_t budgets[] = {0, 3 * 16, 3 * 16 + 24};
    options.max_buffer = budgets[seed / 2 % 3];
    if (seed % 4 == 1) {
      options.push_codec = CodecId::kF32;
      options.broadcast_codec = CodecId::kQ4;
    }
    if (seed % 7 == 0) {
      options.fixed_roster = {0, 1, 2};
      options.recover_timeout = 100000 * kSecond;
    }
    options.round_timeout = 60 * kSecond;
    options.durability = seed % 2 == 0 ? Durability::kCommit : Durability::kInterval;
    return options;
  }
  bool chance(double p) { return rng_.uniform() < p; }
  void fault() {
    world_.hold_transfers = chance(0.2);
    world_.hold_sends = chance(0.2);
    world_.fail_checkpoints = chance(0.05);
    world_.finite_merges = !chance(0.03);
    if (chance(0.3)) {
      world_.release_held();
    }
    for (auto& [seat, learner] : current_) {
      if (learner->closed && chance(0.5)) {
        reconnect(seat);
      } else if (!learner->closed && chance(0.04)) {
        world_.disconnect(*learner);
        std::erase_if(world_.held, [&](const Event& event) { return of(event, learner->conn); });
      } else if (chance(0.03)) {
        world_.silent.insert(seat);
      } else if (chance(0.3)) {
        world_.silent.erase(seat);
      }
    }
  }
  static bool of(const Event& event, ConnId conn) {
    const auto* arrived = std::get_if<TransferArrived>(&event);
    const auto* sent = std::get_if<TransferSent>(&event);
    return (arrived != nullptr && arrived->conn == conn) || (sent != nullptr && sent->conn == conn);
  }
  void reconnect(Seat seat) {
    const TestLearner before = *current_[seat];
    const bool same = !before.refused && chance(0.5);
    std::erase_if(world_.held, [&](const Event& event) { return of(event, before.conn); });
    TestLearner& again =
        world_.connect(seat, same ? before.incarnation : ++incarnation_, [&](wire::Hello& hello) {
          if (same) {
            hello.session = before.welcome.session;
            hello.held = before.held;
            hello.local_step = before.beat.local_step;
            hello.tokens = before.beat.tokens;
          }
        });
    if (same) {
      again.beat = before.beat;
    }
    again.beat.phase = wire::Phase::kTrain;
    current_[seat] = &again;
    if (same && again.welcome.resumed == 0 && !again.refused) {
      offer_unasked(again, before);
    }
  }
  // A process that lived through a break offers what it did on the bases it still holds.
  void offer_unasked(TestLearner& again, const TestLearner& before) {
    for (std::uint32_t fragment = 0; fragment < before.held.size() && !again.closed; ++fragment) {
      const wire::Held held = before.held[fragment];
      if (held.term == 0 || !chance(0.7)) {
        continue;
      }
      wire::Pull ask;
      ask.term = held.term;
      ask.fragment = fragment;
      ask.base_version = held.version;
      world_.push(again, ask, 10, 1);
      const bool refused =
          !again.verdicts.empty() && again.verdicts.back().outcome == wire::Outcome::kDropped;
      unasked_ += refused ? 0 : 1;
    }
  }
  void work(double diligence) {
    for (auto& [seat, learner] : current_) {
      if (learner->closed || world_.silent.contains(seat)) {
        continue;
      }
      const bool ready = std::all_of(learner->held.begin(), learner->held.end(),
                                     [](const wire::Held& held) { return held.term != 0; });
      if (ready && !learner->final_state && chance(diligence)) {
        world_.step(*learner);
      }
      while (!learner->closed && !learner->pulls.empty() && chance(diligence)) {
        const wire::Pull ask = learner->pulls.front();
        learner->pulls.erase(learner->pulls.begin());
        const std::uint64_t steps = ask.sweep != 0 && chance(0.3) ? 0 : 1;
        world_.push(*learner, ask, steps * 10, steps);
      }
      if (!learner->closed && learner->final_state && chance(diligence)) {
        world_.acknowledge(*learner);
      }
    }
  }
  void heal() {
    world_.hold_transfers = world_.hold_sends = world_.fail_checkpoints = false;
    world_.finite_merges = true;
    world_.silent.clear();
    world_.release_held();
    for (auto& [seat, learner] : current_) {
      if (learner->closed && !world_.ended && learner->goodbyes.empty()) {
        reconnect(seat);
      }
    }
  }
  void check() {
    world_.expect_ledger_balances();
    std::map<std::uint32_t, std::uint64_t> versions;
    for (const TapeRound& commit : world_.commits()) {
      EXPECT_EQ(commit.version, versions[commit.fragment] + 1);
      EXPECT_TRUE(!commit.responded.empty() || (commit.sweep && !commit.carried.empty()));
      versions[commit.fragment] = commit.version;
    }
    late_ = 0;
    for (const TapeRound& commit : world_.commits()) {
      late_ += commit.carried.size();
    }
    const CoreStatus status = world_.core.status(world_.now);
    std::uint64_t bytes = 0;
    for (const auto& [buffer, size] : world_.push_buffers) {
      bytes += size;
    }
    if (status.effective) {
      EXPECT_LE(bytes, status.effective->max_buffer);
      EXPECT_LE(status.buffer_bytes, status.effective->max_buffer);
    }
    EXPECT_LE(world_.buffers.size(), world_.push_buffers.size() + 4u * 4u + 4u + 3u + 2u)
        << "images with their chains, finals, retired images, a merge under way";
    check_counted_once();
  }
  void check_counted_once() {
    std::set<std::tuple<Seat, std::uint32_t, std::uint64_t>> counted;
    std::set<BufferId> merged;
    for (const Merge& merge : world_.committed) {
      for (const PushInput& push : merge.pushes) {
        EXPECT_TRUE(merged.insert(push.buffer).second) << "a push is merged twice";
        EXPECT_TRUE(counted.insert({push.seat, merge.fragment, push.base_version}).second)
            << "work of seat " << push.seat << " on version " << push.base_version
            << " of fragment " << merge.fragment << " is merged twice";
      }
    }
  }

  Rng rng_;
  World world_;
  std::size_t late_ = 0;     // pushes merged late
  std::size_t unasked_ = 0;  // taken though nobody asked
  std::uint64_t incarnation_ = 1000;
  std::map<Seat, TestLearner*> current_;
};

TEST(CoreTest, RandomFaultsKeepTheInvariantsAndTheRunEnds) {
  std::size_t late = 0;
  std::size_t unasked = 0;
  for (std::uint64_t seed = 1; seed <= 210; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomFaults faults(seed);
    faults.run();
    if (HasFatalFailure() || HasNonfatalFailure()) {
      return;
    }
    late += faults.late();
    unasked += faults.unasked();
  }
  EXPECT_GT(late, 0u) << "late work was merged somewhere";
  EXPECT_GT(unasked, 0u) << "work that nobody asked for was taken somewhere";
}

}  // namespace
}  // namespace yeto::sync
