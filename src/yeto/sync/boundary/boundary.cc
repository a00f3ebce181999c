// SPDX-License-Identifier: Apache-2.0
// The trainer's calls. See boundary_io.cc and boundary_worker.cc for the other two threads.
#include "yeto/sync/boundary/boundary.h"

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/base/rng.h"
#include "yeto/sync/boundary/boundary_impl.h"

namespace yeto::sync {

using client::Actions;

namespace {

constexpr const char* kWho = "boundary";
constexpr std::size_t kMetricsKept = 256;
constexpr Nanos kLeaveLimit = 2 * kSecond;
constexpr auto kRest = std::chrono::milliseconds(100);
// After the acknowledgement the syncer may be gone without a GOODBYE; then nobody answers.
constexpr std::uint32_t kAttemptsAfterFinal = 2;

// Two bodies per fragment being encoded, and every image that may be under way.
std::size_t jobs_limit(const Layout& layout) {
  return 2 * layout.fragments.size() + kMaxOpenTransfers;
}

// Unused buffers that are kept: in steady state an image, a body, a snapshot and a residual are
// being made while one of each is given up.
constexpr std::size_t kKeptBuffers = 8;

double millis(Nanos duration) { return static_cast<double>(duration) * 1e-6; }

}  // namespace

Boundary::Impl::Impl(BoundaryParts parts, std::vector<TensorView> tensors)
    : options_(std::move(parts.options)),
      layout_(std::move(parts.layout)),
      layout_bytes_(std::make_shared<const Bytes>(layout_.encode())),
      pool_(kKeptBuffers),
      residuals_(layout_.fragments.size(), pool_),
      values_(std::move(tensors), layout_, pool_),
      jobs_(jobs_limit(layout_)),
      courier_(loop_, std::move(parts.courier), this),
      client_(std::move(parts.client), layout_),
      anchors_(layout_.fragments.size()),
      alone_since_(monotonic_now()) {
  loop_.post([this] { courier_.start(); });
  io_thread_ = JoiningThread([this] { loop_.run(); });
  worker_thread_ = JoiningThread([this] {
    while (auto job = jobs_.pop()) {
      (*job)();
    }
  });
}

Boundary::Impl::~Impl() { close(); }

void Boundary::Impl::close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed();
    if (joining_) {
      return;
    }
    joining_ = true;
  }
  jobs_.close();
  loop_.post([this] {
    courier_.close();
    loop_.stop();
  });
  io_thread_.join();
  worker_thread_.join();
}

void Boundary::Impl::leave(wire::LeaveReason reason) {
  struct Parting {
    Mutex mutex;
    ConditionVariable changed;
    bool done YETO_GUARDED_BY(mutex) = false;
  };
  {
    MutexLock lock(mutex_);
    if (closed_) {
      return;
    }
    closed_ = true;
    changed();
  }
  const auto parting = std::make_shared<Parting>();
  loop_.post([this, parting, reason] {
    Actions back;
    {
      MutexLock lock(mutex_);
      back = client_.return_rows();
    }
    for (const client::Action& action : back) {
      carry(action);
    }
    courier_.leave(reason, kLeaveLimit, [parting] {
      MutexLock lock(parting->mutex);
      parting->done = true;
      parting->changed.notify_all();
    });
  });
  const Nanos deadline = monotonic_now() + kLeaveLimit + kSecond;
  MutexLock lock(parting->mutex);
  while (!parting->done && monotonic_now() < deadline) {
    parting->changed.wait_for(parting->mutex, kRest);
  }
}

// ---- state of the whole
// --------------------------------------------------------------------------

Status Boundary::Impl::usable() {
  MutexLock lock(mutex_);
  if (failed_) {
    return fail(*failed_);
  }
  if (closed_) {
    return fail(ErrorCode::kClosed, "the boundary was left or closed");
  }
  const bool over = client_.finishing() && client_.acknowledged();
  if (refused_ && !over) {
    return fail(*refused_);
  }
  if (client_.ended() && !over) {
    return fail(ErrorCode::kClosed, strf("the syncer ended the run: {}", client_.end_reason()),
                options_.syncer);
  }
  if (!client_.finishing() && !client_.lockstep_fault().empty()) {
    return fail(ErrorCode::kClosed, client_.lockstep_fault(), options_.syncer,
                "a lockstep run ends with its first lost session; start it again");
  }
  return Unit{};
}

