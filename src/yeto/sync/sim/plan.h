// SPDX-License-Identifier: Apache-2.0
// Plan: everything a world is made of, as plain values: the run's settings, learners, links,
// clocks, disk and the faults with their times. A plan and its seed decide every event of the
// world. Times are virtual nanoseconds from the start of the world; sizes are bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "yeto/base/clock.h"
#include "yeto/merge/merge.h"
#include "yeto/sync/core/events.h"
#include "yeto/tensor/layout.h"

namespace yeto::sync::sim {

// One island's path to the syncer. Rates in bytes per second, each direction; 0: unlimited.
struct LinkShape {
  double bytes_per_s = 0.0;
  Nanos one_way = from_millis(1);
  Nanos jitter = 0;     // each frame is later by up to this
  double loss = 0.0;    // share of the frames that are sent again, 200 ms later or more
  Nanos idle_drop = 0;  // a flow without traffic for this long is forgotten on the way; 0: never
};

// A process's monotonic clock against virtual time.
struct ClockShape {
  Nanos offset = 0;
  std::int64_t ppm = 0;  // fast (> 0) or slow
};

struct IslandShape {
  Seat seat = 0;
  Nanos starts_at = 0;
  Nanos step = kSecond;           // mean duration of an optimizer step
  double step_jitter = 0.0;       // each step is longer or shorter by up to this share
  std::uint64_t tokens = 64;      // of a step
  std::uint64_t limit_steps = 0;  // it says LIMIT after this many steps; 0: never
  LinkShape link;
  ClockShape clock;
  std::string run_id;      // empty: the run's
  std::uint64_t rows = 0;  // data leases: positions that a step takes; 0: none
};

enum class FaultKind : std::uint8_t {
  kKillIsland,     // the process dies, its sockets close; a new one after `lasts` (0: never)
  kCrashIsland,    // its machine dies: nothing more is sent, not even a close; as above
  kHangIsland,     // the trainer stands still for `lasts`; heartbeats go on
  kPauseIsland,    // the whole process stands still for `lasts`
  kPartition,      // no byte passes for `lasts`, both ways
  kCutConnection,  // the connection is reset
  kCutData,        // only its data streams are reset; they attach again
  kBadValues,      // the island's values, and so its next pushes, are not finite
  kKillSyncer,     // dies; started again after `lasts` from what is durable
  kCrashSyncer,    // its machine dies, sockets stay half-open
  kPauseSyncer,    // stands still for `lasts`
  kDiskFails,      // writes fail for `lasts`
  kDiskSlow,       // writes take 100 times longer for `lasts`
  kClockJump,      // the monotonic clock of island `who` (or the syncer) jumps ahead by `lasts`
  kFinish,         // somebody asks to finish
};
std::string_view fault_name(FaultKind kind);
inline constexpr std::uint32_t kSyncerItself = 0xffffffff;
inline constexpr std::uint32_t kAnyIsland = 0xffffffff;

struct Fault {
  FaultKind kind = FaultKind::kKillIsland;
  std::uint32_t who = 0;  // index of the island; kSyncerItself
  Nanos at = 0;
  Nanos lasts = 0;
};

// Purposely wrong glue, one for each rule a test shows to hold: with it the checks must fail.
enum class Breakage : std::uint8_t {
  kNone,
  kNoExpiry,              // the syncer's clock does not move for the core: no lease ever ends
  kHungCountsAsLive,      // the heartbeat of a hung trainer claims new steps
  kTermNotRaised,         // a restarted syncer takes the term it had before
  kSecondInit,            // initial values are loaded again into a state that has some
  kSeatsByArrival,        // merges are ordered by arrival and not by seat
  kDigestNotCompared,     // a learner takes an image without looking at its digest
  kLoseFrame,             // a lost control frame does not cut its connection
  kTotalTimeout,          // a transfer is given up after 10 s, although it makes progress
  kNoKeepalive,           // an idle flow is not kept open and its end is not noticed
  kHeartbeatsBehindData,  // control frames wait behind bulk data, which renews no lease
  kNanPasses,             // values that are not finite are pushed and called finite
  kStaleCheckpoint,       // a restart finds the checkpoint before the last
  kTornCheckpoint,        // a killed write leaves half a manifest
  kBroadcastBeforeSave,   // the core is told that a checkpoint is durable when it has just begun
  kPushTwice,             // each push is merged twice
  kDeadIsHeard,           // a connection's end is not told to the core
  kLearnersClock,         // leases are judged by the clock of the learner that speaks
  kAnyRun,                // HELLO's run id is not compared
  kForgetFree,            // buffers are never freed
  kStaleTokens,           // a restarted process counts its tokens from zero
  kOverwriteSkipped,      // the first application after a join does not overwrite
  kOtherOuter,            // a restarted syncer takes another momentum
  kRefuseQ4,              // a learner takes no q4 image
  kMissingNotSent,        // what a lost data stream carried is not sent again
  kResetSkipped,          // values that are not finite do not go back to the anchor
};

enum class ValueKind : std::uint8_t { kReal, kPhantom };

struct Plan {
  std::uint64_t seed = 1;
  ValueKind values = ValueKind::kReal;
  Layout layout;     // of small tensors (real), or as large as wanted (phantom)
  CoreOptions core;  // run_id and term are filled by the world
  merge::OuterRule outer;
  merge::WeightRule weights = merge::WeightRule::kTokens2;
  merge::Correction correction = merge::Correction::kNone;
  // Values of a fresh process, one vector per fragment; empty: made up from the seed.
  std::vector<std::vector<float>> initial;
  ClockShape syncer_clock;
  std::vector<IslandShape> islands;
  std::vector<Fault> faults;
  // A connection is cut right before its k-th control frame is delivered (1, 2, …; 0: never), over
  // all connections of the island.
  std::uint32_t cut_island = 0;
  std::uint64_t cut_before_frame = 0;
  // The process that receives the k-th piece of a transfer of this kind is killed at it (0: never).
  wire::TransferKind kill_in = wire::TransferKind::kBroadcast;
  std::uint32_t kill_at_piece = 0;
  bool kill_sender = false;
  std::uint32_t kill_island = kAnyIsland;  // only in transfers of this one
  std::uint32_t pieces = 0;  // of each transfer; 0: one per second of its time on the wire, 1 to 20
  double syncer_bytes_per_s = 0.0;  // the syncer's own link; 0: unlimited
  double merge_bytes_per_s = 4e9;   // of pushes, on the syncer's worker
  double disk_bytes_per_s = 1e9;
  Nanos disk_latency = from_millis(2);
  bool shadow = false;     // every merge is done once more by jobs that are never restarted
  std::uint64_t rows = 0;  // data leases: positions of an epoch
  Nanos max_alone = 600 * kSecond;
  std::uint64_t stop_after_commits = 0;  // 0: no such end
  Nanos end_at = 0;  // stop here, whatever the state (planning); 0: when the run has ended
  Nanos settle = 0;  // after the last fault the run must end within this; 0: from the plan's sizes
  Breakage breakage = Breakage::kNone;
};

// When the last fault has healed.
Nanos last_heal(const Plan& plan);
// A bound for how long a run of this plan may take after that.
Nanos settle_bound(const Plan& plan);

// The plan of a seed: 2 to 8 learners, 1 to 6 fragments, tens of rounds, real small tensors.
Plan plan_of_seed(std::uint64_t seed);
// In words, one line per island and fault: what a failing seed is printed with.
std::string describe(const Plan& plan);

}  // namespace yeto::sync::sim
