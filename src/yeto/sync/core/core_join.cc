// SPDX-License-Identifier: Apache-2.0
// Admission of learners and controllers, and the initial state that one donor gives.
#include <algorithm>

#include "yeto/base/format.h"
#include "yeto/base/result.h"
#include "yeto/sync/core/core.h"

namespace yeto::sync {
namespace {

// Trainable state (params, momentum, public: 4 bytes each) up to which every commit is made
// durable.
constexpr std::uint64_t kCommitDurableBytes = std::uint64_t{256} << 20;
// How long the first round waits for members that are admitted but do not train yet.
constexpr Nanos kFirstRoundPatience = 60 * kSecond;

}  // namespace

void Core::admit_learner(const HelloArrived& event) {
  if (finals_ready_ && acknowledged_.contains(event.hello.seat) && event.proof_ok) {
    emit(Refuse{event.conn,
                {.code = wire::RefuseCode::kEnded,
                 .retryable = 0,
                 .text = "the run has ended and this seat acknowledged its final values",
                 .tensors = {}}});
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
    emit(Close{*admission.replaced, "the seat came back on another connection"});
  }
  if (!codec_known_) {
    set_codecs(event.hello.values);
  }
  if (!first_join_at_) {
    first_join_at_ = now_;
  }
  awaited_.erase(admission.seat);
  if (!admission.resumed) {
    forget_process(admission.seat);
  }
  emit(Admit{event.conn, welcome_for(admission, event.hello)});
  tape(TapeJoin{admission.seat, event.hello.incarnation, admission.resumed, event.hello.device});
  if (initialised_) {
    join_broadcasts(admission.seat, event.hello);
  }
  if (admission.resumed) {
    resend_open_pulls(*roster_.find(admission.seat));
  }
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
  welcome.settings.max_lag = 0;  // late pushes are dropped, not carried
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

void Core::join_broadcasts(Seat seat, const wire::Hello& hello) {
  std::vector<std::optional<std::uint64_t>> held(versions_.size());
  std::uint64_t oldest = options_.term;
  for (const wire::Held& item : hello.held) {
    if (item.term != 0) {
      oldest = std::min(oldest, item.term);
    }
  }
  const auto valid = valid_versions(oldest);
  const Member& member = *roster_.find(seat);
  const bool resumed = member.session == hello.session;
  for (std::size_t i = 0; i < held.size() && i < hello.held.size(); ++i) {
    const wire::Held& item = hello.held[i];
    const bool usable = item.term != 0 && item.term <= options_.term && item.version <= valid[i];
    // A new session keeps only what is current; a resumed one lags by what it missed.
    if (usable && (resumed || item.version == versions_[i])) {
      held[i] = item.version;
    }
  }
  free_all(broadcasts_->join(seat, std::move(held)));
  broadcast_retry_at_.erase(seat);
}

// The process that held the seat is gone: what it owed and what is under way for it ends.
void Core::forget_process(Seat seat) {
  for (OpenRound& round : rounds_) {
    const auto duty = round.attempt.duties.find(seat);
    if (duty != round.attempt.duties.end() && duty->second == Duty::kOutstanding) {
      duty->second = Duty::kGone;
    }
  }
  if (broadcasts_) {
    free_all(broadcasts_->leave(seat));
  }
  final_readers_.erase(seat);
  if (donation_ && donation_->seat == seat) {
    donor_failed("it left");
  }
}

void Core::resend_open_pulls(const Member& member) {
  for (const OpenRound& round : rounds_) {
    const auto duty = round.attempt.duties.find(member.seat);
    if (duty != round.attempt.duties.end() && duty->second == Duty::kOutstanding) {
      pull(round, member);
    }
  }
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

bool Core::may_capture(const Member& member, std::uint32_t fragment) const {
  const bool taking_part = member.limit || member.phase == wire::Phase::kTrain || options_.lockstep;
  return member.conn && taking_part && live(member) && !member.drained.contains(fragment) &&
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
  for (const auto& [seat, member] : roster_.members()) {
    if (!member.present() || member.done || !live(member)) {
      continue;
    }
    if (!member.conn) {
      launch_obstacle_ = strf("the last sweep waits for seat {} or the end of its lease", seat);
      return std::nullopt;
    }
    if (broadcasts_->complete(seat) && !member.drained.contains(fragment)) {
      asked.push_back(seat);
    }
  }
  return asked;
}

}  // namespace yeto::sync
