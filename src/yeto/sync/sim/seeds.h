// SPDX-License-Identifier: Apache-2.0
// Seeds: the search for a broken rule over many worlds, and a smaller plan that still breaks it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "yeto/sync/sim/world.h"

namespace yeto::sync::sim {

struct SeedFailure {
  std::uint64_t seed = 0;
  std::string violation;
  Plan smallest;  // without the faults that are not needed for it
};

struct SeedReport {
  std::uint64_t worlds = 0;
  std::uint64_t events = 0;
  std::uint64_t commits = 0;
  double virtual_s = 0.0;
  std::uint64_t tape_hash = 0;  // of all tapes in order: equal if two programs decided the same
  std::uint64_t failed = 0;
  std::vector<SeedFailure> failures;  // the first ten
  bool good() const { return failed == 0; }
};

// Plans of the seeds first … last. `change` (optional) is applied to each plan before it runs.
SeedReport run_seeds(std::uint64_t first, std::uint64_t last,
                     const std::function<void(Plan&)>& change = {});

// Takes faults away, one at a time, as long as some rule is still broken.
Plan smallest_failing(Plan plan);

}  // namespace yeto::sync::sim
