// SPDX-License-Identifier: Apache-2.0
// Admission of learners and controllers; what a process that comes back is told, and what is
// forgotten of one that went.
#include <algorithm>

#include "yeto/base/format.h"
#include "yeto/base/result.h"
#include "yeto/sync/core/core.h"

namespace yeto::sync {
void Core::admit_learner(const HelloArrived& event) {
  if (finals_ready_ && acknowledged_.contains(event.hello.seat) && event.proof_ok) {
    emit(Refuse{event.conn,
                {.code = wire::RefuseCode::kEnded,
                 .retryable = 0,
                 .text = "the run has ended and this seat acknowledged its final values",
                 .tensors = {}}});
    return;
  }
  if (std::string full = event.proof_ok ? room_objection(event.hello) : std::string{};
      !full.empty()) {
    emit(Refuse{
        event.conn,
        {.code = wire::RefuseCode::kFull, .retryable = 1, .text = std::move(full), .tensors = {}}});
    return;
  }
  AdmissionResult result =
      roster_.admit(event.hello, event.conn, event.proof_ok, event.fresh_session, now_);
  if (auto* no = std::get_if<wire::Refused>(&result)) {
    emit(Refuse{event.conn, std::move(*no)});
    return;
  }
  const Admission admission = std::get<Admission>(result);
  if (admission.replaced) {
    // What comes on the old connection from here on is nobody's.
    forget_connection(*admission.replaced, false);
    end_broadcast(admission.seat);
    emit(Close{*admission.replaced, "the seat came back on another connection"});
  }
  if (!codec_known_) {
    set_codecs(event.hello.values);
  }
  if (!first_join_at_) {
    first_join_at_ = now_;
  }
  awaited_.erase(admission.seat);
  most_members_ = std::max(most_members_, present_members());
  if (!admission.resumed) {
    forget_process(admission.seat);
  }
  const auto of_seat = [&](const auto& entry) { return entry.first.first == admission.seat; };
  std::erase_if(owed_, of_seat);  // the open ones are asked for again
  if (!admission.first && !admission.same_process) {
    std::erase_if(counted_bases_, of_seat);
  }
  emit(Admit{event.conn, welcome_for(admission, event.hello)});
  tape(TapeJoin{admission.seat, event.hello.incarnation, admission.resumed, event.hello.device});
  if (initialised_) {
    join_broadcasts(admission, event.hello);
  }
  if (admission.resumed) {
    resend_state(*roster_.find(admission.seat));
  }
}

// Why one more member does not fit into the budget of buffers; empty if it does.
std::string Core::room_objection(const wire::Hello& hello) const {
  if (!layout_) {
    return {};  // looked at when the sizes are known
  }
  const Member* member = hello.seat == wire::kNoSeat ? nullptr : roster_.find(hello.seat);
  const bool counted = member != nullptr && member->present();
  return buffer_objection(options_.max_buffer, buffer_sizes_,
                          present_members() + (counted ? 0 : 1));
}

void Core::admit_controller(const HelloArrived& event) {
  if (event.hello.run_id != options_.run_id || !event.proof_ok) {
    const bool other_run = event.hello.run_id != options_.run_id;
    emit(Refuse{event.conn,
                {.code = other_run ? wire::RefuseCode::kRun : wire::RefuseCode::kProof,
                 .retryable = 0,
                 .text = other_run ? "this syncer serves another run"
                                   : "the proof does not match the run token",
                 .tensors = {}}});
    return;
  }
  controllers_.insert(event.conn);
  wire::Welcome welcome;
  welcome.seat = wire::kNoSeat;
  welcome.session = event.fresh_session;
  welcome.term = options_.term;
  welcome.global_step = global_step_;
  welcome.durable_step = durable_step_;
  emit(Admit{event.conn, welcome});
}

wire::Welcome Core::welcome_for(const Admission& admission, const wire::Hello& hello) const {
  const Member& member = *roster_.find(admission.seat);
  wire::Welcome welcome;
  welcome.seat = admission.seat;
  welcome.session = member.session;
  welcome.resumed = admission.resumed ? 1 : 0;
  welcome.broadcast_codec = broadcast_codec_;
  welcome.push_codec = push_codec_;
  welcome.chunk_bytes = options_.chunk_bytes;
  welcome.heartbeat_ms = static_cast<std::uint32_t>(options_.heartbeat / kMillisecond);
  welcome.lease_ms = static_cast<std::uint32_t>(options_.lease / kMillisecond);
  welcome.term = options_.term;
  if (initialised_) {
    welcome.versions = versions_;
    // Fork points count from the oldest term that the learner's fragments come from.
    std::uint64_t oldest = options_.term;
    for (const wire::Held& held : hello.held) {
      if (held.term != 0) {
        oldest = std::min(oldest, held.term);
      }
    }
    welcome.valid = valid_versions(oldest);
  }
  welcome.global_step = global_step_;
  welcome.durable_step = durable_step_;
  welcome.seat_tokens = member.tokens;
  welcome.settings.sync_interval_steps = options_.sync_interval_steps;
  welcome.settings.merge_alpha = options_.merge_alpha;
  welcome.settings.delta_blended = options_.delta_blended ? 1 : 0;
  welcome.settings.lockstep = options_.lockstep ? 1 : 0;
  welcome.settings.fixed_roster = options_.fixed_roster.empty() ? 0 : 1;
  welcome.settings.max_lag = options_.max_lag;
  welcome.settings.data_leases = options_.data_leases ? 1 : 0;
  welcome.settings.total_steps = options_.total_steps;
  return welcome;
}

// Versions up to which bytes of an older term are still valid: the lowest fork point since.
std::vector<std::uint64_t> Core::valid_versions(std::uint64_t held_term) const {
  std::vector<std::uint64_t> valid = versions_;
  for (const Fork& fork : forks_) {
    if (fork.term <= held_term) {
      continue;
    }
    for (std::size_t i = 0; i < valid.size() && i < fork.versions.size(); ++i) {
      valid[i] = std::min(valid[i], fork.versions[i]);
    }
  }
  return valid;
}

void Core::join_broadcasts(const Admission& admission, const wire::Hello& hello) {
  std::vector<std::optional<std::uint64_t>> held(versions_.size());
  std::uint64_t oldest = options_.term;
  for (const wire::Held& item : hello.held) {
    if (item.term != 0) {
      oldest = std::min(oldest, item.term);
    }
  }
  const auto valid = valid_versions(oldest);
  for (std::uint32_t i = 0; i < held.size() && i < hello.held.size(); ++i) {
    const wire::Held& item = hello.held[i];
    const bool usable = item.term != 0 && item.term <= options_.term && item.version <= valid[i];
    if (!usable) {
      continue;
    }
    // A new session keeps only what is current; a resumed one lags by what it missed.
    if (admission.resumed || item.version == versions_[i]) {
      held[i] = item.version;
      if (item.version < versions_[i] && options_.max_lag > 0) {
        // Its push may have been broken off, and the round has closed meanwhile.
        late_rights_[{admission.seat, i}] = item;
      }
      continue;
    }
    // Its process lived through the break, or through a restart of the syncer: what it did on this
    // base may still come, once, before the fragment is overwritten.
    const bool lived = admission.same_process || (admission.first && item.term < options_.term);
    if (lived && options_.max_lag > 0) {
      late_rights_[{admission.seat, i}] = item;
    }
  }
  free_all(broadcasts_->join(admission.seat, std::move(held)));
  broadcast_retry_at_.erase(admission.seat);
}

// Transfers that came in on a connection are broken off.
void Core::forget_connection(ConnId conn, bool ask_now) {
  for (auto at = incoming_.lower_bound({conn, 0});
       at != incoming_.end() && at->first.first == conn;) {
    const Incoming incoming = at->second;
    at = incoming_.erase(at);
    emit(FreeBuffer{incoming.buffer});
    if (incoming.offer.kind == wire::TransferKind::kPush) {
      push_broken_off(incoming, ask_now);
    }
  }
}

// The process that held the seat is gone: what it owed and what is under way for it ends.
void Core::forget_process(Seat seat) {
  for (OpenRound& round : rounds_) {
    const auto duty = round.attempt.duties.find(seat);
    if (duty != round.attempt.duties.end() && duty->second == Duty::kOutstanding) {
      duty->second = Duty::kGone;
    }
  }
  const auto of_seat = [&](const auto& entry) { return entry.first.first == seat; };
  std::erase_if(owed_, of_seat);
  std::erase_if(last_verdicts_, of_seat);
  std::erase_if(late_rights_, of_seat);
  end_broadcast(seat);
  if (broadcasts_) {
    free_all(broadcasts_->leave(seat));
  }
  return_data(seat, "lost", data_.lose(seat));
  final_readers_.erase(seat);
  if (donation_ && donation_->seat == seat) {
    donor_failed("it left");
  }
}

// A resumed session gets the state again, not the messages it may have missed.
void Core::resend_state(const Member& member) {
  for (const OpenRound& round : rounds_) {
    const auto duty = round.attempt.duties.find(member.seat);
    if (duty != round.attempt.duties.end() && duty->second == Duty::kOutstanding) {
      pull(round, member);
    }
  }
  for (auto at = last_verdicts_.lower_bound({member.seat, 0});
       at != last_verdicts_.end() && at->first.first == member.seat; ++at) {
    emit(Send{*member.conn, at->second});
  }
  resend_data(member);
}

void Core::lose(Seat seat) {
  const Member& member = *roster_.find(seat);
  tape(TapeLost{seat, member.gone_reason});
  if (member.conn) {
    emit(Close{*member.conn, "lease ended"});
  }
  roster_.find(seat)->conn.reset();
  forget_process(seat);
}

}  // namespace yeto::sync
