// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/server/server.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/net/loop.h"
#include "yeto/sync/core/core.h"
#include "yeto/sync/server/hub.h"
#include "yeto/sync/server/opening.h"
#include "yeto/sync/server/status_pages.h"
#include "yeto/sync/server/tape.h"
#include "yeto/sync/server/watchdog.h"
#include "yeto/sync/server/worker.h"
#include "yeto/wire/identity.h"

namespace yeto::sync {
namespace {

constexpr Nanos kFarewellLimit = 2 * kSecond;
constexpr Nanos kProgressInterval = 10 * kSecond;
constexpr Nanos kLastCopyLimit = 60 * kSecond;  // of a run that ended by itself
constexpr int kExitInternal = 70;

void report_stall(Nanos silent, bool over) {
  log(LogLevel::kWarn, "syncer", "the loop {} for {:.1f} s", over ? "was stalled" : "has not run",
      seconds(silent));
}

Status check_security(const ServerOptions& options) {
  const bool loopback = net::is_loopback(options.bind);
  if (!loopback && !options.tls && !options.insecure) {
    return fail(ErrorCode::kPermission, "others can reach this address, and there is no TLS",
                options.bind.text(),
                "give --tls-cert, --tls-key and --tls-ca; or --bind 127.0.0.1:PORT; or --insecure "
                "for plain TCP on a network where nobody else can listen");
  }
  if (!loopback && !options.tls) {
    log(LogLevel::kWarn, "syncer",
        "INSECURE: plain TCP on {}: whoever is on the way can read and change weights; --tls-cert, "
        "--tls-key and --tls-ca end this",
        options.bind.text());
  }
  if (options.tls) {
    const std::string needed = wire::syncer_identity(options.core.run_id);
    const std::vector<std::string>& uris = options.tls->own_uris();
    if (std::find(uris.begin(), uris.end(), needed) == uris.end()) {
      return fail(
          ErrorCode::kPermission,
          strf("the certificate does not name {}, so every learner would refuse it", needed),
          "--tls-cert", strf("make one with subjectAltName = URI:{}", needed));
    }
  }
  return Unit{};
}

}  // namespace

class Server::Impl {
 public:
  Impl(ServerOptions options, Opening opening, std::unique_ptr<Recorder> recorder,
       std::uint64_t first_seq);

  Status listen();
  int run();
  void interrupt(int exit_code);
  void request_finish(wire::FinishMode mode, std::string reason);

  net::Address address() const { return hub_.address(); }
  std::optional<net::Address> http_address() const {
    return pages_ ? std::optional(pages_->address()) : std::nullopt;
  }
  std::uint64_t term() const { return options_.core.term; }
  bool resumed() const { return resumed_; }
  bool work_left() const { return jobs_open_ > 0 || !jobs_->finish_copy(0); }

 private:
  // How far the server is on its way out.
  enum class Leaving { kNo, kInterrupted, kEnded };

  void feed(Event event);
  void arm_timer();
  void on_job_result(JobResult result);

  void perform(const Admit& action) { hub_.carry_out(action); }
  void perform(const Refuse& action) { hub_.carry_out(action); }
  void perform(const Send& action) { hub_.carry_out(action); }
  void perform(const Close& action) { hub_.carry_out(action); }
  void perform(const AcceptTransfer& action) { hub_.carry_out(action); }
  void perform(const RefuseTransfer& action) { hub_.carry_out(action); }
  void perform(const SendTransfer& action) { hub_.carry_out(action); }
  void perform(const AbortTransfer& action) { hub_.carry_out(action); }
  void perform(const FreeBuffer& action) { jobs_->free(action.buffer); }
  void perform(const LoadLayout& action) { order(action); }
  void perform(const LoadInit& action) { order(action); }
  void perform(const InspectPush& action) { order(action); }
  void perform(const Merge& action) { order(action); }
  void perform(const MakeImages& action) { order(action); }
  void perform(const Checkpoint& action) { order(action); }
  void perform(const MakeFinals& action) { order(action); }
  void perform(const Tape& action);
  void perform(const Ended& action);

  void order(JobOrder job);
  void tape(const TapeRecord& record, const std::vector<SeatValue>& weights = {});
  void log_record(const TapeRecord& record);
  void tell_effective(const EffectiveSettings& settings);
  void write_status();
  void every_second();
  void beat();
  void fail_internally(const std::string& what);
  void leave_if_idle();
  void leave();
  Status write_endpoint() const;

