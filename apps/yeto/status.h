// SPDX-License-Identifier: Apache-2.0
// What `yeto status` shows of one run. Empty values are unknown: "-" in the table, null in JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli.h"

namespace yeto::apps {

struct IslandLine {
  int id = 0;
  std::string state;  // PLANNED, RUNNING, …
  std::optional<std::int64_t> pid, version_lag, tokens;
  std::optional<double> participation, heartbeat_age_s;
};

struct StatusView {
  std::string name, run_id, state, phase;
  std::optional<int> exit;
  std::optional<std::int64_t> global_step, total_steps;
  std::optional<double> loss, tokens_per_s;
  std::vector<IslandLine> islands;
  double checked_at = 0;
  // Of the table only.
  double age_s = 0;
  std::string error, artifact, folder;
  bool over = false;
};

StatusView status_view(const fleet::RunPaths& paths);

// "yeto.status/1"; one object, or an array of them.
std::string status_json(const std::vector<StatusView>& runs, bool one);

}  // namespace yeto::apps
