// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/round/round.h"

#include <algorithm>
#include <cmath>

#include "yeto/base/format.h"
#include "yeto/base/result.h"

namespace yeto::sync {

std::uint32_t Attempt::count(Duty duty) const {
  return static_cast<std::uint32_t>(std::count_if(
      duties.begin(), duties.end(), [&](const auto& entry) { return entry.second == duty; }));
}

std::uint32_t quorum_of(const RoundOptions& options, std::uint32_t captured) {
  const std::uint32_t members = std::max(options.learners, captured);
  if (options.quorum_all) {
    return members;
  }
  if (options.quorum != 0) {
    return options.quorum;
  }
  return members <= 2 ? members : (3 * members + 3) / 4;
}

std::optional<Nanos> pace_of(std::vector<Nanos> step_times, std::uint32_t quorum) {
  if (step_times.empty() || step_times.size() < quorum) {
    return std::nullopt;
  }
  std::sort(step_times.begin(), step_times.end());
  return step_times[std::max<std::uint32_t>(quorum, 1) - 1];
}

std::optional<Nanos> grace_of(const RoundOptions& options, std::optional<Nanos> pace,
                              Nanos to_quorum, Nanos sync) {
  if (!pace) {
    return std::nullopt;
  }
  const double room = options.grace_tau * seconds(*pace) - seconds(to_quorum) - seconds(sync);
  const Nanos grace = from_seconds(std::max(0.0, options.grace_gamma * room));
  return options.grace_cap ? std::min(grace, *options.grace_cap) : grace;
}

Nanos launch_interval(const RoundOptions& options, std::optional<Nanos> pace,
                      std::uint32_t fragments) {
  const Nanos paced =
      pace ? static_cast<Nanos>(options.sync_interval_steps) * *pace / static_cast<Nanos>(fragments)
           : 0;
  return std::max(options.min_round, paced);
}

double late_factor(std::uint64_t lag, double merge_alpha, bool blended) {
  const auto power = static_cast<double>(lag);
  const double decay = std::pow(0.5, power);
  // Under raw references the share α of an earlier push stays in the next delta of its island.
  return blended || lag == 0 ? decay : std::min(decay, 1.0 - std::pow(merge_alpha, power));
}

std::uint64_t steps_to_capture(const RoundOptions& options, std::uint32_t fragments) {
  return std::max<std::uint64_t>(1, options.sync_interval_steps / fragments);
}

namespace {

Decision after_timeout(Attempt& attempt, Nanos now) {
  const std::uint32_t accepted = attempt.count(Duty::kAccepted);
  if (attempt.sweep && accepted > 0) {
    const std::uint32_t missing = attempt.open();
    for (auto& [seat, duty] : attempt.duties) {
      if (duty == Duty::kOutstanding || duty == Duty::kReceiving) {
        duty = Duty::kGone;
      }
    }
    return {Decision::Kind::kClose, now,
            strf("round timeout in the last sweep, {} missing", missing)};
  }
  return {Decision::Kind::kAskAgain, now,
          strf("round timeout with {} accepted, {} missing", accepted, attempt.open())};
}

// Quorum reached, members outstanding: the grace window decides.
Decision in_grace(const RoundOptions& options, Attempt& attempt, std::optional<Nanos> pace,
                  Nanos sync, Nanos now) {
  if (attempt.grace_end == 0) {
    const auto grace = grace_of(options, pace, attempt.quorum_at - attempt.launched, sync);
    if (!grace) {
      return {Decision::Kind::kWait, attempt.asked + options.round_timeout,
              "step times unknown: waiting for all live members"};
    }
    YETO_CHECK(*grace <= from_seconds(options.grace_gamma * options.grace_tau * seconds(*pace)),
               "grace is never longer than γ·τ·ξ");
    attempt.grace_end = attempt.quorum_at + *grace;
  }
  if (now >= attempt.grace_end) {
    return {Decision::Kind::kClose, now,
            strf("grace of {:.3f} s ended, {} missing",
                 seconds(attempt.grace_end - attempt.quorum_at), attempt.open())};
  }
  return {Decision::Kind::kWait, attempt.grace_end, "quorum reached, in grace"};
}

// A fixed roster: nobody is left out, so a lost member is waited for like a slow one.
Decision decide_for_all(const RoundOptions& options, Attempt& attempt, Nanos now) {
  const std::uint32_t missing = attempt.open() + attempt.count(Duty::kGone);
  if (missing == 0) {
    attempt.quorum_at = attempt.quorum_at == 0 ? now : attempt.quorum_at;
    return attempt.count(Duty::kAccepted) == 0
               ? Decision{Decision::Kind::kAbandon, now, "every seat answered, nothing to merge"}
               : Decision{Decision::Kind::kClose, now, "every seat answered"};
  }
  if (now >= attempt.asked + options.round_timeout) {
    return {Decision::Kind::kAskAgain, now,
            strf("round timeout, {} seats have not answered", missing)};
  }
  return {Decision::Kind::kWait, attempt.asked + options.round_timeout,
          strf("{} of {} seats have not answered", missing, attempt.duties.size())};
}

}  // namespace

std::uint32_t needed_pushes(const RoundOptions& options, const Attempt& attempt) {
  const std::uint32_t possible = attempt.count(Duty::kAccepted) + attempt.open();
  const std::uint32_t wanted =
      attempt.sweep || options.all_answer
          ? possible
          : quorum_of(options, static_cast<std::uint32_t>(attempt.duties.size()));
  return std::max<std::uint32_t>(1, std::min(wanted, possible));
}

Decision decide(const RoundOptions& options, Attempt& attempt, std::optional<Nanos> pace,
                Nanos sync, Nanos now) {
  if (options.all_answer) {
    return decide_for_all(options, attempt, now);
  }
  const std::uint32_t accepted = attempt.count(Duty::kAccepted);
  if (attempt.open() == 0) {
    if (accepted == 0) {
      return {Decision::Kind::kAbandon, now, "nothing accepted and nobody outstanding"};
    }
    if (attempt.quorum_at == 0) {
      attempt.quorum_at = now;
    }
    return {Decision::Kind::kClose, now, "all live members answered"};
  }
  const std::uint32_t needed = needed_pushes(options, attempt);
  if (accepted >= needed) {
    if (attempt.quorum_at == 0) {
      attempt.quorum_at = now;
    }
    const Decision grace = in_grace(options, attempt, pace, sync, now);
    if (grace.kind != Decision::Kind::kWait || now < attempt.asked + options.round_timeout) {
      return grace;
    }
    return {Decision::Kind::kClose, now, "round timeout after quorum"};
  }
  if (now >= attempt.asked + options.round_timeout) {
    return after_timeout(attempt, now);
  }
  return {Decision::Kind::kWait, attempt.asked + options.round_timeout,
          strf("{} of {} pushes", accepted, needed)};
}

std::string objection_to(const Attempt& attempt, const PushClaim& claim) {
  const auto duty = attempt.duties.find(claim.seat);
  if (duty == attempt.duties.end()) {
    return strf("round {} did not capture seat {}", claim.round, claim.seat);
  }
  if (claim.fragment != attempt.fragment) {
    return strf("round {} merges fragment {}, not {}", claim.round, attempt.fragment,
                claim.fragment);
  }
  if (claim.base_version != attempt.base_version) {
    return strf("base version {} where {} was asked", claim.base_version, attempt.base_version);
  }
  if (claim.attempt != attempt.attempt) {
    return strf("attempt {} of round {} is not open", claim.attempt, claim.round);
  }
  // A member that was given up may still answer while the attempt is open.
  if (duty->second != Duty::kOutstanding && duty->second != Duty::kGone) {
    return strf("seat {} has answered round {} already", claim.seat, claim.round);
  }
  return {};
}

bool NormWatch::outlier(double norm) const {
  if (last_.size() < 8) {
    return false;
  }
  std::vector<double> sorted = last_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return norm > 1e4 * *middle;
}

void NormWatch::add(double norm) {
  if (norm == 0.0 || !std::isfinite(norm)) {
    return;
  }
  if (last_.size() == 32) {
    last_.erase(last_.begin());
  }
  last_.push_back(norm);
}

}  // namespace yeto::sync