  ServerOptions options_;
  const bool resumed_;
  const std::uint64_t pid_;
  std::unique_ptr<Jobs> jobs_;
  std::unique_ptr<Recorder> recorder_;
  std::uint64_t next_seq_;
  std::vector<std::uint64_t> fragment_values_;
  Core core_;
  net::Loop loop_;
  Hub hub_;
  Watchdog watchdog_;
  std::unique_ptr<StatusPages> pages_;  // null: not served
  // After hub and jobs, so that no result is delivered to a half-destroyed object.
  Worker worker_;

  std::deque<Event> events_;
  bool draining_ = false;
  net::TimerId timer_ = 0;
  Nanos timer_deadline_ = 0;
  std::size_t jobs_open_ = 0;
  // Shares of merges whose round record has not been written yet, by (fragment, version).
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<SeatValue>> weights_;
  Nanos progress_at_ = 0;
  Leaving leaving_ = Leaving::kNo;
  bool last_checkpoint_ordered_ = false;
  std::optional<int> exit_code_;
  std::string error_;
  bool effective_told_ = false;
};

Server::Impl::Impl(ServerOptions options, Opening opening, std::unique_ptr<Recorder> recorder,
                   std::uint64_t first_seq)
    : options_(std::move(options)),
      resumed_(opening.restored.has_value()),
      pid_(static_cast<std::uint64_t>(::getpid())),
      jobs_(std::move(opening.jobs)),
      recorder_(std::move(recorder)),
      next_seq_(first_seq),
      core_(options_.core, opening.restored, monotonic_now()),
      hub_(loop_,
           DoorOptions{options_.core.run_id, options_.run_token, options_.tls, options_.core.term,
                       options_.first_frame_timeout, kFarewellLimit, options_.max_unadmitted},
           *jobs_, [this](Event event) { feed(std::move(event)); }),
      watchdog_(options_.watchdog_limit, report_stall),
      worker_(
          *jobs_,
          [this](JobResult result) {
            loop_.post(
                [this, result = std::move(result)]() mutable { on_job_result(std::move(result)); });
          },
          [this] { return recorder_->position(); }) {
  if (opening.restored) {
    for (const Fragment& fragment : opening.restored->layout.fragments) {
      fragment_values_.push_back(fragment.values);
    }
  }
}

// ---- events in, actions out
// ------------------------------------------------------------------------------

void Server::Impl::feed(Event event) {
  events_.push_back(std::move(event));
  if (draining_) {
    return;  // an action told something at once; the loop below takes it next
  }
  draining_ = true;
  while (!events_.empty() && leaving_ != Leaving::kEnded) {
    const Event next = std::move(events_.front());
    events_.pop_front();
    for (const Action& action : core_.on(next, monotonic_now())) {
      std::visit([this](const auto& a) { perform(a); }, action);
    }
  }
  events_.clear();
  draining_ = false;
  if (leaving_ == Leaving::kNo) {
    arm_timer();
  } else if (leaving_ == Leaving::kInterrupted) {
    leave_if_idle();
  }
}

void Server::Impl::arm_timer() {
  const Nanos deadline = core_.next_deadline();
  if (timer_ != 0 && deadline == timer_deadline_) {
    return;
  }
  loop_.cancel(timer_);
  timer_deadline_ = deadline;
  // Never sooner than 1 ms: a deadline that has passed must not starve the sockets.
  const Nanos delay = std::max(deadline - monotonic_now(), kMillisecond);
  timer_ = loop_.after(delay, [this] {
    timer_ = 0;
    if (leaving_ == Leaving::kNo) {
      feed(Tick{});
    }
  });
}

void Server::Impl::order(JobOrder job) {
  ++jobs_open_;
  worker_.order(std::move(job));
}

void Server::Impl::on_job_result(JobResult result) {
  --jobs_open_;
  if (!result.trouble.empty()) {
    log_line(LogLevel::kError, "syncer", result.trouble);
    error_ = result.trouble;
  }
  if (!result.weights.empty()) {
    std::vector<SeatValue>& weights = weights_[{result.fragment, result.version}];
    weights.clear();
    for (const merge::SeatWeight& weight : result.weights) {
      weights.push_back({weight.seat, weight.weight});
    }
  }
  if (const auto* loaded = std::get_if<LayoutLoaded>(&result.event); loaded && loaded->layout) {
    fragment_values_.clear();
    for (const Fragment& fragment : loaded->layout->fragments) {
      fragment_values_.push_back(fragment.values);
    }
  }
  if (const auto* saved = std::get_if<Checkpointed>(&result.event);
      saved && last_checkpoint_ordered_ && jobs_open_ == 0) {
    tape(TapeCheckpoint{core_.status(monotonic_now()).global_step, saved->ok, saved->error});
    leave();
    return;
  }
  const auto* images = std::get_if<ImagesMade>(&result.event);
  const auto* finals = std::get_if<FinalsMade>(&result.event);
  if ((images && images->images.empty()) || (finals && finals->images.empty())) {
    fail_internally(result.trouble);
    return;
  }
  feed(std::move(result.event));
}

// ---- records
// ---------------------------------------------------------------------------------------------

void Server::Impl::perform(const Tape& action) {
  std::vector<SeatValue> weights;
  if (const auto* round = std::get_if<TapeRound>(&action.record); round && round->committed) {
    const auto found = weights_.find({round->fragment, round->version});
    if (found != weights_.end()) {
      weights = std::move(found->second);
      weights_.erase(found);
    }
  }
  tape(action.record, weights);
  log_record(action.record);
}

void Server::Impl::tape(const TapeRecord& record, const std::vector<SeatValue>& weights) {
  recorder_->tape(tape_line({wall_now(), next_seq_++, options_.core.term}, record, weights));
}

void Server::Impl::log_record(const TapeRecord& record) {
  if (const auto* join = std::get_if<TapeJoin>(&record)) {
    log(LogLevel::kInfo, "syncer", "seat {} joined{}: {}", join->seat,
        join->resumed ? " again (same session)" : "", join->device);
  } else if (const auto* left = std::get_if<TapeLeave>(&record)) {
    log(LogLevel::kInfo, "syncer", "seat {} left: {}", left->seat, left->reason);
  } else if (const auto* lost = std::get_if<TapeLost>(&record)) {
    log(LogLevel::kWarn, "syncer", "seat {} was lost: {}", lost->seat, lost->reason);
  } else if (const auto* finish = std::get_if<TapeFinish>(&record)) {
    log(LogLevel::kInfo, "syncer", "finishing: {}", finish->reason);
  } else if (const auto* final = std::get_if<TapeFinal>(&record)) {
    log(LogLevel::kInfo, "syncer", "final values of global step {}: {} acknowledged, {} missing",
        final->global_step, final->acknowledged.size(), final->missing.size());
  } else if (const auto* error = std::get_if<TapeError>(&record)) {
    log_line(LogLevel::kError, "syncer", error->text);
  } else if (const auto* round = std::get_if<TapeRound>(&record)) {
    const Nanos now = monotonic_now();
    if (round->committed && now - progress_at_ >= kProgressInterval) {
      progress_at_ = now;
      log(LogLevel::kInfo, "syncer", "global step {}: fragment {} version {}, {} of {} answered",
          round->round, round->fragment, round->version, round->responded.size(),
          round->expected.size());
    }
  }
}

// What follows from the layout and the flags; told once, as soon as the layout is known.
void Server::Impl::tell_effective(const EffectiveSettings& settings) {
  constexpr std::array<const char*, 3> kCodecs = {"f32", "bf16", "q4"};
  log(LogLevel::kInfo, "syncer",
      "effective: quorum {}, a fragment every {} steps, pipeline {}, pushes {}, broadcasts {}, "
      "durable {}, buffers {}",
      settings.quorum, settings.sync_interval_steps, settings.pipeline,
      kCodecs.at(static_cast<std::size_t>(settings.push_codec)),
      kCodecs.at(static_cast<std::size_t>(settings.broadcast_codec)),
      settings.durability == Durability::kCommit ? "before each broadcast" : "at intervals",
      human_bytes(static_cast<double>(settings.max_buffer)));
  effective_told_ = true;
}

void Server::Impl::write_status() {
  StatusRecord record;
  record.run_id = options_.core.run_id;
  record.pid = pid_;
  record.wall_s = wall_now();
  record.core = core_.status(monotonic_now());
  if (record.core.effective && !effective_told_) {
    tell_effective(*record.core.effective);
  }
  record.fragment_values = fragment_values_;
  record.error = error_.empty() ? recorder_->error() : error_;
  record.exit = exit_code_;
  record.checkpoint_copy = jobs_->copy_status();
  std::string text = status_text(record);
  if (pages_) {
    pages_->update(text, {record, hub_.door_counters(), jobs_->buffer_bytes(), 0.0});
  }
  recorder_->status(std::move(text));
}

void Server::Impl::every_second() {
  write_status();
  loop_.after(options_.status_interval, [this] { every_second(); });
}

void Server::Impl::beat() {
  watchdog_.beat();
  loop_.after(options_.watchdog_limit / 8, [this] { beat(); });
}

// ---- start and end
// ---------------------------------------------------------------------------------------

Status Server::Impl::write_endpoint() const {
  if (options_.endpoint.empty()) {
    return Unit{};
  }
  net::Address bound = hub_.address();
  // "All addresses" is nowhere to connect to; who reads the file is on this machine.
  if (bound.host == "0.0.0.0" || bound.host == "::") {
    bound.host = bound.host == "::" ? "::1" : "127.0.0.1";
  }
  return write_file_atomic(
      options_.endpoint,
      endpoint_text({bound.host, bound.port, options_.core.run_id, options_.core.term, pid_}));
}

Status Server::Impl::listen() {
  // First what may be refused without a word to any learner.
  if (options_.http) {
    YETO_ASSIGN(pages_, StatusPages::open(*options_.http, watchdog_));
  }
  YETO_TRY(hub_.open(options_.bind));
  return write_endpoint();
}

int Server::Impl::run() {
  const CoreState state = core_.state();
  recorder_->tape(tape_run_line({wall_now(), next_seq_++, options_.core.term},
                                {options_.core.run_id, pid_, resumed_, options_.settings,
                                 state.global_step, state.versions}));
  beat();
  every_second();
  feed(Tick{});
  loop_.run();
  // What the run ended with should also be where the copies are; an interrupted syncer has no time.
  if (!jobs_->finish_copy(leaving_ == Leaving::kEnded ? kLastCopyLimit : Nanos{0})) {
    log(LogLevel::kWarn, "syncer", "the newest checkpoint is not copied to {}",
        jobs_->copy_status()->place);
  }
  write_status();
  recorder_->close();
  return exit_code_.value_or(kExitInternal);
}

void Server::Impl::perform(const Ended& action) {
  log(LogLevel::kInfo, "syncer", "the run ended: {}", action.reason);
  leaving_ = Leaving::kEnded;
  exit_code_ = action.exit_code;
  hub_.close_all(kFarewellLimit, [this] { leave(); });
}

void Server::Impl::fail_internally(const std::string& what) {
  tape(TapeError{what});
  log(LogLevel::kError, "syncer", "internal failure, leaving: {}", what);
  leaving_ = Leaving::kEnded;
  exit_code_ = kExitInternal;
  hub_.close_all(kFarewellLimit, [this] { leave(); });
}

void Server::Impl::interrupt(int exit_code) {
  loop_.post([this, exit_code] {
    if (leaving_ != Leaving::kNo) {
      return;
    }
    log_line(LogLevel::kInfo, "syncer", "interrupted: writing a last checkpoint, then leaving");
    leaving_ = Leaving::kInterrupted;
    exit_code_ = exit_code;
    loop_.after(options_.leave_limit, [this] {
      log_line(LogLevel::kWarn, "syncer", "the last checkpoint is not written in time; leaving");
      leave();
    });
    hub_.close_all(kFarewellLimit, [this] { leave_if_idle(); });
  });
}

void Server::Impl::leave_if_idle() {
  if (jobs_open_ > 0) {
    return;  // its result comes here again
  }
  const CoreStatus status = core_.status(monotonic_now());
  if (!last_checkpoint_ordered_ && status.durable_step < status.global_step) {
    last_checkpoint_ordered_ = true;
    order(Checkpoint{0, core_.state()});
    return;
  }
  leave();
}

void Server::Impl::leave() { loop_.stop(); }

void Server::Impl::request_finish(wire::FinishMode mode, std::string reason) {
  loop_.post([this, mode, reason = std::move(reason)] {
    if (leaving_ == Leaving::kNo) {
      feed(FinishRequested{mode, reason});
    }
  });
}

// ---- Server
// ----------------------------------------------------------------------------------------------

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;
net::Address Server::address() const { return impl_->address(); }
std::optional<net::Address> Server::http_address() const { return impl_->http_address(); }
std::uint64_t Server::term() const { return impl_->term(); }
bool Server::resumed() const { return impl_->resumed(); }
int Server::run() { return impl_->run(); }
void Server::interrupt(int exit_code) { impl_->interrupt(exit_code); }
void Server::request_finish(wire::FinishMode mode, std::string reason) {
  impl_->request_finish(mode, std::move(reason));
}
bool Server::work_left() const { return impl_->work_left(); }

Result<std::unique_ptr<Server>> Server::open(ServerOptions options) {
  YETO_TRY(check_security(options));
  YETO_ASSIGN(Opening opening, open_checkpoint(options));
  options.core.term = opening.term;
  const std::uint64_t first_seq = opening.tape ? opening.tape->next_seq() : 0;
  auto recorder = std::make_unique<Recorder>(std::move(opening.tape), options.status);
  auto impl = std::make_unique<Impl>(std::move(options), std::move(opening), std::move(recorder),
                                     first_seq);
  YETO_TRY(impl->listen());
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

}  // namespace yeto::sync
