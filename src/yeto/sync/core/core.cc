// SPDX-License-Identifier: Apache-2.0
// The chain of one event: who may speak → what it says → rounds → merge job → broadcast → end.
#include "yeto/sync/core/core.h"

#include <algorithm>
#include <limits>

#include "yeto/base/format.h"
#include "yeto/base/result.h"

namespace yeto::sync {
namespace {

// A failed broadcast transfer on an open session is tried again after this.
constexpr Nanos kBroadcastRetry = kSecond;

RoundOptions round_options_of(const CoreOptions& options) {
  const bool fixed = !options.fixed_roster.empty();
  RoundOptions out;
  out.learners = options.learners;
  out.quorum = options.quorum;
  out.quorum_all = options.quorum_all || options.lockstep || fixed;
  out.all_answer = fixed;
  out.sync_interval_steps = options.sync_interval_steps;
  out.min_round = options.min_round;
  out.round_timeout = options.round_timeout;
  out.grace_cap = options.grace_cap;
  out.grace_gamma = options.grace_gamma;
  out.grace_tau = options.grace_tau;
  return out;
}

CoreOptions resolved(CoreOptions options, const std::optional<Restored>& restored) {
  if (!options.fixed_roster.empty()) {
    std::sort(options.fixed_roster.begin(), options.fixed_roster.end());
    options.learners = static_cast<std::uint32_t>(options.fixed_roster.size());
  }
  if (restored) {
    options.push_codec = restored->push_codec;
    options.broadcast_codec = restored->broadcast_codec;
  }
  return options;
}

}  // namespace

Core::Core(CoreOptions options, std::optional<Restored> restored, Nanos now)
    : options_(resolved(std::move(options), restored)),
      round_options_(round_options_of(options_)),
      now_(now),
      roster_(RosterOptions{.run_id = options_.run_id,
                            .lease = options_.lease,
                            .lockstep = options_.lockstep,
                            .fixed = options_.fixed_roster}),
      began_at_(now),
      data_(options_.epochs),
      last_checkpoint_(now),
      next_heartbeat_(now + options_.heartbeat) {
  if (!restored) {
    return;
  }
  const CoreState& state = restored->state;
  initialised_ = true;
  roster_.demand({restored->layout.fingerprint(), restored->layout.values(), state.contract,
                  tensor_hashes(restored->layout)});
  set_layout(std::move(restored->layout));
  versions_ = state.versions;
  global_step_ = state.global_step;
  durable_step_ = state.global_step;
  saved_once_ = saved_before_ = true;
  next_round_ = global_step_ + 1;
  ledger_ = state.ledger;
  // What the life before had not merged died with it.
  ledger_.dropped += ledger_.waiting;
  ledger_.waiting = 0;
  forks_ = state.forks;
  forks_.push_back({options_.term, versions_});
  finish_reason_ = state.finish_reason;
  data_.restore(state.data);
  for (const SeatTokens& seat : state.seats) {
    roster_.restore(seat.seat, seat.tokens);
    for (std::uint32_t i = 0; i < seat.merged_bases.size() && i < versions_.size(); ++i) {
      if (seat.merged_bases[i] != 0) {
        merged_bases_[{seat.seat, i}] = counted_bases_[{seat.seat, i}] = seat.merged_bases[i];
      }
    }
    if (seat.active) {
      awaited_.insert(seat.seat);
    }
  }
}

std::vector<Action> Core::on(const Event& event, Nanos now) {
  now_ = std::max(now_, now);
  out_.clear();
  if (ended_) {
    return {};
  }
  dispatch(event);
  advance();
  if (!out_.empty()) {  // what changes a push or a buffer orders something
    check_invariants();
  }
  return std::move(out_);
}

void Core::dispatch(const Event& event) {
  std::visit([this](const auto& it) { handle(it); }, event);
}

// One look at everything that may follow from an event, in the order in which work flows.
void Core::advance() {
  if (!unfit_.empty()) {
    return end(2, unfit_);
  }
  for (const Seat seat : roster_.expire(now_)) {
    lose(seat);
  }
  watch_fixed_roster();
  if (ended_) {
    return;
  }
  initialise();
  try_start();
  drop_members_that_are_gone();
  close_head();
  look_for_end();
  launch_rounds();
  send_broadcasts();
  checkpoint_if_due();
  send_finals();
  end_if_acknowledged();
  send_heartbeats();
}

// What must hold after every event, whatever peers and disks do.
void Core::check_invariants() const {
  YETO_CHECK(ledger_.pushed == ledger_.merged + ledger_.dropped + ledger_.waiting,
             "the ledger balances");
  std::uint64_t waiting = carried_.tokens();
  for (const auto& [key, incoming] : incoming_) {
    waiting += incoming.offer.kind == wire::TransferKind::kPush ? incoming.offer.c_tokens : 0;
  }
  for (const auto& [job, inspected] : inspections_) {
    waiting += inspected.offer.c_tokens;
  }
  for (const OpenRound& round : rounds_) {
    if (&round == &rounds_.front() && commit_ == Commit::kSaving) {
      continue;  // counted as merged already
    }
    for (const auto& [seat, push] : round.pushes) {
      waiting += push.offer.c_tokens;
    }
    for (const Push& push : round.carried) {
      waiting += push.offer.c_tokens;
    }
  }
  YETO_CHECK(waiting == ledger_.waiting, "what waits is on its way, carried or in an open round");
  if (layout_) {
    YETO_CHECK(buffer_use().total() <= buffer_cap(), "the budget of buffers holds");
  }
  YETO_CHECK(ended_ || !rounds_.empty() || commit_ == Commit::kIdle, "only a round commits");
}

void Core::free_all(const std::vector<BufferId>& buffers) {
  for (const BufferId buffer : buffers) {
    emit(FreeBuffer{buffer});
  }
}

void Core::trouble(std::string text) {
  error_ = text;
  tape(TapeError{std::move(text)});
}

bool Core::owes_push(Seat seat) const {
  return std::any_of(rounds_.begin(), rounds_.end(), [&](const OpenRound& round) {
    const auto duty = round.attempt.duties.find(seat);
    return duty != round.attempt.duties.end() && duty->second == Duty::kOutstanding;
  });
}

bool Core::live(const Member& member) const {
  return roster_.live(member, now_, owes_push(member.seat));
}

void Core::handle(const HelloArrived& event) {
  switch (event.hello.role) {
    case wire::Role::kLearner:
      return admit_learner(event);
    case wire::Role::kController:
      return admit_controller(event);
    case wire::Role::kObserver:
      break;
  }
  emit(Refuse{event.conn,
              {.code = wire::RefuseCode::kRole,
               .retryable = 0,
               .text = "observers are not in this build; read the run's status.json",
               .tensors = {}}});
}

void Core::handle(const ConnClosed& event) {
  controllers_.erase(event.conn);
  const auto seat = roster_.disconnect(event.conn);
  forget_connection(event.conn, true);
  if (!seat) {
    return;
  }
  end_broadcast(*seat);
  final_readers_.erase(*seat);
  if (donation_ && donation_->seat == *seat) {
    donor_failed("its connection closed: " + event.reason);
  }
}

void Core::handle(const MessageArrived& event) {
  if (controllers_.contains(event.conn)) {
    if (const auto* finish = std::get_if<wire::Finish>(&event.message)) {
      handle(FinishRequested{finish->mode, finish->reason});
      emit(Send{event.conn, wire::Goodbye{"the run is finishing"}});
      emit(Close{event.conn, "done"});
    }
    return;
  }
  Member* member = roster_.by_conn(event.conn);
  if (member == nullptr) {
    return;
  }
  roster_.heard(event.conn, now_);
  on_message(*member, event.message);
}

void Core::on_message(Member& member, const wire::Message& message) {
  if (const auto* beat = std::get_if<wire::LearnerBeat>(&message)) {
    roster_.beat(*member.conn, *beat, now_);
  } else if (const auto* leave = std::get_if<wire::Leave>(&message)) {
    static constexpr const char* kReasons[] = {"done", "preempted", "error"};
    const std::string reason = kReasons[static_cast<int>(leave->reason)];
    const ConnId conn = *member.conn;
    tape(TapeLeave{member.seat, reason});
    roster_.leave(member.seat, reason);
    forget_process(member.seat);
    emit(Send{conn, wire::Goodbye{"goodbye"}});
    emit(Close{conn, reason});
  } else if (const auto* limit = std::get_if<wire::Limit>(&message)) {
    member.limit = true;
    member.local_step = std::max(member.local_step, limit->local_step);
    member.tokens = std::max(member.tokens, limit->tokens);
  } else if (const auto* ack = std::get_if<wire::FinalAck>(&message)) {
    final_ack(member, *ack);
  } else if (const auto* data = std::get_if<wire::Data>(&message)) {
    data_message(member, *data);
  } else if (const auto* metric = std::get_if<wire::Metric>(&message)) {
    tape(TapeMetric{member.seat, metric->json});
  } else {
    emit(Close{*member.conn, "a learner may not send that message"});
  }
}

void Core::handle(const Heard& event) { roster_.heard(event.conn, now_); }

void Core::handle(const OfferArrived& event) {
  Member* member = roster_.by_conn(event.conn);
  const auto refuse = [&](std::string reason) {
    emit(RefuseTransfer{event.conn, event.offer.transfer, std::move(reason)});
  };
  if (member == nullptr) {
    return refuse("no session");
  }
  roster_.heard(event.conn, now_);
  if (event.offer.kind == wire::TransferKind::kPush) {
    return judge_push(event, *member);
  }
  const bool is_layout = event.offer.kind == wire::TransferKind::kLayout;
  const bool is_init = event.offer.kind == wire::TransferKind::kInit;
  if (!donation_ || donation_->seat != member->seat || initialised_ || (!is_layout && !is_init)) {
    return refuse("not asked for");
  }
  if (is_layout ? layout_.has_value() || event.offer.bytes > kMaxLayoutBytes
                : !layout_ || event.offer.fragment >= layout_->fragments.size() ||
                      event.offer.attempt != donation_->attempt ||
                      event.offer.bytes != 4 * layout_->fragments[event.offer.fragment].values) {
    return refuse(is_layout ? "no layout is needed" : "not the initial values that were asked for");
  }
  const Incoming incoming{event.offer, next_buffer_++, member->seat, member->incarnation,
                          Fate::kWanted};
  incoming_[{event.conn, event.offer.transfer}] = incoming;
  emit(AcceptTransfer{event.conn, event.offer.transfer, incoming.buffer, event.offer.bytes});
}

void Core::handle(const TransferArrived& event) {
  const auto at = incoming_.find({event.conn, event.transfer});
  if (at == incoming_.end()) {
    return;
  }
  const Incoming incoming = at->second;
  incoming_.erase(at);
  Member* member = roster_.by_conn(event.conn);
  if (member != nullptr) {
    roster_.heard(event.conn, now_);
    member->bytes_pushed += event.ok ? incoming.offer.bytes : 0;
  }
  if (incoming.offer.kind == wire::TransferKind::kPush) {
    if (event.ok) {
      return push_arrived(incoming);
    }
    emit(FreeBuffer{incoming.buffer});
    return push_broken_off(incoming, true);
  }
  const bool wanted = donation_ && donation_->seat == incoming.seat &&
                      (incoming.offer.kind == wire::TransferKind::kLayout ||
                       incoming.offer.attempt == donation_->attempt);
  if (!event.ok || !wanted) {
    emit(FreeBuffer{incoming.buffer});
    if (wanted) {
      donor_failed("its transfer was broken off");
    }
    return;
  }
  const JobId job = next_job_++;
  loading_[job] = incoming.buffer;
  if (incoming.offer.kind == wire::TransferKind::kLayout) {
    donation_->layout_job = job;
    emit(LoadLayout{job, incoming.buffer});
  } else {
    donation_->jobs[job] = incoming.offer.fragment;
    emit(LoadInit{job, incoming.offer.fragment, incoming.buffer, incoming.offer.digest});
  }
}

void Core::handle(const TransferSent& event) {
  const auto at = broadcast_tickets_.find(event.ticket);
  if (at != broadcast_tickets_.end()) {
    const Seat seat = at->second;
    broadcast_tickets_.erase(at);
    Member* member = roster_.find(seat);
    if (broadcasts_ && member != nullptr && member->conn == event.conn) {
      free_all(broadcasts_->sent(seat, event.ok));
      roster_.heard(event.conn, now_);
      if (!event.ok) {
        broadcast_retry_at_[seat] = now_ + kBroadcastRetry;
      } else if (options_.lockstep) {
        member->progress_at = now_;  // it was waiting for this, not hanging
      }
    }
    return;
  }
  for (auto& [seat, reader] : final_readers_) {
    if (reader.ticket == event.ticket) {
      reader.ticket = 0;
      reader.next += event.ok ? 1 : 0;
    }
  }
}

void Core::send_broadcasts() {
  if (!started_ || !broadcasts_ || phase_ == RunPhase::kFinal || phase_ == RunPhase::kEnded) {
    return;
  }
  for (auto& [seat, member] : roster_.members()) {
    if (!member.conn || !member.present() || now_ < broadcast_retry_at_[seat]) {
      continue;
    }
    const auto order = broadcasts_->next(seat);
    if (!order) {
      continue;
    }
    const wire::Offer offer = broadcast_offer(*order);
    const std::uint64_t ticket = next_ticket_++;
    broadcast_tickets_[ticket] = seat;
    member.bytes_received += order->image.bytes;
    emit(SendTransfer{*member.conn, ticket, offer, order->image.buffer});
  }
}

// A delta names the version it stands on; whatever else travels is whole.
wire::Offer Core::broadcast_offer(const BroadcastOrder& order) const {
  wire::Offer offer;
  offer.kind = wire::TransferKind::kBroadcast;
  offer.term = options_.term;
  offer.fragment = order.fragment;
  offer.version = order.image.version;
  offer.base_version = order.delta ? order.image.version - 1 : 0;
  offer.codec = order.delta ? broadcast_codec_ : whole_codec(broadcast_codec_);
  offer.bytes = order.image.bytes;
  offer.digest = order.image.digest;
  return offer;
}

// What is under way to the seat will not be heard of again.
void Core::end_broadcast(Seat seat) {
  std::erase_if(broadcast_tickets_, [&](const auto& entry) { return entry.second == seat; });
  if (broadcasts_) {
    free_all(broadcasts_->pause(seat));
  }
}

void Core::send_heartbeats() {
  if (now_ < next_heartbeat_ || ended_) {
    return;
  }
  next_heartbeat_ = now_ + options_.heartbeat;
  wire::SyncerBeat beat;
  beat.term = options_.term;
  beat.global_step = global_step_;
  beat.durable_step = durable_step_;
  beat.run_tokens = roster_.run_tokens();
  for (const auto& [seat, member] : roster_.members()) {
    if (live(member) || member.done) {
      beat.live.push_back(seat);
    }
  }
  for (const auto& [seat, member] : roster_.members()) {
    if (member.conn && member.present()) {
      emit(Send{*member.conn, beat});
    }
  }
}

void Core::handle(const FinishRequested& event) {
  if (finish_reason_.empty()) {
    finish_reason_ = event.reason.empty() ? "asked to finish" : event.reason;
    tape(TapeFinish{finish_reason_});
  }
  finish_now_ = finish_now_ || event.mode == wire::FinishMode::kNow;
}

Nanos Core::next_deadline() const {
  Nanos next = std::min(next_heartbeat_, roster_.next_deadline(now_));
  if (!rounds_.empty() && commit_ == Commit::kIdle) {
    // A copy: decide() opens windows in the attempt, and here they are only looked at.
    Attempt head = rounds_.front().attempt;
    const Decision decision = decide(round_options_, head, pace(), commit_time_, now_);
    if (decision.kind == Decision::Kind::kWait) {
      next = std::min(next, decision.until);
    }
  }
  if (started_) {
    const std::uint32_t fragments = static_cast<std::uint32_t>(versions_.size());
    const Nanos launch = last_launch_ + launch_interval(round_options_, pace(), fragments);
    if (launch > now_) {
      next = std::min(next, launch);
    }
  }
  return std::max(next, now_);
}

}  // namespace yeto::sync
