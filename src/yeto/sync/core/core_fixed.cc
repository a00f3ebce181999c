// SPDX-License-Identifier: Apache-2.0
// The fixed roster: exactly the named seats, each answers every round. A seat that is lost pauses
// the run until a process of it is back; the recover timeout ends the run.
#include <algorithm>

#include "yeto/base/format.h"
#include "yeto/sync/core/core.h"

namespace yeto::sync {

// Seats that cannot answer now, with the reason in words.
std::map<Seat, std::string> Core::missing_seats() const {
  std::map<Seat, std::string> out;
  for (const Seat seat : options_.fixed_roster) {
    const Member* member = roster_.find(seat);
    if (member == nullptr) {
      out[seat] = "it has not joined";
    } else if (!member->present()) {
      out[seat] = member->gone_reason;
    } else if (!member->conn) {
      out[seat] = "its socket is closed";
    } else if (!live(*member)) {
      out[seat] = "it makes no step";
    }
  }
  return out;
}

void Core::watch_fixed_roster() {
  pause_reason_.clear();
  if (!fixed() || phase_ == RunPhase::kFinal || phase_ == RunPhase::kEnded) {
    return;
  }
  const std::map<Seat, std::string> missing = missing_seats();
  std::erase_if(missing_since_, [&](const auto& it) { return !missing.contains(it.first); });
  std::string overdue;
  for (const auto& [seat, why] : missing) {
    const Nanos since = missing_since_.try_emplace(seat, now_).first->second;
    pause_reason_ += strf("{}seat {} ({})", pause_reason_.empty() ? "" : ", ", seat, why);
    if (now_ >= since + options_.recover_timeout) {
      overdue += strf("{}{}", overdue.empty() ? "" : ", ", seat);
    }
  }
  ask_returned_seats();
  if (!missing.empty()) {
    pause_reason_ = "the fixed roster waits for " + pause_reason_;
  }
  end_if_overdue(overdue);
}

// Nothing that was committed is lost: what is not durable is written first.
void Core::end_if_overdue(const std::string& overdue) {
  // Before a new run has begun its seats may take their time to come.
  const bool began = started_ || saved_before_;
  if (began && !overdue.empty() && pending_end_.empty()) {
    pending_end_ = strf(
        "seats {} of the fixed roster did not come back within {:.0f} s; start them again and "
        "resume the run from its checkpoint",
        overdue, seconds(options_.recover_timeout));
  }
  if (pending_end_.empty() || commit_ != Commit::kIdle || checkpoint_job_ != 0) {
    return;
  }
  if (durable_step_ == global_step_ || last_save_failed_) {
    return end(4, pending_end_);
  }
  checkpoint();  // its answer comes back here
}

// A process that took the place of a lost one is asked once it has every fragment.
void Core::ask_returned_seats() {
  for (OpenRound& round : rounds_) {
    for (auto& [seat, duty] : round.attempt.duties) {
      const Member& member = *roster_.find(seat);
      const bool ready = member.conn && live(member) && broadcasts_->complete(seat);
      if (duty == Duty::kGone && ready) {
        duty = Duty::kOutstanding;
        pull(round, member);
      }
    }
  }
}

}  // namespace yeto::sync
