// SPDX-License-Identifier: Apache-2.0
// `yeto down`: ends every process of a run, in any state, any number of times. The controller does
// it if it lives; else this command takes the run's lock and does it from the journal. The run
// folder is kept.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "cli.h"
#include "verbs.h"
#include "yeto/base/clock.h"
#include "yeto/base/format.h"
#include "yeto/fleet/providers/local.h"
#include "yeto/fleet/providers/process.h"
#include "yeto/fleet/run/journal.h"

namespace yeto::apps {
namespace {

using fleet::Handle;

constexpr double kGraceS = 10;       // from TERM to KILL
constexpr double kControllerS = 25;  // the controller's own grace, and time to write its end

struct Target {
  std::string label;
  Handle handle;
};

class Teardown {
 public:
  Teardown(RunLook look, double timeout_s)
      : look_(std::move(look)), end_(monotonic_now() + from_seconds(timeout_s)) {}

  // Names of processes that still live at the end of the time.
  Result<std::vector<std::string>> run() {
    end_controller();
    YETO_ASSIGN(const FileHandle lock, take_lock());
    std::vector<Target> targets = find_targets();
    end_targets(targets, fleet::Force::kAsk,
                std::min(end_, monotonic_now() + from_seconds(kGraceS)));
    // At least a moment for KILL, also where TERM used the time up.
    end_targets(targets, fleet::Force::kKill, std::max(end_, monotonic_now() + 2 * kSecond));
    std::vector<std::string> left;
    for (const Target& target : targets) {
      left.push_back(strf("pid {} ({})", target.handle.pid, target.label));
    }
    YETO_TRY(write_end(left));
    return left;
  }

 private:
  // TERM lets it end the others in order; what does not end is killed, its children are found
  // below.
  void end_controller() {
    if (!look_.controller || !look_.controller_alive) {
      return;
    }
    const Nanos limit = std::min(end_, monotonic_now() + from_seconds(kControllerS));
    ::kill(static_cast<pid_t>(look_.controller->pid), SIGTERM);
    while (fleet::is_alive(*look_.controller) && monotonic_now() < limit) {
      wait_seconds(0.05);
    }
    if (fleet::is_alive(*look_.controller)) {
      ::kill(static_cast<pid_t>(look_.controller->pid), SIGKILL);
    }
  }

  Result<FileHandle> take_lock() {
    const std::string path = look_.paths.lock().string();
    FileHandle lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    while (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      if (monotonic_now() > end_) {
        return fail(ErrorCode::kTeardown, "another process holds the run", path,
                    "another yeto down may be at work; try again");
      }
      wait_seconds(0.05);
    }
    if (!lock) {
      return fail(io_error("cannot open the run's lock", path, errno));
    }
    return lock;
  }

  std::vector<Target> find_targets() {
    std::map<std::pair<std::int64_t, std::uint64_t>, Target> found;
    const auto add = [&](const std::string& label, const Handle& handle) {
      if (handle.pid > 0) {
        found.emplace(std::pair(handle.pid, handle.start_time), Target{label, handle});
      }
    };
    const auto entries = fleet::read_journal(look_.paths.journal());
    if (entries) {
      for (const fleet::Recorded& one : fleet::recorded_processes(*entries)) {
        add(one.token, one.handle);
        if (one.handle.pid == 0) {
          provider_.find(one.token, [&](Result<std::vector<Handle>> list) {
            for (const Handle& handle : list.value_or(std::vector<Handle>{})) {
              add(one.token, handle);
            }
          });
        }
      }
    }
    // A damaged journal must not keep processes alive: the state names the newest ones too.
    if (look_.state) {
      for (const fleet::StoredIsland& island : look_.state->islands) {
        add(strf("island {}", island.id), island.handle.value_or(Handle{}));
      }
      add("syncer", look_.state->syncer.handle.value_or(Handle{}));
    }
    std::vector<Target> out;
    for (auto& [key, target] : found) {
      out.push_back(std::move(target));
    }
    drop_gone(out);
    return out;
  }

  void drop_gone(std::vector<Target>& targets) {
    std::erase_if(targets, [&](const Target& target) {
      bool gone = false;
      provider_.verify_gone(target.handle, [&](Result<fleet::GoneVerdict> verdict) {
        gone = verdict && *verdict == fleet::GoneVerdict::kGone;
      });
      return gone;
    });
  }

  void end_targets(std::vector<Target>& targets, fleet::Force force, Nanos limit) {
    for (const Target& target : targets) {
      provider_.terminate(target.handle, force, [](const Result<Unit>&) {});
    }
    while (!targets.empty() && monotonic_now() < limit) {
      wait_seconds(0.05);
      drop_gone(targets);
    }
  }

  Status write_end(const std::vector<std::string>& left) {
    fleet::StoredState state = fleet::read_state(look_.paths).value_or(fleet::StoredState{});
    if (!fleet::is_terminal(state.state) || !left.empty()) {
      state.name = look_.name;
      state.run_id = look_.run_id;
      state.state = left.empty() ? fleet::RunState::kDown : fleet::RunState::kTeardownIncomplete;
      state.phase = left.empty() ? "" : fleet::run_phase_name(fleet::RunPhase::kTeardown);
      state.exit = left.empty() ? std::optional<int>() : 5;
      state.error = left.empty()
                        ? ""
                        : strf("{} processes are still alive, first {}", left.size(), left.front());
      if (left.empty()) {
        for (fleet::StoredIsland& island : state.islands) {
          island.handle.reset();
        }
        state.syncer.handle.reset();
      }
      state.updated_at = wall_now();
      state.seq += 1;
      YETO_TRY(fleet::write_state(look_.paths, state));
    }
    if (left.empty()) {
      YETO_TRY(fleet::Registry(look_.paths.root.parent_path()).release(look_.name, look_.run_id));
    }
    return Unit{};
  }

  const RunLook look_;
  const Nanos end_;
  fleet::LocalProvider provider_;
};

}  // namespace

int run_down(int argc, char** argv) {
  const VerbLine line = read_verb_line(fleet::kDown, argc, argv);
  if (line.exit) {
    return *line.exit;
  }
  const Result<fleet::RunPaths> paths = open_registry().find(line.name);
  if (!paths) {
    return report(paths.error(), line.json);
  }
  const RunLook before = look_at(*paths);
  const Result<std::vector<std::string>> left =
      Teardown(before, line.values.number("timeout")).run();
  if (!left) {
    return report(left.error(), line.json);
  }
  if (!left->empty()) {
    std::string names;
    for (const std::string& one : *left) {
      names += (names.empty() ? "" : ", ") + one;
    }
    return report(
        Error{ErrorCode::kTeardown, strf("{} processes are still alive: {}", left->size(), names),
              paths->root.string(), strf("run it again: yeto down {}", before.name)},
        line.json);
  }
  const std::string state = look_at(*paths).state_text();
  if (line.json) {
    std::printf(
        "{\"schema\": \"yeto.down/1\", \"name\": \"%s\", \"state\": \"%s\", \"warnings\": []}\n",
        before.name.c_str(), state.c_str());
  } else if (before.is_over()) {
    std::printf("run %s was over already: %s; nothing of it is alive\n", before.name.c_str(),
                state.c_str());
  } else {
    std::printf("run %s is down; its folder is kept: %s\n", before.name.c_str(),
                paths->root.c_str());
  }
  return 0;
}

}  // namespace yeto::apps
