// SPDX-License-Identifier: Apache-2.0
// `yeto sim`: the search for broken rules over seeds, and plans of fleets.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>

#include "cli.h"
#include "commit.h"
#include "verbs.h"
#include "yeto/base/clock.h"
#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/codec/codec.h"
#include "yeto/fleet/spec/nearest.h"
#include "yeto/sync/sim/planning.h"
#include "yeto/sync/sim/seeds.h"

namespace yeto::apps {
namespace {

using fleet::FlagValues;
namespace sim = sync::sim;

constexpr std::uint64_t kMostSeeds = 1'000'000'000;
constexpr const char* kRooms[] = {"core", "round", "network", "client", "jobs", "world"};

Error at_flag(Error error, const char* flag) {
  error.where = flag;
  return error;
}

struct SeedRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

Result<SeedRange> parse_seeds(const std::string& text) {
  char* end = nullptr;
  SeedRange range;
  range.first = range.last = std::strtoull(text.c_str(), &end, 10);
  const bool one = *end == '\0';
  if (!one && end[0] == '.' && end[1] == '.') {
    range.last = std::strtoull(end + 2, &end, 10);
  }
  if (text.empty() || text[0] < '0' || text[0] > '9' || *end != '\0' || range.last < range.first ||
      range.last - range.first > kMostSeeds) {
    return fail(ErrorCode::kType, strf("\"{}\" is no range of seeds", text), "--seeds",
                "write it like 1..1000, or one number");
  }
  return range;
}

Result<sim::Trace> parse_trace(const std::string& text) {
  sim::Trace trace;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t to = std::min(text.find(',', from), text.size());
    const std::string room = text.substr(from, to - from);
    if (std::find(std::begin(kRooms), std::end(kRooms), room) == std::end(kRooms)) {
      const std::vector<std::string> names(std::begin(kRooms), std::end(kRooms));
      return fail(ErrorCode::kType, strf("there is no room \"{}\" to trace", room), "--trace",
                  strf("rooms: {}", fleet::or_list(names)));
    }
    trace.rooms.insert(room);
    trace.out = stdout;
    from = to + 1;
  }
  return trace;
}

// ---- the search
// ----------------------------------------------------------------------------------

void print_failure(const sim::SeedFailure& failure) {
  std::printf(
      "seed %llu of commit %s: %s\nsmallest plan that breaks it:\n%s"
      "again: yeto sim --seeds %llu --trace round,world\n\n",
      static_cast<unsigned long long>(failure.seed), YETO_COMMIT, failure.violation.c_str(),
      sim::describe(failure.smallest).c_str(), static_cast<unsigned long long>(failure.seed));
}

std::string search_json(const SeedRange& range, const sim::SeedReport& report, double took_s) {
  std::string failures;
  for (const sim::SeedFailure& failure : report.failures) {
    std::string text;
    for (const char c : failure.violation) {
      text += c == '"' || c == '\\' ? std::string("\\") + c
              : c == '\n'           ? std::string("\\n")
                                    : std::string(1, c);
    }
    failures += strf(R"({}{{"seed": {}, "violation": "{}"}})", failures.empty() ? "" : ", ",
                     failure.seed, text);
  }
  return strf(
      R"({{"schema": "yeto.sim-search/1", "commit": "{}", "first": {}, "last": {}, )"
      R"("worlds": {}, "events": {}, "commits": {}, "virtual_s": {:.3f}, "took_s": {:.3f}, )"
      R"("tape_hash": "{:016x}", )"
      R"("failed": {}, "failures": [{}]}})"
      "\n",
      YETO_COMMIT, range.first, range.last, report.worlds, report.events, report.commits,
      report.virtual_s, took_s, report.tape_hash, report.failed, failures);
}

int search(const FlagValues& values, bool json) {
  const Result<SeedRange> range = parse_seeds(values.text("seeds"));
  if (!range) {
    return report(range.error(), json);
  }
  Result<sim::Trace> trace = parse_trace(values.text("trace"));
  if (!trace) {
    return report(trace.error(), json);
  }
  set_log_level(LogLevel::kError);
  if (trace->out != nullptr && !json) {
    for (std::uint64_t seed = range->first; seed <= range->last; ++seed) {
      std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
      const sim::Outcome outcome = sim::World(sim::plan_of_seed(seed), *trace).run();
      std::printf("%s\n", outcome.good() ? "every rule held" : outcome.violation.c_str());
    }
  }
  const Nanos began = monotonic_now();
  const sim::SeedReport found = sim::run_seeds(range->first, range->last);
  const double took_s = seconds(monotonic_now() - began);
  if (json) {
    std::fputs(search_json(*range, found, took_s).c_str(), stdout);
    return found.good() ? 0 : 1;
  }
  for (const sim::SeedFailure& failure : found.failures) {
    print_failure(failure);
  }
  std::printf(
      "%llu worlds, %llu failed; %llu events, %llu commits, %s of virtual time in %s\n",
      static_cast<unsigned long long>(found.worlds), static_cast<unsigned long long>(found.failed),
      static_cast<unsigned long long>(found.events), static_cast<unsigned long long>(found.commits),
      human_seconds(found.virtual_s).c_str(), human_seconds(took_s).c_str());
  return found.good() ? 0 : 1;
}

// ---- plans
// ---------------------------------------------------------------------------------------

Result<std::uint64_t> parse_params(const std::string& text) {
  char* end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  const std::string rest = end;
  for (const auto& [name, factor] : {std::pair{"k", 1e3}, {"M", 1e6}, {"B", 1e9}, {"T", 1e12}}) {
    value *= rest == name ? factor : 1.0;
  }
  const bool unit = rest.empty() || rest == "k" || rest == "M" || rest == "B" || rest == "T";
  if (text.empty() || !unit || !(value >= 1.0 && value <= 1e14)) {
    return fail(ErrorCode::kType, strf("\"{}\" is no count of trainable values", text), "--params",
                "write it like 9e9, 40M or 1.5B");
  }
  return static_cast<std::uint64_t>(value);
}

template <class T>
Status read_flag(const FlagValues& values, const char* flag, Result<T> (*parse)(std::string_view),
                 T& out) {
  if (!values.has(flag)) {
    return Unit{};
  }
  Result<T> value = parse(values.text(flag));
  if (!value) {
    return fail(at_flag(value.error(), strf("--{}", flag).c_str()));
  }
  out = *value;
  return Unit{};
}

Result<sim::PlanningOptions> read_plan(const FlagValues& values) {
  sim::PlanningOptions out;
  out.learners = static_cast<std::uint32_t>(values.integer("learners"));
  YETO_ASSIGN(out.params, parse_params(values.text("params")));
  out.fragments = static_cast<std::uint32_t>(values.integer("fragments"));
  YETO_ASSIGN(out.codec, codec::codec_from_name(values.text("codec")));
  out.sync_interval_steps = static_cast<std::uint32_t>(values.integer("sync-interval-steps"));
  out.pipeline = static_cast<std::uint32_t>(values.integer("pipeline"));
  out.quorum =
      values.text("quorum") == "auto" ? 0 : static_cast<std::uint32_t>(values.integer("quorum"));
  const std::string link = values.text("link");
  const std::size_t comma = link.find(',');
  if (comma == std::string::npos) {
    return fail(ErrorCode::kType, strf("\"{}\" names no round trip", link), "--link",
                "write it like 1Gbit,80ms");
  }
  const Result<double> rate = sim::parse_rate(link.substr(0, comma));
  const Result<Nanos> trip = sim::parse_duration(link.substr(comma + 1));
  if (!rate || !trip) {
    return fail(at_flag(!rate ? rate.error() : trip.error(), "--link"));
  }
  out.bytes_per_s = *rate;
  out.round_trip = *trip;
  YETO_TRY(read_flag(values, "syncer-link", &sim::parse_rate, out.syncer_bytes_per_s));
  YETO_TRY(read_flag(values, "step", &sim::parse_duration, out.step));
  YETO_TRY(read_flag(values, "mtbf", &sim::parse_duration, out.mtbf));
  YETO_TRY(read_flag(values, "restart", &sim::parse_duration, out.restart));
  out.tokens = static_cast<std::uint64_t>(values.integer("tokens-per-step"));
  out.hours = values.number("hours");
  out.everything = values.on("everything");
  out.seed = static_cast<std::uint64_t>(values.integer("seed"));
  YETO_TRY(sim::check(out));
  return out;
}

Status write_timeline(const std::string& file, const sim::PlanningReport& report) {
  if (file.ends_with(".html")) {
    return write_file_atomic(file, sim::timeline_html(report));
  }
  return write_file_atomic(file, ByteView(sim::timeline_png(report)));
}

int plan(const FlagValues& values, bool json) {
  const Result<sim::PlanningOptions> options = read_plan(values);
  if (!options) {
    return report(options.error(), json);
  }
  const std::string file = values.text("timeline");
  if (!file.empty() && !file.ends_with(".html") && !file.ends_with(".png")) {
    return report(Error{ErrorCode::kType, strf("\"{}\" ends in neither .html nor .png", file),
                        "--timeline", "name the file plan.html or plan.png"},
                  json);
  }
  set_log_level(LogLevel::kError);
  const sim::PlanningReport result = sim::run_planning(*options);
  if (!file.empty()) {
    if (const Status written = write_timeline(file, result); !written) {
      return report(written.error(), json);
    }
  }
  std::fputs((json ? sim::report_json(result) : sim::report_text(result)).c_str(), stdout);
  return result.violation.empty() ? 0 : 1;
}

}  // namespace

int run_sim(int argc, char** argv) {
  const VerbLine line = read_verb_line(fleet::kSim, argc, argv);
  if (line.exit) {
    return *line.exit;
  }
  const bool seeds = line.values.has("seeds");
  if (seeds == line.values.has("params")) {
    return report(Error{ErrorCode::kUsage,
                        seeds ? "--seeds and --params exclude each other"
                              : "yeto sim needs --seeds for a search or --params for a plan",
                        "", "yeto sim --seeds 1..1000, or yeto sim --learners 8 --params 40M"},
                  line.json);
  }
  return seeds ? search(line.values, line.json) : plan(line.values, line.json);
}

}  // namespace yeto::apps
