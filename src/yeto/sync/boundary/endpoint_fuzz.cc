// SPDX-License-Identifier: Apache-2.0
// What a learner is given as text, any bytes: the syncer's address, endpoint.json, the key of its
// seat, a metric.
#include "yeto/base/fuzz_testing.h"
#include "yeto/sync/boundary/endpoint.h"

namespace {

using namespace yeto;
using namespace yeto::sync::client;

Bytes example(Rng& rng) {
  static constexpr std::string_view kExamples[] = {
      R"({"schema":"yeto.endpoint/1","host":"127.0.0.1","port":29400,"run_id":"run","term":3})",
      R"({"host":"10.0.0.1","port":65535})",
      R"({"host":"::1","port":1,"run_id":"other"})",
      "127.0.0.1:29400",
      "@endpoint.json",
      R"({"loss":1.5,"step":3,"place":{"a":[1,null,true]}})",
      "0123456789abcdef0123456789abcdef0123456789abcdef0123456789ABCDEF\n"};
  return fuzz::bytes_of(kExamples[rng.below(std::size(kExamples))]);
}

}  // namespace

YETO_FUZZ_EXAMPLES(example)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const ByteView bytes(data, size);
  const std::string_view text = fuzz::text_of(bytes);
  if (const auto endpoint = Endpoint::parse(text, "run"); endpoint && !text.starts_with('@')) {
    const auto address = endpoint->resolve();
    YETO_CHECK(address && net::is_loopback(*address) && address->port != 0,
               "an address out of reach");
  }
  const std::filesystem::path file = folder.write("input", bytes);
  const auto by_file = Endpoint::parse("@" + file.string(), "run");
  YETO_CHECK(by_file.has_value(), "a file may have any content");
  if (const auto address = by_file->resolve()) {
    YETO_CHECK(net::is_loopback(*address) && address->port != 0, "an address out of reach");
  }
  static_cast<void>(read_seat_key(file));
  if (check_metric(text)) {
    YETO_CHECK(size <= 8192 && text.find('\n') == std::string_view::npos, "a metric of any size");
  }
  return 0;
}
