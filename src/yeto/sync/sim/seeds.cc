// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/sim/seeds.h"

#include <utility>

#include "yeto/base/rng.h"

namespace yeto::sync::sim {
namespace {

constexpr std::size_t kFailuresKept = 10;

}  // namespace

SeedReport run_seeds(std::uint64_t first, std::uint64_t last,
                     const std::function<void(Plan&)>& change) {
  SeedReport report;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    Plan plan = plan_of_seed(seed);
    if (change) {
      change(plan);
    }
    const Outcome outcome = World(plan).run();
    ++report.worlds;
    report.events += outcome.events;
    report.commits += outcome.totals.commits;
    report.virtual_s += seconds(outcome.now);
    report.tape_hash = mix64(report.tape_hash ^ outcome.tape_hash);
    if (outcome.good()) {
      continue;
    }
    ++report.failed;
    if (report.failures.size() < kFailuresKept) {
      report.failures.push_back({seed, outcome.violation, smallest_failing(std::move(plan))});
    }
  }
  return report;
}

Plan smallest_failing(Plan plan) {
  for (std::size_t i = 0; i < plan.faults.size();) {
    Plan fewer = plan;
    fewer.faults.erase(fewer.faults.begin() + static_cast<std::ptrdiff_t>(i));
    if (World(fewer).run().good()) {
      ++i;
    } else {
      plan = std::move(fewer);
    }
  }
  return plan;
}

}  // namespace yeto::sync::sim
