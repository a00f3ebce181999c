// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/sim/plan.h"

#include <algorithm>
#include <string_view>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/codec/codec.h"

namespace yeto::sync::sim {
namespace {

Nanos between(Rng& rng, Nanos least, Nanos most) {
  return least + static_cast<Nanos>(rng.below(static_cast<std::uint64_t>(most - least) + 1));
}

bool chance(Rng& rng, double share) { return rng.uniform() < share; }

Layout layout_of_seed(Rng& rng) {
  const auto fragments = static_cast<std::uint32_t>(1 + rng.below(6));
  std::vector<TensorSpec> tensors(fragments + rng.below(3));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = strf("layers.{}.w", i);
    tensors[i].shape = {1 + rng.below(4), 1 + rng.below(6)};
  }
  return *make_layout(std::move(tensors), {.fragments = fragments});
}

CoreOptions core_of_seed(Rng& rng, std::uint32_t fragments, std::uint32_t learners) {
  CoreOptions core;
  core.run_id = "run";
  core.learners = learners;
  core.quorum = chance(rng, 0.3) ? static_cast<std::uint32_t>(1 + rng.below(learners)) : 0;
  core.start_timeout = 20 * kSecond;
  core.start_quorum = 1;
  core.pipeline = static_cast<std::uint32_t>(1 + rng.below(3));
  core.sync_interval_steps = static_cast<std::uint32_t>(fragments * (1 + rng.below(3)));
  core.round_timeout = between(rng, 20 * kSecond, 60 * kSecond);
  core.final_timeout = 40 * kSecond;
  core.lease = between(rng, 2 * kSecond, 5 * kSecond);
  core.total_steps = fragments * (2 + rng.below(4));
  if (chance(rng, 0.2)) {
    core.grace_cap = between(rng, 0, kSecond);
  }
  core.merge_alpha = chance(rng, 0.2) ? 0.5 : 0.0;
  core.delta_blended = chance(rng, 0.2);
  static constexpr CodecId kCodecs[] = {CodecId::kF32, CodecId::kBf16, CodecId::kQ4};
  const auto codec = [&] { return kCodecs[rng.below(std::size(kCodecs))]; };
  core.max_lag = static_cast<std::uint32_t>(rng.below(3));
  core.push_codec = codec();
  core.broadcast_codec = codec();
  core.durability = chance(rng, 0.5) ? Durability::kCommit : Durability::kInterval;
  core.checkpoint_every = between(rng, kSecond, 8 * kSecond);
  return core;
}

IslandShape island_of_seed(Rng& rng, Seat seat, Nanos step) {
  IslandShape island;
  island.seat = seat;
  island.starts_at = chance(rng, 0.8) ? between(rng, 0, kSecond) : between(rng, 0, 15 * kSecond);
  island.step = std::max<Nanos>(kMillisecond, from_seconds(seconds(step) * (0.7 + rng.uniform())));
  island.step_jitter = chance(rng, 0.5) ? 0.3 : 0.0;
  island.tokens = 16 + rng.below(64);
  island.link.bytes_per_s = chance(rng, 0.3) ? 0.0 : 200.0 + 20000.0 * rng.uniform();
  island.link.one_way = between(rng, 100 * kMicrosecond, 100 * kMillisecond);
  island.link.jitter = chance(rng, 0.5) ? between(rng, 0, 50 * kMillisecond) : 0;
  island.link.loss = chance(rng, 0.3) ? 0.02 : 0.0;
  island.clock.offset = between(rng, 0, 120 * kSecond);
  island.clock.ppm = static_cast<std::int64_t>(rng.below(401)) - 200;
  return island;
}

Fault fault_of_seed(Rng& rng, const Plan& plan, Nanos span) {
  static constexpr FaultKind kKinds[] = {
      FaultKind::kKillIsland, FaultKind::kKillIsland,    FaultKind::kCrashIsland,
      FaultKind::kHangIsland, FaultKind::kPauseIsland,   FaultKind::kPartition,
      FaultKind::kPartition,  FaultKind::kCutConnection, FaultKind::kCutConnection,
      FaultKind::kKillSyncer, FaultKind::kCrashSyncer,   FaultKind::kPauseSyncer,
      FaultKind::kDiskFails,  FaultKind::kDiskSlow,      FaultKind::kClockJump,
      FaultKind::kFinish,     FaultKind::kBadValues,     FaultKind::kBadValues,
      FaultKind::kCutData,    FaultKind::kCutData,
  };
  Fault fault;
  fault.kind = kKinds[rng.below(std::size(kKinds))];
  fault.who = static_cast<std::uint32_t>(rng.below(plan.islands.size()));
  fault.at = between(rng, 0, span);
  fault.lasts = chance(rng, 0.5) ? between(rng, kMillisecond, 2 * kSecond)
                                 : between(rng, kSecond, 15 * kSecond);
  if (fault.kind == FaultKind::kClockJump) {
    fault.who = chance(rng, 0.3) ? kSyncerItself : fault.who;
    fault.lasts = between(rng, 0, 60 * kSecond);
  } else if (fault.kind >= FaultKind::kKillSyncer) {
    fault.who = kSyncerItself;
  } else if (fault.kind == FaultKind::kKillIsland && fault.who > 0 && chance(rng, 0.15) &&
             plan.core.fixed_roster.empty()) {
    fault.lasts = 0;  // for good
  }
  return fault;
}

Nanos longest_step(const Plan& plan) {
  Nanos out = 0;
  for (const IslandShape& island : plan.islands) {
    out = std::max(out, from_seconds(seconds(island.step) * (1.0 + island.step_jitter)));
  }
  return out;
}

// About how long a round takes without faults.
Nanos round_span(const Plan& plan) {
  const auto fragments = static_cast<double>(plan.layout.fragments.size());
  const double steps =
      std::max(1.0, static_cast<double>(plan.core.sync_interval_steps) / fragments) + 1.0;
  Nanos slowest = 0;
  for (const IslandShape& island : plan.islands) {
    const double rate = island.link.bytes_per_s;
    const double wire_s =
        rate > 0.0 ? 8.0 * static_cast<double>(plan.layout.largest_fragment()) / rate : 0.0;
    const Nanos loss = island.link.loss > 0.0 ? kSecond : 0;
    slowest = std::max(
        slowest, from_seconds(wire_s) + loss + 8 * (island.link.one_way + island.link.jitter));
  }
  return from_seconds(seconds(longest_step(plan)) * steps) + slowest + 300 * kMillisecond;
}

}  // namespace

