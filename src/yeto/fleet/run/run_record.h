// SPDX-License-Identifier: Apache-2.0
// The JSON files of a run folder that fleet writes: run.json (immutable, by launch), state.json and
// controller.json (by the controller), STOP (by stop-run). Every write replaces the file
// atomically, every reader refuses a schema with a higher number than it knows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "yeto/base/result.h"
#include "yeto/fleet/run/core.h"
#include "yeto/fleet/run/provider.h"
#include "yeto/fleet/run/run_paths.h"
#include "yeto/fleet/spec/flags.h"

namespace yeto::fleet {

// Program and first arguments of each kind of process. They stand in run.json, so that a controller
// that takes a run over starts the same programs.
struct Programs {
  std::vector<std::string> syncer = {};   // yeto syncer
  std::vector<std::string> learner = {};  // python -m yeto.learner
  std::vector<std::string> finish = {};   // yeto _finish
  std::vector<std::string> plot = {};     // python -m yeto.learner.plot
};

struct RunRecord {
  std::string name = {};
  std::string run_id = {};
  std::string version = {};  // of this program
  double created_at = 0;     // wall seconds
  FlagValues flags;          // effective, with origin
  std::vector<Slot> islands = {};
  Programs programs;
  std::string output = {};  // absolute, or empty
  std::string check_json =
      {};  // what the learner said about model and data; one JSON object or empty
};

std::string run_record_json(const RunRecord& record);
Status write_run_record(const RunPaths& paths, const RunRecord& record);
Result<RunRecord> read_run_record(const RunPaths& paths);

CoreConfig core_config(const RunRecord& record);

struct ProcessState {
  std::optional<Handle> handle = {};
  int restarts = 0;
};
struct StoredIsland {
  int id = 0;
  std::string state = {};
  int attempt = -1;
  std::optional<Handle> handle = {};
  std::optional<int> exit = {};
  int restarts = 0;
};
struct StoredState {
  std::string name = {};
  std::string run_id = {};
  RunState state = RunState::kPending;
  std::string phase = {};  // empty once the run is over
  std::optional<int> exit = {};
  std::string error = {};
  std::vector<StoredIsland> islands = {};
  ProcessState syncer = {};
  std::string artifact = {};
  double updated_at = 0;
  std::uint64_t seq = 0;
};

Status write_state(const RunPaths& paths, const StoredState& state);
Result<StoredState> read_state(const RunPaths& paths);

// controller.json: who the controller of the run is, alive or not.
Status write_controller(const RunPaths& paths, const Handle& handle);
Result<Handle> read_controller(const RunPaths& paths);

struct StopRequest {
  std::string id = {};
  StopMode mode = StopMode::kFinish;
  std::string by = {};
  std::string reason = {};
};
std::string_view stop_mode_name(StopMode mode);
Status write_stop(const RunPaths& paths, const StopRequest& request);
Result<StopRequest> read_stop(const RunPaths& paths);

}  // namespace yeto::fleet
