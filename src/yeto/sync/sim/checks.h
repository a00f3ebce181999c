// SPDX-License-Identifier: Apache-2.0
// Checks: the rules of a run, looked at from outside after each event of a world. The first rule
// that is broken is kept in words; the world stops there. What is seen of the tape also becomes a
// hash: the same plan gives the same one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "yeto/sync/client/rows.h"
#include "yeto/sync/core/events.h"
#include "yeto/sync/sim/plan.h"

namespace yeto::sync::sim {

class Checks {
 public:
  explicit Checks(const Plan& plan);

  const std::string& violation() const { return violation_; }
  void violate(std::string what);
  std::uint64_t tape_hash() const { return hash_; }

  // ---- the syncer
  void syncer_started(std::uint64_t term, const std::optional<Restored>& restored);
  void admitted(Seat seat, std::uint64_t incarnation, bool of_this_run);
  void push_accepted(Seat seat, std::uint64_t incarnation);
  void beat_arrived(Seat seat, std::uint64_t incarnation, const wire::LearnerBeat& beat);
  void beat_sent(const wire::SyncerBeat& beat);
  void init_ordered();
  void images_made(const ImagesMade& made);
  void merge_ordered(const Merge& order);
  void merged(const Merge& order, const Merged& result);
  void finals_made(const FinalsMade& made);
  void checkpoint_ended(const CoreState& state, bool ok);
  void broadcast_offered(Seat seat, const wire::Offer& offer);
  void buffers_used(const CoreStatus& status);
  void taped(const TapeRecord& record, Nanos now);
  void run_state(const CoreStatus& status, bool syncer_restarted);

  // ---- the islands
  // Something that keeps the seat from answering as usual happened, or is happening.
  void touched(Seat seat, Nanos until);
  void applied(Seat seat, std::uint64_t term, std::uint32_t fragment, std::uint64_t version,
               const wire::Digest16& digest);
  // Tokens that all processes of a seat have trained on, per step of the process.
  void trained(Seat seat, std::uint64_t tokens);
  void rows_trained(const client::RowRange& rows);

  // ---- sums for reports
  struct Totals {
    std::uint64_t commits = 0;
    std::uint64_t abandoned = 0;
    std::uint64_t expected = 0;
    std::uint64_t responded = 0;
    std::uint64_t carried = 0;
    std::uint64_t dropped = 0;
    std::uint64_t lost = 0;
    std::uint64_t joins = 0;
    std::uint64_t bytes_in = 0;
    std::uint64_t bytes_out = 0;
  };
  const Totals& totals() const { return totals_; }
  const std::vector<std::uint64_t>& versions() const { return versions_; }
  std::uint64_t durable_step() const { return durable_step_; }
  // Hash of the final values; 0: there are none yet.
  std::uint64_t final_hash() const { return final_hash_; }
  // Broadcasts under q4 that a seat was offered after a whole image that was no join.
  std::uint64_t q4_after_whole(Seat seat) const {
    return seat < seats_.size() ? seats_[seat].q4_after_whole : 0;
  }

 private:
  using Value = std::tuple<std::uint64_t, std::uint32_t, std::uint64_t>;  // term, fragment, version
  struct SeatView {
    std::uint64_t incarnation = 0;  // newest admitted
    Nanos touched_until = -1;
    std::uint64_t trained = 0;
    std::map<std::uint64_t, std::uint64_t> told;  // incarnation → tokens it has told
    std::vector<std::uint64_t> merged;            // tokens merged, per fragment
    std::uint64_t whole_images = 0;
    std::uint64_t q4_after_whole = 0;
  };
  // Tokens that a commit merged, to be taken back when a restart loses the commit.
  struct Counted {
    std::uint64_t version = 0;
    std::vector<std::pair<Seat, std::uint64_t>> tokens;
  };

  SeatView& seat(Seat seat);
  void committed(const TapeRound& round, Nanos now);
  void check_quorum(const TapeRound& round, Nanos now);
  void check_grace(const TapeRound& round);
  void count_tokens(const Merge& order);
  void mix(std::uint64_t value);
  void mix(std::string_view text);
  void hash_record(const TapeRecord& record, Nanos now);

  const Plan& plan_;
  const bool commit_durable_;
  std::string violation_;
  std::uint64_t hash_ = 0;
  Totals totals_;
  std::vector<SeatView> seats_;  // by seat

  std::uint64_t term_ = 0;
  std::uint64_t highest_term_ = 0;
  bool initialised_ = false;
  Nanos life_began_ = 0;
  std::vector<std::uint64_t> versions_;
  std::vector<std::uint64_t> durable_versions_;
  std::uint64_t durable_step_ = 0;
  std::uint64_t promised_step_ = 0;  // highest durable step told to a learner
  bool disk_refused_ = false;
  std::map<Value, wire::Digest16> digests_;
  std::unordered_set<std::uint64_t> merged_buffers_;  // of this life (phantoms: of this merge)
  std::vector<std::vector<Counted>> counted_;         // per fragment, commits not durable yet
  double slowest_step_s_ = 0.0;
  std::uint64_t final_hash_ = 0;
  std::vector<std::uint32_t>
      rows_;  // how often each position was trained; epochs one after the other

 public:
  void set_life_began(Nanos local) { life_began_ = local; }
};

}  // namespace yeto::sync::sim