std::string_view fault_name(FaultKind kind) {
  static constexpr std::string_view kNames[] = {
      "kill",         "crash",      "hang",         "pause",       "partition",
      "cut",          "data cut",   "bad values",   "syncer kill", "syncer crash",
      "syncer pause", "disk fails", "disk is slow", "clock jump",  "finish"};
  return kNames[static_cast<std::size_t>(kind)];
}

Nanos last_heal(const Plan& plan) {
  Nanos out = 0;
  for (const Fault& fault : plan.faults) {
    const bool passing = fault.kind == FaultKind::kClockJump || fault.kind == FaultKind::kFinish;
    out = std::max(out, fault.at + (passing ? 0 : fault.lasts));
  }
  for (const IslandShape& island : plan.islands) {
    out = std::max(out, island.starts_at);
  }
  return out;
}

Nanos settle_bound(const Plan& plan) {
  const auto rounds =
      static_cast<Nanos>(plan.core.total_steps + 2 * plan.layout.fragments.size() + 4);
  const Nanos stall = std::max(60 * kSecond, 10 * longest_step(plan));
  return 2 * rounds * round_span(plan) + plan.core.start_timeout + 3 * plan.core.round_timeout +
         2 * stall + 2 * plan.core.final_timeout + 10 * plan.core.lease + 60 * kSecond;
}

