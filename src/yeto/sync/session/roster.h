// SPDX-License-Identifier: Apache-2.0
// Roster: who belongs to the run, and what each member is allowed now.
// Not thread-safe; owned by sync/core. Times are monotonic nanoseconds given by the caller.
//
// A member is live while its lease holds and it makes progress: its local step advanced within the
// stall limit, or it says that it loads, evaluates or saves. A closed socket suspends at once; the
// lease's end loses.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "yeto/base/clock.h"
#include "yeto/wire/messages.h"

namespace yeto::sync {

struct RosterOptions {
  std::string run_id;
  Nanos lease = 5 * kSecond;
  Nanos stall_floor = 60 * kSecond;    // stall limit = max(this, 10 step times)
  bool lockstep = false;               // members wait for each other; only a lease ends that
  std::vector<std::uint32_t> fixed{};  // not empty: only these seats belong to the run
};

struct Member {
  std::uint32_t seat = 0;
  std::uint64_t incarnation = 0;
  wire::SessionToken session{};
  std::optional<std::uint64_t> conn;  // nothing: the socket is closed
  Nanos lease_until = 0;
  Nanos heard_at = 0;  // newest frame
  bool lost = false;   // the lease ended
  bool left = false;   // it said LEAVE
  bool done = false;   // it acknowledged the final values
  std::string gone_reason;
  std::string device;

  wire::Phase phase = wire::Phase::kLoad;
  std::uint64_t local_step = 0;
  std::uint64_t step_at_join = 0;
  Nanos progress_at = 0;
  std::optional<Nanos> step_time;   // nothing: unknown
  std::uint64_t tokens = 0;         // highest cumulative count of the seat
  bool limit = false;               // it reached its own limit
  std::set<std::uint32_t> drained;  // fragments it has nothing new for since LIMIT

  // Of the process: another one of the seat starts without them.
  std::uint32_t bad_in_a_row = 0;
  std::uint64_t quarantined_until_round = 0;
  std::uint64_t expected = 0;  // rounds that captured it
  std::uint64_t responded = 0;
  std::uint64_t pushes = 0;
  std::uint64_t merged = 0;
  std::uint64_t carried = 0;  // came late and waited for the next round
  std::uint64_t dropped = 0;
  std::uint64_t bytes_pushed = 0;
  std::uint64_t bytes_received = 0;

  bool present() const { return !lost && !left; }
};

// Admitted. `replaced` is the connection that this one takes the place of.
struct Admission {
  std::uint32_t seat = 0;
  bool resumed = false;       // same process and session: nothing to overwrite
  bool same_process = false;  // the process that held the seat last in this life of the syncer
  bool first = false;         // the seat was not here before in this life of the syncer
  std::optional<std::uint64_t> replaced;
};
using AdmissionResult = std::variant<Admission, wire::Refused>;

class Roster {
 public:
  explicit Roster(RosterOptions options) : options_(std::move(options)) {}

  // What the run demands of each learner; set by the first one admitted, or by a restored run.
  struct Demands {
    wire::Digest32 layout{};
    std::uint64_t values = 0;
    std::vector<wire::ContractPair> contract;
    std::vector<std::array<std::uint8_t, 8>> tensors;  // empty: layout not known in detail yet
  };
  void demand(Demands demands) { demands_ = std::move(demands); }
  void forget_demands() { demands_.reset(); }
  const std::optional<Demands>& demands() const { return demands_; }

  bool belongs(std::uint32_t seat) const;
  // Decides on a learner's HELLO and, if it is admitted, makes or renews the member.
  AdmissionResult admit(const wire::Hello& hello, std::uint64_t conn, bool proof_ok,
                        const wire::SessionToken& fresh, Nanos now);
  // A seat of an earlier life of the syncer: known, absent, with its token count.
  void restore(std::uint32_t seat, std::uint64_t tokens);

  void heard(std::uint64_t conn, Nanos now);
  void beat(std::uint64_t conn, const wire::LearnerBeat& beat, Nanos now);
  // The socket closed: the seat is suspended until its lease ends.
  std::optional<std::uint32_t> disconnect(std::uint64_t conn);
  void leave(std::uint32_t seat, std::string reason);
  // Seats whose lease ended since the last call.
  std::vector<std::uint32_t> expire(Nanos now);

  Member* find(std::uint32_t seat);
  const Member* find(std::uint32_t seat) const;
  Member* by_conn(std::uint64_t conn);
  const std::map<std::uint32_t, Member>& members() const { return members_; }
  std::map<std::uint32_t, Member>& members() { return members_; }

  // Lease valid, neither lost nor left, and not stale.
  bool live(const Member& member, Nanos now, bool owes_push) const;
  // No step within the stall limit although it trains. `owes_push`: a round waits for it.
  bool stale(const Member& member, Nanos now, bool owes_push) const;
  // Steps since this process joined.
  static std::uint64_t steps_since_join(const Member& member);
  std::uint64_t run_tokens() const;
  Nanos next_deadline(Nanos now) const;  // of any lease or stall limit

 private:
  std::optional<wire::Refused> objection(const wire::Hello& hello, bool proof_ok, Nanos now) const;
  std::optional<wire::Refused> seat_objection(const wire::Hello& hello, Nanos now) const;
  std::optional<wire::Refused> layout_objection(const wire::Hello& hello) const;
  std::optional<std::uint32_t> free_seat() const;
  Nanos stall_limit(const Member& member) const;

  RosterOptions options_;
  std::optional<Demands> demands_;
  std::map<std::uint32_t, Member> members_;
};

// The first contract item that differs, in words; empty if none does.
std::string contract_difference(const std::vector<wire::ContractPair>& run,
                                const std::vector<wire::ContractPair>& learner);

}  // namespace yeto::sync
