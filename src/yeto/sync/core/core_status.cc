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
  out.waiting_for = rounds_.empty() ? launch_obstacle_ : std::string{};
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
    row.dropped = member.dropped;
    row.bytes_pushed = member.bytes_pushed;
    row.bytes_received = member.bytes_received;
    out.seats.push_back(row);
  }
  return out;
}

}  // namespace yeto::sync
