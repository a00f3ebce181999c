// SPDX-License-Identifier: Apache-2.0
// Goal: no rule breaks in any world. Method: ten thousand plans drawn from seeds, faults included;
// and a few of them with broken glue, which must be found and made small.
#include "yeto/base/log.h"
#include "yeto/sync/sim/seeds.h"
#include "yeto/sync/sim/testing.h"

namespace yeto::sync::sim {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

// The name of this test is `sim.seeds`.
TEST(sim, seeds) {  // NOLINT(readability-identifier-naming)
  set_log_level(LogLevel::kError);
  const std::uint64_t last = 10'000 / kShare;
  const SeedReport report = run_seeds(1, last);
  EXPECT_EQ(report.worlds, last);
  EXPECT_GT(report.commits, 5 * last);
  for (const SeedFailure& failure : report.failures) {
    ADD_FAILURE() << "seed " << failure.seed << ": " << failure.violation << "\n"
                  << describe(failure.smallest) << "again: yeto sim --seeds " << failure.seed
                  << ".." << failure.seed << " --trace round";
  }
}

TEST(SimSeeds, ABrokenWorldIsFoundAndMadeSmall) {
  set_log_level(LogLevel::kError);
  const SeedReport report =
      run_seeds(1, 60, [](Plan& plan) { plan.breakage = Breakage::kStaleCheckpoint; });
  ASSERT_GT(report.failed, 0u);
  for (const SeedFailure& failure : report.failures) {
    EXPECT_LE(failure.smallest.faults.size(), 3u) << describe(failure.smallest);
    EXPECT_FALSE(World(failure.smallest).run().good());
  }
}

}  // namespace
}  // namespace yeto::sync::sim
