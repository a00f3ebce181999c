// SPDX-License-Identifier: Apache-2.0
// Planning: what a fleet would do before it is paid for. The real core and clients run with tensors
// that are sizes only, links, steps and failures as given; the report says how much of the fleet's
// work reaches the model.
//
// A large fleet for a day is more events than anybody waits for. The run is simulated from its
// start until `hours` have passed or `learner_rounds` pushes were asked for, whichever comes first;
// rates are measured over what was simulated after the first commit, and the report names both
// times. With more than 64 learners heartbeats and leases are longer (the report says how long), so
// that they do not outnumber everything else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "yeto/base/result.h"
#include "yeto/sync/sim/plan.h"

namespace yeto::sync::sim {

struct PlanningOptions {
  std::uint32_t learners = 8;
  std::uint64_t params = 0;  // trainable values
  std::uint32_t fragments = 8;
  CodecId codec = CodecId::kBf16;  // both directions
  std::uint32_t sync_interval_steps = 24;
  std::uint32_t pipeline = 2;
  std::uint32_t quorum = 0;    // 0: auto
  double bytes_per_s = 125e6;  // of each learner's link, each direction
  Nanos round_trip = from_millis(40);
  double syncer_bytes_per_s = 0.0;  // of the syncer's link, each direction; 0: unlimited
  Nanos step = kSecond;
  double step_jitter = 0.1;
  std::uint64_t tokens = 8192;   // of a step
  Nanos mtbf = 0;                // of one learner; 0: nothing fails
  Nanos restart = 60 * kSecond;  // until its process is there again
  double hours = 1.0;
  std::uint64_t learner_rounds = 0;  // 0: a bound that takes well under a minute
  bool everything = false;           // no such bound
  std::uint64_t seed = 1;
};

// kRange for numbers that make no fleet.
Status check(const PlanningOptions& options);
Plan plan_of(const PlanningOptions& options);

struct TimelinePoint {
  double at_s = 0.0;
  double training = 0.0;       // islands that train, share of all
  double participation = 0.0;  // of the captured
  double goodput = 0.0;        // of the ideal
  double round_s = 0.0;        // launch to commit, mean
  std::uint64_t faults = 0;
};

struct PlanningReport {
  PlanningOptions options;
  double simulated_s = 0.0;
  double measured_s = 0.0;  // of it, after the first commit
  double lease_s = 0.0;
  double first_commit_s = 0.0;
  std::uint64_t commits = 0;
  std::uint64_t faults = 0;
  double goodput = 0.0;        // tokens merged / tokens of a fleet that never waits or fails
  double trained = 0.0;        // tokens trained, of the same
  double participation = 0.0;  // answered / captured
  double answered_of_all = 0.0;
  double staleness_mean = 0.0;  // versions behind, at heartbeats
  double round_p50_s = 0.0;
  double round_p99_s = 0.0;
  double steps_per_hour = 0.0;          // global steps
  double bytes_per_learner_hour = 0.0;  // both directions
  double syncer_bytes_per_s = 0.0;      // both directions
  double ready_p50_s = 0.0;             // from a process's start to its first step
  double buffer_bytes = 0.0;            // most, at the syncer
  std::vector<TimelinePoint> timeline;
  std::string violation;  // a rule that was broken; empty: none
};

PlanningReport run_planning(const PlanningOptions& options);

// For people, for programs ("yeto.sim/1"), and as a page with drawn curves.
std::string report_text(const PlanningReport& report);
std::string report_json(const PlanningReport& report);
std::string timeline_html(const PlanningReport& report);
// An image of the curves, 8 bits a pixel.
Bytes timeline_png(const PlanningReport& report);

// "1.2s", "80ms", "2h", "15m"; kType.
Result<Nanos> parse_duration(std::string_view text);
// "1Gbit", "100Mbit", "12.5MB" per second; in bytes per second. kType.
Result<double> parse_rate(std::string_view text);

}  // namespace yeto::sync::sim
