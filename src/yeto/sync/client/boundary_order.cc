// SPDX-License-Identifier: Apache-2.0
// The trainer's side of the client: what happens at a boundary, in which order.
#include <algorithm>
#include <utility>

#include "yeto/codec/codec.h"
#include "yeto/sync/client/client.h"

namespace yeto::sync::client {

using wire::TransferKind;

namespace {

// Weight of the newest step in the moving average of the step time.
constexpr double kStepTimeShare = 0.5;

Work sum(Work a, const Work& b) { return a += b; }

}  // namespace

std::uint64_t lockstep_due(std::uint64_t round, std::uint32_t sync_interval_steps,
                           std::uint32_t fragments) {
  return (round * sync_interval_steps + fragments - 1) / fragments;
}

// ---- the trainer's clock
// -------------------------------------------------------------------------

void Client::step(std::uint64_t tokens, Nanos now) {
  if (train_since_) {
    const double seconds_taken = seconds(train_time_ + (now - *train_since_));
    step_time_s_ = step_time_s_ == 0.0
                       ? seconds_taken
                       : kStepTimeShare * seconds_taken + (1.0 - kStepTimeShare) * step_time_s_;
  }
  train_since_.reset();
  train_time_ = 0;
  phase_ = wire::Phase::kTrain;
  ++local_step_;
  tokens_ += tokens;
  for (FragmentState& fragment : fragments_) {
    fragment.work += Work{1, tokens};
  }
  rows_.step_ended();
}

void Client::resume_training(Nanos now) {
  phase_ = wire::Phase::kTrain;
  train_time_ = 0;
  train_since_ = now;
}

void Client::set_phase(wire::Phase phase, Nanos now) {
  if (train_since_ && phase != wire::Phase::kTrain) {
    train_time_ += now - *train_since_;
    train_since_.reset();
  } else if (!train_since_ && phase == wire::Phase::kTrain && phase_ != wire::Phase::kTrain &&
             local_step_ > 0) {
    train_since_ = now;
  }
  phase_ = phase;
}

wire::LearnerBeat Client::beat() const {
  return wire::LearnerBeat{local_step_, tokens_, phase_, step_time_s_};
}

// ---- state
// ---------------------------------------------------------------------------------------

bool Client::ready() const {
  return admitted_once_ && std::none_of(fragments_.begin(), fragments_.end(),
                                        [](const FragmentState& f) { return f.overwrite; });
}

std::uint64_t Client::staleness_max() const {
  std::uint64_t most = 0;
  for (const FragmentState& fragment : fragments_) {
    const std::uint64_t held = fragment.anchor.version;
    most = std::max(most, fragment.newest > held ? fragment.newest - held : 0);
  }
  return most;
}

std::uint64_t Client::pulls_waiting() const {
  return static_cast<std::uint64_t>(
      std::count_if(fragments_.begin(), fragments_.end(),
                    [](const FragmentState& f) { return f.pull.has_value(); }));
}

// ---- the boundary
// --------------------------------------------------------------------------------

Actions Client::boundary() {
  Actions out;
  for (std::uint32_t index = 0; index < fragment_count(); ++index) {
    answer_init(index, out);
    if (lockstep()) {
      if (fragments_[index].overwrite) {
        apply_ready(index, out);
      }
      continue;
    }
    reset_values(index, out);
    answer_pull(index, out);
    offer_late(index, out);
    apply_ready(index, out);
  }
  while (lockstep_round_due() && lockstep_round_done(out)) {
  }
  apply_final(out);
  settle_rows(out);
  return out;
}

void Client::answer_init(std::uint32_t index, Actions& out) {
  FragmentState& fragment = fragments_[index];
  if (!fragment.init_attempt) {
    return;
  }
  wire::Offer offer;
  offer.kind = TransferKind::kInit;
  offer.term = run_.term;
  offer.fragment = index;
  offer.attempt = *fragment.init_attempt;
  fragment.init_attempt.reset();
  offer.codec = CodecId::kF32;
  offer.bytes = values_[index] * sizeof(float);
  const Ticket ticket = next_id_++;
  outgoing_.emplace(ticket, Outgoing{offer, true, false});
  out.push_back(TakeInit{ticket, index});
}

void Client::answer_pull(std::uint32_t index, Actions& out) {
  FragmentState& fragment = fragments_[index];
  if (!fragment.pull || fragment.overwrite) {
    return;  // before the first broadcast after a join
  }
  const wire::Pull& pull = *fragment.pull;
  if (pull.base_version < fragment.anchor.version) {
    fragment.pull.reset();
    return;
  }
  if (pull.base_version > fragment.anchor.version) {
    return;
  }
  const bool must_answer = finishing_ || pull.sweep != 0;
  if (!must_answer && pull.at_step > local_step_) {
    return;
  }
  if (sum(fragment.work, fragment.returned).steps > 0) {
    take_push(index, out);
  } else if (must_answer) {
    send_empty_push(push_offer(index, pull), out);
    fragment.pull.reset();
  }
}

wire::Offer Client::push_offer(std::uint32_t index, const wire::Pull& pull) const {
  wire::Offer offer;
  offer.kind = TransferKind::kPush;
  offer.term = run_.term;
  offer.fragment = index;
  offer.version = pull.base_version;
  offer.base_version = pull.base_version;
  offer.codec = push_codec_;
  offer.round = pull.round;
  offer.attempt = pull.attempt;
  return offer;
}

void Client::take_push(std::uint32_t index, Actions& out) {
  FragmentState& fragment = fragments_[index];
  const wire::Offer offer = push_offer(index, *fragment.pull);
  fragment.pull.reset();
  take_delta(index, offer, false, out);
}

void Client::take_delta(std::uint32_t index, wire::Offer offer, bool again, Actions& out) {
  FragmentState& fragment = fragments_[index];
  supersede_pushes(index, out);
  // Once more the same delta leaves out the work since.
  const Work work = again ? fragment.returned : sum(fragment.work, fragment.returned);
  offer.bytes = codec::encoded_bytes(push_codec_, values_[index]);
  offer.c_steps = work.steps;
  offer.c_tokens = work.tokens;
  const Ticket ticket = next_id_++;
  outgoing_.emplace(ticket, Outgoing{offer, false, false});
  pushes_.push_back({ticket, index, offer.round, offer.attempt, offer.base_version, work,
                     fragment.applications, Push::State::kLive, false});
  rows_.taken(index, ticket, again);
  fragment.taken += work;
  fragment.returned = {};
  if (!again) {
    fragment.work = {};
  }
  fragment.pushed = true;
  fragment.broken_off = false;
  out.push_back(TakePush{ticket, index, offer.base_version, offer.bytes, push_codec_, again});
}

// Right before a broadcast replaces work that no push has brought to the syncer: the work is
// offered, unasked. The syncer judges it as it judges a push that came too late for its round.
void Client::offer_late(std::uint32_t index, Actions& out) {
  FragmentState& fragment = fragments_[index];
  if (!fragment.ready || !connected_) {
    return;
  }
  const std::optional<wire::Held> late = std::exchange(fragment.late, std::nullopt);
  const wire::Held base = late.value_or(fragment.anchor);
  const bool in_time = fragment.ready->version - base.version <= settings_.max_lag;
  if (base.term == 0 || !in_time || settings_.max_lag == 0 || (fragment.overwrite && !late)) {
    return;
  }
  wire::Offer offer;
  offer.kind = TransferKind::kPush;
  offer.term = base.term;
  offer.fragment = index;
  offer.version = base.version;
  offer.base_version = base.version;
  offer.codec = push_codec_;
  if (late) {
    // The syncer knows whether it has counted an earlier delta of this anchor, and refuses then.
    fragment.returned += std::exchange(fragment.taken, {});
    if (sum(fragment.work, fragment.returned).steps == 0) {
      return;
    }
    take_delta(index, offer, false, out);
  } else if (fragment.broken_off && fragment.taken.steps == 0 && fragment.returned.steps > 0) {
    take_delta(index, offer, true, out);
  } else {
    return;
  }
  ++counters_.late_offers;
}

void Client::apply_ready(std::uint32_t index, Actions& out) {
  FragmentState& fragment = fragments_[index];
  if (!fragment.ready) {
    return;
  }
  Apply apply;
  apply.fragment = index;
  apply.version = fragment.ready->version;
  apply.image = fragment.ready->image;
  apply.mode = fragment.overwrite ? ApplyMode::kOverwrite
               : fragment.pushed  ? ApplyMode::kAfterPush
                                  : ApplyMode::kWithoutPush;
  apply.alpha = settings_.merge_alpha;
  apply.blended = settings_.delta_blended != 0;
  out.push_back(apply);
  account_application(index, apply.mode);
  fragment.anchor = wire::Held{run_.term, apply.version};
  fragment.ready.reset();
}

// Work that made values that are not finite is lost; the island goes on from the run's values.
void Client::reset_values(std::uint32_t index, Actions& out) {
  if (fragments_[index].reset) {
    out.push_back(ResetFragment{index});
    ++counters_.resets;
    account_application(index, ApplyMode::kOverwrite);
  }
}

// Which work the next delta will hold once the local values have been replaced.
void Client::account_application(std::uint32_t index, ApplyMode mode) {
  FragmentState& fragment = fragments_[index];
  // Work whose push may have arrived after all is counted when that is known.
  Work unsure;
  for (const Push& push : pushes_) {
    if (push.fragment == index && push.state == Push::State::kUnsure && push.returned &&
        push.applications == fragment.applications) {
      unsure += push.work;
    }
  }
  counters_.discarded_tokens += fragment.returned.tokens - unsure.tokens;
  // Without a push the share α of the work stays in the values; a raw delta will still show it.
  const bool share_stays = settings_.merge_alpha > 0.0 && settings_.delta_blended == 0;
  const bool without_push = mode == ApplyMode::kWithoutPush;
  const bool overwritten = mode == ApplyMode::kOverwrite || (without_push && !share_stays);
  if (overwritten) {
    counters_.discarded_tokens += fragment.work.tokens;
    fragment.work = {};
  }
  rows_.applied(index, overwritten);
  fragment.taken = {};
  fragment.returned = {};
  fragment.overwrite = false;
  fragment.pushed = false;
  fragment.broken_off = false;
  fragment.reset = false;
  ++fragment.applications;
  if (mode == ApplyMode::kOverwrite || (without_push && settings_.merge_alpha == 0.0)) {
    fragment.replaced = fragment.applications;
  }
}

// ---- lockstep
// ------------------------------------------------------------------------------------

bool Client::lockstep_round_due() const {
  if (!lockstep() || local_step_ == 0) {
    return false;
  }
  const bool over = settings_.total_steps > 0 && lockstep_round_ > settings_.total_steps;
  return !over && lockstep_due(lockstep_round_, settings_.sync_interval_steps, fragment_count()) <=
                      local_step_;
}

// Pushes and applies the next round of the schedule; false while its PULL or broadcast is missing.
bool Client::lockstep_round_done(Actions& out) {
  const auto index = static_cast<std::uint32_t>((lockstep_round_ - 1) % fragment_count());
  const std::uint64_t base = (lockstep_round_ - 1) / fragment_count();
  FragmentState& fragment = fragments_[index];
  if (fragment.overwrite) {
    return false;
  }
  if (fragment.pull && fragment.pull->round == lockstep_round_ && fragment.pull->sweep == 0 &&
      fragment.pull->base_version == base && fragment.anchor.version == base) {
    ask_again(index, out);
    take_push(index, out);
    lockstep_pushed_ = true;
  }
  if (!lockstep_pushed_ || !fragment.ready) {
    return false;
  }
  apply_ready(index, out);
  lockstep_pushed_ = false;
  ++lockstep_round_;
  return true;
}

// Asked again at the same step: the earlier delta was not taken, so the next one carries its work.
void Client::ask_again(std::uint32_t index, Actions& out) {
  for (auto push = pushes_.begin(); push != pushes_.end();) {
    push = push->fragment == index ? end_push(push, out) : std::next(push);
  }
  FragmentState& fragment = fragments_[index];
  fragment.returned += fragment.taken;
  fragment.taken = {};
}

bool Client::must_wait() const {
  if (!lockstep()) {
    return false;
  }
  if (draining_) {
    // A round that was pushed before the sweep began is merged all the same.
    return lockstep_pushed_ && final_.digests.empty();
  }
  // After the last round the sweep comes; a step before it would differ from learner to learner.
  const bool over = settings_.total_steps > 0 && lockstep_round_ > settings_.total_steps;
  return over || lockstep_round_due();
}

// ---- the end
// -------------------------------------------------------------------------------------

Actions Client::finalize(bool limit) {
  finishing_ = true;
  Actions out = return_rows();
  if ((limit || (drain_lost_ && !draining_)) && !limit_) {
    limit_ = true;
    if (connected_) {
      send_limit(out);
    }
  }
  return out;
}

void Client::send_limit(Actions& out) const {
  out.push_back(Send{wire::Limit{local_step_, tokens_}});
}

void Client::apply_final(Actions& out) {
  const bool complete = finishing_ && !acknowledged() && !final_.digests.empty() &&
                        std::all_of(final_images_.begin(), final_images_.end(),
                                    [](const auto& image) { return image.has_value(); });
  if (!complete) {
    return;
  }
  ApplyFinal apply;
  for (std::optional<ImageId>& image : final_images_) {
    apply.images.push_back(*image);
    image.reset();
  }
  out.push_back(std::move(apply));
}

Actions Client::final_applied(std::vector<wire::Digest32> digests) {
  Actions out;
  own_final_ = std::move(digests);
  if (connected_ && !final_.digests.empty()) {
    send_final_ack(out);
  }
  return out;
}

void Client::send_final_ack(Actions& out) const {
  out.push_back(Send{wire::FinalAck{final_.global_step, final_.versions, own_final_}});
}

}  // namespace yeto::sync::client
