// SPDX-License-Identifier: Apache-2.0
// Any words as the arguments of each verb, and any text as the value of each flag: errors, or
// values whose canonical text is taken again and stays what it is.
#include <vector>

#include "yeto/base/fuzz_testing.h"
#include "yeto/fleet/spec/flags.h"

namespace {

using namespace yeto;
using namespace yeto::fleet;

constexpr Verb kVerbs[] = {kLaunch, kStatus,  kLogs,       kStopRun, kDown,
                           kSyncer, kLearner, kController, kSim};

Bytes example(Rng& rng) {
  const auto table = flag_table();
  std::string text(1, static_cast<char>(rng.next()));
  for (std::uint64_t i = 0; i < 1 + rng.below(4); ++i) {
    const FlagSpec& flag = table[rng.below(table.size())];
    static constexpr std::string_view kValues[] = {"1",    "0.5", "auto", "8M",   "1.5,2", "true",
                                                   "1GiB", "-3",  "1e9",  "name", "30s",   ""};
    text += "--" + std::string(flag.name) + (rng.below(2) == 0 ? "=" : "\n") +
            std::string(kValues[rng.below(std::size(kValues))]) + "\n";
  }
  return fuzz::bytes_of(text);
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

void check_values(std::string_view text, const FlagSpec& flag) {
  const auto value = check_value(flag, text);
  if (!value) {
    YETO_CHECK(!value.error().what.empty(), "a refusal without a reason");
    return;
  }
  const auto again = check_value(flag, *value);
  YETO_CHECK(again && *again == *value, "a canonical value that is not taken as it is");
}

}  // namespace

YETO_FUZZ_EXAMPLES(example)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  const std::uint8_t what = in.byte();
  const std::string_view text = fuzz::text_of(in.rest());
  const auto table = flag_table();
  check_values(text, table[what % table.size()]);
  ParsedLine line = parse_line(kVerbs[what % std::size(kVerbs)], lines_of(text));
  if (line.errors.empty()) {
    apply_limit_rule(line.values);
    static_cast<void>(launch_conflicts(line.values, 1 + what % 4U));
    for (const Receiver receiver : {kToController, kToLearner, kToSyncer}) {
      static_cast<void>(forward_argv(line.values, receiver));
    }
    for (const auto& [name, setting] : line.values.all()) {
      static_cast<void>(line.values.integer(name));
      static_cast<void>(line.values.number(name));
    }
  }
  return 0;
}
