// SPDX-License-Identifier: Apache-2.0
// Any text as a duration or a rate of `yeto sim`: refused, or a number that can be reckoned with.
#include <cmath>

#include "yeto/base/fuzz_testing.h"
#include "yeto/sync/sim/planning.h"

namespace {

using namespace yeto;

Bytes example(Rng& rng) {
  static constexpr std::string_view kExamples[] = {"1.2s",    "80ms",   "2h",     "15m", "1Gbit",
                                                   "100Mbit", "12.5MB", "1e300h", "-1s", "nan"};
  return fuzz::bytes_of(kExamples[rng.below(std::size(kExamples))]);
}

}  // namespace

YETO_FUZZ_EXAMPLES(example)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of({data, size});
  if (const auto duration = sync::sim::parse_duration(text)) {
    YETO_CHECK(*duration >= 0, "a duration below nothing");
  }
  if (const auto rate = sync::sim::parse_rate(text)) {
    YETO_CHECK(std::isfinite(*rate) && *rate > 0.0, "a rate that nothing can travel at");
  }
  return 0;
}
