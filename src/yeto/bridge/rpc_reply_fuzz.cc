// SPDX-License-Identifier: Apache-2.0
// Any line as the bridge's reply, and as the parameters of a call: a result is one JSON object, an
// error has its words, a request is one line.
#include "yeto/base/fuzz_testing.h"
#include "yeto/bridge/rpc.h"

namespace {

using namespace yeto;

constexpr std::uint64_t kId = 7;

Bytes example(Rng& rng) {
  static constexpr std::string_view kExamples[] = {
      R"({"jsonrpc":"2.0","id":7,"result":{"created":true,"bytes":12,"keys":["a","MANIFEST.json"]}})",
      R"({"jsonrpc":"2.0","id":7,"error":{"code":-32000,"message":"no such object",)"
      R"("data":{"error":"E_NOT_FOUND","where":"s3://b/k","hint":"look"}}})",
      R"({"jsonrpc":"2.0","id":7,"error":null})", R"({"jsonrpc":"2.0","id":7,"result":[1]})",
      R"({"url":"s3://bucket/run","key":"MANIFEST.json","path":"/p","create":true})"};
  return fuzz::bytes_of(kExamples[rng.below(std::size(kExamples))]);
}

}  // namespace

YETO_FUZZ_EXAMPLES(example)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of({data, size});
  const auto reply = bridge::parse_reply(text, kId);
  if (reply) {
    YETO_CHECK(reply->starts_with('{') && reply->ends_with('}'), "a result that is no object");
  } else {
    static_cast<void>(reply.error().text());
  }
  if (const auto line = bridge::request_line(kId, text.substr(0, 20), text)) {
    YETO_CHECK(line->find('\n') == std::string::npos, "a request of several lines");
  }
  return 0;
}