bool Boundary::Impl::alone_too_long() {
  return alone_since_ && monotonic_now() - *alone_since_ > options_.max_alone;
}

Error Boundary::Impl::unreachable(const char* what) {
  return Error{ErrorCode::kUnreachable,
               strf("{}: no session with the syncer for {}: {}", what,
                    human_seconds(seconds(options_.max_alone)),
                    last_trouble_.empty() ? "no answer" : last_trouble_),
               options_.syncer, "is the syncer running? --max-alone sets how long to wait for it"};
}

void Boundary::Impl::post(Actions actions) {
  if (actions.empty()) {
    return;
  }
  std::uint64_t session = 0;
  {
    MutexLock lock(mutex_);
    session = session_;
  }
  loop_.post([this, session, actions = std::move(actions)] {
    {
      MutexLock lock(mutex_);
      if (session != session_) {
        return;  // ordered for a session that is over
      }
    }
    for (const client::Action& action : actions) {
      carry(action);
    }
  });
}

// ---- value work
// ----------------------------------------------------------------------------------

Status Boundary::Impl::turn(StepReport* report) {
  Actions actions;
  {
    MutexLock lock(mutex_);
    seen_ = changes_;
    actions = client_.boundary();
  }
  settle_here(actions);
  Actions work;
  Actions rest;
  for (client::Action& action : actions) {
    (client::is_value_work(action) ? work : rest).push_back(std::move(action));
  }
  post(std::move(rest));
  if (work.empty()) {
    return Unit{};
  }
  Status done = do_value_work(work, report);
  if (!done) {
    MutexLock lock(mutex_);
    failed_ = done.error();
  }
  return done;
}

// Error feedback belongs to no session, and a delta that is taken next needs what comes back.
void Boundary::Impl::settle_here(Actions& actions) {
  std::erase_if(actions, [&](const client::Action& action) {
    const auto* settled = std::get_if<client::SettlePush>(&action);
    if (settled != nullptr) {
      residuals_.settle(settled->ticket, settled->kept);
    }
    return settled != nullptr;
  });
}

Status Boundary::Impl::call(const TensorCallback& callback,
                            const std::set<std::uint32_t>& tensors) {
  if (!callback || tensors.empty()) {
    return Unit{};
  }
  const std::vector<std::uint32_t> list(tensors.begin(), tensors.end());
  return callback(list);
}

Status Boundary::Impl::do_value_work(const Actions& work, StepReport* report) {
  std::set<std::uint32_t> reads;
  std::set<std::uint32_t> writes;
  const auto add = [](std::set<std::uint32_t>& to, const std::vector<std::uint32_t>& from) {
    to.insert(from.begin(), from.end());
  };
  const client::Tensors& tensors = values_.tensors();
  for (const client::Action& action : work) {
    if (const auto* push = std::get_if<client::TakePush>(&action)) {
      if (!push->again) {
        add(reads, tensors.of_fragment(push->fragment));
      }
    } else if (const auto* init = std::get_if<client::TakeInit>(&action)) {
      add(reads, tensors.of_fragment(init->fragment));
    } else if (const auto* apply = std::get_if<client::Apply>(&action)) {
      add(writes, tensors.of_fragment(apply->fragment));
      // An overwrite reads only what shares a tensor with it.
      add(reads, apply->mode == client::ApplyMode::kOverwrite
                     ? tensors.shared_of_fragment(apply->fragment)
                     : tensors.of_fragment(apply->fragment));
    } else if (const auto* reset = std::get_if<client::ResetFragment>(&action)) {
      add(writes, tensors.of_fragment(reset->fragment));
      add(reads, tensors.shared_of_fragment(reset->fragment));
    }
  }
  YETO_TRY(call(options_.before_read, reads));
  const client::ApplyFinal* final = nullptr;
  for (const client::Action& action : work) {
    if (const auto* push = std::get_if<client::TakePush>(&action)) {
      YETO_TRY(do_one(*push, report));
    } else if (const auto* init = std::get_if<client::TakeInit>(&action)) {
      YETO_TRY(do_one(*init));
    } else if (const auto* apply = std::get_if<client::Apply>(&action)) {
      YETO_TRY(do_one(*apply, report));
    } else if (const auto* reset = std::get_if<client::ResetFragment>(&action)) {
      YETO_TRY(do_one(*reset));
    } else {
      final = std::get_if<client::ApplyFinal>(&action);
    }
  }
  YETO_TRY(call(options_.after_write, writes));
  return final != nullptr ? apply_final(*final) : Unit{};
}

