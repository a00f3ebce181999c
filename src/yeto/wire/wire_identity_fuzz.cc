// SPDX-License-Identifier: Apache-2.0
// Any text as the URI of a certificate: what is taken as an identity is written as it was read.
#include "yeto/base/fuzz_testing.h"
#include "yeto/wire/identity.h"

namespace {

using namespace yeto;

Bytes example(Rng& rng) {
  const std::string run(rng.below(4), 'r');
  const auto role = static_cast<wire::Role>(rng.below(3));
  const auto seat = static_cast<std::uint32_t>(rng.next() >> (32 + rng.below(32)));
  return fuzz::bytes_of(rng.below(8) == 0 ? wire::syncer_identity(run)
                                          : wire::identity_of(run, role, seat));
}

}  // namespace

YETO_FUZZ_EXAMPLES(example)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of({data, size});
  if (const auto identity = wire::parse_identity(text)) {
    YETO_CHECK(wire::identity_of(identity->run_id, identity->role, identity->seat) == text,
               "an identity with two texts");
    YETO_CHECK(text != wire::syncer_identity(identity->run_id), "a learner that is the syncer");
  }
  return 0;
}
