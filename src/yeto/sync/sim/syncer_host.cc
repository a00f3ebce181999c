// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/sim/syncer_host.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/base/result.h"
#include "yeto/sync/sim/world.h"

namespace yeto::sync::sim {
namespace {

constexpr Nanos kJobBase = 20 * kMicrosecond;
constexpr Nanos kSlowDisk = 100;

JobId job_of(const JobOrder& order) {
  return std::visit([](const auto& job) { return job.job; }, order);
}

// With very many members a look for the next deadline after every beat would cost more than the
// beats; the syncer's own heartbeat looks again anyway.
bool may_bring_a_deadline(const Event& event) {
  return !std::holds_alternative<Heard>(event) && !std::holds_alternative<TransferSent>(event) &&
         !std::holds_alternative<OfferArrived>(event) &&
         !std::holds_alternative<MessageArrived>(event);
}

}  // namespace

SyncerHost::SyncerHost(World& world)
    : world_(world), plan_(world.plan()), clock_(world.plan().syncer_clock) {}

Nanos SyncerHost::local_now() const { return local_time(clock_, world_.now()); }

// ---- the process
// -----------------------------------------------------------------------------------

void SyncerHost::start() {
  if (up() || ended()) {
    return;
  }
  machine_up_ = true;
  ++lives_;
  jobs_ = make_jobs(plan_, lives_, durable_);
  Result<JobHost::Opened> opened = jobs_->open();
  if (!opened && durable_.disk.fails()) {
    // It says so and leaves; whoever looks after it tries again.
    jobs_.reset();
    world_.queue().at(world_.now() + kSecond, [](World& world, std::uint64_t, std::uint64_t,
                                                 std::uint64_t) { world.syncer().start(); });
    return;
  }
  if (!opened) {
    world_.checks().violate("the syncer cannot start from its checkpoint: " +
                            opened.error().text());
    return;
  }
  if (plan_.breakage == Breakage::kTermNotRaised && lives_ > 1) {
    --opened->term;
  }
  world_.checks().syncer_started(opened->term, opened->restored);
  world_.trace("core", [&] { return strf("the syncer starts in term {}", opened->term); });
  CoreOptions options = plan_.core;
  options.term = opened->term;
  const Nanos now = plan_.breakage == Breakage::kNoExpiry ? 1 : local_now();
  world_.checks().set_life_began(now);
  core_ = std::make_unique<Core>(options, std::move(opened->restored), now);
  if (plan_.shadow) {
    open_shadow();
  }
  feed(Tick{});
}

void SyncerHost::open_shadow() {
  if (!shadow_) {
    shadow_ = make_jobs(plan_, 1, shadow_durable_);
    YETO_CHECK(shadow_->open().has_value(), "an empty disk opens");
    return;
  }
  // A new life numbers its buffers anew.
  for (const BufferId buffer : shadow_buffers_) {
    shadow_->free(buffer);
  }
  shadow_buffers_.clear();
  shadow_valid_ = core_->state().versions == shadow_versions_;
}

void SyncerHost::kill(bool machine) {
  if (!up() || ended()) {
    return;
  }
  last_status_ = core_->status(local_now());
  world_.trace("core", [&] { return std::string(machine ? "the machine dies" : "killed"); });
  core_.reset();
  jobs_.reset();
  events_.clear();
  draining_ = false;
  orders_.clear();
  result_.reset();
  checkpoint_result_.reset();
  timer_at_ = 0;
  ++timer_token_;
  ++next_token_;
  machine_up_ = !machine;
  durable_.disk.crash(world_.rng(), plan_.breakage == Breakage::kTornCheckpoint);
  durable_.writing.reset();
  if (plan_.breakage == Breakage::kStaleCheckpoint) {
    durable_.disk.step_back();
  }
  const auto sessions = std::exchange(sessions_, {});
  for (const auto& [conn, session] : sessions) {
    if (machine) {
      world_.network().vanish(conn, End::kSyncer);
    } else {
      world_.network().close(conn, End::kSyncer);
    }
  }
}

void SyncerHost::pause(Nanos until) { standing_until_ = std::max(standing_until_, until); }

void SyncerHost::finish(const std::string& reason) {
  if (listening()) {
    feed(FinishRequested{wire::FinishMode::kFinish, reason});
  }
}

// ---- events in, actions out
// ------------------------------------------------------------------------

Nanos SyncerHost::time_of(const Event& event) const {
  if (plan_.breakage == Breakage::kNoExpiry) {
    return 1;
  }
  if (plan_.breakage == Breakage::kLearnersClock) {
    if (const auto* message = std::get_if<MessageArrived>(&event)) {
      return local_time(world_.island_shape(message->conn).clock, world_.now());
    }
  }
  return local_now();
}

void SyncerHost::feed(Event event) {
  events_.push_back(std::move(event));
  if (draining_ || !up()) {
    return;
  }
  draining_ = true;
  bool look = plan_.values == ValueKind::kReal || timer_at_ == 0;
  while (!events_.empty() && up() && !ended()) {
    const Event next = std::move(events_.front());
    events_.pop_front();
    look = look || may_bring_a_deadline(next);
    std::vector<Action> actions = core_->on(next, time_of(next));
    for (Action& action : actions) {
      std::visit([this](auto& it) { perform(it); }, action);
    }
  }
  events_.clear();
  draining_ = false;
  if (up() && !ended() && look) {
    arm_timer();
  }
}

// A timer that is armed for an earlier time stays; it looks again when it comes.
void SyncerHost::arm_timer() {
  const Nanos deadline = core_->next_deadline();
  const Nanos wait = std::max(deadline - local_now(), kMillisecond);
  // A slow or fast clock: at least as long as the syncer's own clock needs.
  const Nanos at = world_.now() + wait - wait / 1'000'000 * clock_.ppm;
  if (timer_at_ != 0 && timer_at_ <= at) {
    return;
  }
  timer_at_ = at;
  world_.queue().at(
      at,
      [](World& world, std::uint64_t token, std::uint64_t, std::uint64_t) {
        world.syncer().on_timer(token);
      },
      ++timer_token_);
}

void SyncerHost::on_timer(std::uint64_t token) {
  if (token != timer_token_ || !up() || ended()) {
    return;
  }
  if (standing_until_ > world_.now()) {
    timer_at_ = standing_until_;
    world_.queue().at(
        standing_until_,
        [](World& world, std::uint64_t it, std::uint64_t, std::uint64_t) {
          world.syncer().on_timer(it);
        },
        token);
    return;
  }
  timer_at_ = 0;
  if (core_->next_deadline() > local_now() + kMillisecond) {
    return arm_timer();
  }
  feed(Tick{});
}

// ---- from the network
// ------------------------------------------------------------------------------

void SyncerHost::hello_arrived(ConnId conn, wire::Hello hello) {
  if (plan_.breakage == Breakage::kAnyRun) {
    hello.run_id = plan_.core.run_id;
  }
  HelloArrived event{conn, hello, true, {}};
  const std::uint64_t token[2] = {world_.rng().next(), world_.rng().next()};
  std::memcpy(event.fresh_session.data(), token, sizeof token);
  candidate_ = std::move(hello);
  candidate_conn_ = conn;
  feed(std::move(event));
  candidate_conn_ = 0;
}

void SyncerHost::on_message(ConnId conn, wire::Message message) {
  if (!listening()) {
    return;
  }
  world_.trace("network", [&] { return strf("conn {} → syncer: {}", conn, to_words(message)); });
  if (auto* hello = std::get_if<wire::Hello>(&message)) {
    return hello_arrived(conn, std::move(*hello));
  }
  const auto session = sessions_.find(conn);
  if (session == sessions_.end()) {
    return;
  }
  if (const auto* beat = std::get_if<wire::LearnerBeat>(&message)) {
    world_.checks().beat_arrived(session->second.seat, session->second.incarnation, *beat);
  }
  feed(MessageArrived{conn, std::move(message)});
}

void SyncerHost::on_offer(ConnId conn, const wire::Offer& offer) {
  if (sessions_.contains(conn)) {
    world_.trace("network", [&] { return strf("conn {} → syncer: {}", conn, to_words(offer)); });
    feed(OfferArrived{conn, offer});
  }
}

void SyncerHost::on_received(ConnId conn, std::uint64_t transfer, bool ok, const Body& body) {
  const auto session = sessions_.find(conn);
  if (session == sessions_.end() || (!ok && plan_.breakage == Breakage::kDeadIsHeard)) {
    return;
  }
  const auto found = session->second.receiving.find(transfer);
  if (found == session->second.receiving.end()) {
    return;
  }
  const BufferId buffer = found->second;
  session->second.receiving.erase(found);
  if (ok) {
    jobs_->fill(buffer, body);
    if (shadow_) {
      shadow_->fill(buffer, body);
    }
    world_.network().finish_receive(conn, End::kSyncer, transfer, true);
  }
  feed(TransferArrived{conn, transfer, buffer, ok});
}

void SyncerHost::on_sent(ConnId conn, std::uint64_t ticket, bool ok) {
  if (sessions_.contains(conn)) {
    feed(TransferSent{conn, ticket, ok});
  }
}

void SyncerHost::on_heard(ConnId conn) {
  if (sessions_.contains(conn)) {
    feed(Heard{conn});
  }
}

void SyncerHost::on_closed(ConnId conn, const std::string& reason) {
  if (sessions_.erase(conn) > 0 && plan_.breakage != Breakage::kDeadIsHeard) {
    feed(ConnClosed{conn, reason});
  }
}

// ---- actions
// ---------------------------------------------------------------------------------------

void SyncerHost::perform(Admit& action) {
  if (candidate_conn_ != action.conn || !world_.network().is_open(action.conn, End::kSyncer)) {
    feed(ConnClosed{action.conn, "lost before it was admitted"});
    return;
  }
  world_.checks().admitted(action.welcome.seat, candidate_.incarnation,
                           world_.island_shape(action.conn).run_id.empty());
  sessions_[action.conn] = Session{action.welcome.seat, candidate_.incarnation, {}};
  world_.network().send(action.conn, End::kSyncer, std::move(action.welcome));
}

void SyncerHost::perform(Refuse& action) {
  world_.trace("core",
               [&] { return strf("conn {} is refused: {}", action.conn, action.refused.text); });
  const std::string text = action.refused.text;
  world_.network().send(action.conn, End::kSyncer, std::move(action.refused));
  world_.network().close(action.conn, End::kSyncer);
  if (sessions_.erase(action.conn) > 0) {
    feed(ConnClosed{action.conn, text});
  }
}

void SyncerHost::perform(Send& action) {
  if (!sessions_.contains(action.conn)) {
    return;
  }
  if (const auto* beat = std::get_if<wire::SyncerBeat>(&action.message)) {
    world_.checks().beat_sent(*beat);
  }
  world_.network().send(action.conn, End::kSyncer, std::move(action.message));
}

void SyncerHost::perform(Close& action) {
  world_.trace("core", [&] { return strf("conn {} is closed: {}", action.conn, action.reason); });
  if (sessions_.erase(action.conn) > 0) {
    world_.network().close(action.conn, End::kSyncer);
    feed(ConnClosed{action.conn, action.reason});
  }
}

void SyncerHost::perform(AcceptTransfer& action) {
  const auto session = sessions_.find(action.conn);
  if (session == sessions_.end()) {
    feed(TransferArrived{action.conn, action.transfer, action.buffer, false});
    return;
  }
  world_.checks().push_accepted(session->second.seat, session->second.incarnation);
  jobs_->allocate(action.buffer, action.bytes);
  if (shadow_) {
    shadow_->allocate(action.buffer, action.bytes);
    shadow_buffers_.insert(action.buffer);
  }
  buffer_bytes_most_ = std::max(buffer_bytes_most_, jobs_->buffer_bytes());
  session->second.receiving[action.transfer] = action.buffer;
  world_.network().accept(action.conn, End::kSyncer, action.transfer);
}

void SyncerHost::perform(RefuseTransfer& action) {
  world_.trace("core", [&] {
    return strf("conn {}: transfer {} is refused: {}", action.conn, action.transfer, action.reason);
  });
  world_.network().refuse(action.conn, End::kSyncer, action.transfer, std::move(action.reason));
}

void SyncerHost::perform(SendTransfer& action) {
  std::optional<Body> body = jobs_->body(action.buffer);
  if (!sessions_.contains(action.conn) || !body) {
    feed(TransferSent{action.conn, action.ticket, false});
    return;
  }
  if (action.offer.kind == wire::TransferKind::kBroadcast) {
    world_.checks().broadcast_offered(sessions_[action.conn].seat, action.offer);
  }
  world_.network().send_transfer(action.conn, End::kSyncer, action.ticket, std::move(action.offer),
                                 std::move(*body));
}

void SyncerHost::perform(AbortTransfer& action) {
  if (sessions_.contains(action.conn)) {
    world_.network().abort(action.conn, End::kSyncer, action.ticket);
  }
}

void SyncerHost::perform(FreeBuffer& action) {
  if (plan_.breakage != Breakage::kForgetFree) {
    jobs_->free(action.buffer);
    if (shadow_) {
      shadow_->free(action.buffer);
      shadow_buffers_.erase(action.buffer);
    }
  }
}

void SyncerHost::perform(LoadInit& action) {
  world_.checks().init_ordered();
  order(action);
}

void SyncerHost::perform(Merge& action) {
  if (plan_.breakage == Breakage::kSeatsByArrival) {
    std::sort(action.pushes.begin(), action.pushes.end(),
              [](const PushInput& a, const PushInput& b) { return a.buffer < b.buffer; });
    for (std::uint32_t i = 0; i < action.pushes.size(); ++i) {
      action.pushes[i].seat = i;  // what arrived first is taken first
    }
  }
  if (plan_.breakage == Breakage::kPushTwice && !action.pushes.empty()) {
    PushInput again = action.pushes.back();
    ++again.base_version;
    action.pushes.push_back(again);
  }
  world_.checks().merge_ordered(action);
  order(std::move(action));
}

void SyncerHost::perform(MakeImages& action) {
  order(action);
  if (plan_.breakage == Breakage::kSecondInit) {
    // As a donor's values that come after another's were taken.
    world_.queue().at(world_.now() + kSecond, [](World& world, std::uint64_t, std::uint64_t,
                                                 std::uint64_t) { world.checks().init_ordered(); });
  }
}

void SyncerHost::perform(Tape& action) {
  world_.trace("round", [&] { return to_words(action.record); });
  world_.on_tape(action.record);
  world_.checks().taped(action.record, world_.now());
  if (std::holds_alternative<TapeRound>(action.record) && plan_.values == ValueKind::kReal) {
    const CoreStatus status = core_->status(local_now());
    world_.checks().run_state(status, lives_ > 1);
    world_.checks().buffers_used(status);
  }
}

void SyncerHost::perform(Ended& action) {
  world_.trace("core", [&] { return strf("the run ended: {}", action.reason); });
  last_status_ = core_->status(local_now());
  exit_code_ = action.exit_code;
  end_reason_ = action.reason;
  const auto sessions = std::exchange(sessions_, {});
  for (const auto& [conn, session] : sessions) {
    world_.network().close(conn, End::kSyncer);
  }
}

// ---- the worker
// ------------------------------------------------------------------------------------

void SyncerHost::order(JobOrder job) {
  orders_.push_back(std::move(job));
  run_next_job();
}

Nanos SyncerHost::duration_of(const JobOrder& job) const {
  const auto bytes = static_cast<double>(jobs_->work_bytes(job));
  if (!std::holds_alternative<Checkpoint>(job)) {
    return kJobBase + from_seconds(bytes / plan_.merge_bytes_per_s);
  }
  const Nanos out = plan_.disk_latency + from_seconds(bytes / plan_.disk_bytes_per_s);
  return world_.disk_is_slow() ? out * kSlowDisk : out;
}

// One job after the other; a checkpoint is taken in its turn and written beside the later jobs.
void SyncerHost::run_next_job() {
  if (result_ || orders_.empty()) {
    return;
  }
  const JobOrder job = std::move(orders_.front());
  orders_.pop_front();
  Event result = jobs_->carry_out(job);
  note_result(job, result);
  if (plan_.shadow) {
    shadow(job, result);
  }
  const Nanos done = world_.now() + duration_of(job);
  buffer_bytes_most_ = std::max(buffer_bytes_most_, jobs_->buffer_bytes());
  const std::uint64_t token = next_token_;
  if (const auto* checkpoint = std::get_if<Checkpoint>(&job)) {
    if (plan_.breakage == Breakage::kBroadcastBeforeSave) {
      feed(std::move(result));
      return run_next_job();
    }
    checkpoint_state_ = checkpoint->state;
    checkpoint_result_ = std::move(result);
    world_.queue().at(
        done,
        [](World& world, std::uint64_t it, std::uint64_t, std::uint64_t) {
          if (it == world.syncer().next_token_) {
            world.syncer().checkpoint_done();
          }
        },
        token);
    return run_next_job();
  }
  world_.trace("jobs", [&] { return strf("job {} of kind {}", job_of(job), job.index()); });
  result_ = std::move(result);
  world_.queue().at(
      done,
      [](World& world, std::uint64_t it, std::uint64_t, std::uint64_t) {
        if (it == world.syncer().next_token_) {
          world.syncer().job_done();
        }
      },
      token);
}

void SyncerHost::job_done() {
  if (!result_) {
    return;
  }
  if (standing_until_ > world_.now()) {
    world_.queue().at(
        standing_until_,
        [](World& world, std::uint64_t it, std::uint64_t, std::uint64_t) {
          if (it == world.syncer().next_token_) {
            world.syncer().job_done();
          }
        },
        next_token_);
    return;
  }
  Event event = std::move(*result_);
  result_.reset();
  run_next_job();
  feed(std::move(event));
}

void SyncerHost::checkpoint_done() {
  if (standing_until_ > world_.now()) {
    world_.queue().at(
        standing_until_,
        [](World& world, std::uint64_t it, std::uint64_t, std::uint64_t) {
          if (it == world.syncer().next_token_) {
            world.syncer().checkpoint_done();
          }
        },
        next_token_);
    return;
  }
  Event event = std::move(*checkpoint_result_);
  checkpoint_result_.reset();
  const bool ok = std::get<Checkpointed>(event).ok;
  jobs_->make_durable();
  world_.checks().checkpoint_ended(checkpoint_state_, ok);
  feed(std::move(event));
}

void SyncerHost::note_result(const JobOrder& order, const Event& result) {
  if (const auto* merged = std::get_if<Merged>(&result)) {
    world_.checks().merged(std::get<Merge>(order), *merged);
  } else if (const auto* images = std::get_if<ImagesMade>(&result)) {
    world_.checks().images_made(*images);
  } else if (const auto* finals = std::get_if<FinalsMade>(&result)) {
    world_.checks().finals_made(*finals);
  }
}

// The same order once more; the two must agree while the shadow has seen the same merges.
void SyncerHost::shadow(const JobOrder& job, const Event& result) {
  if (!shadow_valid_ || std::holds_alternative<Checkpoint>(job)) {
    return;
  }
  const Event twin = shadow_->carry_out(job);
  const auto keep = [&](const Image& image) {
    if (image.buffer != 0) {
      shadow_buffers_.insert(image.buffer);
    }
  };
  if (const auto* merged = std::get_if<Merged>(&twin)) {
    keep(merged->image);
    keep(merged->full);
    const auto& merge = std::get<Merge>(job);
    shadow_versions_[merge.fragment] = merge.version;
    ++shadow_merges_;
    shadow_differences_ += merged->image.digest != std::get<Merged>(result).image.digest ? 1 : 0;
  } else if (const auto* images = std::get_if<ImagesMade>(&twin)) {
    std::for_each(images->images.begin(), images->images.end(), keep);
    shadow_versions_.resize(images->images.size(), 0);
  } else if (const auto* finals = std::get_if<FinalsMade>(&twin)) {
    std::for_each(finals->images.begin(), finals->images.end(), keep);
    shadow_differences_ += finals->digests != std::get<FinalsMade>(result).digests ? 1 : 0;
  }
}

}  // namespace yeto::sync::sim