client::FlatValues Boundary::Impl::take_image(client::ImageId image) {
  MutexLock lock(mutex_);
  const auto found = images_.find(image);
  YETO_CHECK(found != images_.end() && found->second.values, "a checked image is kept until used");
  client::FlatValues values = std::move(found->second.values);
  images_.erase(found);
  return values;
}

// The image becomes the anchor in the same moment, for the next one may be on its way.
Boundary::Impl::Anchor Boundary::Impl::take_anchor(const client::Apply& apply) {
  MutexLock lock(mutex_);
  const auto found = images_.find(apply.image);
  YETO_CHECK(found != images_.end() && found->second.values, "a checked image is kept until used");
  anchors_[apply.fragment] =
      Anchor{apply.version, std::move(found->second.values), found->second.digest};
  images_.erase(found);
  return anchors_[apply.fragment];
}

Status Boundary::Impl::do_one(const client::TakePush& work, StepReport* report) {
  order_push(work, values_.take_push(work.fragment, work.again));
  if (report != nullptr) {
    report->pushed.push_back({work.fragment, work.base_version, work.bytes});
  }
  return Unit{};
}

Status Boundary::Impl::do_one(const client::TakeInit& work) {
  order_init(work.ticket, values_.snapshot(work.fragment));
  return Unit{};
}

Status Boundary::Impl::do_one(const client::Apply& work, StepReport* report) {
  const Anchor anchor = take_anchor(work);
  values_.apply(work, anchor.values);
  if (work.mode == client::ApplyMode::kOverwrite) {
    residuals_.clear(work.fragment);
  }
  if (report != nullptr) {
    report->applied.push_back(
        {work.fragment, work.version, work.mode == client::ApplyMode::kOverwrite, anchor.digest});
  }
  return Unit{};
}

Status Boundary::Impl::do_one(const client::ResetFragment& work) {
  client::FlatValues anchor;
  {
    MutexLock lock(mutex_);
    anchor = anchors_[work.fragment].values;
  }
  log(LogLevel::kWarn, kWho,
      "fragment {}: the values are not finite; they go back to those of the last broadcast",
      work.fragment);
  values_.overwrite(work.fragment, anchor);
  residuals_.clear(work.fragment);
  return Unit{};
}

Status Boundary::Impl::apply_final(const client::ApplyFinal& work) {
  std::set<std::uint32_t> writes;
  for (std::uint32_t fragment = 0; fragment < work.images.size(); ++fragment) {
    values_.overwrite(fragment, take_image(work.images[fragment]));
    const std::vector<std::uint32_t>& tensors = values_.tensors().of_fragment(fragment);
    writes.insert(tensors.begin(), tensors.end());
  }
  YETO_TRY(call(options_.after_write, writes));
  std::vector<wire::Digest32> own;
  for (std::uint32_t fragment = 0; fragment < work.images.size(); ++fragment) {
    // Of what stands in the tensors now, not of what was received.
    own.push_back(sha256(values_.snapshot(fragment).bytes()));
  }
  YETO_TRY(check_final(own));
  Actions actions;
  {
    MutexLock lock(mutex_);
    actions = client_.final_applied(std::move(own));
  }
  post(std::move(actions));
  return Unit{};
}

Status Boundary::Impl::check_final(const std::vector<wire::Digest32>& own) {
  MutexLock lock(mutex_);
  const wire::Final& final = client_.final_message();
  if (final.digests.empty()) {
    return Unit{};  // the session was lost meanwhile; the next FINAL is compared again
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (own[i] != final.digests[i]) {
      return fail(ErrorCode::kDamaged,
                  strf("the final values of fragment {} are not those the syncer announced", i),
                  options_.syncer, "the syncer's checkpoint holds the final values");
    }
  }
  final_ = FinalReport{final.global_step, final.versions, {}, false};
  return Unit{};
}

