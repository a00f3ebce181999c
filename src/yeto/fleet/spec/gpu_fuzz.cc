// SPDX-License-Identifier: Apache-2.0
// Any text as the value of --gpu: errors that name their place, or a fleet within its limits whose
// canonical text means the same.
#include "yeto/base/fuzz_testing.h"
#include "yeto/fleet/spec/gpu.h"

namespace {

using namespace yeto;

Bytes example(Rng& rng) {
  static constexpr std::string_view kExamples[] = {
      "local:1xcpu,local:1xcpu",        "2*local:1x4xcpu", "aws:8xH100",
      "64*local:1024xcpu, LOCAL:2xCPU", "local:01xcpu",    "runpod:1xA100,,"};
  return fuzz::bytes_of(kExamples[rng.below(std::size(kExamples))]);
}

}  // namespace

YETO_FUZZ_EXAMPLES(example)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parse = fleet::parse_fleet(fuzz::text_of({data, size}));
  if (!parse.errors.empty()) {
    return 0;
  }
  YETO_CHECK(!parse.fleet.slots.empty() && parse.fleet.slots.size() <= fleet::kSlotsMax,
             "a fleet of no islands, or of too many");
  for (const fleet::Slot& slot : parse.fleet.slots) {
    YETO_CHECK(slot.count >= 1 && slot.count <= fleet::kCoresMax && slot.nodes >= 1,
               "an island without cores");
  }
  const auto again = fleet::parse_fleet(parse.fleet.text());
  YETO_CHECK(again.errors.empty() && again.fleet == parse.fleet,
             "a fleet that is not what it is written as");
  return 0;
}
