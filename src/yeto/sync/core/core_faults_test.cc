// SPDX-License-Identifier: Apache-2.0
// Goal: whatever fails, the invariants hold at every event (the core checks them itself) and the
// run ends once all faults heal. Method: the core in a made-up world (core_world.h), random faults
// by seed.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

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

 private:
  static CoreOptions faulty_options(std::uint64_t seed) {
    CoreOptions options = options_for(3);
    options.total_steps = 60;
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
      EXPECT_FALSE(commit.responded.empty());
      versions[commit.fragment] = commit.version;
    }
    EXPECT_LE(world_.buffers.size(), 4u + 4u + 2u * 3u * 2u) << "images, finals, pushes in flight";
  }

  Rng rng_;
  World world_;
  std::uint64_t incarnation_ = 1000;
  std::map<Seat, TestLearner*> current_;
};

TEST(CoreTest, RandomFaultsKeepTheInvariantsAndTheRunEnds) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RandomFaults(seed).run();
    if (HasFatalFailure() || HasNonfatalFailure()) {
      break;
    }
  }
}

}  // namespace
}  // namespace yeto::sync
