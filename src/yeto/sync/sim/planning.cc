// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/sim/planning.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/codec/codec.h"
#include "yeto/sync/sim/world.h"

namespace yeto::sync::sim {
namespace {

constexpr std::uint32_t kSmallFleet = 64;
// What an event costs the core grows with the members; this keeps any fleet well under a minute.
constexpr std::uint64_t kLearnerRounds = 40'000;
constexpr std::uint64_t kCost = 10'000'000;
constexpr std::uint64_t kFewestCommits = 12;
constexpr std::size_t kTimelinePoints = 120;

struct Commit {
  double at_s = 0.0;
  double round_s = 0.0;
  std::uint64_t expected = 0;
  std::uint64_t responded = 0;
  double tokens = 0.0;  // fragment-tokens
  double training = 0.0;
};

double percentile(std::vector<double> values, double share) {
  if (values.empty()) {
    return 0.0;
  }
  const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

class Recorder final : public Observer {
 public:
  void watch(World& world) { world_ = &world; }
  void on_tape(const TapeRecord& record, Nanos now) override {
    const auto* round = std::get_if<TapeRound>(&record);
    if (round == nullptr || !round->committed) {
      return;
    }
    Commit commit;
    commit.at_s = seconds(now);
    commit.round_s = seconds(round->committed_at - round->launched);
    commit.expected = round->expected.size();
    commit.responded = round->responded.size();
    for (const SeatValue& tokens : round->tokens) {
      commit.tokens += tokens.value;
    }
    std::uint32_t training = 0;
    for (std::uint32_t i = 0; i < world_->island_count(); ++i) {
      training += world_->island(i).state() == Island::State::kTraining ? 1 : 0;
    }
    commit.training = training / static_cast<double>(world_->island_count());
    if (commits.empty()) {
      trained_before = trained();
      bytes_before = world_->network().bytes_moved();
    }
    commits.push_back(commit);
  }
  void on_fault(const Fault&, Nanos now) override { faults.push_back(seconds(now)); }
  void on_ready(Nanos since_start) override { ready.push_back(seconds(since_start)); }

  double trained() const {
    double sum = 0.0;
    for (std::uint32_t i = 0; i < world_->island_count(); ++i) {
      sum += static_cast<double>(world_->island(i).tokens());
    }
    return sum;
  }

  std::vector<Commit> commits;
  std::vector<double> faults;
  std::vector<double> ready;
  double trained_before = 0.0;
  std::uint64_t bytes_before = 0;

 private:
  World* world_ = nullptr;
};

double ideal_tokens(const PlanningOptions& options, double span_s) {
  return options.learners * span_s / seconds(options.step) * static_cast<double>(options.tokens);
}

std::vector<TimelinePoint> timeline_of(const Recorder& recorder, const PlanningOptions& options,
                                       double end_s) {
  const double width = end_s / static_cast<double>(kTimelinePoints);
  std::vector<TimelinePoint> points(kTimelinePoints);
  std::vector<std::vector<const Commit*>> buckets(kTimelinePoints);
  const auto bucket_of = [&](double at_s) {
    return std::min(kTimelinePoints - 1, static_cast<std::size_t>(at_s / std::max(width, 1e-9)));
  };
  for (const Commit& commit : recorder.commits) {
    buckets[bucket_of(commit.at_s)].push_back(&commit);
  }
  for (const double at_s : recorder.faults) {
    ++points[bucket_of(at_s)].faults;
  }
  for (std::size_t i = 0; i < kTimelinePoints; ++i) {
    TimelinePoint& point = points[i];
    point.at_s = (static_cast<double>(i) + 0.5) * width;
    if (buckets[i].empty()) {
      point.training = i > 0 ? points[i - 1].training : 0.0;
      continue;
    }
    double expected = 0.0;
    double responded = 0.0;
    double tokens = 0.0;
    for (const Commit* commit : buckets[i]) {
      expected += static_cast<double>(commit->expected);
      responded += static_cast<double>(commit->responded);
      tokens += commit->tokens;
      point.round_s += commit->round_s / static_cast<double>(buckets[i].size());
    }
    point.training = buckets[i].back()->training;
    point.participation = expected > 0.0 ? responded / expected : 0.0;
    point.goodput = tokens / options.fragments / ideal_tokens(options, width);
  }
  return points;
}

void add_rates(PlanningReport& report, const Recorder& recorder, World& world) {
  const double measured = report.measured_s;
  double tokens = 0.0;
  double expected = 0.0;
  double responded = 0.0;
  std::vector<double> rounds;
  for (std::size_t i = 1; i < recorder.commits.size(); ++i) {
    const Commit& commit = recorder.commits[i];
    tokens += commit.tokens;
    expected += static_cast<double>(commit.expected);
    responded += static_cast<double>(commit.responded);
    rounds.push_back(commit.round_s);
  }
  const PlanningOptions& options = report.options;
  const double ideal = ideal_tokens(options, measured);
  const auto commits = static_cast<double>(rounds.size());
  const auto bytes = static_cast<double>(world.network().bytes_moved() - recorder.bytes_before);
  report.goodput = tokens / options.fragments / ideal;
  report.trained = (recorder.trained() - recorder.trained_before) / ideal;
  report.participation = expected > 0.0 ? responded / expected : 0.0;
  report.answered_of_all = commits > 0.0 ? responded / (commits * options.learners) : 0.0;
  report.round_p50_s = percentile(rounds, 0.5);
  report.round_p99_s = percentile(rounds, 0.99);
  report.steps_per_hour = commits / measured * 3600.0;
  report.bytes_per_learner_hour = bytes / options.learners / measured * 3600.0;
  report.syncer_bytes_per_s = bytes / measured;
}

}  // namespace

Status check(const PlanningOptions& options) {
  const auto refuse = [](std::string what, const char* flag) {
    return fail(ErrorCode::kRange, std::move(what), flag);
  };
  if (options.learners < 1 || options.learners > 4096) {
    return refuse(strf("{} learners: 1 to 4096 can be simulated", options.learners), "--learners");
  }
  if (options.fragments < 1 || options.fragments > kMaxFragments) {
    return refuse(strf("{} fragments: 1 to {}", options.fragments, kMaxFragments), "--fragments");
  }
  if (options.params < options.fragments || options.params > std::uint64_t{1} << 44) {
    return refuse(strf("{} params: at least one per fragment, at most 2^44", options.params),
                  "--params");
  }
  if (options.step <= 0 || options.hours <= 0.0 || options.hours > 24.0 * 366.0) {
    return refuse("steps and hours must be longer than nothing, at most a year", "--step, --hours");
  }
  if (options.mtbf != 0 && options.mtbf < kSecond) {
    return refuse("a learner that fails more than once a second never trains", "--mtbf");
  }
  return Unit{};
}

Plan plan_of(const PlanningOptions& options) {
  Plan plan;
  plan.seed = options.seed;
  plan.values = ValueKind::kPhantom;
  std::vector<TensorSpec> tensors(options.fragments);
  for (std::uint32_t i = 0; i < options.fragments; ++i) {
    tensors[i].name = strf("part.{}", i);
    tensors[i].shape = {(options.params + options.fragments - 1) / options.fragments};
  }
  plan.layout = *make_layout(std::move(tensors), {.fragments = options.fragments});
  plan.core.run_id = "plan";
  plan.core.learners = options.learners;
  plan.core.quorum = options.quorum;
  plan.core.start_timeout = 120 * kSecond;
  plan.core.pipeline = options.pipeline;
  plan.core.sync_interval_steps = options.sync_interval_steps;
  plan.core.push_codec = options.codec;
  plan.core.broadcast_codec = options.codec;
  if (options.learners > kSmallFleet) {
    plan.core.heartbeat = kSecond * ((options.learners + kSmallFleet - 1) / kSmallFleet);
    plan.core.lease = 5 * plan.core.heartbeat;
    plan.pieces = 1;
  }
  plan.syncer_bytes_per_s = options.syncer_bytes_per_s;
  plan.end_at = from_seconds(options.hours * 3600.0);
  if (!options.everything) {
    const std::uint64_t bound =
        options.learner_rounds != 0 ? options.learner_rounds : kLearnerRounds;
    const std::uint64_t by_cost = kCost / options.learners / options.learners;
    plan.stop_after_commits = std::max(kFewestCommits, std::min(bound / options.learners, by_cost));
  }
  Rng rng(mix64(options.seed ^ 0x666c656574));
  for (Seat seat = 0; seat < options.learners; ++seat) {
    IslandShape island;
    island.seat = seat;
    island.starts_at = from_seconds(10.0 * rng.uniform());
    island.step = from_seconds(seconds(options.step) * (0.98 + 0.04 * rng.uniform()));
    island.step_jitter = options.step_jitter;
    island.tokens = options.tokens;
    island.link.bytes_per_s = options.bytes_per_s;
    island.link.one_way = options.round_trip / 2;
    island.link.jitter = options.round_trip / 10;
    plan.islands.push_back(island);
    if (options.mtbf == 0) {
      continue;
    }
    for (double at_s = 0.0;;) {
      at_s += -std::log(1.0 - rng.uniform()) * seconds(options.mtbf);
      if (at_s >= options.hours * 3600.0) {
        break;
      }
      plan.faults.push_back(
          {FaultKind::kKillIsland, seat, from_seconds(at_s), std::max<Nanos>(1, options.restart)});
    }
  }
  return plan;
}

PlanningReport run_planning(const PlanningOptions& options) {
  const Plan plan = plan_of(options);
  Recorder recorder;
  World world(plan, {}, &recorder);
  recorder.watch(world);
  const Outcome outcome = world.run();
  PlanningReport report;
  report.options = options;
  report.violation = outcome.violation;
  report.simulated_s = seconds(outcome.now);
  report.lease_s = seconds(plan.core.lease);
  report.commits = recorder.commits.size();
  report.faults = recorder.faults.size();
  report.staleness_mean = world.mean_staleness();
  report.ready_p50_s = percentile(recorder.ready, 0.5);
  report.buffer_bytes = static_cast<double>(world.syncer().buffer_bytes_most());
  if (recorder.commits.size() > 1) {
    report.first_commit_s = recorder.commits.front().at_s;
    report.measured_s = recorder.commits.back().at_s - report.first_commit_s;
    add_rates(report, recorder, world);
  }
  report.timeline = timeline_of(recorder, options, report.simulated_s);
  return report;
}

// ---- quantities
// ------------------------------------------------------------------------------------

namespace {

struct NamedFactor {
  std::string_view name;
  double factor;
};

// A number and one of the units.
Result<double> parse_quantity(std::string_view text, std::span<const NamedFactor> units,
                              const char* example) {
  const std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  const std::string_view rest =
      std::string_view(copy).substr(static_cast<std::size_t>(end - copy.c_str()));
  for (const NamedFactor& unit : units) {
    if (rest == unit.name && end != copy.c_str() && std::isfinite(value) && value >= 0.0) {
      return value * unit.factor;
    }
  }
  std::string names;
  for (const NamedFactor& unit : units) {
    names += strf("{}{}", names.empty() ? "" : ", ", unit.name);
  }
  return fail(ErrorCode::kType,
              strf("\"{}\" is not a number with one of the units {}", text, names), "",
              strf("write it like {}", example));
}

}  // namespace

Result<Nanos> parse_duration(std::string_view text) {
  static constexpr NamedFactor kUnits[] = {{"s", 1.0},    {"ms", 1e-3},  {"us", 1e-6},  {"m", 60.0},
                                           {"min", 60.0}, {"h", 3600.0}, {"d", 86400.0}};
  YETO_ASSIGN(const double value, parse_quantity(text, kUnits, "1.2s, 80ms or 2h"));
  return from_seconds(value);
}

Result<double> parse_rate(std::string_view text) {
  static constexpr NamedFactor kUnits[] = {{"Gbit", 1.25e8}, {"Mbit", 1.25e5}, {"kbit", 125.0},
                                           {"GB", 1e9},      {"MB", 1e6},      {"kB", 1e3}};
  YETO_ASSIGN(const double value, parse_quantity(text, kUnits, "1Gbit or 100MB"));
  if (value <= 0.0) {
    return fail(ErrorCode::kRange, "a link needs a rate above zero");
  }
  return value;
}

}  // namespace yeto::sync::sim
