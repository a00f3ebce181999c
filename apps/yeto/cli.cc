// SPDX-License-Identifier: Apache-2.0
#include "cli.h"

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>

#include "yeto/base/clock.h"
#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/fleet/providers/process.h"

namespace yeto::apps {
namespace {

volatile sig_atomic_t interrupt_seen = 0;

void on_interrupt(int) { interrupt_seen = 1; }

}  // namespace

int report(const std::vector<fleet::FlagError>& errors, bool json) {
  if (json) {
    std::printf("%s\n", fleet::errors_as_json(errors).c_str());
  } else {
    for (const fleet::FlagError& error : errors) {
      std::fputs(error.text().c_str(), stderr);
    }
  }
  return fleet::exit_code_of(errors);
}

int report(const Error& error, bool json) { return report({fleet::flag_error_of(error)}, json); }

VerbLine read_verb_line(fleet::Verb verb, int argc, char** argv) {
  const std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  fleet::ParsedLine line = fleet::parse_line(verb, args);
  VerbLine out;
  out.json = line.values.text("o") == "json";
  if (line.help) {
    std::fputs(fleet::help_text(verb).c_str(), stdout);
    out.exit = 0;
  } else if (!line.errors.empty()) {
    out.exit = report(line.errors, out.json);
  }
  out.values = std::move(line.values);
  if (!line.positionals.empty()) {
    out.name = line.positionals.front();
  }
  return out;
}

fleet::Registry open_registry() { return fleet::Registry(fleet::Registry::default_dir()); }

RunLook look_at(const fleet::RunPaths& paths) {
  RunLook out;
  out.paths = paths;
  const std::string folder = paths.root.filename().string();
  out.name = folder.substr(0, folder.rfind('.'));
  if (Result<fleet::RunRecord> record = fleet::read_run_record(paths)) {
    out.name = record->name;
    out.run_id = record->run_id;
    out.record = std::move(*record);
  }
  if (Result<fleet::StoredState> state = fleet::read_state(paths)) {
    out.run_id = state->run_id;
    out.state = std::move(*state);
  }
  if (const Result<fleet::Handle> controller = fleet::read_controller(paths)) {
    out.controller = *controller;
    out.controller_alive = fleet::is_alive(*controller);
  }
  if (!out.controller) {
    const std::optional<fleet::Claim> claim =
        fleet::Registry(paths.root.parent_path()).read_claim(out.name);
    out.launching = claim && claim->run_id == out.run_id && fleet::is_alive(claim->by);
  }
  return out;
}

std::string RunLook::state_text() const {
  return std::string(fleet::run_state_name(state ? state->state : fleet::RunState::kPending));
}

std::string RunLook::phase_text() const {
  if (is_over()) {
    return "";
  }
  if (state && state->state == fleet::RunState::kTeardownIncomplete) {
    return state->phase;
  }
  if (!controller_alive && !launching) {
    return "CONTROL_LOST";
  }
  return state ? state->phase : "";
}

double RunLook::age_s() const {
  return record ? std::max(0.0, wall_now() - record->created_at) : 0;
}

std::string last_lines(const std::filesystem::path& path, std::size_t count) {
  std::string text = read_text_file(path).value_or("");
  std::size_t from = text.size();
  if (from > 0 && text[from - 1] == '\n') {
    --from;
  }
  for (std::size_t i = 0; i < count && from != std::string::npos && from > 0; ++i) {
    from = text.rfind('\n', from - 1);
  }
  return from == std::string::npos || from == 0 ? text : text.substr(from + 1);
}

void catch_interrupt() {
  struct sigaction action{};
  action.sa_handler = on_interrupt;
  ::sigemptyset(&action.sa_mask);
  // No SA_RESTART: a wait ends when Ctrl-C comes.
  ::sigaction(SIGINT, &action, nullptr);
}

bool interrupted() { return interrupt_seen != 0; }

void wait_seconds(double duration) {
  const Nanos end = monotonic_now() + from_seconds(duration);
  for (Nanos now = monotonic_now(); now < end && !interrupted(); now = monotonic_now()) {
    ::poll(nullptr, 0, static_cast<int>(std::min<Nanos>((end - now) / kMillisecond + 1, 200)));
  }
}

}  // namespace yeto::apps