// ---- waiting
// -------------------------------------------------------------------------------------

Status Boundary::Impl::rest(const Wait& wait) {
  if (options_.keep_waiting && !options_.keep_waiting()) {
    return fail(ErrorCode::kClosed, strf("{}: interrupted", wait.what));
  }
  YETO_TRY(usable());
  MutexLock lock(mutex_);
  if (wait.gives_up_alone && alone_too_long()) {
    return fail(unreachable(wait.what));
  }
  if (wait.deadline != 0 && monotonic_now() >= wait.deadline) {
    return fail(ErrorCode::kTimeout, strf("{}: not done in time", wait.what), options_.syncer,
                last_trouble_.empty() ? std::string{} : "last trouble: " + last_trouble_);
  }
  if (changes_ == seen_) {
    changed_.wait_for(mutex_, kRest);
  }
  return Unit{};
}

Result<ReadyReport> Boundary::Impl::wait_ready(Nanos timeout) {
  const Wait wait{timeout == 0 ? 0 : monotonic_now() + timeout, "waiting for the run's values",
                  true};
  for (;;) {
    YETO_TRY(usable());
    YETO_TRY(turn(nullptr));
    {
      MutexLock lock(mutex_);
      if (client_.ready()) {
        client_.resume_training(monotonic_now());
        loop_.post([this] { courier_.send_beat(); });
        return ReadyReport{
            client_.seat(), client_.run().term,    client_.run().global_step,
            live_seats(),   client_.joined_late(), client_.settings().data_leases != 0};
      }
    }
    YETO_TRY(rest(wait));
  }
}

bool Boundary::Impl::must_wait() {
  MutexLock lock(mutex_);
  return client_.must_wait() || (alone_too_long() && !client_.draining());
}

void Boundary::Impl::begin_pause() {
  MutexLock lock(mutex_);
  if (paused_since_ || !alone_too_long()) {
    return;
  }
  paused_since_ = monotonic_now();
  client_.set_phase(wire::Phase::kPaused, *paused_since_);
  log(LogLevel::kWarn, kWho, "training pauses: no session with the syncer for {}: {}",
      human_seconds(seconds(options_.max_alone)), last_trouble_);
}

void Boundary::Impl::end_pause() {
  if (!paused_since_) {
    return;
  }
  const double duration = seconds(monotonic_now() - *paused_since_);
  paused_since_.reset();
  set_phase(wire::Phase::kTrain);
  log(LogLevel::kInfo, kWho, "training goes on after a pause of {}", human_seconds(duration));
  const Status told = metric(strf(R"({{"event":"paused","seconds":{:.3f}}})", duration));
  YETO_CHECK(told, "the text is a JSON object");
}

// In lockstep until what is due at this step is done, and no longer than max_alone without a
// session; else after a long absence of the syncer until it is back.
Status Boundary::Impl::wait_at_boundary(StepReport* report) {
  Wait wait{0, "waiting at a step boundary", false};
  {
    MutexLock lock(mutex_);
    wait.gives_up_alone = client_.lockstep();
  }
  while (must_wait()) {
    begin_pause();
    YETO_TRY(rest(wait));
    YETO_TRY(turn(report));
  }
  end_pause();
  return Unit{};
}

// ---- the trainer's calls
// -------------------------------------------------------------------------

Result<StepReport> Boundary::Impl::step(std::uint64_t tokens) {
  const Nanos begin = monotonic_now();
  YETO_TRY(usable());
  {
    MutexLock lock(mutex_);
    client_.step(tokens, begin);
  }
  StepReport report = std::exchange(waited_, {});
  YETO_TRY(turn(&report));
  YETO_TRY(wait_at_boundary(&report));
  YETO_TRY(usable());
  MutexLock lock(mutex_);
  fill(report);
  const Nanos end = monotonic_now();
  report.blocked_ms = millis(end - begin);
  client_.resume_training(end);
  return report;
}

