// SPDX-License-Identifier: Apache-2.0
#include "yeto/fleet/run/states.h"

#include <array>
#include <cstddef>

namespace yeto::fleet {
namespace {

constexpr std::array<std::string_view, 7> kRunStates = {
    "PENDING", "RUNNING", "SUCCEEDED", "STOPPED", "FAILED", "DOWN", "TEARDOWN_INCOMPLETE"};
constexpr std::array<std::string_view, 7> kRunPhases = {
    "SUBMITTED", "PROVISIONING", "TRAINING", "DEGRADED", "FINISHING", "DELIVERING", "TEARDOWN"};
constexpr std::array<std::string_view, 10> kIslandStates = {
    "PLANNED", "SETUP",     "RUNNING",      "SUSPECT", "RECOVERING",
    "WAITING", "ABANDONED", "SETUP_FAILED", "FAILED",  "DONE"};

}  // namespace

std::string_view run_state_name(RunState state) {
  return kRunStates[static_cast<std::size_t>(state)];
}
std::string_view run_phase_name(RunPhase phase) {
  return kRunPhases[static_cast<std::size_t>(phase)];
}
std::string_view island_state_name(IslandState state) {
  return kIslandStates[static_cast<std::size_t>(state)];
}

std::optional<RunState> run_state_of(std::string_view name) {
  for (std::size_t i = 0; i < kRunStates.size(); ++i) {
    if (kRunStates[i] == name) {
      return static_cast<RunState>(i);
    }
  }
  return std::nullopt;
}

bool is_terminal(RunState state) {
  return state == RunState::kSucceeded || state == RunState::kStopped ||
         state == RunState::kFailed || state == RunState::kDown;
}

}  // namespace yeto::fleet
