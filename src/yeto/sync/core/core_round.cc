// SPDX-License-Identifier: Apache-2.0
// Rounds: launch, judge, close, merge, commit.
#include <algorithm>
#include <cmath>

#include "yeto/base/format.h"
#include "yeto/base/result.h"
#include "yeto/sync/core/core.h"

namespace yeto::sync {
namespace {

constexpr std::uint32_t kBadPushesToQuarantine = 3;
constexpr std::uint64_t kQuarantineRounds = 10;

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
  if (paced && now_ < last_launch_ + launch_interval(round_options_, pace(), fragments)) {
    launch_obstacle_ = "pacing";
    return false;
  }
  const auto fragment = static_cast<std::uint32_t>((next_round_ - 1) % fragments);
  const auto seats = sweep ? capture_for_sweep(fragment) : capture(fragment);
  if (!seats) {
    return false;
  }
  if (seats->empty()) {  // nobody has anything for this fragment in the last sweep
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
  emit(Send{*member.conn, ask});
}

// ---- pushes
// ----------------------------------------------------------------------------------------------

void Core::judge_push(const OfferArrived& event, Member& member) {
  const wire::Offer& offer = event.offer;
  ++member.pushes;
  OpenRound* round = find_round(offer.round);
  const bool closing = round != nullptr && commit_ != Commit::kIdle && round == &rounds_.front();
  if (round == nullptr || closing) {
    const bool late = closing || (offer.round != 0 && offer.round < next_round_);
    return refuse_push(event, member, late ? "late" : "unknown round");
  }
  if (offer.term != options_.term) {
    return refuse_push(event, member, "another term");
  }
  PushClaim claim;
  claim.seat = member.seat;
  claim.round = offer.round;
  claim.attempt = offer.attempt;
  claim.fragment = offer.fragment;
  claim.base_version = offer.base_version;
  claim.bytes = offer.bytes;
  claim.bytes_expected =
      transfer_bytes(push_codec_, layout_->fragments[round->attempt.fragment].values);
  std::string objection = objection_to(round->attempt, claim);
  if (objection.empty() && (offer.codec != push_codec_ || offer.parts != 1 || offer.part != 0)) {
    objection = "another codec or a part of a push";
  }
  if (objection.empty() && !std::isfinite(offer.norm)) {
    objection = "non-finite";
  }
  if (!objection.empty()) {
    return refuse_push(event, member, objection);
  }
  round->attempt.duties[member.seat] = Duty::kReceiving;
  ledger_.pushed += offer.c_tokens;
  ledger_.waiting += offer.c_tokens;
  const Incoming incoming{offer, next_buffer_++, member.seat, member.incarnation, false};
  incoming_[{event.conn, offer.transfer}] = incoming;
  emit(AcceptTransfer{event.conn, offer.transfer, incoming.buffer, offer.bytes});
}

void Core::refuse_push(const OfferArrived& event, Member& member, const std::string& reason) {
  const wire::Offer& offer = event.offer;
  ++member.dropped;
  ledger_.pushed += offer.c_tokens;
  ledger_.dropped += offer.c_tokens;
  emit(RefuseTransfer{event.conn, offer.transfer, reason});
  Attempt attempt;
  attempt.round = offer.round;
  attempt.fragment = offer.fragment;
  attempt.attempt = offer.attempt;
  verdict(member, attempt, wire::Outcome::kDropped, reason);
}

// The same process owes the push still and is asked again, now or when it comes back; its tokens
// are then counted as pushed again. Another process of the seat owes nothing.
void Core::push_broken_off(const Incoming& incoming) {
  ledger_.waiting -= incoming.offer.c_tokens;
  ledger_.dropped += incoming.offer.c_tokens;
  OpenRound* round = find_round(incoming.offer.round);
  if (round == nullptr || incoming.late) {
    return;
  }
  const Member& member = *roster_.find(incoming.seat);
  const bool owes = member.present() && member.incarnation == incoming.incarnation;
  round->attempt.duties[incoming.seat] = owes ? Duty::kOutstanding : Duty::kGone;
  if (owes && member.conn) {
    pull(*round, member);
  }
}

void Core::push_arrived(const Incoming& incoming) {
  OpenRound* round = find_round(incoming.offer.round);
  Member& member = *roster_.find(incoming.seat);
  if (incoming.late || round == nullptr) {
    ledger_.waiting -= incoming.offer.c_tokens;
    ledger_.dropped += incoming.offer.c_tokens;
    ++member.dropped;
    Attempt attempt;
    attempt.round = incoming.offer.round;
    attempt.fragment = incoming.offer.fragment;
    attempt.attempt = incoming.offer.attempt;
    verdict(member, attempt, wire::Outcome::kDropped, "late");
    emit(FreeBuffer{incoming.buffer});
    return;
  }
  round->pushes[incoming.seat] = {incoming.buffer, incoming.offer.c_steps, incoming.offer.c_tokens,
                                  incoming.offer.bytes, 0.0};
  if (incoming.offer.bytes == 0) {
    // It says that it has nothing new. After its limit nothing new will come either.
    round->attempt.duties[incoming.seat] = Duty::kEmpty;
    if (member.limit) {
      member.drained.insert(incoming.offer.fragment);
    }
    ledger_.waiting -= incoming.offer.c_tokens;
    ledger_.dropped += incoming.offer.c_tokens;
    ++member.responded;
    emit(FreeBuffer{incoming.buffer});
    round->pushes.erase(incoming.seat);
    return;
  }
  const JobId job = next_job_++;
  inspections_[job] = {incoming.offer.round, incoming.seat};
  emit(InspectPush{job, incoming.offer.fragment, incoming.buffer});
}

void Core::handle(const PushInspected& event) {
  const auto at = inspections_.find(event.job);
  if (at == inspections_.end()) {
    return;
  }
  const Inspection inspection = at->second;
  inspections_.erase(at);
  OpenRound* round = find_round(inspection.round);
  const auto push =
      round == nullptr ? std::map<Seat, Push>::iterator{} : round->pushes.find(inspection.seat);
  if (round == nullptr || push == round->pushes.end() || push->second.buffer != event.buffer) {
    return;  // its round closed meanwhile and dropped it
  }
  Member& member = *roster_.find(inspection.seat);
  NormWatch& norms = norms_[round->attempt.fragment];
  if (!event.finite) {
    return drop_push(*round, member, "non-finite");
  }
  if (norms.outlier(event.norm)) {
    return drop_push(*round, member, "norm far above the usual");
  }
  norms.add(event.norm);
  accept_push(*round, member, event.norm);
}

void Core::accept_push(OpenRound& round, Member& member, double norm) {
  round.attempt.duties[member.seat] = Duty::kAccepted;
  round.pushes[member.seat].norm = norm;
  member.bad_in_a_row = 0;
  ++member.responded;
}

void Core::drop_push(OpenRound& round, Member& member, const std::string& reason) {
  const Push push = round.pushes[member.seat];
  round.pushes.erase(member.seat);
  round.attempt.duties[member.seat] = Duty::kDropped;
  round.tape.dropped.push_back({member.seat, reason});
  ledger_.waiting -= push.c_tokens;
  ledger_.dropped += push.c_tokens;
  ++member.dropped;
  emit(FreeBuffer{push.buffer});
  verdict(member, round.attempt, wire::Outcome::kDropped, reason);
  if (++member.bad_in_a_row >= kBadPushesToQuarantine) {
    member.quarantined_until_round = next_round_ + kQuarantineRounds - 1;
    member.bad_in_a_row = 0;
    trouble(strf("seat {} is left out for {} rounds after {} bad pushes in a row", member.seat,
                 kQuarantineRounds, kBadPushesToQuarantine));
  }
}

void Core::verdict(const Member& member, const Attempt& attempt, wire::Outcome outcome,
                   const std::string& reason) {
  if (!member.conn) {
    return;
  }
  wire::Verdict out;
  out.term = options_.term;
  out.fragment = attempt.fragment;
  out.round = attempt.round;
  out.attempt = attempt.attempt;
  out.outcome = outcome;
  out.reason = reason.substr(0, 256);
  emit(Send{*member.conn, out});
}

// ---- close
// -----------------------------------------------------------------------------------------------

// A dead, hung or evaluating member is not waited for; what it already sent stays.
void Core::drop_members_that_are_gone() {
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
  close_late(round);
  for (const auto& [seat, push] : round.pushes) {
    ledger_.waiting -= push.c_tokens;
    ledger_.dropped += push.c_tokens;
    emit(FreeBuffer{push.buffer});
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
  tape(std::move(record));
  if (round.attempt.sweep || finish_now_ || !reason_to_end().empty()) {
    rounds_.erase(rounds_.begin() + (&round - &rounds_.front()));
    return;
  }
  OpenRound next;
  next.attempt = round.attempt;
  next.attempt.duties.clear();
  ++next.attempt.attempt;
  next.attempt.quorum_at = 0;
  next.attempt.grace_end = 0;
  round = std::move(next);
}

// An attempt without members waits here until somebody can be asked.
void Core::recapture(OpenRound& round) {
  const auto seats = capture(round.attempt.fragment);
  if (seats) {
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

// Pushes still on the way when a round closes are late when they arrive; one being measured is late
// now.
void Core::close_late(OpenRound& round) {
  for (auto& [key, incoming] : incoming_) {
    if (incoming.offer.kind == wire::TransferKind::kPush &&
        incoming.offer.round == round.attempt.round) {
      incoming.late = true;
    }
  }
  for (auto& [seat, duty] : round.attempt.duties) {
    const auto push = round.pushes.find(seat);
    if (duty == Duty::kReceiving && push != round.pushes.end()) {
      Member& member = *roster_.find(seat);
      ledger_.waiting -= push->second.c_tokens;
      ledger_.dropped += push->second.c_tokens;
      ++member.dropped;
      round.tape.dropped.push_back({seat, "late"});
      emit(FreeBuffer{push->second.buffer});
      verdict(member, round.attempt, wire::Outcome::kDropped, "late");
      round.pushes.erase(push);
    }
  }
}

void Core::start_merge(OpenRound& round, const std::string& reason) {
  close_late(round);
  YETO_CHECK(!round.pushes.empty(), "a round closes with at least one accepted push");
  round.tape.reason = reason;
  commit_ = Commit::kMerging;
  commit_job_ = next_job_++;
  merge_began_ = now_;
  Merge job;
  job.job = commit_job_;
  job.fragment = round.attempt.fragment;
  job.version = versions_[round.attempt.fragment] + 1;
  job.image = next_buffer_++;
  job.round = round.attempt.round;
  for (const auto& [seat, push] : round.pushes) {
    job.pushes.push_back(
        {seat, push.buffer, push.c_steps, push.c_tokens, round.attempt.base_version, 1.0});
  }
  emit(std::move(job));
}

// ---- commit
// ----------------------------------------------------------------------------------------------

void Core::handle(const Merged& event) {
  if (commit_ != Commit::kMerging || event.job != commit_job_) {
    return;
  }
  OpenRound& round = rounds_.front();
  if (!event.ok) {
    commit_ = Commit::kIdle;
    trouble(strf("round {}: the merged value of fragment {} is not finite; the round is skipped",
                 round.attempt.round, round.attempt.fragment));
    while (!round.pushes.empty()) {
      Member& member = *roster_.find(round.pushes.begin()->first);
      drop_push(round, member, "merged value not finite");
    }
    return abandon(round, "merged value not finite");
  }
  commit_image_ = event.image;
  commit();
}

void Core::commit() {
  OpenRound& round = rounds_.front();
  YETO_CHECK(round.attempt.base_version == versions_[round.attempt.fragment],
             "a commit follows the version it was based on");
  ++versions_[round.attempt.fragment];
  global_step_ = round.attempt.round;
  for (const auto& [seat, push] : round.pushes) {
    ledger_.waiting -= push.c_tokens;
    ledger_.merged += push.c_tokens;
    ++roster_.find(seat)->merged;
    emit(FreeBuffer{push.buffer});
  }
  if (durability_ == Durability::kInterval) {
    return publish();
  }
  commit_ = Commit::kSaving;
  if (checkpoint_job_ == 0) {
    checkpoint();
  }
}

// Everything after the commit is durable: broadcast, verdicts, tape.
void Core::publish() {
  OpenRound round = std::move(rounds_.front());
  rounds_.pop_front();
  commit_ = Commit::kIdle;
  const std::uint32_t fragment = round.attempt.fragment;
  commit_time_ = now_ - merge_began_;
  free_all(broadcasts_->publish(fragment, {versions_[fragment], commit_image_.buffer,
                                           commit_image_.bytes, commit_image_.digest}));
  TapeRound record = std::move(round.tape);
  record.round = round.attempt.round;
  record.fragment = fragment;
  record.version = versions_[fragment];
  record.attempt = round.attempt.attempt;
  record.sweep = round.attempt.sweep;
  record.committed = true;
  record.launched = round.attempt.launched - began_at_;
  record.quorum = round.attempt.quorum_at == 0 ? 0 : round.attempt.quorum_at - began_at_;
  record.grace_end = round.attempt.grace_end == 0 ? 0 : round.attempt.grace_end - began_at_;
  record.committed_at = now_ - began_at_;
  record.bytes_out = commit_image_.bytes;
  record.digest = commit_image_.digest;
  for (const auto& [seat, push] : round.pushes) {
    record.responded.push_back(seat);
    record.tokens.push_back({seat, static_cast<double>(push.c_tokens)});
    record.steps.push_back({seat, static_cast<double>(push.c_steps)});
    record.norms.push_back({seat, push.norm});
    record.bytes_in += push.bytes;
    verdict(*roster_.find(seat), round.attempt, wire::Outcome::kMerged, {});
  }
  tape(std::move(record));
}

// ---- checkpoints
// -----------------------------------------------------------------------------------------

CoreState Core::state() const {
  CoreState out;
  out.term = options_.term;
  out.global_step = global_step_;
  out.versions = versions_;
  for (const auto& [seat, member] : roster_.members()) {
    out.seats.push_back({seat, member.tokens, member.present()});
  }
  out.ledger = ledger_;
  out.forks = forks_;
  if (roster_.demands()) {
    out.contract = roster_.demands()->contract;
  }
  out.finish_reason = finish_reason_;
  return out;
}

void Core::checkpoint() {
  checkpoint_job_ = next_job_++;
  checkpoint_step_ = global_step_;
  last_checkpoint_ = now_;
  emit(Checkpoint{checkpoint_job_, state()});
}

void Core::checkpoint_if_due() {
  if (!initialised_ || checkpoint_job_ != 0 || commit_ != Commit::kIdle ||
      durable_step_ == global_step_ || now_ < last_checkpoint_ + options_.checkpoint_every) {
    return;
  }
  checkpoint();
}

void Core::handle(const Checkpointed& event) {
  if (event.job != checkpoint_job_) {
    return;
  }
  checkpoint_job_ = 0;
  tape(TapeCheckpoint{checkpoint_step_, event.ok, event.error});
  if (event.ok) {
    durable_step_ = checkpoint_step_;
    error_.clear();
  } else {
    // The checkpoint before stays valid; training goes on and the next one tries again.
    trouble("checkpoint failed: " + event.error);
  }
  saved_once_ = true;
  if (commit_ != Commit::kSaving) {
    return;
  }
  if (checkpoint_step_ < global_step_) {
    return checkpoint();  // that one was older than the commit that waits
  }
  publish();
}

}  // namespace yeto::sync
