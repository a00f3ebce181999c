// SPDX-License-Identifier: Apache-2.0
#include "yeto/base/result.h"
#include "yeto/sync/core/core.h"

namespace yeto::sync {
namespace {

std::string state_of(const Member& member, bool stale, bool complete) {
  if (member.done) {
    return "done";
  }
  if (member.left) {
    return "left";
  }
  if (member.lost) {
    return "lost";
  }
  if (!member.conn) {
    return "suspended";
  }
  if (stale) {
    return "stalled";
  }
  return complete ? "live" : "joining";
}

}  // namespace

EffectiveSettings Core::effective_settings() const {
  EffectiveSettings out;
  out.quorum = quorum_of(round_options_, 0);
  out.sync_interval_steps = options_.sync_interval_steps;
  out.pipeline = buffer_sizes_.rounds;
  out.stall_floor = RosterOptions{}.stall_floor;
  out.max_lag = options_.max_lag;
  out.push_codec = push_codec_;
  out.broadcast_codec = broadcast_codec_;
  out.durability = durability_;
  out.max_buffer = buffer_cap();
  return out;
}

CoreStatus Core::status(Nanos now) const {
  CoreStatus out;
  out.phase = phase_;
  out.term = options_.term;
  out.global_step = global_step_;
  if (options_.total_steps != 0) {
    const std::uint64_t sweep = versions_.empty() ? 0 : versions_.size();
    out.total_steps = options_.total_steps + sweep;
  }
  out.durable_step = durable_step_;
  out.run_tokens = roster_.run_tokens();
  out.versions = versions_;
  out.ledger = ledger_;
  out.error = error_;
  const std::string& of_open_rounds = pause_reason_.empty() ? room_obstacle_ : pause_reason_;
  out.waiting_for = rounds_.empty() ? launch_obstacle_ : of_open_rounds;
  out.carried_pushes = carried_.size();
  out.data = data_.state();
  if (layout_) {
    out.effective = effective_settings();
    out.buffer_bytes = buffer_use().total();
  }
  for (const auto& [seat, member] : roster_.members()) {
    SeatStatus row;
    row.seat = seat;
    row.state = state_of(member, roster_.stale(member, now, owes_push(seat)),
                         broadcasts_ && broadcasts_->complete(seat));
    row.incarnation = member.incarnation;
    row.phase = member.phase;
    row.local_step = member.local_step;
    row.tokens = member.tokens;
    if (member.step_time) {
      row.step_time_s = seconds(*member.step_time);
    }
    if (broadcasts_) {
      row.version_lag = broadcasts_->lag(seat);
    }
    if (member.expected > 0) {
      row.participation =
          static_cast<double>(member.responded) / static_cast<double>(member.expected);
    }
    if (member.incarnation != 0) {
      row.heartbeat_age_s = seconds(now - member.heard_at);
    }
    row.pushes = member.pushes;
    row.merged = member.merged;
    row.carried = member.carried;
    if (member.quarantined_until_round >= next_round_) {
      row.quarantined_until = member.quarantined_until_round;
    }
    row.dropped = member.dropped;
    row.bytes_pushed = member.bytes_pushed;
    row.bytes_received = member.bytes_received;
    out.seats.push_back(row);
  }
  return out;
}

}  // namespace yeto::sync
