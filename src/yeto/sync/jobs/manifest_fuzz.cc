// SPDX-License-Identifier: Apache-2.0
// Any bytes as MANIFEST.json, with the digest of the manifest put right so that its fields are
// reached, and as TERM: damaged, or a manifest that is the same when it is written and read again
// and from which a core can go on. What the manifest says is then done to the folder.
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "yeto/base/fuzz_testing.h"
#include "yeto/base/log.h"
#include "yeto/sync/core/core.h"
#include "yeto/sync/jobs/checkpoint.h"
#include "yeto/sync/jobs/testing.h"

namespace {

using namespace yeto;
using namespace yeto::sync;
using Json = nlohmann::ordered_json;

// As a syncer has it that has served for a while.
std::string a_manifest() {
  auto store = std::make_shared<store::MemoryStore>();
  testing::TestRun run(*Jobs::make(testing::options_in(store)));
  YETO_CHECK(run.start(testing::small_layout()), "a run of the test");
  for (int i = 0; i < 4; ++i) {
    YETO_CHECK(run.commit().ok, "a commit of the test");
  }
  run.state().seats = {{0, 12, true, {1, 0, 2}}, {1, 7, false, {}}};
  run.state().ledger = {19, 12, 7, 0};
  run.state().forks = {{1, {0, 0, 0}}};
  run.state().contract = {{"model", {1, 2, 3}}};
  run.state().data = {100, {0, 40, 0}, {{0, 8, 2}}, {{0, {0, 10, 30}}}, {{0, 0, 8}}, 3};
  run.state().finish_reason = "asked";
  YETO_CHECK(run.checkpoint(), "a checkpoint of the test");
  auto manifest = *checkpoint::read_manifest(*store);
  manifest->tape = checkpoint::TapePosition{1000, 12};
  return checkpoint::manifest_to_json(*manifest);
}

Bytes example(Rng&) {
  static const std::string text = a_manifest();
  return fuzz::bytes_of(text);
}

// Replaces one value somewhere in the tree: what mutations of text seldom do.
void bend(Json& json, Rng& rng) {
  if (json.is_structured() && !json.empty() && rng.below(8) != 0) {
    auto at = json.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(rng.below(json.size())));
    return bend(*at, rng);
  }
  const Json values[] = {nullptr,
                         0,
                         -1,
                         std::numeric_limits<std::uint64_t>::max(),
                         1e300,
                         "",
                         std::string(64, 'a'),
                         Json::array(),
                         Json::object(),
                         Json::array({Json::object()}),
                         rng.below(600),
                         true};
  json = values[rng.below(std::size(values))];
}

std::string with_right_digest(Json json) {
  static constexpr const char* kDigest = "xxh3_128";
  const auto replace = Json::error_handler_t::replace;
  json.erase(kDigest);
  json = Json::parse(json.dump(-1, ' ', false, replace));
  json[kDigest] = hex(xxh3_128(as_bytes_view(json.dump())));
  return json.dump(2);
}

void use(const checkpoint::Manifest& manifest, store::ObjectStore& store) {
  const auto again =
      checkpoint::manifest_from_json(checkpoint::manifest_to_json(manifest), "again");
  YETO_CHECK(
      again && checkpoint::manifest_to_json(*again) == checkpoint::manifest_to_json(manifest),
      "a manifest that changes when it is written");
  YETO_CHECK(!checkpoint::read_layout(store, manifest), "an empty folder has no layout");
  YETO_CHECK(checkpoint::remove_unreferenced(store, manifest), "files that nobody names");
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max, unsigned seed) {
  Rng rng(seed);
  Json json = Json::parse(data, data + size, nullptr, false);
  if (rng.below(4) == 0 || !json.is_object()) {
    return fuzz::mutate(data, size, max, seed, example);
  }
  bend(json, rng);
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  const std::size_t bytes = std::min(max, text.size());
  std::copy_n(text.begin(), bytes, data);
  return bytes;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  set_log_level(LogLevel::kError);
  const std::string_view text = fuzz::text_of({data, size});
  static_cast<void>(checkpoint::manifest_from_json(text, "input"));
  const Json json = Json::parse(text, nullptr, false);
  store::MemoryStore store;
  if (json.is_object()) {
    const std::string right = with_right_digest(json);
    if (const auto manifest = checkpoint::manifest_from_json(right, "input")) {
      use(*manifest, store);
    }
    YETO_CHECK(store.put(checkpoint::kManifestName, right, store::PutMode::kReplace), "a blob");
  }
  if (size < 32) {
    YETO_CHECK(store.put(checkpoint::kTermName, text, store::PutMode::kReplace), "a blob");
  }
  static_cast<void>(checkpoint::raise_term(store));
  return 0;
}
