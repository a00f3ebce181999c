// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/session/roster.h"

#include <algorithm>
#include <limits>

#include "yeto/base/format.h"

namespace yeto::sync {
namespace {

wire::Refused refused(wire::RefuseCode code, bool retryable, std::string text) {
  wire::Refused out;
  out.code = code;
  out.retryable = retryable ? 1 : 0;
  out.text = std::move(text);
  return out;
}

bool is_none(const wire::SessionToken& token) { return token == wire::SessionToken{}; }

}  // namespace

std::string contract_difference(const std::vector<wire::ContractPair>& run,
                                const std::vector<wire::ContractPair>& learner) {
  const auto find = [](const std::vector<wire::ContractPair>& pairs, const std::string& name) {
    return std::find_if(pairs.begin(), pairs.end(),
                        [&](const wire::ContractPair& pair) { return pair.name == name; });
  };
  for (const wire::ContractPair& pair : run) {
    const auto other = find(learner, pair.name);
    if (other == learner.end()) {
      return strf("'{}' is missing at the learner", pair.name);
    }
    if (other->hash != pair.hash) {
      return strf("'{}' differs (run {}, learner {})", pair.name, hex(pair.hash), hex(other->hash));
    }
  }
  for (const wire::ContractPair& pair : learner) {
    if (find(run, pair.name) == run.end()) {
      return strf("'{}' is not part of the run's contract", pair.name);
    }
  }
  return {};
}

AdmissionResult Roster::admit(const wire::Hello& hello, std::uint64_t conn, bool proof_ok,
                              const wire::SessionToken& fresh, Nanos now) {
  if (auto no = objection(hello, proof_ok, now)) {
    return *no;
  }
  const std::uint32_t seat = hello.seat == wire::kNoSeat ? *free_seat() : hello.seat;
  if (!demands_) {
    demands_ = Demands{hello.layout, hello.values, hello.contract, {}};
  }
  Member& member = members_[seat];
  Admission admission;
  admission.seat = seat;
  admission.replaced = member.conn;
  admission.resumed = member.present() && member.incarnation == hello.incarnation &&
                      !is_none(hello.session) && member.session == hello.session;
  admission.first = member.incarnation == 0;
  admission.same_process = !admission.first && member.incarnation == hello.incarnation;
  if (!admission.resumed) {
    // Counters of the seat go on; what belongs to the process begins anew.
    member.seat = seat;
    member.incarnation = hello.incarnation;
    member.session = fresh;
    member.phase = wire::Phase::kLoad;
    member.step_time.reset();
    member.step_at_join = hello.local_step;
    member.drained.clear();
    member.done = false;
    if (!admission.same_process) {
      member.limit = false;
      member.bad_in_a_row = 0;
      member.quarantined_until_round = 0;
    }
  }
  member.lost = false;
  member.left = false;
  member.gone_reason.clear();
  member.conn = conn;
  member.device = hello.device;
  member.local_step = std::max(admission.resumed ? member.local_step : 0, hello.local_step);
  member.tokens = std::max(member.tokens, hello.tokens);
  member.progress_at = now;
  member.heard_at = now;
  member.lease_until = now + options_.lease;
  return admission;
}

std::optional<wire::Refused> Roster::objection(const wire::Hello& hello, bool proof_ok,
                                               Nanos now) const {
  using wire::RefuseCode;
  if (hello.run_id != options_.run_id) {
    return refused(RefuseCode::kRun, false,
                   strf("this syncer serves run {}, not {}", options_.run_id, hello.run_id));
  }
  if (!proof_ok) {
    return refused(RefuseCode::kProof, false,
                   "the proof does not match the seat's key; use the key file made for this seat");
  }
  if (!hello.held.empty() && hello.held.size() > kMaxFragments) {
    return refused(RefuseCode::kLayout, false, "more fragments held than a layout can have");
  }
  if (auto no = layout_objection(hello)) {
    return no;
  }
  if (demands_) {
    const std::string difference = contract_difference(demands_->contract, hello.contract);
    if (!difference.empty()) {
      return refused(RefuseCode::kContract, false, "islands of one run must agree: " + difference);
    }
  }
  return seat_objection(hello, now);
}

std::optional<wire::Refused> Roster::seat_objection(const wire::Hello& hello, Nanos now) const {
  using wire::RefuseCode;
  if (hello.seat == wire::kNoSeat) {
    if (!free_seat()) {
      return refused(RefuseCode::kFull, true,
                     "all seats of the fixed roster are taken; name the seat that this process is "
                     "to take over");
    }
    return std::nullopt;
  }
  if (!belongs(hello.seat)) {
    std::string names;
    for (const std::uint32_t seat : options_.fixed) {
      names += strf("{}{}", names.empty() ? "" : ", ", seat);
    }
    return refused(RefuseCode::kSeat, false,
                   strf("seat {} is not in the run's fixed roster ({})", hello.seat, names));
  }
  const Member* member = find(hello.seat);
  if (member != nullptr && member->present() && member->conn && now < member->lease_until &&
      member->incarnation != hello.incarnation) {
    return refused(RefuseCode::kBusySeat, true,
                   strf("seat {} is held by another process; it is free once that socket closes or "
                        "its lease ends in {:.1f} s",
                        hello.seat, seconds(member->lease_until - now)));
  }
  return std::nullopt;
}

bool Roster::belongs(std::uint32_t seat) const {
  return options_.fixed.empty() ||
         std::find(options_.fixed.begin(), options_.fixed.end(), seat) != options_.fixed.end();
}

std::optional<wire::Refused> Roster::layout_objection(const wire::Hello& hello) const {
  if (!demands_ || demands_->layout == hello.layout) {
    return std::nullopt;
  }
  auto no = refused(wire::RefuseCode::kLayout, false,
                    strf("the trainable tensors or fragments differ from the run's ({} values in "
                         "the run, {} at the learner; fingerprints {} and {})",
                         demands_->values, hello.values, hex(ByteView(demands_->layout).first(8)),
                         hex(ByteView(hello.layout).first(8))));
  no.tensors = demands_->tensors;
  return no;
}

// An anonymous joiner takes a seat that nobody had, or of a fixed roster one that nobody holds.
std::optional<std::uint32_t> Roster::free_seat() const {
  for (const std::uint32_t seat : options_.fixed) {
    const Member* member = find(seat);
    if (member == nullptr || !member->present()) {
      return seat;
    }
  }
  if (!options_.fixed.empty()) {
    return std::nullopt;
  }
  std::uint32_t seat = 0;
  while (members_.contains(seat)) {
    ++seat;
  }
  return seat;
}

void Roster::restore(std::uint32_t seat, std::uint64_t tokens) {
  Member& member = members_[seat];
  member.seat = seat;
  member.tokens = tokens;
  member.lost = true;
  member.gone_reason = "not seen since the syncer started";
}

void Roster::heard(std::uint64_t conn, Nanos now) {
  if (Member* member = by_conn(conn)) {
    member->lease_until = std::max(member->lease_until, now + options_.lease);
    member->heard_at = now;
  }
}

void Roster::beat(std::uint64_t conn, const wire::LearnerBeat& beat, Nanos now) {
  Member* member = by_conn(conn);
  if (member == nullptr) {
    return;
  }
  if (beat.local_step > member->local_step || beat.phase != member->phase) {
    member->progress_at = now;
  }
  member->local_step = std::max(member->local_step, beat.local_step);
  member->phase = beat.phase;
  member->tokens = std::max(member->tokens, beat.tokens);
  if (beat.step_time_s > 0.0 && beat.step_time_s < 1e6) {
    member->step_time = from_seconds(beat.step_time_s);
  }
}

std::optional<std::uint32_t> Roster::disconnect(std::uint64_t conn) {
  Member* member = by_conn(conn);
  if (member == nullptr) {
    return std::nullopt;
  }
  member->conn.reset();
  return member->seat;
}

void Roster::leave(std::uint32_t seat, std::string reason) {
  if (Member* member = find(seat)) {
    member->left = true;
    member->gone_reason = std::move(reason);
  }
}

std::vector<std::uint32_t> Roster::expire(Nanos now) {
  std::vector<std::uint32_t> gone;
  for (auto& [seat, member] : members_) {
    if (member.present() && !member.done && now >= member.lease_until) {
      member.lost = true;
      member.gone_reason = member.conn ? "silent for a lease" : "socket closed and lease ended";
      gone.push_back(seat);
    }
  }
  return gone;
}

Member* Roster::find(std::uint32_t seat) {
  const auto at = members_.find(seat);
  return at == members_.end() ? nullptr : &at->second;
}

const Member* Roster::find(std::uint32_t seat) const {
  const auto at = members_.find(seat);
  return at == members_.end() ? nullptr : &at->second;
}

Member* Roster::by_conn(std::uint64_t conn) {
  for (auto& [seat, member] : members_) {
    if (member.conn == conn) {
      return &member;
    }
  }
  return nullptr;
}

Nanos Roster::stall_limit(const Member& member) const {
  return std::max(options_.stall_floor, 10 * member.step_time.value_or(0));
}

bool Roster::stale(const Member& member, Nanos now, bool owes_push) const {
  if (member.limit || member.phase != wire::Phase::kTrain || (options_.lockstep && !owes_push)) {
    return false;
  }
  return now >= member.progress_at + stall_limit(member);
}

bool Roster::live(const Member& member, Nanos now, bool owes_push) const {
  return member.present() && !member.done && now < member.lease_until &&
         !stale(member, now, owes_push);
}

std::uint64_t Roster::steps_since_join(const Member& member) {
  return member.local_step - std::min(member.local_step, member.step_at_join);
}

std::uint64_t Roster::run_tokens() const {
  std::uint64_t sum = 0;
  for (const auto& [seat, member] : members_) {
    sum += member.tokens;
  }
  return sum;
}

Nanos Roster::next_deadline(Nanos now) const {
  Nanos next = std::numeric_limits<Nanos>::max();
  for (const auto& [seat, member] : members_) {
    if (!member.present() || member.done) {
      continue;
    }
    next = std::min(next, member.lease_until);
    const Nanos stall = member.progress_at + stall_limit(member);
    if (member.phase == wire::Phase::kTrain && stall > now) {
      next = std::min(next, stall);
    }
  }
  return next;
}

}  // namespace yeto::sync
