// SPDX-License-Identifier: Apache-2.0
// Rounds: who is asked, launch, close.
#include <algorithm>

#include "yeto/base/format.h"
#include "yeto/base/result.h"
#include "yeto/sync/core/core.h"

namespace yeto::sync {
namespace {

// How long the first round waits for members that are admitted but do not train yet.
constexpr Nanos kFirstRoundPatience = 60 * kSecond;

}  // namespace

Core::OpenRound* Core::find_round(std::uint64_t round) {
  const auto at = std::find_if(rounds_.begin(), rounds_.end(),
                               [&](const OpenRound& it) { return it.attempt.round == round; });
  return at == rounds_.end() ? nullptr : &*at;
}

std::optional<Nanos> Core::pace() const {
  std::vector<Nanos> times;
  std::uint32_t members = 0;
  for (const auto& [seat, member] : roster_.members()) {
    if (!member.limit && live(member)) {
      ++members;
      if (member.step_time) {
        times.push_back(*member.step_time);
      }
    }
  }
  return pace_of(std::move(times), std::min(quorum_of(round_options_, members), members));
}

// In lockstep fragment p of cycle k is pushed after local step ceil((k + (p+1)/F)·H) exactly.
std::uint64_t Core::at_step(std::uint64_t round) const {
  if (!options_.lockstep || phase_ == RunPhase::kSweeping) {
    return 0;
  }
  const std::uint64_t fragments = versions_.size();
  return (round * options_.sync_interval_steps + fragments - 1) / fragments;
}

// ---- launch
// ----------------------------------------------------------------------------------------------

void Core::launch_rounds() {
  if (phase_ != RunPhase::kTraining && phase_ != RunPhase::kSweeping) {
    return;
  }
  while (launch_one()) {
  }
}

bool Core::launch_one() {
  const auto fragments = static_cast<std::uint32_t>(versions_.size());
  const bool sweep = phase_ == RunPhase::kSweeping;
  const std::uint64_t last = sweep ? sweep_until_ : options_.total_steps;
  if (rounds_.size() >= std::min(options_.pipeline, fragments) ||
      (last != 0 && next_round_ > last)) {
    return false;
  }
  if (!sweep && !finish_reason_.empty()) {
    return false;
  }
  const bool paced = !sweep && !options_.lockstep && rounds_this_term_ > 0;
  if (!pause_reason_.empty()) {
    launch_obstacle_ = pause_reason_;
    return false;
  }
  if (paced && now_ < last_launch_ + launch_interval(round_options_, pace(), fragments)) {
    launch_obstacle_ = "pacing";
    return false;
  }
  const auto fragment = static_cast<std::uint32_t>((next_round_ - 1) % fragments);
  auto seats = sweep ? capture_for_sweep(fragment) : capture(fragment);
  if (!seats || !fit_round(fragment, *seats)) {
    return false;
  }
  // Nobody has anything for this fragment in the last sweep; late work is merged all the same.
  if (seats->empty() && !carried_.waits(fragment)) {
    ++next_round_;
    return true;
  }
  OpenRound round;
  round.attempt.round = next_round_++;
  round.attempt.fragment = fragment;
  round.attempt.base_version = versions_[fragment];
  round.attempt.sweep = sweep;
  round.attempt.launched = now_;
  round.attempt.asked = now_;
  round.reserved = seats->size() * push_bytes(fragment);
  ask(round, *seats);
  launch_obstacle_.clear();
  last_launch_ = now_;
  ++rounds_this_term_;
  rounds_.push_back(std::move(round));
  return true;
}

void Core::pull(const OpenRound& round, const Member& member) {
  wire::Pull ask;
  ask.term = options_.term;
  ask.fragment = round.attempt.fragment;
  ask.round = round.attempt.round;
  ask.attempt = round.attempt.attempt;
  ask.base_version = round.attempt.base_version;
  ask.at_step = round.attempt.sweep ? 0 : at_step(round.attempt.round);
  ask.sweep = round.attempt.sweep ? 1 : 0;
  remember_owed(ask, member.seat);
  emit(Send{*member.conn, ask});
}

// What a push may still answer. Older pulls of the fragment stay until their answers would lag too
// far to be carried.
void Core::remember_owed(const wire::Pull& ask, Seat seat) {
  std::vector<Owed>& owed = owed_[{seat, ask.fragment}];
  std::erase_if(owed, [&](const Owed& it) {
    return it.round == ask.round || it.base_version + options_.max_lag < ask.base_version;
  });
  owed.push_back({ask.round, ask.attempt, ask.base_version});
}

bool Core::may_capture(const Member& member, std::uint32_t fragment) const {
  const bool taking_part = member.limit || member.phase == wire::Phase::kTrain || options_.lockstep;
  // A fixed roster asks everybody all the same: an empty push is an answer.
  const bool has_work = fixed() || !member.drained.contains(fragment);
  return member.conn && taking_part && live(member) && has_work &&
         member.quarantined_until_round < next_round_ && broadcasts_->complete(member.seat);
}

// Who is asked in a round of this fragment; nothing: the round cannot be launched yet.
std::optional<std::vector<Seat>> Core::capture(std::uint32_t fragment) {
  const auto fragments = static_cast<std::uint32_t>(versions_.size());
  const std::uint64_t steps = options_.lockstep ? 0 : steps_to_capture(round_options_, fragments);
  std::vector<Seat> eligible;
  std::uint32_t candidates = 0;
  std::uint32_t not_training_yet = 0;
  for (const auto& [seat, member] : roster_.members()) {
    if (!may_capture(member, fragment)) {
      not_training_yet += member.conn && live(member) && member.phase == wire::Phase::kLoad ? 1 : 0;
      continue;
    }
    ++candidates;
    if (member.limit || Roster::steps_since_join(member) >= steps) {
      eligible.push_back(seat);
    }
  }
  if (fixed() && eligible.size() < options_.fixed_roster.size()) {
    launch_obstacle_ = strf("{} of {} seats of the fixed roster have made the steps a round needs",
                            eligible.size(), options_.fixed_roster.size());
    return std::nullopt;
  }
  const bool first = rounds_this_term_ == 0 && !options_.lockstep;
  if (first && now_ < started_at_ + kFirstRoundPatience &&
      (not_training_yet > 0 || eligible.size() < candidates)) {
    launch_obstacle_ = "the first round waits until every member trains";
    return std::nullopt;
  }
  if (options_.lockstep && candidates < options_.learners) {
    launch_obstacle_ = "lockstep waits for every learner";
    return std::nullopt;
  }
  const std::uint32_t needed = std::min(quorum_of(round_options_, candidates), candidates);
  if (eligible.empty() || eligible.size() < needed) {
    launch_obstacle_ =
        strf("{} of {} members have made the steps that a round needs", eligible.size(), needed);
    return std::nullopt;
  }
  return eligible;
}

// The last pull goes to all that are here; a closed socket is waited for until its lease ends.
std::optional<std::vector<Seat>> Core::capture_for_sweep(std::uint32_t fragment) {
  std::vector<Seat> asked;
  if (!pause_reason_.empty()) {
    launch_obstacle_ = pause_reason_;
    return std::nullopt;
  }
  for (const auto& [seat, member] : roster_.members()) {
    if (!member.present() || member.done || !live(member)) {
      continue;
    }
    if (!member.conn) {
      launch_obstacle_ = strf("the last sweep waits for seat {} or the end of its lease", seat);
      return std::nullopt;
    }
    if (broadcasts_->complete(seat) && (fixed() || !member.drained.contains(fragment))) {
      asked.push_back(seat);
    }
  }
  return asked;
}

// ---- close
// -----------------------------------------------------------------------------------------------

// A dead, hung or evaluating member is not waited for; what it already sent stays.
void Core::drop_members_that_are_gone() {
  if (fixed()) {
    return;  // everybody is waited for
  }
  for (OpenRound& round : rounds_) {
    for (auto& [seat, duty] : round.attempt.duties) {
      if (duty != Duty::kOutstanding) {
        continue;
      }
      const Member& member = *roster_.find(seat);
      const bool busy = !options_.lockstep && !round.attempt.sweep && !member.limit &&
                        member.phase != wire::Phase::kTrain;
      if (busy || !roster_.live(member, now_, true)) {
        duty = Duty::kGone;
      }
    }
  }
}

void Core::close_head() {
  while (!rounds_.empty() && commit_ == Commit::kIdle) {
    OpenRound& head = rounds_.front();
    if (head.attempt.duties.empty() && head.attempt.sweep) {
      return start_merge(head, "only late work is left for this fragment");
    }
    if (head.attempt.duties.empty()) {
      return recapture(head);
    }
    const Decision decision = decide(round_options_, head.attempt, pace(), commit_time_, now_);
    switch (decision.kind) {
      case Decision::Kind::kWait:
        return;
      case Decision::Kind::kAskAgain:
        ask_again(head);
        return;
      case Decision::Kind::kAbandon:
        if (head.attempt.sweep && carried_.waits(head.attempt.fragment)) {
          start_merge(head, "nothing new in the last sweep, only late work");
          return;
        }
        abandon(head, decision.reason);
        return;
      case Decision::Kind::kClose:
        start_merge(head, decision.reason);
        return;
    }
  }
}

void Core::ask_again(OpenRound& round) {
  round.attempt.asked = now_;
  for (auto& [seat, duty] : round.attempt.duties) {
    const Member& member = *roster_.find(seat);
    if (duty == Duty::kOutstanding && member.conn) {
      pull(round, member);
    }
  }
}

// Nothing came. In training the fragment is captured again as the next attempt of the same round;
// in the last sweep, or on the way to it, there is nothing to merge for it.
void Core::abandon(OpenRound& round, const std::string& reason) {
  // Its members get their work back and offer it again, so nothing of this attempt may count.
  close_late(round, Fate::kCancelled);
  for (const auto& [seat, push] : std::exchange(round.pushes, {})) {
    drop(push, reason);
  }
  for (const Push& push : carried_.take_base(round.attempt.fragment, round.attempt.base_version)) {
    drop_late(push, reason);
  }
  for (const auto& [seat, duty] : round.attempt.duties) {
    const Member& member = *roster_.find(seat);
    if (member.conn && duty != Duty::kEmpty) {
      emit(Send{*member.conn, wire::Cancel{round.attempt.round, round.attempt.attempt}});
    }
  }
  TapeRound record = std::move(round.tape);
  record.round = round.attempt.round;
  record.fragment = round.attempt.fragment;
  record.version = round.attempt.base_version;
  record.attempt = round.attempt.attempt;
  record.sweep = round.attempt.sweep;
  record.launched = round.attempt.launched - began_at_;
  record.reason = reason;
  record.ledger = ledger_;
  tape(std::move(record));
  if (round.attempt.sweep || finish_now_ || !reason_to_end().empty()) {
    std::erase_if(rounds_, [number = round.attempt.round](const OpenRound& it) {
      return it.attempt.round == number;
    });
    return;
  }
  OpenRound next;
  next.reserved = round.reserved;
  next.attempt = round.attempt;
  next.attempt.duties.clear();
  ++next.attempt.attempt;
  next.attempt.quorum_at = 0;
  next.attempt.grace_end = 0;
  round = std::move(next);
}

// An attempt without members waits here until somebody can be asked.
void Core::recapture(OpenRound& round) {
  auto seats = capture(round.attempt.fragment);
  // The rounds behind it hold their buffers until this one commits, so it takes what fits.
  if (seats && fit_attempt(round, *seats)) {
    round.attempt.launched = now_;
    round.attempt.asked = now_;
    ask(round, *seats);
  }
}

void Core::ask(OpenRound& round, const std::vector<Seat>& seats) {
  for (const Seat seat : seats) {
    round.attempt.duties[seat] = Duty::kOutstanding;
    round.tape.expected.push_back(seat);
    Member& member = *roster_.find(seat);
    ++member.expected;
    pull(round, member);
  }
}

}  // namespace yeto::sync
