// SPDX-License-Identifier: Apache-2.0
// `yeto launch`: check everything, write the run folder, hand the run to a controller, return.
#include "launch.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "cli.h"
#include "verbs.h"
#include "yeto/base/clock.h"
#include "yeto/base/format.h"
#include "yeto/base/process.h"
#include "yeto/fleet/providers/local.h"
#include "yeto/fleet/providers/process.h"
#include "yeto/fleet/run/ulid.h"

namespace yeto::apps {
namespace {

using fleet::FlagError;

constexpr double kControllerTimeoutS = 10;

struct Launch {
  fleet::RunRecord record;
  fleet::Registry registry;
  std::vector<std::string> warnings;
  bool json = false;
};

// All refusals that need neither model nor network, together.
std::vector<FlagError> read_line(int argc, char** argv, Launch& launch, bool& help) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  fleet::ParsedLine line = fleet::parse_line(fleet::kLaunch, args);
  help = line.help;
  launch.json = line.values.text("o") == "json";
  std::vector<FlagError> errors = std::move(line.errors);
  fleet::FleetParse fleet;
  if (line.values.has("gpu")) {
    fleet = fleet::parse_fleet(line.values.text("gpu"));
    errors.insert(errors.end(), fleet.errors.begin(), fleet.errors.end());
  }
  const std::size_t islands = fleet.errors.empty() ? fleet.fleet.slots.size() : 0;
  for (const auto& more :
       {fleet::launch_conflicts(line.values, islands),
        help ? std::vector<FlagError>{} : check_places(line.values, launch.registry)}) {
    errors.insert(errors.end(), more.begin(), more.end());
  }
  if (fleet::apply_limit_rule(line.values)) {
    launch.warnings.emplace_back("no limit was given: --epochs 1");
  }
  launch.record.flags = std::move(line.values);
  launch.record.islands = std::move(fleet.fleet.slots);
  return errors;
}

// A fragment that is merged only once or twice learns little from the others: the interval between
// its merges is lowered where the planned steps would merge it fewer than four times.
void lower_sync_interval(Launch& launch) {
  constexpr std::int64_t kMergesWanted = 4;
  fleet::FlagValues& flags = launch.record.flags;
  const std::int64_t interval = flags.integer("sync-interval-steps");
  const auto steps =
      planned_local_steps(flags, launch.record.islands.size(), launch.record.check_json);
  if (!steps || interval == 0 || *steps / interval >= kMergesWanted) {
    return;
  }
  const std::int64_t lowered = std::max<std::int64_t>(1, *steps / kMergesWanted);
  if (lowered >= interval) {
    return;
  }
  flags.set("sync-interval-steps", {std::to_string(lowered), "", "rule"});
  launch.warnings.push_back(strf(
      "--sync-interval-steps {} -> {}: an island makes about {} steps, and each fragment should be "
      "merged at least {} times",
      interval, lowered, *steps, kMergesWanted));
}

Status fill_record(Launch& launch) {
  fleet::RunRecord& record = launch.record;
  YETO_ASSIGN(const std::string python, find_python());
  const std::string self = own_program();
  record.name = record.flags.text("cluster-prefix");
  record.version = YETO_VERSION;
  record.programs = {{self, "syncer"},
                     {python, "-m", "yeto.learner"},
                     {self, "_finish"},
                     {python, "-m", "yeto.learner.plot"}};
  record.output = record.flags.text("output");
  int cores = 0;
  for (const fleet::Slot& slot : record.islands) {
    cores += slot.count;
  }
  const int here = static_cast<int>(std::thread::hardware_concurrency());
  if (here > 0 && cores > here) {
    launch.warnings.push_back(
        strf("the islands ask for {} cores, this machine has {}: they will share", cores, here));
  }
  if (record.islands.size() == 1) {
    launch.warnings.emplace_back("one island: there is nobody to merge with");
  }
  return Unit{};
}

// Claims the name and writes the folder. On an error nothing of it stays.
Result<fleet::RunPaths> write_run(Launch& launch) {
  const fleet::Registry& registry = launch.registry;
  fleet::RunRecord& record = launch.record;
  YETO_ASSIGN(const FileHandle lock, registry.lock_claims());
  if (const std::optional<FlagError> busy = busy_name(registry, record.name)) {
    return fail(busy->code, strf("{} ({})", busy->what, busy->why), "", busy->hints.front());
  }
  if (const std::optional<fleet::Claim> stale = registry.read_claim(record.name)) {
    YETO_TRY(registry.release(record.name, stale->run_id));
  }
  record.run_id = fleet::make_ulid();
  record.created_at = wall_now();
  const std::string folder = strf("{}.{}", record.name, fleet::run6(record.run_id));
  YETO_TRY(
      registry.claim(record.name, {record.run_id, folder, fleet::own_handle(), record.created_at}));
  Result<fleet::RunPaths> paths = registry.create(record.name, record.run_id);
  Status written = paths ? fleet::write_secrets(*paths, static_cast<int>(record.islands.size()))
                         : Status(fail(paths.error()));
  if (written) {
    written = fleet::write_run_record(*paths, record);
  }
  if (written) {
    written = registry.link_newest(record.name, *paths);
  }
  if (!written) {
    if (paths) {
      std::error_code problem;
      std::filesystem::remove_all(paths->root, problem);
    }
    YETO_TRY(registry.release(record.name, record.run_id));
    return fail(std::move(written).error());
  }
  return paths;
}

// Starts the controller and waits until it has the run.
Status hand_over(const Launch& launch, const fleet::RunPaths& paths) {
  YETO_ASSIGN(const fleet::Handle controller,
              fleet::spawn_detached({own_program(), "_controller", paths.root.string()},
                                    paths.controller_log()));
  const Nanos end = monotonic_now() + from_seconds(kControllerTimeoutS);
  while (monotonic_now() < end) {
    if (fleet::read_state(paths)) {
      return Unit{};
    }
    if (!fleet::is_alive(controller)) {
      break;
    }
    wait_seconds(0.02);
  }
  if (fleet::read_state(paths)) {
    return Unit{};
  }
  fleet::LocalProvider provider;
  provider.terminate(controller, fleet::Force::kKill, [](const Result<Unit>&) {});
  fleet::StoredState state;
  state.name = launch.record.name;
  state.run_id = launch.record.run_id;
  state.state = fleet::RunState::kFailed;
  state.exit = error_exit_code(ErrorCode::kUnreachable);
  state.error = "the controller did not start";
  state.updated_at = wall_now();
  YETO_TRY(fleet::write_state(paths, state));
  YETO_TRY(launch.registry.release(launch.record.name, launch.record.run_id));
  return fail(ErrorCode::kUnreachable, "the controller did not take the run",
              paths.controller_log().string(),
              "its last lines: " + last_lines(paths.controller_log(), 5));
}

void print_started(const Launch& launch, const fleet::RunPaths& paths) {
  const fleet::RunRecord& record = launch.record;
  std::string out =
      strf("run {} ({}) is started: {} island{} on this machine\n", record.name, record.run_id,
           record.islands.size(), record.islands.size() == 1 ? "" : "s");
  out += strf("  folder    {}\n", paths.root.string());
  out += check_lines(record.check_json);
  out +=
      strf("  output    {}\n", record.output.empty() ? paths.artifacts().string() : record.output);
  for (const std::string& warning : launch.warnings) {
    out += strf("  note      {}\n", warning);
  }
  out += strf(
      "next:\n"
      "  yeto status {0} --watch   follow it\n"
      "  yeto logs {0} -f          what its processes print\n"
      "  yeto stop-run {0}         last merge, adapter, end\n"
      "  yeto down {0}             end it at once\n",
      record.name);
  std::fputs(out.c_str(), stdout);
}

}  // namespace

