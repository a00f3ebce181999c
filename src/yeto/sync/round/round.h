// SPDX-License-Identifier: Apache-2.0
// Round: when a round is launched, when it closes, and whose push counts. Pure decisions, each with
// its reason in words; nothing here knows a tensor, a socket or a clock (time is an argument, in
// nanoseconds).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "yeto/base/clock.h"

namespace yeto::sync {

struct RoundOptions {
  std::uint32_t learners = 1;  // expected at start
  std::uint32_t quorum = 0;    // 0: auto (all up to two learners, else three quarters, rounded up)
  bool quorum_all = false;
  bool all_answer = false;  // fixed roster: a round waits for each captured seat, also a lost one
  std::uint32_t sync_interval_steps = 24;  // H
  Nanos min_round = 0;
  Nanos round_timeout = 900 * kSecond;
  std::optional<Nanos> grace_cap;  // nothing: the formula alone decides
  double grace_gamma = 0.8;        // γ
  double grace_tau = 2.0;          // τ
};

// Where one captured member stands in an attempt.
enum class Duty : std::uint8_t {
  kOutstanding,  // asked, nothing offered yet
  kReceiving,    // its push is on the way
  kAccepted,     // its push is here and good
  kEmpty,        // it said that it has nothing new
  kDropped,      // its push was bad; its duty in this round has ended
  kGone          // it is no longer live
};

// One attempt of one round.
struct Attempt {
  std::uint64_t round = 0;
  std::uint32_t fragment = 0;
  std::uint64_t base_version = 0;
  std::uint32_t attempt = 0;
  bool sweep = false;
  Nanos launched = 0;
  Nanos asked = 0;      // launch, or the last time missing members were asked again
  Nanos quorum_at = 0;  // 0: not reached
  Nanos grace_end = 0;  // 0: no window open
  std::map<std::uint32_t, Duty> duties;  // by seat

  std::uint32_t count(Duty duty) const;
  std::uint32_t open() const { return count(Duty::kOutstanding) + count(Duty::kReceiving); }
};

// K for `captured` members: how many accepted pushes close a round.
std::uint32_t quorum_of(const RoundOptions& options, std::uint32_t captured);

// ξ: step time of the K-th fastest of the known step times; nothing if fewer than K are known.
std::optional<Nanos> pace_of(std::vector<Nanos> step_times, std::uint32_t quorum);

// max(0, γ·(τ·ξ − ξ_quorum − ξ_sync)), capped. Nothing while ξ is unknown: all live members are
// waited for.
std::optional<Nanos> grace_of(const RoundOptions& options, std::optional<Nanos> pace,
                              Nanos to_quorum, Nanos sync);

// Time between two launches: max(min_round, H·ξ/F).
Nanos launch_interval(const RoundOptions& options, std::optional<Nanos> pace,
                      std::uint32_t fragments);

// Share of its weight that a push keeps whose base lags by `lag` versions: min(0.5^lag, 1 − α^lag)
// under raw delta references, 0.5^lag under blended ones.
double late_factor(std::uint64_t lag, double merge_alpha, bool blended);

// Steps a member must have made since its join to be captured: max(1, H/F).
std::uint64_t steps_to_capture(const RoundOptions& options, std::uint32_t fragments);

struct Decision {
  enum class Kind : std::uint8_t {
    kWait,
    kClose,     // merge what is accepted
    kAskAgain,  // round timeout: keep what is accepted, ask the missing live members again
    kAbandon    // nothing accepted and nobody outstanding
  };
  Kind kind = Kind::kWait;
  Nanos until = 0;  // of kWait: when to look again at the latest
  std::string reason;
};

// Accepted pushes that this attempt needs to close: max(1, min(K, accepted + outstanding)); in the
// last sweep, and with a fixed roster, everybody's.
std::uint32_t needed_pushes(const RoundOptions& options, const Attempt& attempt);

// Looks at the attempt and opens the quorum time and the grace window in it.
Decision decide(const RoundOptions& options, Attempt& attempt, std::optional<Nanos> pace,
                Nanos sync, Nanos now);

// What is known of an offered push.
struct PushClaim {
  std::uint32_t seat = 0;
  std::uint64_t round = 0;
  std::uint32_t attempt = 0;
  std::uint32_t fragment = 0;
  std::uint64_t base_version = 0;
};
// Empty: admitted. Otherwise why it is refused.
std::string objection_to(const Attempt& attempt, const PushClaim& claim);

// The norms of one fragment's pushes; says which push is far outside of them.
class NormWatch {
 public:
  // Larger than 10⁴ × the median of the last ≥ 8 non-zero norms.
  bool outlier(double norm) const;
  void add(double norm);

 private:
  std::vector<double> last_;  // at most 32, oldest first
};

}  // namespace yeto::sync
