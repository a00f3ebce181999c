// SPDX-License-Identifier: Apache-2.0
// What several verbs share: reports of refusals, looking a run up, Ctrl-C, waiting.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "yeto/base/result.h"
#include "yeto/fleet/run/registry.h"
#include "yeto/fleet/run/run_record.h"
#include "yeto/fleet/spec/flags.h"

namespace yeto::apps {

// Prints the refusals (text on stderr, or one JSON value on stdout) and returns the exit code.
int report(const std::vector<fleet::FlagError>& errors, bool json);
int report(const Error& error, bool json);

// Reads the line of a verb. Where it must go no further (help, refusals), `exit` is set.
struct VerbLine {
  fleet::FlagValues values;
  std::string name;  // the positional, or empty
  bool json = false;
  std::optional<int> exit;
};
VerbLine read_verb_line(fleet::Verb verb, int argc, char** argv);

fleet::Registry open_registry();

// A run as a reader finds it.
struct RunLook {
  fleet::RunPaths paths;
  std::string name;
  std::string run_id;
  std::optional<fleet::RunRecord> record;
  std::optional<fleet::StoredState> state;
  std::optional<fleet::Handle> controller;
  bool controller_alive = false;
  bool launching = false;  // the launch that made the folder is still at work

  bool is_over() const { return state && fleet::is_terminal(state->state); }
  // State and phase as shown: CONTROL_LOST where the run is not over and its controller is gone.
  std::string state_text() const;
  std::string phase_text() const;
  double age_s() const;
};
RunLook look_at(const fleet::RunPaths& paths);

// The last lines of a file, for messages.
std::string last_lines(const std::filesystem::path& path, std::size_t count);

// Ctrl-C sets a flag instead of ending the program.
void catch_interrupt();
bool interrupted();
// Waits; returns at once after Ctrl-C.
void wait_seconds(double duration);

}  // namespace yeto::apps