void Boundary::Impl::fill(StepReport& report) {
  const client::RunView& run = client_.run();
  const client::Counters& counters = client_.counters();
  report.global_step = run.global_step;
  report.run_tokens = run.run_tokens;
  report.live = live_seats();
  for (std::uint32_t i = 0; i < client_.fragment_count(); ++i) {
    report.versions.push_back(client_.fragment(i).anchor.version);
  }
  report.staleness_max = client_.staleness_max();
  report.draining = client_.draining();
  report.connected = client_.connected();
  report.bytes_pushed = counters.bytes_pushed;
  report.bytes_received = counters.bytes_received;
  report.merged = counters.merged;
  report.carried = counters.carried;
  report.dropped = counters.dropped;
  report.nonfinite_pushes = counters.nonfinite_pushes;
  report.resets = counters.resets;
  report.late_offers = counters.late_offers;
  report.discarded_tokens = counters.discarded_tokens;
  report.residual_norm = residuals_.norm();
  report.pulls_waiting = client_.pulls_waiting();
}

// The seats of the syncer's last heartbeat, and our own.
std::vector<std::uint32_t> Boundary::Impl::live_seats() {
  std::vector<std::uint32_t> live = client_.run().live;
  const auto at = std::lower_bound(live.begin(), live.end(), client_.seat());
  if (at == live.end() || *at != client_.seat()) {
    live.insert(at, client_.seat());
  }
  return live;
}

void Boundary::Impl::set_phase(wire::Phase phase) {
  {
    MutexLock lock(mutex_);
    if (closed_) {
      return;
    }
    client_.set_phase(phase, monotonic_now());
  }
  loop_.post([this] { courier_.send_beat(); });
}

Status Boundary::Impl::metric(std::string_view text) {
  YETO_TRY(client::check_metric(text));
  {
    MutexLock lock(mutex_);
    if (closed_) {
      return Unit{};
    }
    metrics_.emplace_back(text);
    if (metrics_.size() > kMetricsKept) {
      metrics_.pop_front();
      ++metrics_lost_;
    }
  }
  loop_.post([this] { send_metrics(); });
  return Unit{};
}

Result<FinalReport> Boundary::Impl::finalize(FinalizeReason reason, Nanos timeout) {
  const Wait wait{timeout == 0 ? 0 : monotonic_now() + timeout, "finishing the run", true};
  YETO_TRY(usable());
  Actions actions;
  {
    MutexLock lock(mutex_);
    actions = client_.finalize(reason == FinalizeReason::kLimit);
  }
  post(std::move(actions));
  for (;;) {
    YETO_TRY(turn(nullptr));
    YETO_ASSIGN(std::optional<FinalReport> report, final_report());
    if (report) {
      return std::move(*report);
    }
    YETO_TRY(rest(wait));
  }
}

// Present once the final values are acknowledged and the syncer has said GOODBYE, has refused us
// because the run is over, or is gone.
Result<std::optional<FinalReport>> Boundary::Impl::final_report() {
  MutexLock lock(mutex_);
  const bool gone = !client_.connected() && failed_attempts_ >= kAttemptsAfterFinal;
  if (!client_.acknowledged() || !final_ || !(client_.ended() || refused_ || gone)) {
    return std::optional<FinalReport>();
  }
  FinalReport report = *final_;
  report.live = live_seats();
  report.lowest = report.live.front() == client_.seat();
  return std::optional<FinalReport>(std::move(report));
}

// ---- the public class
// ----------------------------------------------------------------------------

Boundary::Boundary(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Boundary::~Boundary() = default;

const Layout& Boundary::layout() const { return impl_->layout(); }
Result<ReadyReport> Boundary::wait_ready(Nanos timeout) { return impl_->wait_ready(timeout); }
Result<StepReport> Boundary::step(std::uint64_t tokens) { return impl_->step(tokens); }
void Boundary::set_phase(wire::Phase phase) { impl_->set_phase(phase); }
Status Boundary::metric(std::string_view text) { return impl_->metric(text); }
Result<RowRange> Boundary::request_rows(std::uint64_t rows, std::uint64_t count) {
  return impl_->request_rows(rows, count);
}
Result<FinalReport> Boundary::finalize(FinalizeReason reason, Nanos timeout) {
  return impl_->finalize(reason, timeout);
}
void Boundary::leave(wire::LeaveReason reason) { impl_->leave(reason); }
void Boundary::close() { impl_->close(); }

}  // namespace yeto::sync
