// SPDX-License-Identifier: Apache-2.0
// The command lines of a run's processes. Secrets appear as file names only.
#pragma once

#include <string>
#include <vector>

#include "yeto/fleet/run/run_record.h"

namespace yeto::fleet {

std::vector<std::string> syncer_argv(const RunRecord& record, const RunPaths& paths, bool resume);
std::vector<std::string> island_argv(const RunRecord& record, const RunPaths& paths, int seat);
// Variables set for an island besides those inherited.
std::vector<std::string> island_env(const RunRecord& record, int seat);
std::vector<std::string> finish_argv(const RunRecord& record, const RunPaths& paths, StopMode mode);
std::vector<std::string> plot_argv(const RunRecord& record, const RunPaths& paths,
                                   const std::filesystem::path& out);
// "<name>-<run6>-l<seat>-a<attempt>", "<name>-<run6>-syncer-a<attempt>"; never used twice.
std::string process_token(const RunRecord& record, int who, int attempt);

}  // namespace yeto::fleet
