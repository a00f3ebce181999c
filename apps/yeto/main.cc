// SPDX-License-Identifier: Apache-2.0
// `yeto`: finds the verb and calls it. A program called yeto-VERB is `yeto VERB`.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "cli.h"
#include "verbs.h"
#include "yeto/base/format.h"
#include "yeto/fleet/spec/flags.h"
#include "yeto/fleet/spec/nearest.h"

namespace yeto::apps {
namespace {

struct VerbRow {
  std::string_view name;
  int (*run)(int argc, char** argv);
  bool shown;
};

constexpr VerbRow kVerbs[] = {
    {"launch", run_launch, true},
    {"status", run_status, true},
    {"logs", run_logs, true},
    {"stop-run", run_stop_run, true},
    {"down", run_down, true},
    {"syncer", run_syncer, true},
    {"learner", run_learner, true},
    {"sim", run_sim, true},
    {"_controller", run_controller, false},
    {"_finish", run_finish, false},
};

constexpr std::string_view kLaterVerbs[] = {"shape", "join",   "sweep",  "doctor", "data",
                                            "merge", "export", "verify", "plot",   "diffusion"};

const VerbRow* find_verb(std::string_view name) {
  const auto* found = std::find_if(std::begin(kVerbs), std::end(kVerbs),
                                   [&](const VerbRow& row) { return row.name == name; });
  return found == std::end(kVerbs) ? nullptr : found;
}

int unknown_verb(int argc, char** argv) {
  const std::string word = argv[1];
  fleet::FlagError error;
  std::vector<std::string> names;
  for (const VerbRow& row : kVerbs) {
    if (row.shown) {
      names.emplace_back(row.name);
    }
  }
  if (word.starts_with("-")) {
    error.what = "the verb is missing";
    std::string line = "yeto launch";
    for (int i = 1; i < argc; ++i) {
      line += std::string(" ") + argv[i];
    }
    error.hints = {"write: " + line, "yeto --help lists the verbs"};
  } else if (std::find(std::begin(kLaterVerbs), std::end(kLaterVerbs), word) !=
             std::end(kLaterVerbs)) {
    error.code = ErrorCode::kNotInBuild;
    error.what = strf("yeto {} is not in this build", word);
    error.hints = {strf("verbs of this build: {}", fleet::or_list(names))};
  } else {
    error.what = strf("yeto has no verb \"{}\"", word);
    const std::vector<std::string> near = fleet::nearest(word, names, 1);
    error.hints = {near.empty() ? "yeto --help lists the verbs"
                                : strf("did you mean yeto {}", near.front())};
  }
  return report({error}, false);
}

int dispatch(int argc, char** argv) {
  // argv[0] may carry the verb: yeto-syncer, yeto-learner.
  const std::string_view path = argv[0];
  const std::string_view program =
      path.substr(path.rfind('/') == path.npos ? 0 : path.rfind('/') + 1);
  if (program.starts_with("yeto-")) {
    if (const VerbRow* row = find_verb(program.substr(5))) {
      return row->run(argc, argv);
    }
  }
  if (argc < 2 || std::string_view(argv[1]) == "--help" || std::string_view(argv[1]) == "-h" ||
      (std::string_view(argv[1]) == "help" && argc == 2)) {
    std::fputs(fleet::overview_text().c_str(), stdout);
    return 0;
  }
  if (std::string_view(argv[1]) == "--version") {
    std::printf("yeto %s\n", YETO_VERSION);
    return 0;
  }
  if (const VerbRow* row = find_verb(argv[1])) {
    return row->run(argc - 1, argv + 1);
  }
  return unknown_verb(argc, argv);
}

}  // namespace
}  // namespace yeto::apps

int main(int argc, char** argv) {
  // Rooms return errors as values; what is thrown all the same (out of memory) ends here and not in
  // abort.
  try {
    return yeto::apps::dispatch(argc, argv);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "error[E_INTERNAL]: %s\n", problem.what());
    return 70;
  }
}
