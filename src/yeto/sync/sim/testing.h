// SPDX-License-Identifier: Apache-2.0
// Plans for the tests of this room: a healthy small run that each test changes in one way.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "yeto/base/format.h"
#include "yeto/sync/sim/world.h"

namespace yeto::sync::sim::testing {

// Sanitized builds are ten times slower; they run fewer worlds.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t kShare = 25;
#else
inline constexpr std::uint64_t kShare = 1;
#endif

inline Layout layout_of(std::uint32_t fragments, std::uint64_t values) {
  std::vector<TensorSpec> tensors(fragments);
  for (std::uint32_t i = 0; i < fragments; ++i) {
    tensors[i].name = strf("layers.{}.w", i);
    tensors[i].shape = {values};
  }
  return *make_layout(std::move(tensors), {.fragments = fragments});
}

// `count` islands with steps of a second, real tensors of a few values, rounds every second.
inline Plan healthy(std::uint32_t count, std::uint32_t fragments = 2) {
  Plan plan;
  plan.layout = layout_of(fragments, 6);
  plan.core.run_id = "run";
  plan.core.learners = count;
  plan.core.start_quorum = 1;
  plan.core.start_timeout = 20 * kSecond;
  plan.core.sync_interval_steps = fragments;
  plan.core.total_steps = 40;
  plan.core.push_codec = CodecId::kF32;
  plan.core.broadcast_codec = CodecId::kF32;
  plan.core.durability = Durability::kCommit;
  for (Seat seat = 0; seat < count; ++seat) {
    IslandShape island;
    island.seat = seat;
    island.starts_at = from_millis(10.0 * seat);
    island.step = kSecond + from_millis(7.0 * seat);
    island.link.one_way = from_millis(5 + 3.0 * seat);
    plan.islands.push_back(island);
  }
  return plan;
}

// Tensors that are sizes only.
inline Plan phantom(std::uint32_t count, std::uint32_t fragments, std::uint64_t values) {
  Plan plan = healthy(count, fragments);
  plan.values = ValueKind::kPhantom;
  plan.layout = layout_of(fragments, values);
  return plan;
}

inline Outcome run(const Plan& plan) { return World(plan).run(); }

inline Outcome run_broken(Plan plan, Breakage breakage) {
  plan.breakage = breakage;
  return World(plan).run();
}

inline void expect_good(const Plan& plan) {
  const Outcome outcome = run(plan);
  EXPECT_TRUE(outcome.good()) << outcome.violation << "\n" << describe(plan);
  EXPECT_TRUE(outcome.ended) << outcome.end_reason;
}

inline void expect_broken(const Plan& plan, Breakage breakage) {
  EXPECT_FALSE(run_broken(plan, breakage).good())
      << "the purposely broken world was found to be fine\n"
      << describe(plan);
}

inline Fault fault(FaultKind kind, std::uint32_t who, double at_s, double lasts_s) {
  return {kind, who, from_seconds(at_s), from_seconds(lasts_s)};
}

}  // namespace yeto::sync::sim::testing
