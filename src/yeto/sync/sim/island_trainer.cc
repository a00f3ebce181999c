// SPDX-License-Identifier: Apache-2.0
// The trainer of an island: steps, boundaries, the end. It calls the client as sync/boundary does.
#include <algorithm>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/sync/sim/island.h"
#include "yeto/sync/sim/world.h"

namespace yeto::sync::sim {
namespace {

constexpr std::uint32_t kAttemptsAfterFinal = 2;
constexpr Nanos kForever = Nanos{1} << 62;

}  // namespace

// ---- steps
// -----------------------------------------------------------------------------------------

// Data leases: rows for the next step. False: they have to come first.
bool Island::has_rows() {
  if (shape_.rows == 0 || rows_taken_) {
    return true;
  }
  client::Actions actions = client_->want_rows(world_.plan().rows, shape_.rows);
  carry(actions);
  if (const auto rows = client_->take_rows(shape_.rows)) {
    world_.checks().rows_trained(*rows);
    rows_taken_ = true;
  }
  return rows_taken_;
}

void Island::begin_step(Nanos at) {
  if (!has_rows()) {
    if (client_->rows_exhausted()) {
      return finish(true);
    }
    state_ = State::kWaiting;
    return;
  }
  rows_taken_ = false;
  state_ = State::kTraining;
  client_->resume_training(local_time(clock_, at));
  double factor = 1.0;
  if (shape_.step_jitter > 0.0) {
    factor += shape_.step_jitter * (2.0 * rng_.uniform() - 1.0);
  }
  step_ends_ = at + std::max<Nanos>(1, from_seconds(seconds(shape_.step) * factor));
  if (client_->lockstep() || world_.trainer() != nullptr) {
    plan_boundary();
  }
}

void Island::take_step(Nanos at) {
  client_->step(shape_.tokens, local_time(clock_, at));
  ++steps_;
  world_.checks().trained(shape_.seat, shape_.tokens);
  if (!values_) {
    return;
  }
  if (Observer* trainer = world_.trainer()) {
    trainer->on_step(index_, steps_ - 1, *values_);
  } else {
    values_->train();
  }
}

// Steps that ended before now without anything that waited for their boundary.
void Island::catch_up() {
  while (state_ == State::kTraining && boundary_at_ == 0 && step_ends_ < world_.now()) {
    const Nanos at = step_ends_;
    take_step(at);
    if (shape_.limit_steps != 0 && client_->local_step() >= shape_.limit_steps) {
      return finish(true);
    }
    if (alone_too_long()) {
      state_ = State::kWaiting;
      client_->set_phase(wire::Phase::kPaused, local_now());
      return;
    }
    begin_step(at);
  }
}

bool Island::alone_too_long() const {
  return !client_->connected() && world_.now() - alone_since_ > world_.plan().max_alone;
}

// ---- boundaries
// ------------------------------------------------------------------------------------

bool Island::something_waits() const {
  if (client_->draining() || client_->ended() || refused_for_good_ ||
      !client_->lockstep_fault().empty() || client_->lockstep()) {
    return true;
  }
  for (std::uint32_t i = 0; i < client_->fragment_count(); ++i) {
    const client::FragmentState& fragment = client_->fragment(i);
    if (fragment.pull || fragment.ready || fragment.init_attempt || fragment.reset) {
      return true;
    }
  }
  return false;
}

void Island::plan_boundary() {
  if (boundary_at_ != 0) {
    return;
  }
  boundary_at_ = step_ends_;
  later(boundary_at_, [](Island& island, std::uint64_t) { island.at_boundary(); });
}

void Island::at_boundary() {
  if (state_ != State::kTraining || boundary_at_ == 0 || world_.now() < boundary_at_) {
    return;
  }
  boundary_at_ = 0;
  take_step(world_.now());
  turn();
  if (state_ != State::kTraining) {
    return;
  }
  if (shape_.limit_steps != 0 && client_->local_step() >= shape_.limit_steps) {
    return finish(true);
  }
  if (client_->draining() && !client_->must_wait()) {
    return finish(false);
  }
  if (client_->must_wait()) {
    state_ = State::kWaiting;
    return look_for_end();
  }
  begin_step(world_.now());
  look();
}

void Island::look() {
  if (in_turn_) {
    turn_again_ = true;
    return;
  }
  switch (state_) {
    case State::kDown:
    case State::kOver:
      return;
    case State::kTraining:
      if (something_waits()) {
        plan_boundary();
      }
      break;
    case State::kJoining:
      turn();
      try_ready();
      break;
    case State::kWaiting:
      turn();
      if (state_ == State::kWaiting && client_->draining() && !client_->must_wait()) {
        finish(false);
      } else if (state_ == State::kWaiting && !client_->must_wait() && !alone_too_long()) {
        begin_step(world_.now());
      }
      break;
    case State::kFinishing:
      turn();
      break;
  }
  look_for_end();
}

// What is due while the trainer stands still.
void Island::turn() {
  in_turn_ = true;
  do {
    turn_again_ = false;
    client::Actions actions = client_->boundary();
    for (client::Action& action : actions) {
      if (!client::is_value_work(action)) {
        carry_out(action);
      }
    }
    for (const client::Action& action : actions) {
      if (client::is_value_work(action)) {
        do_value_work(action);
        turn_again_ = true;
      }
    }
  } while (turn_again_);
  in_turn_ = false;
}

void Island::try_ready() {
  if (state_ != State::kJoining || !client_->ready()) {
    return;
  }
  ready_after_ = world_.now() - started_at_;
  world_.note_ready(ready_after_);
  world_.checks().touched(shape_.seat, world_.now());
  if (client_->draining()) {
    return finish(false);
  }
  begin_step(world_.now());
  send_beat();
  if (state_ == State::kTraining && something_waits()) {
    plan_boundary();
  }
}

// ---- the end
// ---------------------------------------------------------------------------------------

void Island::finish(bool limit) {
  state_ = State::kFinishing;
  boundary_at_ = 0;
  world_.checks().touched(shape_.seat, kForever);
  client::Actions actions = client_->finalize(limit);
  carry(actions);
  turn();
  look_for_end();
}

void Island::look_for_end() {
  if (state_ == State::kDown || state_ == State::kOver || in_turn_) {
    return;
  }
  const bool over = client_->finishing() && client_->acknowledged();
  if (over) {
    const bool gone = !client_->connected() && failed_since_session_ >= kAttemptsAfterFinal;
    if (client_->ended() || refused_for_good_ || gone) {
      acknowledged_ = true;
      end("the final values are acknowledged");
    }
    return;
  }
  if (refused_for_good_) {
    return end("refused: " + end_reason_);
  }
  if (client_->ended()) {
    return end("the syncer ended the run: " + client_->end_reason());
  }
  if (!client_->finishing() && !client_->lockstep_fault().empty()) {
    return end(client_->lockstep_fault());
  }
}

}  // namespace yeto::sync::sim
