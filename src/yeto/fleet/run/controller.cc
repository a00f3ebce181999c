// SPDX-License-Identifier: Apache-2.0
#include "yeto/fleet/run/controller.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "yeto/base/clock.h"
#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/fleet/run/commands.h"
#include "yeto/fleet/run/delivery.h"

namespace yeto::fleet {
namespace {

constexpr Nanos kPoll = 100 * kMillisecond;
constexpr Nanos kHelperTimeout = 120 * kSecond;
constexpr Nanos kStartRetry = 5 * kSecond;
constexpr int kVerifyTries = 5;

std::string who_text(int who) {
  return who == kWholeRun     ? std::string("run")
         : who == kSyncerSeat ? std::string("syncer")
                              : strf("island {}", who);
}

template <class... Args>
void say(LogLevel level, fmt::format_string<Args...> text, Args&&... args) {
  log_line(level, "controller", ::yeto::vformat(text, fmt::make_format_args(args...)));
}

}  // namespace

Controller::Controller(RunPaths paths, RunRecord record, Provider& provider, ControllerHooks hooks)
    : paths_(std::move(paths)),
      record_(std::move(record)),
      provider_(provider),
      hooks_(std::move(hooks)),
      core_(core_config(record_)) {}

Result<int> Controller::run() {
  const Result<StoredState> before = read_state(paths_);
  if (before && is_terminal(before->state)) {
    say(LogLevel::kInfo, "the run is over: {}", run_state_name(before->state));
    return before->exit.value_or(0);
  }
  if (before) {
    seq_ = before->seq;
  }
  Status taken = take_run();
  if (!taken) {
    if (taken.error().code == ErrorCode::kNameTaken) {
      say(LogLevel::kError, "{}", taken.error().what);
      return kExitFenced;
    }
    return fail(std::move(taken).error());
  }
  YETO_TRY(begin_or_restore());
  save_state();
  while (!core_.over()) {
    step();
    if (!core_.over()) {
      hooks_.wait(kPoll);
    }
  }
  return close_run();
}

Status Controller::take_run() {
  lock_ = FileHandle(::open(paths_.lock().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!lock_) {
    return fail(io_error("cannot open the run's lock", paths_.lock().string(), errno));
  }
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return fail(ErrorCode::kNameTaken, "another controller has this run", paths_.lock().string());
  }
  YETO_ASSIGN(Journal journal, Journal::open(paths_.journal()));
  journal_ = std::move(journal);
  YETO_TRY(write_controller(paths_, hooks_.self));
  return journal_->append(JournalEntry{.kind = "controller", .handle = hooks_.self});
}

// A journal without an intent belongs to a new run. Else the newest attempt of each process is
// looked up.
Status Controller::begin_or_restore() {
  YETO_ASSIGN(const std::vector<JournalEntry> entries, read_journal(paths_.journal()));
  std::map<int, Recorded> newest;
  std::map<int, int> restarts;
  for (Recorded& one : recorded_processes(entries)) {
    if (one.attempt >= 0) {
      restarts[one.who] = one.attempt;
      newest[one.who] = std::move(one);
    }
  }
  for (const JournalEntry& entry : entries) {
    if (entry.kind == "stop") {
      stop_seen_ = entry.what;
    }
  }
  if (newest.empty()) {
    say(LogLevel::kInfo, "run {} ({}): {} islands", record_.name, record_.run_id,
        record_.islands.size());
    feed(event::Begin{});
    return Unit{};
  }
  say(LogLevel::kInfo, "taking over run {} ({})", record_.name, record_.run_id);
  event::Restored restored;
  for (const auto& [who, one] : newest) {
    restored.processes.push_back({who, one.attempt, restarts[who]});
  }
  feed(restored);
  adopt(newest);
  if (!stop_seen_.empty()) {
    if (const Result<StopRequest> stop = read_stop(paths_)) {
      feed(event::Stop{stop->mode});
    }
  }
  return Unit{};
}

void Controller::adopt(const std::map<int, Recorded>& newest) {
  for (const auto& [who, one] : newest) {
    Live live{one.attempt, one.token, one.handle};
    if (live.handle.pid == 0) {
      // The outcome of this create was never recorded: the process is found by its token, or there
      // is none.
      provider_.find(one.token, [&](Result<std::vector<Handle>> found) {
        if (found && !found->empty()) {
          live.handle = found->front();
        }
      });
      if (live.handle.pid != 0) {
        note({.kind = "spawned",
              .who = who,
              .attempt = one.attempt,
              .token = one.token,
              .handle = live.handle});
      }
    }
    live_[who] = live;
    if (live.handle.pid != 0 && observe(live.handle).state == NodeState::kUp) {
      say(LogLevel::kInfo, "adopted {} attempt {}, pid {}", who_text(who), one.attempt,
          live.handle.pid);
      feed(event::ProcessUp{who, one.attempt});
    } else {
      process_gone(who, NodeReport{.state = NodeState::kGone});
    }
  }
}

void Controller::step() {
  provider_.poll();
  for (std::size_t i = pending_starts_.size(); i-- > 0;) {
    if (monotonic_now() >= pending_starts_[i].next) {
      const action::Start start = pending_starts_[i].start;
      pending_starts_.erase(pending_starts_.begin() + static_cast<std::ptrdiff_t>(i));
      apply_start(start);
    }
  }
  watch_processes();
  watch_helpers();
  watch_status();
  watch_stop();
  if (hooks_.down_requested()) {
    feed(event::Down{});
  }
  feed(event::Tick{});
  save_state();
}

// Actions can lead to events at once; they wait until the actions before them are done.
void Controller::feed(const Event& event) {
  queue_.push_back(event);
  if (queue_.size() > 1) {
    return;
  }
  while (!queue_.empty()) {
    for (const Action& action : core_.on(queue_.front(), monotonic_now())) {
      apply(action);
    }
    queue_.pop_front();
  }
}

void Controller::apply(const Action& action) {
  if (const auto* start = std::get_if<action::Start>(&action)) {
    apply_start(*start);
  } else if (const auto* order = std::get_if<action::Terminate>(&action)) {
    apply_terminate(*order);
  } else if (const auto* finish = std::get_if<action::SendFinish>(&action)) {
    apply_finish(finish->mode);
  } else if (const auto* deliver = std::get_if<action::Deliver>(&action)) {
    apply_deliver(deliver->seats);
  } else if (const auto* decision = std::get_if<action::Decide>(&action)) {
    say(LogLevel::kInfo, "{}: {}: {}", who_text(decision->who), decision->what, decision->reason);
    note({.kind = "decision",
          .who = decision->who,
          .what = decision->what,
          .reason = decision->reason});
  }
}

// A line that cannot be written (disk full) is said in the log; only intents must be on disk
// (apply_start).
void Controller::note(JournalEntry entry) {
  const Status written = journal_->append(std::move(entry));
  if (!written) {
    say(LogLevel::kWarn, "journal: {}", written.error().what);
  }
}

Intent Controller::intent_of(const action::Start& start) const {
  Intent intent;
  intent.token = process_token(record_, start.who, start.attempt);
  if (start.who == kSyncerSeat) {
    // Every later syncer goes on from the checkpoint, or from the beginning if there is none yet.
    const bool resume = start.attempt > 0;
    intent.argv = syncer_argv(record_, paths_, resume);
    intent.log_file = paths_.syncer_log();
  } else {
    intent.argv = island_argv(record_, paths_, start.who);
    intent.env = island_env(record_, start.who);
    intent.log_file = paths_.learner_log(start.who, start.attempt);
  }
  return intent;
}

Status Controller::start_process(const action::Start& start) {
  Intent intent = intent_of(start);
  if (start.who != kSyncerSeat) {
    std::error_code problem;
    std::filesystem::create_directories(paths_.island(start.who), problem);
  }
  JournalEntry entry{
      .kind = "intent", .who = start.who, .attempt = start.attempt, .token = intent.token};
  YETO_TRY(journal_->append(entry));
  provider_.create(std::move(intent), [&](Result<Handle> made) {
    if (!made) {
      entry.kind = "spawn_failed";
      entry.reason = made.error().what;
      note(entry);
      feed(event::SpawnFailed{start.who, start.attempt, made.error().what});
      return;
    }
    entry.kind = "spawned";
    entry.handle = *made;
    live_[start.who] = Live{start.attempt, entry.token, *made};
    note(entry);
    say(LogLevel::kInfo, "{}: attempt {} is pid {}", who_text(start.who), start.attempt, made->pid);
    feed(event::ProcessUp{start.who, start.attempt});
  });
  return Unit{};
}

void Controller::apply_start(const action::Start& start) {
  const Status recorded = start_process(start);
  if (!recorded) {
    say(LogLevel::kError, "{} is not started yet: {}", who_text(start.who), recorded.error().what);
    pending_starts_.push_back({start, monotonic_now() + kStartRetry});
  }
}

void Controller::apply_terminate(const action::Terminate& order) {
  const auto found = live_.find(order.who);
  if (found == live_.end()) {
    return;
  }
  provider_.terminate(found->second.handle, order.force ? Force::kKill : Force::kAsk,
                      [&](Result<Unit> done) {
                        if (!done) {
                          say(LogLevel::kWarn, "{}: {}", who_text(order.who), done.error().what);
                        }
                      });
}

NodeReport Controller::observe(const Handle& handle) {
  NodeReport out;
  provider_.observe(handle, [&](Result<NodeReport> report) {
    if (report) {
      out = *report;
    }
  });
  return out;
}

bool Controller::has_artifact(int seat) const {
  std::error_code problem;
  return seat != kSyncerSeat &&
         std::filesystem::exists(paths_.adapter(seat) / "yeto_manifest.json", problem);
}

void Controller::watch_processes() {
  const std::map<int, Live> now_live = live_;
  for (const auto& [who, live] : now_live) {
    const NodeReport report = observe(live.handle);
    if (report.state == NodeState::kGone) {
      process_gone(who, report);
    }
  }
}

void Controller::process_gone(int who, const NodeReport& report) {
  const Live live = live_[who];
  live_.erase(who);
  // What is left of its group (workers of a killed learner) would train on against nobody.
  if (live.handle.pid != 0) {
    provider_.terminate(live.handle, Force::kKill, [](const Result<Unit>&) {});
  }
  event::Exited exited{who, live.attempt, report.exit, report.signal, has_artifact(who)};
  if (who == kSyncerSeat) {
    watch_status();
    const Result<SyncerStatus> status = read_syncer_status(paths_.status_json());
    // Of a syncer that was not our child, the exit code is known only from its last words.
    if (!exited.exit && exited.signal == 0 && status && status->phase == "ended" &&
        status->pid == live.handle.pid) {
      exited.exit = status->exit;
    }
  }
  feed(exited);
}

std::optional<Handle> Controller::spawn_helper(const std::string& name,
                                               std::vector<std::string> argv) {
  std::optional<Handle> out;
  Intent intent;
  intent.token = strf("{}-{}-{}", process_token(record_, kSyncerSeat, 0), name, ++helpers_);
  intent.argv = std::move(argv);
  intent.log_file = paths_.controller_log();
  const JournalEntry entry{.kind = "intent", .token = intent.token};
  note(entry);
  provider_.create(std::move(intent), [&](Result<Handle> made) {
    JournalEntry outcome = entry;
    outcome.kind = made ? "spawned" : "spawn_failed";
    if (made) {
      outcome.handle = *made;
      out = *made;
    } else {
      outcome.reason = made.error().what;
      say(LogLevel::kWarn, "{}: {}", name, made.error().what);
    }
    note(outcome);
  });
  return out;
}

void Controller::apply_finish(StopMode mode) {
  finish_ = spawn_helper("finish", finish_argv(record_, paths_, mode));
  finish_deadline_ = monotonic_now() + kHelperTimeout;
  if (!finish_) {
    feed(event::FinishSent{false});
  }
}

void Controller::watch_helpers() {
  const Nanos now = monotonic_now();
  if (finish_) {
    const NodeReport report = observe(*finish_);
    if (report.state == NodeState::kGone) {
      finish_.reset();
      feed(event::FinishSent{report.exit == 0});
    } else if (now >= finish_deadline_) {
      provider_.terminate(*finish_, Force::kKill, [](const Result<Unit>&) {});
    }
  }
  if (plot_) {
    const NodeReport report = observe(*plot_);
    if (report.state == NodeState::kGone) {
      if (report.exit != 0) {
        say(LogLevel::kWarn, "the plot was not made: see the lines above");
      }
      plot_.reset();
      finish_delivery();
    } else if (now >= plot_deadline_) {
      provider_.terminate(*plot_, Force::kKill, [](const Result<Unit>&) {});
    }
  }
}

void Controller::watch_status() {
  const Result<SyncerStatus> status = read_syncer_status(paths_.status_json());
  if (status && status->updated_at > status_seen_) {
    status_seen_ = status->updated_at;
    feed(report_of(*status));
  }
}

void Controller::watch_stop() {
  const Result<StopRequest> stop = read_stop(paths_);
  if (!stop || stop->id == stop_seen_) {
    return;
  }
  stop_seen_ = stop->id;
  say(LogLevel::kInfo, "stop-run --mode {} by {}", stop_mode_name(stop->mode), stop->by);
  note({.kind = "stop", .what = stop->id, .reason = std::string(stop_mode_name(stop->mode))});
  feed(event::Stop{stop->mode});
}

// --- delivery: copy, plot (a process of its own), summary, publish

void Controller::apply_deliver(const std::vector<int>& seats) {
  std::string problem = "no island has an adapter";
  staged_.clear();
  for (const int seat : seats) {
    Result<std::filesystem::path> staged = stage_artifact(paths_, seat);
    if (staged) {
      staged_ = *staged;
      say(LogLevel::kInfo, "delivering the adapter of island {}", seat);
      break;
    }
    problem = strf("island {}: {}", seat, staged.error().what);
    say(LogLevel::kWarn, "{}", problem);
  }
  if (staged_.empty()) {
    feed(event::Delivered{false, problem});
    return;
  }
  if (!record_.programs.plot.empty()) {
    plot_ = spawn_helper("plot", plot_argv(record_, paths_, staged_));
    plot_deadline_ = monotonic_now() + kHelperTimeout;
  }
  if (!plot_) {
    finish_delivery();
  }
}

void Controller::finish_delivery() {
  const Status summary =
      write_file_atomic(staged_ / "summary.json", summary_json(paths_, record_, core_.view()));
  if (!summary) {
    say(LogLevel::kWarn, "summary.json: {}", summary.error().what);
  }
  const Result<std::filesystem::path> place = publish_artifact(paths_, staged_, record_.output);
  if (place) {
    say(LogLevel::kInfo, "delivered to {}", place->string());
    note({.kind = "delivered", .what = place->string()});
    feed(event::Delivered{true, place->string()});
    return;
  }
  const Error& error = place.error();
  feed(event::Delivered{false, strf("{} ({})", error.what, error.where)});
}

// --- state.json and the end

void Controller::save_state() {
  const RunView view = core_.view();
  StoredState state;
  state.name = record_.name;
  state.run_id = record_.run_id;
  state.state = view.state;
  state.phase = view.phase ? run_phase_name(*view.phase) : "";
  state.exit = view.exit;
  state.error = view.error;
  state.artifact = view.artifact;
  const auto handle_of = [&](int who) {
    const auto found = live_.find(who);
    return found == live_.end() ? std::optional<Handle>() : found->second.handle;
  };
  std::string digest = strf("{} {} {} {} {}", run_state_name(state.state), state.phase,
                            state.exit.value_or(-1), state.error, state.artifact);
  for (std::size_t seat = 0; seat < view.islands.size(); ++seat) {
    const IslandView& island = view.islands[seat];
    const int who = static_cast<int>(seat);
    state.islands.push_back({who, std::string(island_state_name(island.state)), island.attempt,
                             handle_of(who), island.exit, island.restarts});
    digest += strf(" {} {} {} {}", state.islands.back().state, island.attempt, island.restarts,
                   state.islands.back().handle.value_or(Handle{}).pid);
  }
  state.syncer = {handle_of(kSyncerSeat), view.syncer_restarts};
  digest += strf(" {} {}", state.syncer.handle.value_or(Handle{}).pid, state.syncer.restarts);
  if (digest == saved_) {
    return;
  }
  state.updated_at = wall_now();
  state.seq = ++seq_;
  const Status written = write_state(paths_, state);
  if (written) {
    saved_ = std::move(digest);
  } else {
    say(LogLevel::kWarn, "state.json: {}", written.error().what);
  }
}

// Every process the journal knows must be gone before the run is terminal and its name free.
std::vector<std::string> Controller::survivors() {
  std::vector<std::string> out;
  const Result<std::vector<JournalEntry>> entries = read_journal(paths_.journal());
  if (!entries) {
    return {entries.error().what};
  }
  for (const Recorded& one : recorded_processes(*entries)) {
    if (one.handle.pid == 0) {
      continue;
    }
    provider_.verify_gone(one.handle, [&](Result<GoneVerdict> verdict) {
      if (!verdict || *verdict == GoneVerdict::kPresent) {
        out.push_back(strf("pid {} ({})", one.handle.pid, one.token));
        provider_.terminate(one.handle, Force::kKill, [](const Result<Unit>&) {});
      }
    });
  }
  return out;
}

int Controller::close_run() {
  std::vector<std::string> left = survivors();
  for (int i = 1; i < kVerifyTries && !left.empty(); ++i) {
    hooks_.wait(kSecond / 2);
    left = survivors();
  }
  if (!left.empty()) {
    say(LogLevel::kError, "still alive: {}", left.front());
    StoredState state = read_state(paths_).value_or(StoredState{});
    state.name = record_.name;
    state.run_id = record_.run_id;
    state.state = RunState::kTeardownIncomplete;
    state.phase = run_phase_name(RunPhase::kTeardown);
    state.exit = 5;
    state.error = strf("{} processes are still alive, first {}", left.size(), left.front());
    state.updated_at = wall_now();
    state.seq = ++seq_;
    if (const Status written = write_state(paths_, state); !written) {
      say(LogLevel::kError, "state.json: {}", written.error().what);
    }
    return 5;
  }
  const RunView view = core_.view();
  note({.kind = "state", .what = std::string(run_state_name(view.state)), .reason = view.error});
  // A terminal state that is not on disk would leave the run "lost" for ever.
  for (int i = 0; i < 60; ++i) {
    save_state();
    const Result<StoredState> stored = read_state(paths_);
    if (stored && stored->state == view.state) {
      break;
    }
    hooks_.wait(kSecond);
  }
  const Status released = Registry(paths_.root.parent_path()).release(record_.name, record_.run_id);
  if (!released) {
    say(LogLevel::kWarn, "{}", released.error().what);
  }
  say(LogLevel::kInfo, "{}{}{}", run_state_name(view.state), view.error.empty() ? "" : ": ",
      view.error);
  return view.exit.value_or(0);
}

}  // namespace yeto::fleet
