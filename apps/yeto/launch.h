// SPDX-License-Identifier: Apache-2.0
// Parts of `yeto launch`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "yeto/base/result.h"
#include "yeto/fleet/run/registry.h"
#include "yeto/fleet/run/run_record.h"
#include "yeto/fleet/spec/flags.h"

namespace yeto::apps {

// Makes paths absolute and finds everything about files, output and name that would refuse the
// launch. Only looks; creates nothing.
std::vector<fleet::FlagError> check_places(fleet::FlagValues& values,
                                           const fleet::Registry& registry);

// Nothing if the name is free; a claim whose run is over, or whose launch died, does not hold it.
std::optional<fleet::FlagError> busy_name(const fleet::Registry& registry, const std::string& name);

// Model and data, by the learner itself. The check's JSON object, or the learner's refusals.
struct LearnerCheck {
  std::string json;
  std::vector<fleet::FlagError> errors;
  std::string text;  // of the refusal, as the learner printed it
  int exit = 0;
};
LearnerCheck check_with_learner(const fleet::RunRecord& record);

// The plan that --dry-run prints.
std::string plan_json(const fleet::RunRecord& record, const fleet::RunPaths& paths,
                      const std::vector<std::string>& warnings);
// The answer of launch with -o json.
std::string launched_json(const fleet::RunRecord& record, const fleet::RunPaths& paths,
                          const std::vector<std::string>& warnings);
// Lines about model and data for people, from the check.
std::string check_lines(const std::string& check_json);
// Optimizer steps an island will make by --local-steps, --epochs and --tokens and the rows of the
// check; nothing if none of them limits the run or the check does not say.
std::optional<std::int64_t> planned_local_steps(const fleet::FlagValues& flags, std::size_t islands,
                                                const std::string& check_json);
// Notices of the check (rows left out, doubtful settings).
std::vector<std::string> check_warnings(const std::string& check_json);

}  // namespace yeto::apps
