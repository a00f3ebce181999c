// SPDX-License-Identifier: Apache-2.0
// The initial state that one donor gives, and the start of training.
#include <algorithm>

#include "yeto/base/format.h"
#include "yeto/base/result.h"
#include "yeto/sync/core/core.h"

namespace yeto::sync {
namespace {

// Trainable state (params, momentum, public: 4 bytes each) up to which every commit is made
// durable.
constexpr std::uint64_t kCommitDurableBytes = std::uint64_t{256} << 20;

}  // namespace

// Finds a donor and asks it for the layout, then for all fragments. One donor gives all or none.
void Core::initialise() {
  if (initialised_) {
    return make_images();  // a resumed run, once
  }
  if (donation_ || images_asked_) {
    return;
  }
  bool anyone = false;
  for (const auto& [seat, member] : roster_.members()) {
    anyone = anyone || member.present();
    if (member.conn && member.present()) {
      phase_ = RunPhase::kInitialising;
      donation_ = Donation{.seat = seat,
                           .attempt = static_cast<std::uint32_t>(next_ticket_++),
                           .loaded = {},
                           .jobs = {},
                           .layout_job = 0};
      if (layout_) {
        return ask_donor_for_values();
      }
      wire::Pull ask;
      ask.term = options_.term;
      ask.fragment = wire::kLayoutFragment;
      ask.attempt = donation_->attempt;
      emit(Send{*member.conn, ask});
      return;
    }
  }
  if (!anyone && roster_.demands()) {
    // Nobody is left of those that set the demands, and nothing was made from them.
    roster_.forget_demands();
    layout_.reset();
    codec_known_ = false;
    phase_ = RunPhase::kWaiting;
  }
}

void Core::ask_donor_for_values() {
  donation_->loaded.assign(layout_->fragments.size(), false);
  const Member& member = *roster_.find(donation_->seat);
  for (std::uint32_t fragment = 0; fragment < layout_->fragments.size(); ++fragment) {
    wire::Pull ask;
    ask.term = options_.term;
    ask.fragment = fragment;
    ask.attempt = donation_->attempt;
    emit(Send{*member.conn, ask});
  }
}

void Core::donor_failed(std::string why) {
  trouble(strf("seat {} could not give the initial values: {}", donation_->seat, why));
  donation_.reset();
}

void Core::handle(const LayoutLoaded& event) {
  emit(FreeBuffer{loading_[event.job]});
  loading_.erase(event.job);
  if (!donation_ || event.job != donation_->layout_job) {
    return;
  }
  const Seat seat = donation_->seat;
  const Member& member = *roster_.find(seat);
  const bool announced =
      event.layout && roster_.demands() && event.layout->fingerprint() == roster_.demands()->layout;
  if (!announced) {
    const ConnId conn = *member.conn;
    donor_failed(event.layout ? "its layout is not the one it announced" : event.error);
    emit(Refuse{
        conn, {.code = wire::RefuseCode::kLayout, .retryable = 0, .text = error_, .tensors = {}}});
    roster_.leave(seat, "bad layout");
    return;
  }
  Roster::Demands demands = *roster_.demands();
  demands.tensors = tensor_hashes(*event.layout);
  roster_.demand(std::move(demands));
  set_layout(*event.layout);
  ask_donor_for_values();
}

void Core::set_codecs(std::uint64_t values) {
  push_codec_ = options_.push_codec.value_or(automatic_codec(values));
  broadcast_codec_ = options_.broadcast_codec.value_or(automatic_codec(values));
  codec_known_ = true;
}

void Core::set_layout(Layout layout) {
  layout_ = std::move(layout);
  const auto fragments = static_cast<std::uint32_t>(layout_->fragments.size());
  broadcasts_.emplace(fragments);
  versions_.assign(fragments, 0);
  norms_.assign(fragments, {});
  const std::uint64_t values = layout_->values();
  if (!codec_known_) {
    set_codecs(values);
  }
  durability_ = options_.durability.value_or(
      12 * values <= kCommitDurableBytes ? Durability::kCommit : Durability::kInterval);
  buffer_sizes_ = buffer_sizes(*layout_, push_codec_, broadcast_codec_, options_.pipeline);
  unfit_ = buffer_objection(options_.max_buffer, buffer_sizes_,
                            std::max(options_.learners, present_members()));
}

void Core::handle(const InitLoaded& event) {
  emit(FreeBuffer{loading_[event.job]});
  loading_.erase(event.job);
  if (!donation_) {
    return;
  }
  const auto job = donation_->jobs.find(event.job);
  if (job == donation_->jobs.end()) {
    return;
  }
  if (!event.ok) {
    const Seat seat = donation_->seat;
    const Member& member = *roster_.find(seat);
    const ConnId conn = *member.conn;
    donor_failed(event.error);
    emit(Refuse{
        conn, {.code = wire::RefuseCode::kLayout, .retryable = 0, .text = error_, .tensors = {}}});
    roster_.leave(seat, "bad initial values");
    return;
  }
  donation_->loaded[job->second] = true;
  donation_->jobs.erase(job);
  if (std::all_of(donation_->loaded.begin(), donation_->loaded.end(), [](bool it) { return it; })) {
    // From here on the state is initialised and is never replaced by another donor's.
    donation_.reset();
    forks_ = {{options_.term, versions_}};
    make_images();
  }
}

void Core::make_images() {
  if (images_asked_) {
    return;
  }
  images_asked_ = true;
  images_job_ = next_job_++;
  MakeImages job{images_job_, {}};
  for (std::size_t i = 0; i < versions_.size(); ++i) {
    job.images.push_back(next_buffer_++);
  }
  emit(std::move(job));
}

void Core::handle(const ImagesMade& event) {
  if (event.job != images_job_) {
    return;
  }
  YETO_CHECK(event.images.size() == versions_.size(), "one image per fragment");
  for (std::uint32_t i = 0; i < versions_.size(); ++i) {
    const Image& image = event.images[i];
    free_all(broadcasts_->publish(i, {versions_[i], image.buffer, image.bytes, image.digest}));
  }
  if (!initialised_) {
    initialised_ = true;
    phase_ = RunPhase::kWaiting;
    for (const auto& [seat, member] : roster_.members()) {
      if (member.present()) {
        free_all(
            broadcasts_->join(seat, std::vector<std::optional<std::uint64_t>>(versions_.size())));
      }
    }
  }
  if (!saved_once_) {
    checkpoint();  // version 0 is durable before round 1
  }
}

// Why training does not start yet, in words; empty: it can.
std::string Core::start_obstacle() const {
  if (!initialised_ || !broadcasts_->published(0)) {
    return "the initial values are not here";
  }
  if (!saved_once_) {
    return "the first checkpoint is being written";
  }
  if (fixed() && finish_reason_.empty()) {
    return pause_reason_;
  }
  std::uint32_t present = 0;
  for (const auto& [seat, member] : roster_.members()) {
    present += member.conn && live(member) ? 1 : 0;
  }
  if (present == 0) {
    return "no learner is here";
  }
  if (!finish_reason_.empty()) {
    return {};  // what is here is enough for the last sweep
  }
  if (global_step_ > 0 || !awaited_.empty()) {
    const bool patient = now_ < began_at_ + 2 * options_.lease;
    return !awaited_.empty() && patient ? strf("{} seats of before are awaited", awaited_.size())
                                        : std::string{};
  }
  if (present >= options_.learners) {
    return {};
  }
  const std::uint32_t start_quorum =
      options_.start_quorum != 0 ? options_.start_quorum : quorum_of(round_options_, 0);
  const bool late = now_ >= *first_join_at_ + options_.start_timeout;
  return late && present >= start_quorum
             ? std::string{}
             : strf("{} of {} learners joined", present, options_.learners);
}

void Core::try_start() {
  if (started_) {
    return;
  }
  launch_obstacle_ = start_obstacle();
  if (!launch_obstacle_.empty()) {
    return;
  }
  started_ = true;
  started_at_ = now_;
  phase_ = RunPhase::kTraining;
}

}  // namespace yeto::sync
