// SPDX-License-Identifier: Apache-2.0
// What fleet reads of the files that syncer and learners write: status.json, the tape,
// metrics.jsonl. A value that is missing or null stays empty; nothing is guessed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "yeto/base/result.h"
#include "yeto/fleet/run/core.h"

namespace yeto::fleet {

struct SeatStatus {
  int seat = 0;
  std::string state = {};        // joining, live, suspended, stalled, lost, left, done
  std::string incarnation = {};  // text of the number
  std::string phase = {};
  std::optional<std::int64_t> local_step, tokens, version_lag, pushes, merged, dropped,
      bytes_pushed, bytes_received;
  std::optional<double> participation, heartbeat_age_s;
};

struct SyncerStatus {
  std::string phase = {};  // waiting, initialising, training, sweeping, final, ended
  std::optional<std::int64_t> global_step, total_steps, run_tokens;
  std::int64_t pid = 0;
  double updated_at = 0;  // wall seconds
  std::vector<SeatStatus> seats = {};
  std::optional<int> exit = {};
};

// kNotFound before the syncer has written one.
Result<SyncerStatus> read_syncer_status(const std::filesystem::path& path);
event::Report report_of(const SyncerStatus& status);

// The newest step line of an island's metrics.jsonl; only the file's end is read.
struct IslandMetrics {
  std::optional<double> loss, tokens_per_s;
  std::optional<std::int64_t> step, tokens, targets;
};
IslandMetrics read_last_metrics(const std::filesystem::path& path);

}  // namespace yeto::fleet
