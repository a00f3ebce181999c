// SPDX-License-Identifier: Apache-2.0
// The states of a run and of its islands, with the names that stand in state.json and on the
// screen.
#pragma once

#include <optional>
#include <string_view>

namespace yeto::fleet {

enum class RunState {
  kPending,
  kRunning,
  kSucceeded,
  kStopped,
  kFailed,
  kDown,
  kTeardownIncomplete
};

// What a live run does; CONTROL_LOST is never stored, a reader finds it by itself.
enum class RunPhase {
  kSubmitted,     // the controller has the run
  kProvisioning,  // processes start and join
  kTraining,      // all islands train
  kDegraded,      // some islands are being restarted or given up
  kFinishing,     // last sweep, islands save
  kDelivering,
  kTeardown,
};

enum class IslandState {
  kPlanned,
  kSetup,        // the process runs and has not joined
  kRunning,      // joined, lease valid
  kSuspect,      // the process runs, the syncer does not hear it
  kRecovering,   // it is being ended, to be started again
  kWaiting,      // it will be started again after a pause
  kAbandoned,    // recovery budget spent, or not replaced any more
  kSetupFailed,  // it cannot start
  kFailed,       // it ended with a code after which it is not started again
  kDone,
};

std::string_view run_state_name(RunState state);
std::string_view run_phase_name(RunPhase phase);
std::string_view island_state_name(IslandState state);
std::optional<RunState> run_state_of(std::string_view name);

// SUCCEEDED, STOPPED, FAILED and DOWN: nothing of the run is alive and its name is free.
bool is_terminal(RunState state);

}  // namespace yeto::fleet