int run_launch(int argc, char** argv) {
  Launch launch{{}, open_registry(), {}, false};
  bool help = false;
  const std::vector<FlagError> errors = read_line(argc, argv, launch, help);
  if (help) {
    std::fputs(fleet::help_text(fleet::kLaunch).c_str(), stdout);
    return 0;
  }
  if (!errors.empty()) {
    return report(errors, launch.json);
  }
  if (const Status filled = fill_record(launch); !filled) {
    return report(filled.error(), launch.json);
  }
  std::fputs("checking model and data\n", stderr);
  LearnerCheck check = check_with_learner(launch.record);
  if (!check.errors.empty()) {
    if (launch.json || check.text.empty()) {
      report(check.errors, launch.json);
    } else {
      std::fputs(check.text.c_str(), stderr);
    }
    return check.exit;
  }
  launch.record.check_json = std::move(check.json);
  for (std::string& warning : check_warnings(launch.record.check_json)) {
    launch.warnings.push_back(std::move(warning));
  }
  lower_sync_interval(launch);
  if (launch.record.flags.on("dry-run")) {
    // Names that only a real launch has stand in angle brackets.
    launch.record.run_id = "<run-id>";
    const fleet::RunPaths paths{launch.registry.dir() / (launch.record.name + ".<run6>")};
    std::fputs(plan_json(launch.record, paths, launch.warnings).c_str(), stdout);
    return 0;
  }
  const Result<fleet::RunPaths> paths = write_run(launch);
  if (!paths) {
    return report(paths.error(), launch.json);
  }
  if (const Status taken = hand_over(launch, *paths); !taken) {
    return report(taken.error(), launch.json);
  }
  if (launch.json) {
    std::fputs(launched_json(launch.record, *paths, launch.warnings).c_str(), stdout);
  } else {
    print_started(launch, *paths);
  }
  return 0;
}

}  // namespace yeto::apps
