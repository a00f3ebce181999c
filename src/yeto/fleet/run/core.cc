// SPDX-License-Identifier: Apache-2.0
#include "yeto/fleet/run/core.h"

#include <algorithm>
#include <array>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/base/result.h"

namespace yeto::fleet {
namespace {

constexpr Nanos kHour = 3600 * kSecond;
constexpr Nanos kHealthy = 600 * kSecond;  // after it the recovery budget is whole again
constexpr Nanos kReportGap =
    30 * kSecond;  // longer silence of the syncer says nothing about islands
constexpr Nanos kFinishRetry = 2 * kSecond;
constexpr Nanos kDeliveryRetry = 2 * kSecond;
constexpr Nanos kSettledSlack = 30 * kSecond;
constexpr int kSetupFailuresMax = 2;

// Exit codes after which starting again gives the same: flags, refused data or model, non-finite
// numbers, damaged artifact.
constexpr std::array<int, 4> kIslandFinal = {64, 65, 80, 82};
// Syncer unreachable, preempted: they say nothing about whether the island can start.
constexpr std::array<int, 2> kNotItsFault = {69, 81};
constexpr std::array<int, 4> kSyncerFinal = {64, 65, 66, 82};

template <std::size_t n>
bool is_one_of(const std::array<int, n>& codes, std::optional<int> code) {
  return code && std::find(codes.begin(), codes.end(), *code) != codes.end();
}

// Pause before the next start: doubles with each failure in a row.
Nanos pause(int failures, Nanos first) {
  return std::min(first << std::min(failures, 8), 30 * kSecond);
}

std::string ended_text(const event::Exited& e) {
  if (e.signal != 0) {
    return strf("ended by signal {}", e.signal);
  }
  return e.exit ? strf("exit {}", *e.exit) : std::string("gone, exit unknown");
}

}  // namespace

FleetCore::FleetCore(CoreConfig config) : config_(config) {
  YETO_CHECK(config.islands >= 1, "a run has an island");
  islands_.resize(static_cast<std::size_t>(config.islands));
}

std::vector<Action> FleetCore::on(const Event& event, Nanos now) {
  actions_.clear();
  if (stage_ != Stage::kOver) {
    std::visit([&](const auto& e) { handle(e, now); }, event);
    advance(now);
  }
  return std::move(actions_);
}

FleetCore::Process& FleetCore::process(int who) {
  return who == kSyncerSeat ? syncer_ : islands_[static_cast<std::size_t>(who)];
}

void FleetCore::decide(int who, std::string what, std::string reason) {
  actions_.emplace_back(action::Decide{who, std::move(what), std::move(reason)});
}

void FleetCore::start(int who) {
  Process& p = process(who);
  p.attempt += 1;
  p.starting = true;
  p.waiting = false;
  p.ending = false;
  p.ending_why.clear();
  p.exit.reset();
  if (who != kSyncerSeat) {
    Island& island = islands_[static_cast<std::size_t>(who)];
    island.state = IslandState::kSetup;
    island.joined = false;
    island.phase.clear();
    island.local_step = -1;
  }
  actions_.emplace_back(action::Start{who, p.attempt});
}

void FleetCore::terminate(int who, Nanos now, std::string why) {
  Process& p = process(who);
  p.waiting = false;
  if (!p.up || p.ending) {
    return;
  }
  p.ending = true;
  p.ending_why = std::move(why);
  p.kill_at = now + config_.kill_grace;
  decide(who, "terminate", p.ending_why);
  actions_.emplace_back(action::Terminate{who, false});
}

void FleetCore::escalate(int who, Process& p, Nanos now) {
  if (p.up && p.ending && now >= p.kill_at) {
    p.kill_at = now + config_.kill_grace;
    decide(who, "kill", "it did not end after TERM");
    actions_.emplace_back(action::Terminate{who, true});
  }
}

// --- events

void FleetCore::handle(const event::Begin&, Nanos now) {
  last_report_ = now;
  start(kSyncerSeat);
  for (int seat = 0; seat < config_.islands; ++seat) {
    start(seat);
  }
}

void FleetCore::handle(const event::Restored& e, Nanos now) {
  last_report_ = now;
  for (const auto& restored : e.processes) {
    Process& p = process(restored.who);
    p.attempt = restored.attempt;
    p.restarts = restored.restarts;
    // Counts as started: its ProcessUp or Exited follows.
    p.starting = restored.attempt >= 0;
    if (restored.who != kSyncerSeat && p.starting) {
      islands_[static_cast<std::size_t>(restored.who)].state = IslandState::kSetup;
    }
  }
  for (int who = kSyncerSeat; who < config_.islands; ++who) {
    if (process(who).attempt < 0) {
      start(who);
    }
  }
}

void FleetCore::handle(const event::ProcessUp& e, Nanos now) {
  Process& p = process(e.who);
  if (e.attempt != p.attempt) {
    return;
  }
  p.starting = false;
  p.up = true;
  p.up_since = now;
  if (e.who != kSyncerSeat) {
    islands_[static_cast<std::size_t>(e.who)].last_progress = now;
  }
  if (stage_ != Stage::kRunning) {
    terminate(e.who, now, "the run is ending");
  }
}

void FleetCore::handle(const event::SpawnFailed& e, Nanos now) {
  Process& p = process(e.who);
  if (e.attempt != p.attempt) {
    return;
  }
  // A program that cannot be executed will not be executable in a second either.
  p.starting = false;
  if (e.who == kSyncerSeat) {
    failure_ = 11;
    error_ = "the syncer cannot start: " + e.text;
    stop_all(now, error_);
    return;
  }
  give_up(e.who, IslandState::kSetupFailed, "cannot start: " + e.text);
}

void FleetCore::handle(const event::Exited& e, Nanos now) {
  Process& p = process(e.who);
  if (e.attempt != p.attempt || (!p.up && !p.starting)) {
    return;
  }
  const bool was_ending = p.ending;
  p.up = false;
  p.starting = false;
  p.ending = false;
  p.exit = e.exit;
  decide(e.who, "exited",
         was_ending ? strf("{} after: {}", ended_text(e), p.ending_why) : ended_text(e));
  if (e.who == kSyncerSeat) {
    syncer_exited(e, now);
  } else {
    island_exited(e.who, e, now);
  }
}

void FleetCore::syncer_exited(const event::Exited& e, Nanos now) {
  if (stage_ != Stage::kRunning) {
    return;
  }
  if (e.exit == 0 || e.exit == 4) {
    syncer_exit_ = e.exit;
    syncer_ended(now);
    return;
  }
  if (is_one_of(kSyncerFinal, e.exit)) {
    failure_ = *e.exit;
    error_ = strf("the syncer refused to run: exit {}", *e.exit);
    stop_all(now, error_);
    return;
  }
  syncer_.failures = now - syncer_.up_since > 60 * kSecond ? 0 : syncer_.failures + 1;
  syncer_.restarts += 1;
  syncer_.waiting = true;
  syncer_.next_start = now + pause(syncer_.failures, kSecond / 4);
  finish_accepted_ = false;  // a new syncer has not heard of it
  decide(kSyncerSeat, "restart", "from its checkpoint; islands go on and rejoin");
}

void FleetCore::island_exited(int seat, const event::Exited& e, Nanos now) {
  Island& island = islands_[static_cast<std::size_t>(seat)];
  island.dead_incarnation = island.incarnation;
  if (e.exit == 0 || e.artifact) {
    island.state = IslandState::kDone;
    return;
  }
  if (settled(island)) {
    return;  // given up before; it only ended now
  }
  if (is_one_of(kIslandFinal, e.exit)) {
    give_up(seat, IslandState::kFailed, strf("exit {} is not worth another start", *e.exit));
    return;
  }
  if (stage_ != Stage::kRunning || stop_) {
    give_up(seat, IslandState::kAbandoned, "not replaced: the run is ending");
    return;
  }
  if (!island.ever_joined && e.exit && e.signal == 0 && !is_one_of(kNotItsFault, e.exit)) {
    island.setup_failures += 1;
  }
  if (island.setup_failures >= kSetupFailuresMax) {
    give_up(seat, IslandState::kSetupFailed,
            strf("exit {} before it joined, {} times in a row", *e.exit, island.setup_failures));
    return;
  }
  recover(seat, now, ended_text(e));
}

Nanos FleetCore::recovery_time(const Island& island, Nanos now) const {
  return island.recovery_spent + (island.recovering ? now - island.recovering_since : 0);
}

void FleetCore::recover(int seat, Nanos now, const std::string& why) {
  Island& island = islands_[static_cast<std::size_t>(seat)];
  if (!config_.relaunch || config_.recover_timeout == 0) {
    give_up(seat, IslandState::kAbandoned, why + "; islands are not started again (by flag)");
    return;
  }
  while (!island.recoveries.empty() && now - island.recoveries.front() >= kHour) {
    island.recoveries.pop_front();
  }
  if (static_cast<int>(island.recoveries.size()) >= config_.max_recoveries) {
    give_up(seat, IslandState::kAbandoned,
            strf("{}; {} restarts in an hour are the limit", why, config_.max_recoveries));
    return;
  }
  if (!island.recovering) {
    island.recovering = true;
    island.recovering_since = now;
  }
  island.recoveries.push_back(now);
  island.failures = island.joined ? 0 : island.failures + 1;
  island.restarts += 1;
  island.waiting = true;
  island.next_start = now + pause(island.failures, kSecond);
  island.state = IslandState::kWaiting;
  decide(seat, "relaunch", why);
}

void FleetCore::give_up(int seat, IslandState state, const std::string& why) {
  Island& island = islands_[static_cast<std::size_t>(seat)];
  island.state = state;
  island.waiting = false;
  decide(seat, "give_up", why);
  if (error_.empty() && stage_ == Stage::kRunning && !stop_) {
    error_ = strf("island {}: {}", seat, why);
  }
}

void FleetCore::handle(const event::Report& e, Nanos now) {
  const bool changed = e.phase != syncer_phase_ || e.global_step != global_step_;
  if (changed && stop_ && finish_accepted_) {
    finish_deadline_ = std::max(finish_deadline_, now + config_.stall_timeout);
  }
  syncer_phase_ = e.phase;
  global_step_ = std::max(global_step_, e.global_step);
  const bool training = e.phase == "training";
  training_seen_ = training_seen_ || training || e.phase == "sweeping" || e.phase == "final" ||
                   e.phase == "ended";
  if (now - last_report_ > kReportGap) {
    // The syncer was away: nobody could see progress, so nobody is blamed for it.
    for (Island& island : islands_) {
      island.last_progress = now;
    }
  }
  last_report_ = now;
  for (const SeatReport& report : e.seats) {
    if (report.seat >= 0 && report.seat < config_.islands) {
      seat_report(report, training, now);
    }
  }
}

void FleetCore::seat_report(const SeatReport& report, bool training, Nanos now) {
  Island& island = islands_[static_cast<std::size_t>(report.seat)];
  const bool of_dead = !report.incarnation.empty() && report.incarnation == island.dead_incarnation;
  if (!island.up || of_dead || !report.joined) {
    return;
  }
  island.incarnation = report.incarnation;
  const bool stepped = report.local_step != island.local_step;
  if (stepped || report.phase != "train" || !training) {
    island.last_progress = now;
  }
  island.local_step = report.local_step;
  island.phase = report.phase;
  island.joined = true;
  island.ever_joined = true;
  if (!island.ending) {
    island.state = report.live ? IslandState::kRunning : IslandState::kSuspect;
  }
  if (report.live) {
    island_healthy(island, now);
  }
}

void FleetCore::island_healthy(Island& island, Nanos now) {
  if (island.recovering) {
    island.recovery_spent += now - island.recovering_since;
    island.recovering = false;
    island.healthy_since = now;
  }
  if (island.recovery_spent > 0 && now - island.healthy_since >= kHealthy) {
    island.recovery_spent = 0;
  }
}

void FleetCore::handle(const event::Stop& e, Nanos now) {
  if (stop_ == e.mode || stop_ == StopMode::kNow || stage_ != Stage::kRunning) {
    return;
  }
  stop_ = e.mode;
  error_.clear();
  finish_accepted_ = false;
  finish_next_ = now;
  finish_deadline_ =
      now + (e.mode == StopMode::kNow ? config_.stop_now_timeout : config_.stall_timeout);
  decide(kWholeRun, e.mode == StopMode::kNow ? "stop_now" : "finish", "asked by stop-run");
  for (int seat = 0; seat < config_.islands; ++seat) {
    if (islands_[static_cast<std::size_t>(seat)].waiting) {
      give_up(seat, IslandState::kAbandoned, "not replaced: the run is ending");
    }
  }
}

void FleetCore::handle(const event::FinishSent& e, Nanos now) {
  finish_in_flight_ = false;
  finish_accepted_ = e.accepted;
  finish_next_ = now + kFinishRetry;
}

void FleetCore::handle(const event::Delivered& e, Nanos now) {
  delivery_in_flight_ = false;
  if (e.ok) {
    artifact_ = e.text;
    delivery_error_.clear();
    end_run();
    return;
  }
  delivery_error_ = e.text;
  delivery_next_ = now + kDeliveryRetry;
  decide(kWholeRun, "delivery_failed", e.text);
}

void FleetCore::handle(const event::Down&, Nanos now) {
  if (!down_) {
    down_ = true;
    stop_all(now, "yeto down");
  }
}

// --- time

void FleetCore::advance(Nanos now) {
  escalate(kSyncerSeat, syncer_, now);
  for (int seat = 0; seat < config_.islands; ++seat) {
    escalate(seat, islands_[static_cast<std::size_t>(seat)], now);
  }
  if (stage_ == Stage::kRunning) {
    advance_running(now);
  }
  if (stage_ == Stage::kSaving && now >= save_deadline_ && anything_up()) {
    stop_all(now, "islands did not save in time after the end");
  }
  if ((stage_ == Stage::kSaving || stage_ == Stage::kStopping) && !anything_up()) {
    stage_ = Stage::kDelivering;
  }
  if (stage_ == Stage::kDelivering) {
    deliver(now);
  }
}

void FleetCore::advance_running(Nanos now) {
  if (stop_) {
    advance_finish(now);
  }
  for (int seat = 0; seat < config_.islands && stage_ == Stage::kRunning; ++seat) {
    advance_island(seat, now);
  }
  if (stage_ == Stage::kRunning) {
    check_settled(now);
  }
  if (stage_ == Stage::kRunning && syncer_.waiting && now >= syncer_.next_start) {
    start(kSyncerSeat);
  }
}

void FleetCore::advance_island(int seat, Nanos now) {
  Island& island = islands_[static_cast<std::size_t>(seat)];
  if (settled(island)) {
    return;
  }
  if (island.recovering && recovery_time(island, now) > config_.recover_timeout) {
    terminate(seat, now, "recovery budget spent");
    give_up(seat, IslandState::kAbandoned,
            strf("not back within {} s", config_.recover_timeout / kSecond));
    return;
  }
  if (island.waiting && now >= island.next_start) {
    start(seat);
    return;
  }
  if (!island.up || island.ending) {
    return;
  }
  if (!island.joined && now - island.up_since > config_.setup_timeout) {
    island.state = IslandState::kRecovering;
    terminate(seat, now, "it did not join in time");
  }
  const bool heard = now - last_report_ <= kReportGap;
  if (island.joined && heard && syncer_phase_ == "training" && island.phase == "train" &&
      now - island.last_progress >= config_.stall_timeout) {
    island.state = IslandState::kRecovering;
    terminate(seat, now, strf("no step for {} s", config_.stall_timeout / kSecond));
  }
}

void FleetCore::advance_finish(Nanos now) {
  if (now >= finish_deadline_) {
    stop_all(now,
             *stop_ == StopMode::kNow ? "stop-run --mode now" : "the last sweep makes no progress");
    return;
  }
  if (syncer_.up && !finish_accepted_ && !finish_in_flight_ && now >= finish_next_) {
    finish_in_flight_ = true;
    actions_.emplace_back(action::SendFinish{*stop_});
  }
}

bool FleetCore::settled(const Island& island) const {
  return !island.up && !island.starting &&
         (island.state == IslandState::kDone || island.state == IslandState::kAbandoned ||
          island.state == IslandState::kFailed || island.state == IslandState::kSetupFailed);
}

// Without a live island the syncer has nothing to do; with a finished one it may still write its
// end.
void FleetCore::check_settled(Nanos now) {
  if (!std::all_of(islands_.begin(), islands_.end(), [&](const Island& i) { return settled(i); })) {
    settled_since_.reset();
    return;
  }
  const bool any_done = std::any_of(islands_.begin(), islands_.end(),
                                    [](const Island& i) { return i.state == IslandState::kDone; });
  if (!any_done) {
    if (!stop_) {
      failure_ = failure_exit();
    }
    stop_all(now, "no island is left");
    return;
  }
  if (!settled_since_) {
    settled_since_ = now;
  }
  const bool waited = now - *settled_since_ >= config_.final_timeout + kSettledSlack;
  if (waited || (!syncer_.up && !syncer_.starting)) {
    stop_all(now, "all islands are done");
  }
}

// The exit code of a run whose islands all failed: what they agree on, else "quorum lost".
int FleetCore::failure_exit() const {
  std::optional<int> common;
  for (const Island& island : islands_) {
    const int code = island.state == IslandState::kSetupFailed             ? 11
                     : island.state == IslandState::kFailed && island.exit ? *island.exit
                                                                           : 4;
    if (common && *common != code) {
      return 4;
    }
    common = code;
  }
  return common.value_or(4);
}

bool FleetCore::anything_up() const {
  return syncer_.up || syncer_.starting ||
         std::any_of(islands_.begin(), islands_.end(),
                     [](const Island& i) { return i.up || i.starting; });
}

// --- the end

void FleetCore::syncer_ended(Nanos now) {
  stage_ = Stage::kSaving;
  save_deadline_ =
      now + (stop_ == StopMode::kNow ? config_.stop_now_timeout : config_.save_timeout);
  if (*syncer_exit_ == 4) {
    error_ = "the syncer ended with a lost quorum or final acknowledgement";
  }
  for (int seat = 0; seat < config_.islands; ++seat) {
    Island& island = islands_[static_cast<std::size_t>(seat)];
    if (island.waiting) {
      give_up(seat, IslandState::kAbandoned, "not replaced: the run has ended");
    } else if (island.up && !island.joined) {
      terminate(seat, now, "the run ended before it joined");
    }
  }
}

void FleetCore::stop_all(Nanos now, const std::string& why) {
  if (stage_ == Stage::kOver || stage_ == Stage::kStopping) {
    return;
  }
  stage_ = Stage::kStopping;
  decide(kWholeRun, "stop_all", why);
  for (int who = kSyncerSeat; who < config_.islands; ++who) {
    terminate(who, now, why);
  }
}

void FleetCore::deliver(Nanos now) {
  std::vector<int> seats;
  for (int seat = 0; seat < config_.islands; ++seat) {
    if (islands_[static_cast<std::size_t>(seat)].state == IslandState::kDone) {
      seats.push_back(seat);
    }
  }
  if (down_ || seats.empty() || delivery_tries_ >= config_.delivery_tries) {
    if (!delivery_in_flight_) {
      end_run();
    }
    return;
  }
  if (!delivery_in_flight_ && now >= delivery_next_) {
    delivery_in_flight_ = true;
    delivery_tries_ += 1;
    actions_.emplace_back(action::Deliver{std::move(seats)});
  }
}

void FleetCore::end_run() {
  stage_ = Stage::kOver;
  conclude();
  decide(kWholeRun, "end",
         strf("{}{}{}", run_state_name(final_state_), error_.empty() ? "" : ": ", error_));
  actions_.emplace_back(action::End{});
}

void FleetCore::conclude() {
  const bool delivered = !artifact_.empty();
  const auto fail_with = [&](int code, const std::string& text) {
    final_state_ = RunState::kFailed;
    final_exit_ = code;
    if (error_.empty()) {
      error_ = text;
    }
  };
  if (down_) {
    final_state_ = RunState::kDown;
    final_exit_.reset();
    error_.clear();
    return;
  }
  if (failure_) {
    fail_with(*failure_, "no island is left");
    return;
  }
  if (syncer_exit_ == 4) {
    fail_with(4, "quorum lost");
    return;
  }
  if (stop_) {
    final_state_ = RunState::kStopped;
    const bool lost_work = !delivered && global_step_ > 0 && *stop_ == StopMode::kFinish;
    final_exit_ = lost_work || !delivery_error_.empty() ? 2 : 0;
    error_ = !delivery_error_.empty() ? delivery_error_
             : lost_work              ? "no island saved an adapter"
                                      : "";
    return;
  }
  if (!delivered) {
    error_ = delivery_error_.empty() ? "no island saved an adapter" : delivery_error_;
    fail_with(2, error_);
    return;
  }
  final_state_ = RunState::kSucceeded;
  final_exit_ = 0;
  error_.clear();
}

RunView FleetCore::view() const {
  RunView out;
  out.syncer_restarts = syncer_.restarts;
  out.artifact = artifact_;
  out.error = error_;
  bool all_well = true;
  bool any_started = syncer_.attempt >= 0;
  for (const Island& island : islands_) {
    out.islands.push_back(IslandView{island.state, island.attempt, island.restarts, island.exit});
    all_well =
        all_well && (island.state == IslandState::kRunning || island.state == IslandState::kDone);
  }
  if (stage_ == Stage::kOver) {
    out.state = final_state_;
    out.exit = final_exit_;
    return out;
  }
  const bool ending =
      stop_ || stage_ == Stage::kSaving || syncer_phase_ == "sweeping" || syncer_phase_ == "final";
  out.state = training_seen_ || ending || stage_ != Stage::kRunning ? RunState::kRunning
                                                                    : RunState::kPending;
  out.phase = stage_ == Stage::kStopping     ? RunPhase::kTeardown
              : stage_ == Stage::kDelivering ? RunPhase::kDelivering
              : ending                       ? RunPhase::kFinishing
              : training_seen_ ? (all_well ? RunPhase::kTraining : RunPhase::kDegraded)
              : any_started    ? RunPhase::kProvisioning
                               : RunPhase::kSubmitted;
  return out;
}

}  // namespace yeto::fleet
