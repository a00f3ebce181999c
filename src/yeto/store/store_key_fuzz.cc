// SPDX-License-Identifier: Apache-2.0
// Any text as the key of a blob: a key that is taken names a file of the folder itself, never one
// elsewhere.
#include "yeto/base/fuzz_testing.h"
#include "yeto/store/key.h"
#include "yeto/store/remote_store.h"

namespace {

using namespace yeto;

Bytes example(Rng& rng) {
  static constexpr std::string_view kExamples[] = {
      "MANIFEST.json",  "fragment-0-v12.safetensors", "layout.bin", "../other", ".hidden", "a/b",
      "s3://bucket/run"};
  return fuzz::bytes_of(kExamples[rng.below(std::size(kExamples))]);
}

}  // namespace

YETO_FUZZ_EXAMPLES(example)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of({data, size});
  if (store::check_key(text)) {
    const std::filesystem::path path(text);
    YETO_CHECK(!text.empty() && text.size() <= store::kMaxKeyBytes, "a key of a wrong length");
    YETO_CHECK(path.filename() == path && text[0] != '.', "a key that leads out of its folder");
    YETO_CHECK(text.find('\0') == std::string_view::npos, "a key that the system would cut");
  }
  if (store::is_store_url(text)) {
    YETO_CHECK(text.find("://") != std::string_view::npos, "a URL without a scheme");
  }
  return 0;
}