Plan plan_of_seed(std::uint64_t seed) {
  Rng rng(mix64(seed * 0x9e3779b97f4a7c15ULL + 0x706c616e));
  Plan plan;
  plan.seed = seed;
  plan.layout = layout_of_seed(rng);
  const auto fragments = static_cast<std::uint32_t>(plan.layout.fragments.size());
  const auto learners = static_cast<std::uint32_t>(2 + rng.below(chance(rng, 0.8) ? 3 : 7));
  plan.core = core_of_seed(rng, fragments, learners);
  static constexpr merge::OuterKind kOuters[] = {merge::OuterKind::kNesterov,
                                                 merge::OuterKind::kSgd, merge::OuterKind::kDirect,
                                                 merge::OuterKind::kAuto};
  plan.outer = merge::OuterRule::of(kOuters[rng.below(std::size(kOuters))]);
  plan.syncer_clock = {between(rng, 0, 120 * kSecond),
                       static_cast<std::int64_t>(rng.below(401)) - 200};
  const Nanos step = between(rng, 50 * kMillisecond, 1500 * kMillisecond);
  for (Seat seat = 0; seat < learners; ++seat) {
    plan.islands.push_back(island_of_seed(rng, seat, step));
  }
  plan.core.lockstep = chance(rng, 0.06);
  if (plan.core.lockstep) {
    for (IslandShape& island : plan.islands) {
      island.starts_at = between(rng, 0, kSecond);
    }
    plan.core.merge_alpha = 0.0;
    return plan;  // its first lost session ends it: no faults
  }
  if (chance(rng, 0.08)) {
    for (const IslandShape& island : plan.islands) {
      plan.core.fixed_roster.push_back(island.seat);
    }
  }
  if (chance(rng, 0.15)) {
    plan.core.data_leases = true;
    plan.core.epochs = 1 + rng.below(2);
    plan.rows = 50 + rng.below(400);
    for (IslandShape& island : plan.islands) {
      island.rows = 1 + rng.below(8);
    }
  }
  const Nanos span =
      2 * kSecond + static_cast<Nanos>(plan.core.total_steps) * round_span(plan) * 2 / 3;
  const std::uint64_t faults = rng.below(5) * rng.below(3);
  for (std::uint64_t i = 0; i < faults; ++i) {
    plan.faults.push_back(fault_of_seed(rng, plan, span));
  }
  std::sort(plan.faults.begin(), plan.faults.end(),
            [](const Fault& a, const Fault& b) { return a.at < b.at; });
  return plan;
}

std::string describe(const Plan& plan) {
  std::string out = strf(
      "{} islands, {} fragments, H {}, {} rounds, codec {}, {}, lease {:.1f} s, pipeline {}\n",
      plan.islands.size(), plan.layout.fragments.size(), plan.core.sync_interval_steps,
      plan.core.total_steps, codec::codec_name(plan.core.broadcast_codec.value_or(CodecId::kF32)),
      plan.core.durability == Durability::kCommit ? "commit" : "interval", seconds(plan.core.lease),
      plan.core.pipeline);
  for (const IslandShape& island : plan.islands) {
    out += strf("  seat {}: from {:.3f} s, step {:.3f} s, link {:.0f} B/s, {:.1f} ms one way\n",
                island.seat, seconds(island.starts_at), seconds(island.step),
                island.link.bytes_per_s, seconds(island.link.one_way) * 1e3);
  }
  for (const Fault& fault : plan.faults) {
    out += strf("  at {:.3f} s: {} of {} for {:.3f} s\n", seconds(fault.at), fault_name(fault.kind),
                fault.who == kSyncerItself ? "the syncer" : strf("island {}", fault.who),
                seconds(fault.lasts));
  }
  return out;
}

}  // namespace yeto::sync::sim
