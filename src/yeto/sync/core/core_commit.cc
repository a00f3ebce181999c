// SPDX-License-Identifier: Apache-2.0
// From a closed round to its broadcast: merge, commit, checkpoint, publish.
#include <algorithm>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/base/result.h"
#include "yeto/sync/core/core.h"

namespace yeto::sync {

// ---- merge
// -------------------------------------------------------------------------------------

// Late work of earlier rounds that still counts for this one.
void Core::take_carried(OpenRound& round) {
  auto taken = carried_.take(round.attempt.fragment, round.attempt.base_version, options_.max_lag);
  for (const Push& push : taken.stale) {
    round.tape.dropped.push_back({push.seat, "lag"});
    drop_late(push, "lag");
  }
  round.carried = std::move(taken.fresh);
}

// A commit needs max(1, K_eff) accepted pushes; carried work never counts for it. The one exception
// is the last sweep: no later round of the fragment could take what is carried, so a round that got
// nothing new merges it alone.
void Core::start_merge(OpenRound& round, const std::string& reason) {
  const std::uint32_t needed = needed_pushes(round_options_, round.attempt);
  const std::uint64_t late_before = buffer_use().late;
  close_late(round, Fate::kLate);
  const std::uint64_t turned_late = buffer_use().late - late_before;
  take_carried(round);
  const bool only_late = round.attempt.sweep && round.pushes.empty();
  if (only_late && round.carried.empty()) {
    return abandon(round, "nothing is left to merge");
  }
  YETO_CHECK(only_late || round.pushes.size() >= needed,
             "a commit has at least max(1, K_eff) accepted pushes");
  round.tape.reason = reason;
  commit_ = Commit::kMerging;
  commit_job_ = next_job_++;
  merge_began_ = now_;
  Merge job;
  job.job = commit_job_;
  job.round = round.attempt.round;
  job.fragment = round.attempt.fragment;
  job.version = versions_[round.attempt.fragment] + 1;
  job.image = next_buffer_++;
  job.full = broadcast_codec_ == CodecId::kQ4 ? next_buffer_++ : 0;
  std::uint64_t bytes = 0;
  for (const auto& [seat, push] : round.pushes) {
    job.pushes.push_back(input_of(push, 1.0));
    bytes += push.offer.bytes;
  }
  for (const Push& push : round.carried) {
    job.pushes.push_back(input_of(push, factor_of(round, push)));
  }
  std::sort(job.pushes.begin(), job.pushes.end(), [](const PushInput& a, const PushInput& b) {
    return std::pair(a.seat, a.base_version) < std::pair(b.seat, b.base_version);
  });
  // Who did not answer gets no room any more; where everybody has to, a next attempt needs it.
  const bool everybody = fixed() || options_.lockstep;
  round.reserved = everybody ? round.reserved - turned_late : bytes;
  emit(std::move(job));
}

PushInput Core::input_of(const Push& push, double factor) {
  return {push.seat, push.buffer, push.offer.c_steps, push.offer.c_tokens, push.offer.base_version,
          factor};
}

double Core::factor_of(const OpenRound& round, const Push& late) const {
  return late_factor(round.attempt.base_version - late.offer.base_version, options_.merge_alpha,
                     options_.delta_blended);
}

void Core::handle(const Merged& event) {
  if (commit_ != Commit::kMerging || event.job != commit_job_) {
    return;
  }
  if (!event.ok) {
    return merge_failed(rounds_.front());
  }
  YETO_CHECK((event.full.buffer != 0) == (broadcast_codec_ == CodecId::kQ4),
             "a q4 merge makes the whole image too, any other does not");
  commit_image_ = event.image;
  commit_full_ = event.full;
  commit();
}

// Nobody is to blame: each push was finite on its own.
void Core::merge_failed(OpenRound& round) {
  constexpr const char* kReason = "merged value not finite";
  commit_ = Commit::kIdle;
  trouble(strf("round {}: the merged value of fragment {} is not finite; the round is skipped",
               round.attempt.round, round.attempt.fragment));
  for (const auto& [seat, push] : std::exchange(round.pushes, {})) {
    round.tape.dropped.push_back({seat, kReason});
    drop(push, kReason);
  }
  for (const Push& push : std::exchange(round.carried, {})) {
    round.tape.dropped.push_back({push.seat, kReason});
    drop_late(push, kReason);
  }
  abandon(round, kReason);
}

// ---- commit
// ------------------------------------------------------------------------------------

void Core::commit() {
  OpenRound& round = rounds_.front();
  YETO_CHECK(round.attempt.base_version == versions_[round.attempt.fragment],
             "a commit follows the version it was based on");
  YETO_CHECK(round.attempt.round > global_step_, "rounds commit in order, each once");
  ++versions_[round.attempt.fragment];
  global_step_ = round.attempt.round;
  for (const auto& [seat, push] : round.pushes) {
    count_merged(push);
  }
  for (const Push& push : round.carried) {
    count_merged(push);
  }
  round.reserved = 0;
  commit_durable_ = false;
  if (durability_ == Durability::kInterval) {
    return publish();
  }
  commit_ = Commit::kSaving;
  if (checkpoint_job_ == 0) {
    checkpoint();
  }
}

void Core::count_merged(const Push& push) {
  ledger_.waiting -= push.offer.c_tokens;
  ledger_.merged += push.offer.c_tokens;
  ++roster_.find(push.seat)->merged;
  std::uint64_t& merged = merged_bases_[{push.seat, push.offer.fragment}];
  merged = std::max(merged, push.offer.base_version + 1);
  emit(FreeBuffer{push.buffer});
}

// Everything after the commit is durable: broadcast, verdicts, tape.
void Core::publish() {
  YETO_CHECK(durability_ == Durability::kInterval || commit_durable_,
             "durable before it is broadcast, or the disk's refusal was reported");
  OpenRound round = std::move(rounds_.front());
  rounds_.pop_front();
  commit_ = Commit::kIdle;
  commit_time_ = now_ - merge_began_;
  publish_image(round.attempt.fragment);
  for (const auto& [seat, push] : round.pushes) {
    verdict(push, wire::Outcome::kMerged, {});
  }
  for (const Push& push : round.carried) {
    verdict(push, wire::Outcome::kMerged, {});
  }
  tape_commit(round);
}

void Core::publish_image(std::uint32_t fragment) {
  const auto of = [&](const Image& image) {
    return BroadcastImage{versions_[fragment], image.buffer, image.bytes, image.digest};
  };
  free_all(commit_full_.buffer == 0
               ? broadcasts_->publish(fragment, of(commit_image_))
               : broadcasts_->publish(fragment, of(commit_full_), of(commit_image_)));
  keep_images_in_budget();
}

void Core::tape_commit(OpenRound& round) {
  TapeRound record = std::move(round.tape);
  const Attempt& attempt = round.attempt;
  record.round = attempt.round;
  record.fragment = attempt.fragment;
  record.version = versions_[attempt.fragment];
  record.attempt = attempt.attempt;
  record.sweep = attempt.sweep;
  record.committed = true;
  record.launched = attempt.launched - began_at_;
  record.quorum = attempt.quorum_at == 0 ? 0 : attempt.quorum_at - began_at_;
  record.grace_end = attempt.grace_end == 0 ? 0 : attempt.grace_end - began_at_;
  record.committed_at = now_ - began_at_;
  record.bytes_out = commit_image_.bytes;
  record.digest = commit_image_.digest;
  const auto add = [&](const Push& push) {
    record.tokens.push_back({push.seat, static_cast<double>(push.offer.c_tokens)});
    record.steps.push_back({push.seat, static_cast<double>(push.offer.c_steps)});
    record.norms.push_back({push.seat, push.norm});
    record.bytes_in += push.offer.bytes;
  };
  for (const auto& [seat, push] : round.pushes) {
    record.responded.push_back(seat);
    add(push);
  }
  for (const Push& push : round.carried) {
    const std::uint64_t lag = attempt.base_version - push.offer.base_version;
    record.carried.push_back({push.seat, static_cast<double>(lag)});
    record.factors.push_back({push.seat, factor_of(round, push)});
    add(push);
  }
  record.ledger = ledger_;
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
    SeatTokens row{seat, member.tokens, member.present(), {}};
    for (auto at = merged_bases_.lower_bound({seat, 0});
         at != merged_bases_.end() && at->first.first == seat; ++at) {
      row.merged_bases.resize(versions_.size());
      row.merged_bases[at->first.second] = at->second;
    }
    out.seats.push_back(std::move(row));
  }
  out.ledger = ledger_;
  out.forks = forks_;
  if (roster_.demands()) {
    out.contract = roster_.demands()->contract;
  }
  out.data = data_.state();
  out.finish_reason = finish_reason_;
  return out;
}

void Core::checkpoint() {
  checkpoint_job_ = next_job_++;
  checkpoint_step_ = global_step_;
  last_checkpoint_ = now_;
  data_changed_ = false;
  emit(Checkpoint{checkpoint_job_, state()});
}

void Core::checkpoint_if_due() {
  if (!initialised_ || ended_ || checkpoint_job_ != 0 || commit_ != Commit::kIdle ||
      (durable_step_ == global_step_ && !data_changed_) ||
      now_ < last_checkpoint_ + options_.checkpoint_every) {
    return;
  }
  checkpoint();
}

void Core::handle(const Checkpointed& event) {
  if (event.job != checkpoint_job_) {
    return;
  }
  checkpoint_job_ = 0;
  last_save_failed_ = !event.ok;
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
  commit_durable_ = true;
  publish();
}

}  // namespace yeto::sync
