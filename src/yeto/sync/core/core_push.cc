// SPDX-License-Identifier: Apache-2.0
// Pushes: judged by their offer, measured when they are here, accepted, carried or dropped.
#include <algorithm>
#include <cmath>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/base/result.h"
#include "yeto/sync/core/core.h"

namespace yeto::sync {
namespace {

constexpr std::uint32_t kBadPushesToQuarantine = 3;
constexpr std::uint64_t kQuarantineRounds = 10;
constexpr const char* kNotFinite = "non-finite";

}  // namespace

// ---- offers
// ------------------------------------------------------------------------------------

// What is wrong with a push whatever round it belongs to; empty: nothing.
std::string Core::form_objection(const wire::Offer& offer) const {
  if (!initialised_ || !layout_ || offer.fragment >= versions_.size()) {
    return strf("there is no fragment {} in this run", offer.fragment);
  }
  if (offer.codec != push_codec_ || offer.parts != 1 || offer.part != 0) {
    return "another codec or a part of a push";
  }
  if (offer.bytes != 0 && offer.bytes != push_bytes(offer.fragment)) {
    return strf("{} bytes where fragment {} takes {}", offer.bytes, offer.fragment,
                push_bytes(offer.fragment));
  }
  return {};
}

void Core::judge_push(const OfferArrived& event, Member& member) {
  const wire::Offer& offer = event.offer;
  ++member.pushes;
  if (const std::string fault = form_objection(offer); !fault.empty()) {
    return refuse_push(event, member, fault);
  }
  OpenRound* round = offer.round == 0 ? nullptr : find_round(offer.round);
  const bool closing = round != nullptr && commit_ != Commit::kIdle && round == &rounds_.front();
  if (round == nullptr || closing) {
    const bool passed = closing || offer.round < next_round_;
    return passed ? judge_late(event, member) : refuse_push(event, member, "unknown round");
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
  if (const std::string fault = objection_to(round->attempt, claim); !fault.empty()) {
    return refuse_push(event, member, fault);
  }
  if (!std::isfinite(offer.norm)) {
    round->attempt.duties[member.seat] = Duty::kDropped;
    round->tape.dropped.push_back({member.seat, kNotFinite});
    refuse_push(event, member, kNotFinite);
    return count_bad(member);
  }
  round->attempt.duties[member.seat] = Duty::kReceiving;
  accept_transfer(event, member, Fate::kWanted);
}

// The version that the next merge of the fragment stands on, once the one that runs is done.
std::uint64_t Core::next_base(std::uint32_t fragment) const {
  const bool merging = commit_ == Commit::kMerging && rounds_.front().attempt.fragment == fragment;
  return versions_[fragment] + (merging ? 1 : 0);
}

// No further merge of the fragment will come in this run.
bool Core::sweep_is_over(std::uint32_t fragment) const {
  if (phase_ == RunPhase::kFinal || phase_ == RunPhase::kEnded) {
    return true;
  }
  if (phase_ != RunPhase::kSweeping) {
    return false;
  }
  for (const OpenRound& round : rounds_) {
    const bool closing = commit_ != Commit::kIdle && &round == &rounds_.front();
    if (round.attempt.fragment == fragment && !closing) {
      return false;
    }
  }
  std::uint64_t last = sweep_until_;
  while ((last - 1) % versions_.size() != fragment) {
    --last;
  }
  return last < next_round_;
}

// Why late work cannot wait for the fragment's next round; empty: it can.
std::string Core::late_objection(const wire::Offer& offer, const Member& member) const {
  const SeatFragment key{member.seat, offer.fragment};
  if (options_.max_lag == 0 || offer.bytes == 0) {
    return "late";
  }
  if (sweep_is_over(offer.fragment)) {
    return "final";
  }
  if (offer.round == 0) {
    const auto right = late_rights_.find(key);
    if (right == late_rights_.end() || right->second.term != offer.term ||
        right->second.version != offer.base_version) {
      return "nobody asked for it, and its base is not one that its process held at a break";
    }
    const auto counted = counted_bases_.find(key);
    if (counted != counted_bases_.end() && offer.base_version < counted->second) {
      return strf("its work on version {} is counted already", offer.base_version);
    }
  } else {
    if (offer.term != options_.term) {
      return "another term";
    }
    const auto owed = owed_.find(key);
    const bool asked = owed != owed_.end() &&
                       std::any_of(owed->second.begin(), owed->second.end(), [&](const Owed& it) {
                         return it.round == offer.round && it.attempt == offer.attempt &&
                                it.base_version == offer.base_version;
                       });
    if (!asked) {
      return strf("round {} has closed and waits for no answer of seat {}", offer.round,
                  member.seat);
    }
  }
  const std::uint64_t base = next_base(offer.fragment);
  if (offer.base_version >= base) {
    return strf("version {} is the newest: a PULL will ask for it", offer.base_version);
  }
  return base - offer.base_version > options_.max_lag ? "lag" : std::string{};
}

void Core::judge_late(const OfferArrived& event, Member& member) {
  const wire::Offer& offer = event.offer;
  const bool finite = std::isfinite(offer.norm);
  std::string objection = late_objection(offer, member);
  if (objection.empty() && !finite) {
    objection = kNotFinite;
  }
  if (objection.empty() && !room_for_late(offer.bytes)) {
    objection = "no buffer room for late work";
  }
  if (!objection.empty()) {
    if (offer.bytes > 0) {
      tape(TapeLate{member.seat, offer.fragment, offer.round, offer.base_version, offer.c_tokens,
                    false, objection});
    }
    refuse_push(event, member, objection);
    return finite ? void() : count_bad(member);
  }
  accept_transfer(event, member, Fate::kLate);
}

void Core::accept_transfer(const OfferArrived& event, const Member& member, Fate fate) {
  const wire::Offer& offer = event.offer;
  const SeatFragment key{member.seat, offer.fragment};
  if (offer.round == 0) {
    late_rights_.erase(key);
  } else if (const auto owed = owed_.find(key); owed != owed_.end()) {
    std::erase_if(owed->second, [&](const Owed& it) { return it.round == offer.round; });
  }
  ledger_.pushed += offer.c_tokens;
  ledger_.waiting += offer.c_tokens;
  const Incoming incoming{offer, next_buffer_++, member.seat, member.incarnation, fate};
  incoming_[{event.conn, offer.transfer}] = incoming;
  emit(AcceptTransfer{event.conn, offer.transfer, incoming.buffer, offer.bytes});
}

void Core::refuse_push(const OfferArrived& event, Member& member, const std::string& reason) {
  const wire::Offer& offer = event.offer;
  ++member.dropped;
  ledger_.pushed += offer.c_tokens;
  ledger_.dropped += offer.c_tokens;
  emit(RefuseTransfer{event.conn, offer.transfer, reason});
  Push refused;
  refused.seat = member.seat;
  refused.incarnation = member.incarnation;
  refused.offer = offer;
  verdict(refused, wire::Outcome::kDropped, reason);
}

// ---- arrival
// -----------------------------------------------------------------------------------

// The same process owes the push still and is asked again, now or when it comes back; its tokens
// are then counted as pushed again. Another process of the seat owes nothing.
void Core::push_broken_off(const Incoming& incoming, bool ask_now) {
  ledger_.waiting -= incoming.offer.c_tokens;
  ledger_.dropped += incoming.offer.c_tokens;
  OpenRound* round = find_round(incoming.offer.round);
  if (round == nullptr || incoming.fate != Fate::kWanted) {
    return;
  }
  const Member& member = *roster_.find(incoming.seat);
  const bool owes = member.present() && member.incarnation == incoming.incarnation;
  round->attempt.duties[incoming.seat] = owes ? Duty::kOutstanding : Duty::kGone;
  if (owes && member.conn && ask_now) {
    pull(*round, member);
  }
}

void Core::push_arrived(const Incoming& incoming) {
  if (incoming.offer.bytes > 0 && incoming.fate != Fate::kCancelled) {
    const JobId job = next_job_++;
    inspections_[job] = incoming;
    emit(InspectPush{job, incoming.offer.fragment, incoming.buffer});
    return;
  }
  ledger_.waiting -= incoming.offer.c_tokens;
  ledger_.dropped += incoming.offer.c_tokens;
  emit(FreeBuffer{incoming.buffer});
  if (incoming.fate != Fate::kWanted) {
    return;
  }
  // It says that it has nothing new. After its limit nothing new will come either.
  Member& member = *roster_.find(incoming.seat);
  find_round(incoming.offer.round)->attempt.duties[incoming.seat] = Duty::kEmpty;
  if (member.limit) {
    member.drained.insert(incoming.offer.fragment);
  }
  ++member.responded;
}

void Core::handle(const PushInspected& event) {
  const auto at = inspections_.find(event.job);
  if (at == inspections_.end()) {
    return;
  }
  const Incoming incoming = at->second;
  inspections_.erase(at);
  const Push push{incoming.seat, incoming.incarnation, incoming.offer, incoming.buffer, event.norm};
  NormWatch& norms = norms_[push.offer.fragment];
  std::string fault;
  if (incoming.fate == Fate::kCancelled) {
    return drop(push, "its attempt was abandoned");
  }
  if (!event.finite) {
    fault = kNotFinite;
  } else if (norms.outlier(event.norm)) {
    fault = "norm far above the usual";
  } else {
    norms.add(event.norm);
  }
  const bool replaced = roster_.find(push.seat)->incarnation != push.incarnation;
  if (incoming.fate == Fate::kLate) {
    return inspected_late(push, replaced ? "its process was replaced" : fault, !replaced);
  }
  OpenRound& round = *find_round(push.offer.round);
  if (replaced) {
    round.attempt.duties[push.seat] = Duty::kGone;
    return drop(push, "its process was replaced");
  }
  return fault.empty() ? accept_push(round, push) : drop_bad(round, push, fault);
}

void Core::accept_push(OpenRound& round, const Push& push) {
  Member& member = *roster_.find(push.seat);
  round.attempt.duties[push.seat] = Duty::kAccepted;
  round.pushes[push.seat] = push;
  counted_bases_[{push.seat, push.offer.fragment}] = push.offer.base_version + 1;
  member.bad_in_a_row = 0;
  ++member.responded;
}

// Late work that was measured. `bad`: a fault counts against the seat.
void Core::inspected_late(const Push& push, const std::string& fault, bool bad) {
  const std::uint32_t fragment = push.offer.fragment;
  Member& member = *roster_.find(push.seat);
  if (!fault.empty()) {
    drop_late(push, fault);
    return bad ? count_bad(member) : void();
  }
  const std::uint64_t base = next_base(fragment);
  if (options_.max_lag == 0) {
    return drop_late(push, "late");
  }
  if (sweep_is_over(fragment)) {
    return drop_late(push, "final");
  }
  YETO_CHECK(push.offer.base_version < base, "a round that closed was committed or cancelled");
  if (base - push.offer.base_version > options_.max_lag) {
    return drop_late(push, "lag");
  }
  member.bad_in_a_row = 0;
  const auto other = carried_.keep(push);
  if (other) {
    drop_late(*other, "replaced by newer late work");
  }
  if (other && other->buffer == push.buffer) {
    return;
  }
  ++member.carried;
  std::uint64_t& counted = counted_bases_[{push.seat, fragment}];
  counted = std::max(counted, push.offer.base_version + 1);
  tape(TapeLate{push.seat,
                fragment,
                push.offer.round,
                push.offer.base_version,
                push.offer.c_tokens,
                true,
                {}});
  verdict(push, wire::Outcome::kCarried, {});
}

// ---- drops and verdicts
// ------------------------------------------------------------------------

void Core::drop(const Push& push, const std::string& reason) {
  ledger_.waiting -= push.offer.c_tokens;
  ledger_.dropped += push.offer.c_tokens;
  ++roster_.find(push.seat)->dropped;
  emit(FreeBuffer{push.buffer});
  verdict(push, wire::Outcome::kDropped, reason);
}

void Core::drop_late(const Push& push, const std::string& reason) {
  tape(TapeLate{push.seat, push.offer.fragment, push.offer.round, push.offer.base_version,
                push.offer.c_tokens, false, reason});
  drop(push, reason);
}

void Core::drop_all_late(const std::string& reason) {
  for (const Push& push : carried_.take_all()) {
    drop_late(push, reason);
  }
}

void Core::drop_bad(OpenRound& round, const Push& push, const std::string& reason) {
  round.attempt.duties[push.seat] = Duty::kDropped;
  round.tape.dropped.push_back({push.seat, reason});
  drop(push, reason);
  count_bad(*roster_.find(push.seat));
}

void Core::count_bad(Member& member) {
  if (++member.bad_in_a_row < kBadPushesToQuarantine) {
    return;
  }
  member.bad_in_a_row = 0;
  if (fixed()) {  // each seat answers every round
    return trouble(strf("{} bad pushes of seat {} in a row", kBadPushesToQuarantine, member.seat));
  }
  member.quarantined_until_round = next_round_ + kQuarantineRounds - 1;
  trouble(strf("seat {} is left out of rounds {} to {} after {} bad pushes in a row", member.seat,
               next_round_, member.quarantined_until_round, kBadPushesToQuarantine));
}

// Pushes of an attempt that is over, still on the way or being measured. What became late when the
// attempt began to merge is void with it if it is abandoned after all.
void Core::close_late(const OpenRound& round, Fate fate) {
  const auto end = [&](Incoming& incoming) {
    const bool of_attempt = incoming.offer.kind == wire::TransferKind::kPush &&
                            incoming.offer.fragment == round.attempt.fragment &&
                            incoming.offer.base_version == round.attempt.base_version;
    if (of_attempt && (incoming.fate == Fate::kWanted || fate == Fate::kCancelled)) {
      incoming.fate = fate;
    }
  };
  for (auto& [key, incoming] : incoming_) {
    end(incoming);
  }
  for (auto& [job, incoming] : inspections_) {
    end(incoming);
  }
}

void Core::verdict(const Push& push, wire::Outcome outcome, const std::string& reason) {
  const Member& member = *roster_.find(push.seat);
  if (member.incarnation != push.incarnation) {
    return;  // it is no answer to the process that holds the seat now
  }
  wire::Verdict out;
  out.term = options_.term;
  out.fragment = push.offer.fragment;
  out.round = push.offer.round;
  out.attempt = push.offer.attempt;
  out.outcome = outcome;
  out.reason = reason.substr(0, 256);
  last_verdicts_[{push.seat, push.offer.fragment}] = out;
  if (member.conn) {
    emit(Send{*member.conn, out});
  }
}

}  // namespace yeto::sync
