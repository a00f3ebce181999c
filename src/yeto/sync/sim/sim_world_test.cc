// SPDX-License-Identifier: Apache-2.0
// Goal: a world replays from its seed. Method: run seeds twice and compare the hashes of the tapes.
#include <gtest/gtest.h>

#include "yeto/sync/sim/world.h"

namespace yeto::sync::sim {
namespace {

TEST(SimWorld, SameSeedSameTapeHash) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const Plan plan = plan_of_seed(seed);
    const Outcome a = World(plan).run();
    const Outcome b = World(plan).run();
    EXPECT_TRUE(a.good()) << "seed " << seed << ": " << a.violation << "\n" << describe(plan);
    EXPECT_EQ(a.tape_hash, b.tape_hash) << "seed " << seed;
    EXPECT_EQ(a.events, b.events) << "seed " << seed;
  }
}

}  // namespace
}  // namespace yeto::sync::sim
