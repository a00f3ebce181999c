// SPDX-License-Identifier: Apache-2.0
// `yeto status`: from the files of the run folder alone.
#include "status.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "verbs.h"
#include "yeto/base/clock.h"
#include "yeto/base/format.h"
#include "yeto/fleet/run/observed.h"

namespace yeto::apps {
namespace {

void fill_from_state(const RunLook& look, StatusView& out) {
  if (look.state) {
    out.exit = look.state->exit;
    out.error = look.state->error;
    out.artifact = look.state->artifact;
    for (const fleet::StoredIsland& island : look.state->islands) {
      IslandLine line;
      line.id = island.id;
      line.state = island.state;
      if (island.handle) {
        line.pid = island.handle->pid;
      }
      out.islands.push_back(line);
    }
  }
  // Before the controller wrote a state, and after a `down` that found none, the slots are known
  // all the same.
  const std::size_t slots = look.record ? look.record->islands.size() : 0;
  for (std::size_t seat = out.islands.size(); seat < slots; ++seat) {
    IslandLine line;
    line.id = static_cast<int>(seat);
    line.state = std::string(fleet::island_state_name(fleet::IslandState::kPlanned));
    out.islands.push_back(line);
  }
}

void fill_from_syncer(const RunLook& look, StatusView& out) {
  const Result<fleet::SyncerStatus> status = fleet::read_syncer_status(look.paths.status_json());
  if (!status) {
    return;
  }
  out.global_step = status->global_step;
  out.total_steps = status->total_steps;
  const double stale_s = std::max(0.0, out.checked_at - status->updated_at);
  for (const fleet::SeatStatus& seat : status->seats) {
    for (IslandLine& line : out.islands) {
      if (line.id != seat.seat) {
        continue;
      }
      line.tokens = seat.tokens;
      line.participation = seat.participation;
      // Of a process that has ended or has not joined, the syncer only knows what was before.
      const bool joined =
          line.pid && line.state != fleet::island_state_name(fleet::IslandState::kSetup);
      if (joined) {
        line.version_lag = seat.version_lag;
      }
      if (joined && seat.heartbeat_age_s) {
        line.heartbeat_age_s = *seat.heartbeat_age_s + stale_s;
      }
    }
  }
}

// Loss: mean over the islands' newest steps, weighted by their targets. Rate: sum of the islands
// that run.
void fill_from_metrics(const RunLook& look, StatusView& out) {
  double weighted = 0;
  double weight = 0;
  for (const IslandLine& line : out.islands) {
    const fleet::IslandMetrics metrics = fleet::read_last_metrics(look.paths.metrics(line.id));
    if (metrics.loss) {
      const double targets = metrics.targets ? static_cast<double>(*metrics.targets) : 1.0;
      weighted += *metrics.loss * targets;
      weight += targets;
    }
    if (!out.over && metrics.tokens_per_s && line.pid) {
      out.tokens_per_s = out.tokens_per_s.value_or(0) + *metrics.tokens_per_s;
    }
  }
  if (weight > 0) {
    out.loss = weighted / weight;
  }
}

std::string shown(const std::optional<std::int64_t>& value) {
  return value ? strf("{}", *value) : "-";
}
std::string shown(const std::optional<double>& value, int digits) {
  return value ? strf("{:.{}f}", *value, digits) : "-";
}

using Row = std::vector<std::string>;

std::string table(const std::vector<Row>& rows, const std::string& indent) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string out;
  for (const Row& row : rows) {
    std::string line = indent;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += i + 1 == row.size() ? row[i] : strf("{:<{}}  ", row[i], widths[i]);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

Row run_row(const StatusView& run) {
  const auto live = std::count_if(run.islands.begin(), run.islands.end(),
                                  [](const IslandLine& line) { return line.state == "RUNNING"; });
  return {run.name,
          run.state,
          run.phase.empty() ? "-" : run.phase,
          human_seconds(run.age_s),
          strf("{}/{}", live, run.islands.size()),
          strf("{}/{}", shown(run.global_step), shown(run.total_steps)),
          shown(run.loss, 4),
          shown(run.tokens_per_s, 0)};
}

std::string runs_table(const std::vector<StatusView>& runs) {
  std::vector<Row> rows = {
      {"NAME", "STATE", "PHASE", "AGE", "ISLANDS", "STEP", "LOSS", "TOKENS/S"}};
  for (const StatusView& run : runs) {
    rows.push_back(run_row(run));
  }
  return table(rows, "");
}

std::string details(const StatusView& run) {
  std::vector<Row> rows = {
      {"ISLAND", "STATE", "PID", "LAG", "PARTICIPATION", "TOKENS", "HEARTBEAT"}};
  for (const IslandLine& line : run.islands) {
    rows.push_back({strf("{}", line.id), line.state, shown(line.pid), shown(line.version_lag),
                    shown(line.participation, 2), shown(line.tokens),
                    line.heartbeat_age_s ? strf("{:.1f} s ago", *line.heartbeat_age_s) : "-"});
  }
  std::string out = table(rows, "  ") + strf("  run {}  folder {}\n", run.run_id, run.folder);
  if (run.exit) {
    out += strf("  exit {}\n", *run.exit);
  }
  if (!run.error.empty()) {
    out += strf("  error: {}\n", run.error);
  }
  if (!run.artifact.empty()) {
    out += strf("  artifact: {}\n", run.artifact);
  }
  if (run.phase == "CONTROL_LOST") {
    out += strf(
        "  the controller is gone; islands and syncer may still train\n"
        "  take it over: yeto _controller {} &\n  or end it: yeto down {}\n",
        run.folder, run.name);
  }
  return out;
}

int show_all(const fleet::Registry& registry, bool json) {
  std::vector<StatusView> runs;
  for (const fleet::RunPaths& paths : registry.list()) {
    runs.push_back(status_view(paths));
  }
  if (json) {
    std::fputs(status_json(runs, false).c_str(), stdout);
  } else if (runs.empty()) {
    std::printf("no runs in %s\n", registry.dir().c_str());
  } else {
    std::fputs(runs_table(runs).c_str(), stdout);
  }
  return 0;
}

int watch(const fleet::Registry& registry, const VerbLine& line) {
  catch_interrupt();
  const double period = line.values.number("watch");
  while (true) {
    bool over = false;
    std::string text;
    if (line.name.empty()) {
      std::vector<StatusView> runs;
      for (const fleet::RunPaths& paths : registry.list()) {
        runs.push_back(status_view(paths));
      }
      over = std::all_of(runs.begin(), runs.end(), [](const StatusView& run) { return run.over; });
      text = runs_table(runs);
    } else {
      const Result<fleet::RunPaths> paths = registry.find(line.name);
      if (!paths) {
        return report(paths.error(), false);
      }
      const StatusView run = status_view(*paths);
      over = run.over;
      text = runs_table({run}) + details(run);
    }
    // On a terminal the table stays in place.
    std::printf("%s%s", ::isatty(1) != 0 ? "\033[H\033[2J" : "", text.c_str());
    std::fflush(stdout);
    if (over || interrupted()) {
      return 0;
    }
    wait_seconds(period);
    if (interrupted()) {
      return 0;
    }
  }
}

}  // namespace

StatusView status_view(const fleet::RunPaths& paths) {
  const RunLook look = look_at(paths);
  StatusView out;
  out.checked_at = wall_now();
  out.name = look.name;
  out.run_id = look.run_id;
  out.state = look.state_text();
  out.phase = look.phase_text();
  out.over = look.is_over();
  out.age_s = look.age_s();
  out.folder = paths.root.string();
  fill_from_state(look, out);
  fill_from_syncer(look, out);
  fill_from_metrics(look, out);
  return out;
}

int run_status(int argc, char** argv) {
  const VerbLine line = read_verb_line(fleet::kStatus, argc, argv);
  if (line.exit) {
    return *line.exit;
  }
  const fleet::Registry registry = open_registry();
  if (line.values.has("watch")) {
    if (line.json) {
      return report(Error{ErrorCode::kConflict, "--watch and -o json exclude each other", "",
                          "with -o json stdout holds one value; call yeto status again"},
                    true);
    }
    return watch(registry, line);
  }
  if (line.name.empty()) {
    return show_all(registry, line.json);
  }
  const Result<fleet::RunPaths> paths = registry.find(line.name);
  if (!paths) {
    return report(paths.error(), line.json);
  }
  const StatusView run = status_view(*paths);
  std::fputs((line.json ? status_json({run}, true) : runs_table({run}) + details(run)).c_str(),
             stdout);
  return 0;
}

}  // namespace yeto::apps
