// SPDX-License-Identifier: Apache-2.0
// The end of a run: one last sweep over all fragments, the final f32 values to everybody,
// acknowledgements.
#include <algorithm>

#include "yeto/base/format.h"
#include "yeto/sync/core/core.h"

namespace yeto::sync {

bool Core::all_reached_limit() const {
  bool anyone = false;
  for (const auto& [seat, member] : roster_.members()) {
    if (!member.present() || member.done) {
      continue;
    }
    if (!member.limit) {
      return false;
    }
    anyone = true;
  }
  return anyone;
}

// Why training ends now, in words; empty: it goes on.
std::string Core::reason_to_end() const {
  if (!finish_reason_.empty()) {
    return finish_reason_;
  }
  if (options_.total_steps != 0 && global_step_ >= options_.total_steps) {
    return "the planned steps are done";
  }
  return all_reached_limit() ? "every learner reached its limit" : std::string{};
}

void Core::look_for_end() {
  if (!started_) {
    const bool nobody = std::none_of(roster_.members().begin(), roster_.members().end(),
                                     [](const auto& entry) { return entry.second.present(); });
    if (!finish_reason_.empty() && !initialised_) {
      return end(0, "asked to finish before training began");
    }
    if (!finish_reason_.empty() && nobody && now_ >= began_at_ + 2 * options_.lease) {
      end(4, "asked to finish, and no member is here to take the final values");
    }
    return;
  }
  if (phase_ == RunPhase::kTraining) {
    const std::string reason = reason_to_end();
    if (reason.empty() || commit_ != Commit::kIdle) {
      return;
    }
    // Rounds in flight are finished first; an attempt that waits for members will get none.
    std::erase_if(rounds_, [](const OpenRound& round) { return round.attempt.duties.empty(); });
    while (finish_now_ && !rounds_.empty()) {
      abandon(rounds_.back(), "finish now");
    }
    if (!rounds_.empty()) {
      return;
    }
    if (finish_now_) {
      return begin_final();
    }
    begin_sweep(reason);
  }
  if (phase_ == RunPhase::kSweeping && rounds_.empty() && commit_ == Commit::kIdle &&
      next_round_ > sweep_until_) {
    begin_final();
  }
}

void Core::begin_sweep(const std::string& reason) {
  phase_ = RunPhase::kSweeping;
  if (finish_reason_.empty()) {
    tape(TapeFinish{reason});
  }
  // A round that never committed is not counted: the sweep goes on right after the global step.
  next_round_ = global_step_ + 1;
  sweep_until_ = global_step_ + versions_.size();
}

void Core::begin_final() {
  phase_ = RunPhase::kFinal;
  final_began_ = now_;
  drop_all_late("final");
  finals_job_ = next_job_++;
  MakeFinals job{finals_job_, {}};
  for (std::size_t i = 0; i < versions_.size(); ++i) {
    job.images.push_back(next_buffer_++);
  }
  if (checkpoint_job_ == 0) {
    final_save_tried_ = true;
    checkpoint();
  }
  emit(std::move(job));
}

// A member that has acknowledged does not come back, so what it acknowledges has to be durable. A
// disk that refuses does not keep the values from the members: that is reported.
bool Core::final_saved() {
  if (checkpoint_job_ != 0) {
    return false;
  }
  if (durable_step_ == global_step_ || (final_save_tried_ && last_save_failed_)) {
    return true;
  }
  final_save_tried_ = true;
  checkpoint();
  return false;
}

void Core::handle(const FinalsMade& event) {
  if (event.job != finals_job_) {
    return;
  }
  finals_ = event.images;
  final_digests_ = event.digests;
  finals_ready_ = true;
}

// Each present member gets FINAL and then every fragment, one transfer at a time.
void Core::send_finals() {
  if (!finals_ready_ || ended_ || !final_saved()) {
    return;
  }
  for (auto& [seat, member] : roster_.members()) {
    if (!member.conn || !member.present() || member.done) {
      continue;
    }
    FinalReader& reader = final_readers_[seat];
    if (!reader.announced) {
      reader.announced = true;
      emit(Send{*member.conn, wire::Final{global_step_, versions_, final_digests_}});
    }
    if (reader.ticket != 0 || reader.next >= finals_.size()) {
      continue;
    }
    const Image& image = finals_[reader.next];
    wire::Offer offer;
    offer.kind = wire::TransferKind::kFinal;
    offer.term = options_.term;
    offer.fragment = reader.next;
    offer.version = versions_[reader.next];
    offer.codec = CodecId::kF32;
    offer.bytes = image.bytes;
    offer.digest = image.digest;
    reader.ticket = next_ticket_++;
    member.bytes_received += image.bytes;
    emit(SendTransfer{*member.conn, reader.ticket, offer, image.buffer});
  }
}

void Core::final_ack(Member& member, const wire::FinalAck& ack) {
  if (!finals_ready_) {
    emit(Close{*member.conn, "FINAL_ACK before FINAL"});
    return;
  }
  if (ack.digests != final_digests_ || ack.versions != versions_) {
    trouble(strf("seat {} acknowledged other final values than were sent", member.seat));
    emit(Close{*member.conn, "final values differ"});
    final_readers_.erase(member.seat);
    return;
  }
  member.done = true;
  acknowledged_.insert(member.seat);
  emit(Send{*member.conn, wire::Goodbye{"the run has ended"}});
}

void Core::end_if_acknowledged() {
  if (phase_ != RunPhase::kFinal || !finals_ready_ || checkpoint_job_ != 0) {
    return;
  }
  std::vector<Seat> missing;
  for (const auto& [seat, member] : roster_.members()) {
    if (member.present() && !member.done) {
      missing.push_back(seat);
    }
  }
  const bool timeout = now_ >= final_began_ + options_.final_timeout;
  const bool complete = missing.empty() && !acknowledged_.empty();
  if (!complete && !timeout) {
    return;
  }
  if (data_changed_) {
    return checkpoint();  // rows that were settled after the last one
  }
  TapeFinal record;
  record.global_step = global_step_;
  record.versions = versions_;
  record.acknowledged.assign(acknowledged_.begin(), acknowledged_.end());
  record.missing = missing;
  tape(std::move(record));
  if (complete) {
    return end(0, "all members acknowledged the final values");
  }
  std::string names;
  for (const Seat seat : missing) {
    names += strf("{}{}", names.empty() ? "" : ", ", seat);
  }
  end(4, missing.empty() ? "no member took the final values in time; the checkpoint holds them"
                         : strf("no final acknowledgement from seats {}; the checkpoint holds the "
                                "final values",
                                names));
}

void Core::end(int exit_code, std::string reason) {
  if (exit_code != 0) {
    trouble(reason);
  }
  for (const auto& [seat, member] : roster_.members()) {
    if (member.conn && member.present() && !member.done) {
      emit(Send{*member.conn, wire::Goodbye{reason.substr(0, 256)}});
    }
  }
  emit(Ended{exit_code, std::move(reason)});
  phase_ = RunPhase::kEnded;
  ended_ = true;
}

}  // namespace yeto::sync
