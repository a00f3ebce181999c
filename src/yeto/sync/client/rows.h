// SPDX-License-Identifier: Apache-2.0
// RowBook: the data leases of one learner. It keeps which positions of the sample order were
// granted, handed to the trainer and trained, and in which deltas their work travels; it says when
// a range is settled (complete) and when its work was lost (return).
//
//   request → granted → take → step_ended → taken, kept … → settle → COMPLETE
//
// The work of a step lies in every fragment. A step's rows are complete when each fragment's delta
// of that step was merged and what it was merged into is durable; they go back as soon as one
// fragment's share can reach the syncer no more. Pure; not thread-safe. Fragments count from 0.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "yeto/sync/client/protocol.h"
#include "yeto/wire/messages.h"

namespace yeto::sync::client {

// Positions first, first + stride, … (`count` of them) of the sample order of an epoch.
struct RowRange {
  std::uint64_t epoch = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;  // 0: nothing is left
  std::uint64_t stride = 1;
  bool operator==(const RowRange&) const = default;
};

class RowBook {
 public:
  explicit RowBook(std::size_t fragments) : fragments_(fragments) {}

  // ---- the trainer
  // Says that steps take about `count` rows of `rows` per epoch. True: a request is to be sent,
  // since fewer than that are here and none is on its way.
  bool want(std::uint64_t rows, std::uint64_t count);
  // The request on its way, for a new session; nothing if none is.
  std::optional<wire::Data> open_request() const;
  // At most `most` rows that were granted; nothing if none is here.
  std::optional<RowRange> take(std::uint64_t most);
  // The syncer said that nothing is left.
  bool exhausted() const { return exhausted_ && waiting_.empty(); }
  std::uint64_t rows() const { return rows_; }
  // The rows taken since the last call were trained in this step.
  void step_ended();
  // No more steps: what was not trained goes back.
  std::vector<wire::Data> give_up();

  // ---- the deltas
  // What of the fragment is not in a delta yet is in this one; `only_returned`: only what an
  // earlier delta has given back.
  void taken(std::uint32_t fragment, Ticket ticket, bool only_returned);
  // The delta did not arrive: its work is in the next one.
  void returned(std::uint32_t fragment, Ticket ticket);
  // The delta did not arrive and no other can carry its work.
  void lost(std::uint32_t fragment, Ticket ticket);
  // A broadcast was applied: what was given back can be carried no more; `all`: nor can what was
  // in no delta yet.
  void applied(std::uint32_t fragment, bool all);
  // The delta was merged in round `round`; 0: in a round that had begun before the next heartbeat.
  void kept(std::uint32_t fragment, Ticket ticket, std::uint64_t round);

  // ---- the syncer
  // A GRANT; after a resumed session also of what is here already. Gives what the syncer missed.
  std::vector<wire::Data> granted(const wire::Data& grant);
  // A heartbeat named this global step.
  void beat(std::uint64_t global_step);
  // What is due now that this global step is durable.
  std::vector<wire::Data> settle(std::uint64_t durable_step);
  // The syncer has given the leases to others.
  void forget();

 private:
  static constexpr Ticket kOpen = 0;
  static constexpr Ticket kKept = ~Ticket{0};
  static constexpr Ticket kLost = kKept - 1;
  static constexpr Ticket kReturned = kKept - 2;  // as kOpen, after a delta that did not arrive
  struct Step {
    std::vector<RowRange> rows;
    std::vector<Ticket> owner;  // per fragment: a ticket or one of the above
    std::uint64_t durable = 0;  // the global step that must be durable
    bool next_beat = false;     // …or the one of the next heartbeat
  };
  template <class Change>
  void change(std::uint32_t fragment, Ticket from, Change&& change);

  std::size_t fragments_;
  std::uint64_t rows_ = 0;  // positions of an epoch; 0: not said yet
  std::uint64_t asked_ = 0;
  bool exhausted_ = false;
  std::deque<RowRange> waiting_;
  std::vector<RowRange> handed_;
  std::deque<Step> steps_;
  std::uint64_t unsettled_ = 0;  // positions in steps_
  bool changed_ = false;         // since settle() looked last
  std::uint64_t looked_at_ = 0;  // the durable step of then
  std::vector<RowRange> done_;   // told to be complete; ascending, neighbours joined
};

// What of `range` is in none of `others`. All of stride 1.
std::vector<RowRange> without(const RowRange& range, const std::vector<RowRange>& others);
// Adds a range to an ascending list and joins neighbours.
void add_range(std::vector<RowRange>& ranges, const RowRange& range);

}  // namespace yeto::sync::client
