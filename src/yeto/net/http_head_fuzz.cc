// SPDX-License-Identifier: Apache-2.0
// Any bytes as the head of a request, and as an address: answered or refused; a request that is
// taken names a path, and an address is written as it was read.
#include "yeto/base/fuzz_testing.h"
#include "yeto/net/address.h"
#include "yeto/net/http_server.h"

namespace {

using namespace yeto;

Bytes example(Rng& rng) {
  static constexpr std::string_view kExamples[] = {
      "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9090\r\nAccept: */*\r\n\r\n",
      "HEAD /status?x=1 HTTP/1.0\r\nhost:localhost\r\n\r\n",
      "GET /healthz HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
      "POST / HTTP/2.0\r\nHost: a\r\nHost: b\r\n\r\n",
      "127.0.0.1:29400",
      "[::ffff:127.0.0.1]:0",
      "syncer.example:65535"};
  return fuzz::bytes_of(kExamples[rng.below(std::size(kExamples))]);
}

}  // namespace

YETO_FUZZ_EXAMPLES(example)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of({data, size});
  const net::HttpParse parse = net::parse_http_head(text);
  if (parse.refusal.status == 200) {
    YETO_CHECK(parse.request.path.starts_with('/'), "a request of no path");
    YETO_CHECK(parse.request.path.find('?') == std::string::npos, "a path with its query");
  } else {
    YETO_CHECK(parse.refusal.status >= 400 && !parse.refusal.body.empty(), "a refusal says why");
  }
  if (const auto address = net::parse_address(text)) {
    const auto again = net::parse_address(address->text());
    YETO_CHECK(again && *again == *address, "an address that is not what it is written as");
    static_cast<void>(net::is_loopback(*address));
  }
  return 0;
}
