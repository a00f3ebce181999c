// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/sim/world.h"

#include <algorithm>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/wire/codec.h"

namespace yeto::sync::sim {
namespace {

// After the syncer has ended, islands get so long to find out.
constexpr Nanos kAfterEnd = 120 * kSecond;

}  // namespace

std::string to_words(const wire::Message& message) { return wire::to_text(message); }

std::string to_words(const TapeRecord& record) {
  if (const auto* round = std::get_if<TapeRound>(&record)) {
    std::string out =
        strf("round {} attempt {} fragment {} version {}{}: {} ({} of {} answered", round->round,
             round->attempt, round->fragment, round->version, round->committed ? " committed" : "",
             round->reason, round->responded.size(), round->expected.size());
    for (const SeatReason& dropped : round->dropped) {
      out += strf(", seat {} dropped: {}", dropped.seat, dropped.reason);
    }
    return out + ")";
  }
  if (const auto* join = std::get_if<TapeJoin>(&record)) {
    return strf("seat {} joined{}", join->seat, join->resumed ? " again" : "");
  }
  if (const auto* lost = std::get_if<TapeLost>(&record)) {
    return strf("seat {} lost: {}", lost->seat, lost->reason);
  }
  if (const auto* left = std::get_if<TapeLeave>(&record)) {
    return strf("seat {} left: {}", left->seat, left->reason);
  }
  if (const auto* saved = std::get_if<TapeCheckpoint>(&record)) {
    return strf("checkpoint of global step {}: {}", saved->global_step,
                saved->ok ? "ok" : saved->error);
  }
  if (const auto* finish = std::get_if<TapeFinish>(&record)) {
    return "finish: " + finish->reason;
  }
  if (const auto* final = std::get_if<TapeFinal>(&record)) {
    return strf("final at global step {}: {} acknowledged, {} missing", final->global_step,
                final->acknowledged.size(), final->missing.size());
  }
  const auto* error = std::get_if<TapeError>(&record);
  if (error != nullptr) {
    return "error: " + error->text;
  }
  if (const auto* late = std::get_if<TapeLate>(&record)) {
    return strf("late push of seat {}: fragment {} base {} {}", late->seat, late->fragment,
                late->base_version, late->carried ? "carried" : "dropped: " + late->reason);
  }
  const auto* data = std::get_if<TapeData>(&record);
  return data == nullptr
             ? "record"
             : strf("data of seat {}: {} epoch {} from {} count {}", data->seat, data->what,
                    data->range.epoch, data->range.first, data->range.count);
}

World::World(const Plan& plan, Trace trace, Observer* observer)
    : plan_(plan),
      trace_(std::move(trace)),
      observer_(observer),
      rng_(mix64(plan.seed ^ 0x776f726c64)),
      checks_(plan_),
      layout_bytes_(std::make_shared<const Bytes>(plan.layout.encode())),
      syncer_(std::make_unique<SyncerHost>(*this)),
      network_(std::make_unique<Network>(queue_, plan_, *syncer_)) {
  for (std::uint32_t i = 0; i < plan_.islands.size(); ++i) {
    islands_.push_back(std::make_unique<Island>(*this, i));
    network_->add_island(plan_.islands[i], *islands_.back());
  }
  network_->set_hooks(plan_.cut_before_frame != 0 ? &World::before_frame : nullptr,
                      plan_.kill_at_piece != 0 ? &World::after_piece : nullptr);
  schedule_all();
}

World::~World() = default;

void World::print_trace(const char* room, const std::string& text) {
  std::fprintf(trace_.out, "%12.6f %-7s %s\n", seconds(queue_.now()), room, text.c_str());
}

void World::schedule_all() {
  queue_.at(
      0, [](World& world, std::uint64_t, std::uint64_t, std::uint64_t) { world.syncer().start(); });
  Nanos last = last_heal(plan_);
  for (std::uint32_t i = 0; i < plan_.islands.size(); ++i) {
    queue_.at(
        plan_.islands[i].starts_at,
        [](World& world, std::uint64_t index, std::uint64_t, std::uint64_t) {
          world.island(static_cast<std::uint32_t>(index)).start();
        },
        i);
  }
  for (std::size_t i = 0; i < plan_.faults.size(); ++i) {
    queue_.at(
        plan_.faults[i].at,
        [](World& world, std::uint64_t index, std::uint64_t, std::uint64_t) {
          world.inject(world.plan().faults[index]);
        },
        i);
  }
  limit_ = last + (plan_.settle != 0 ? plan_.settle : settle_bound(plan_));
}

Outcome World::run() {
  while (run_until(Nanos{1} << 62)) {
  }
  return outcome();
}

bool World::run_until(Nanos until) {
  while (!over_ && !queue_.empty() && queue_.next_at() <= until) {
    if (plan_.end_at != 0 && queue_.next_at() > plan_.end_at) {
      over_ = true;
      break;
    }
    if (queue_.next_at() > limit_ && plan_.end_at == 0 && !syncer_->ended()) {
      const std::string why = syncer_->up() ? syncer_->status().waiting_for : "no syncer";
      checks_.violate(strf("the run has not ended {:.0f} s after the last fault healed ({})",
                           seconds(limit_ - last_heal(plan_)),
                           why.empty() ? "a round is open" : why));
      over_ = true;
      break;
    }
    const EventQueue::Entry entry = queue_.take();
    entry.run(*this, entry.a, entry.b, entry.c);
    over_ = !checks_.violation().empty() || over() ||
            (plan_.stop_after_commits != 0 && checks_.totals().commits >= plan_.stop_after_commits);
  }
  return !over_ && !queue_.empty();
}

// Have all islands ended, and the syncer (or has nobody work for it any more)?
bool World::over() {
  if (!syncer_->ended()) {
    // A syncer that died after the last acknowledgement comes back to an empty house: each island
    // has the final values or is dead for good (it is not up long after the last fault).
    bool some_have = false;
    bool nobody_works = true;
    for (const auto& island : islands_) {
      some_have = some_have || island->acknowledged();
      nobody_works =
          nobody_works && (island->acknowledged() || island->state() == Island::State::kDown);
    }
    if (!some_have || !nobody_works) {
      empty_since_ = 0;
      return false;
    }
    empty_since_ = empty_since_ == 0 ? now() : empty_since_;
    return now() > std::max(empty_since_, last_heal(plan_)) + kAfterEnd;
  }
  if (ended_at_ == 0) {
    ended_at_ = queue_.now();
  }
  const bool all = std::all_of(islands_.begin(), islands_.end(), [](const auto& island) {
    return island->state() == Island::State::kOver || island->state() == Island::State::kDown;
  });
  if (!all && queue_.now() < ended_at_ + kAfterEnd) {
    return false;
  }
  check_end();
  return true;
}

bool World::excused(Nanos at) const {
  return last_heal(plan_) + plan_.core.final_timeout + 4 * plan_.core.lease + 30 * kSecond > at;
}

// A fixed roster of which some took the final values and left before the syncer died will not be
// complete again: the new life waits for it, then names who is missing and ends with 4.
bool World::roster_has_gone_home() const {
  return !plan_.core.fixed_roster.empty() && syncer_->lives() > 1 && syncer_->exit_code() == 4 &&
         std::any_of(islands_.begin(), islands_.end(),
                     [](const auto& island) { return island->acknowledged(); });
}

void World::check_end() {
  checks_.run_state(syncer_->last_status(), syncer_->lives() > 1);
  if (excused(ended_at_) || roster_has_gone_home()) {
    return;
  }
  if (syncer_->exit_code() != 0) {
    checks_.violate(strf("the run ended with {} although nothing failed for long: {}",
                         syncer_->exit_code(), syncer_->end_reason()));
  }
  for (const auto& island : islands_) {
    if (island->state() != Island::State::kDown && !island->acknowledged() &&
        plan_.islands[island->seat() < islands_.size() ? island->seat() : 0].run_id.empty()) {
      checks_.violate(
          strf("seat {} did not take the final values: {}", island->seat(), island->end_reason()));
    }
  }
}

Outcome World::outcome() {
  Outcome out;
  out.violation = checks_.violation();
  out.tape_hash = checks_.tape_hash();
  out.final_hash = checks_.final_hash();
  out.ended = syncer_->ended();
  out.exit_code = syncer_->exit_code();
  out.end_reason = syncer_->end_reason();
  out.now = queue_.now();
  out.events = queue_.count_run();
  out.totals = checks_.totals();
  out.status = syncer_->up() && !syncer_->ended() ? syncer_->status() : syncer_->last_status();
  return out;
}

void World::on_tape(const TapeRecord& record) {
  if (observer_ != nullptr) {
    observer_->on_tape(record, queue_.now());
  }
}

void World::note_ready(Nanos since_start) {
  if (observer_ != nullptr) {
    observer_->on_ready(since_start);
  }
}

void World::sample_staleness(std::uint64_t staleness) {
  staleness_sum_ += staleness;
  ++staleness_count_;
}

// ---- faults
// ----------------------------------------------------------------------------------------

void World::inject(const Fault& fault) {
  trace("world", [&] {
    return strf("{} of {} for {:.3f} s", fault_name(fault.kind),
                fault.who == kSyncerItself ? "the syncer" : strf("island {}", fault.who),
                seconds(fault.lasts));
  });
  if (observer_ != nullptr) {
    observer_->on_fault(fault, queue_.now());
  }
  const Nanos until = queue_.now() + fault.lasts;
  Island* island = fault.who < islands_.size() ? islands_[fault.who].get() : nullptr;
  if (island != nullptr) {
    checks_.touched(island->seat(), until);
  } else {
    for (const auto& each : islands_) {
      checks_.touched(each->seat(), until);
    }
  }
  switch (fault.kind) {
    case FaultKind::kKillIsland:
    case FaultKind::kCrashIsland:
      island->kill(fault.kind == FaultKind::kCrashIsland);
      if (fault.lasts > 0) {
        queue_.at(
            until,
            [](World& world, std::uint64_t index, std::uint64_t, std::uint64_t) {
              world.island(static_cast<std::uint32_t>(index)).start();
            },
            fault.who);
      }
      break;
    case FaultKind::kHangIsland:
      island->hang(until);
      break;
    case FaultKind::kPauseIsland:
      island->pause(until);
      break;
    case FaultKind::kPartition:
      network_->partition(fault.who, until);
      break;
    case FaultKind::kCutConnection:
      island->cut("connection reset");
      break;
    case FaultKind::kCutData:
      island->cut_data();
      break;
    case FaultKind::kBadValues:
      island->spoil();
      break;
    case FaultKind::kKillSyncer:
    case FaultKind::kCrashSyncer:
      syncer_->kill(fault.kind == FaultKind::kCrashSyncer);
      queue_.at(until, [](World& world, std::uint64_t, std::uint64_t, std::uint64_t) {
        world.syncer().start();
      });
      break;
    case FaultKind::kPauseSyncer:
      syncer_->pause(until);
      break;
    case FaultKind::kDiskFails:
      disk_fails_until_ = std::max(disk_fails_until_, until);
      syncer_->durable().disk.fail_writes(true);
      queue_.at(until, [](World& world, std::uint64_t, std::uint64_t, std::uint64_t) {
        if (world.now() >= world.disk_fails_until_) {
          world.syncer().durable().disk.fail_writes(false);
        }
      });
      break;
    case FaultKind::kDiskSlow:
      disk_slow_until_ = std::max(disk_slow_until_, until);
      break;
    case FaultKind::kClockJump:
      if (island != nullptr) {
        island->jump_clock(fault.lasts);
      } else {
        syncer_->jump_clock(fault.lasts);
      }
      break;
    case FaultKind::kFinish:
      syncer_->finish("asked to finish");
      break;
  }
}

// Loses the k-th frame of an island by cutting its connection right before it.
bool World::before_frame(World& world, ConnId conn, End, const wire::Message& message) {
  if (world.network().island_of(conn) != world.plan_.cut_island ||
      ++world.frames_of_cut_island_ != world.plan_.cut_before_frame) {
    return true;
  }
  world.trace("world", [&] { return "lost: " + to_words(message); });
  world.checks_.touched(world.islands_[world.plan_.cut_island]->seat(), world.now());
  if (world.plan_.breakage != Breakage::kLoseFrame) {
    world.network().cut(conn, "connection reset");
  }
  return false;
}

void World::after_piece(World& world, ConnId conn, End to, wire::TransferKind kind) {
  const bool watched = world.plan_.kill_island == kAnyIsland ||
                       world.plan_.kill_island == world.network().island_of(conn);
  if (!watched || kind != world.plan_.kill_in || world.pieces_seen_ >= world.plan_.kill_at_piece ||
      ++world.pieces_seen_ != world.plan_.kill_at_piece) {
    return;
  }
  Fault fault;
  fault.at = world.now();
  fault.lasts = 3 * kSecond;
  fault.who = world.network().island_of(conn);
  const End dies = world.plan_.kill_sender ? other(to) : to;
  fault.kind = dies == End::kIsland ? FaultKind::kKillIsland : FaultKind::kKillSyncer;
  // Not inside the call that delivers the piece.
  world.queue_.at(
      world.now(),
      [](World& it, std::uint64_t kind_of, std::uint64_t who, std::uint64_t lasts) {
        it.inject(Fault{static_cast<FaultKind>(kind_of), static_cast<std::uint32_t>(who), it.now(),
                        static_cast<Nanos>(lasts)});
      },
      static_cast<std::uint64_t>(fault.kind), fault.who, static_cast<std::uint64_t>(fault.lasts));
}

}  // namespace yeto::sync::sim
