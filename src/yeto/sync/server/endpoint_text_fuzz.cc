// SPDX-License-Identifier: Apache-2.0
// Any bytes as endpoint.json and as a token file: refused in words, or taken as they stand.
#include "yeto/base/fuzz_testing.h"
#include "yeto/sync/server/records.h"
#include "yeto/sync/server/server.h"

namespace {

using namespace yeto;
using namespace yeto::sync;

Bytes example(Rng& rng) {
  if (rng.below(2) == 0) {
    return fuzz::bytes_of(std::string(64, "0aF"[rng.below(3)]) + "\n");
  }
  return fuzz::bytes_of(endpoint_text(
      {"127.0.0.1", static_cast<std::uint16_t>(rng.next()), "run", rng.next(), rng.next() >> 40U}));
}

}  // namespace

YETO_FUZZ_EXAMPLES(example)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const ByteView bytes(data, size);
  if (const auto endpoint = parse_endpoint(fuzz::text_of(bytes), "input")) {
    const auto again = parse_endpoint(endpoint_text(*endpoint), "again");
    YETO_CHECK(again && again->port == endpoint->port && again->term == endpoint->term &&
                   again->run_id == endpoint->run_id && again->host == endpoint->host,
               "an endpoint that changes when it is written");
  }
  if (const auto key = read_token_file(folder.write("token", bytes))) {
    YETO_CHECK(size >= 2 * key->size(), "a key of too few digits");
  }
  return 0;
}
