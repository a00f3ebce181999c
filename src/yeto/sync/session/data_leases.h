// SPDX-License-Identifier: Apache-2.0
// DataLeases: who trains on which part of the sample order. A learner asks for positions, trains on
// them and tells when they are settled (their delta is merged and durable); what a lost learner had
// not settled is given out again, before anything new.
// Not thread-safe; owned by sync/core. No clock: a data lease has no time of its own, it ends with
// the process that holds it.
//
// Positions are counted per epoch, 0 … rows−1; ranges never cross an epoch. An epoch begins when
// all positions of the one before were given out, not when they were settled.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace yeto::sync {

// Positions [first, first + count) of the sample order of an epoch.
struct DataRange {
  std::uint64_t epoch = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  bool operator==(const DataRange&) const = default;
};
struct SeatRange {
  std::uint32_t seat = 0;
  DataRange range;
  bool operator==(const SeatRange&) const = default;
};
// What of the sample order was given to whom, and what is settled; stands in the manifest.
struct DataState {
  std::uint64_t rows = 0;           // positions per epoch; 0: no learner has said yet
  DataRange next;                   // the first position never given out; its count is 0
  std::vector<DataRange> returned;  // to be given out again, ascending
  std::vector<SeatRange> out;       // given out, not settled, in the order of the grants
  std::vector<DataRange> settled;   // ascending, neighbours joined
  std::uint64_t repeated = 0;       // positions that were given out more than once
  bool operator==(const DataState&) const = default;
};

class DataLeases {
 public:
  // Ranges that one seat may hold unsettled; a request beyond it is refused.
  static constexpr std::size_t kMaxOpenRanges = 4096;
  // Positions per epoch at most, so that sums of positions never overflow.
  static constexpr std::uint64_t kMaxRows = std::uint64_t{1} << 48;

  // `epochs` 0: without end.
  explicit DataLeases(std::uint64_t epochs = 0) : epochs_(epochs) {}
  // Of an earlier life of the syncer. Its processes may have died with it: all that was out is
  // given out again, unless it is settled before.
  void restore(DataState state);
  const DataState& state() const { return state_; }

  // Why a request cannot be served, in words; empty if it can.
  std::string objection(std::uint32_t seat, std::uint64_t count, std::uint64_t rows) const;
  // One range of at most `count` positions; count 0: nothing is left. Call objection() first.
  DataRange grant(std::uint32_t seat, std::uint64_t count, std::uint64_t rows);
  // Settles what of `range` the seat holds, or what waits to be given out again (a process that was
  // thought lost finished it). Returns what is settled now and was not before.
  std::vector<DataRange> complete(std::uint32_t seat, const DataRange& range);
  // The seat will not train on what it holds of `range`. Returns the parts that go back.
  std::vector<DataRange> give_back(std::uint32_t seat, const DataRange& range);
  // The seat's process is gone. Returns the ranges that go back.
  std::vector<DataRange> lose(std::uint32_t seat);
  // What the seat holds, in the order of the grants.
  std::vector<DataRange> held_by(std::uint32_t seat) const;

 private:
  std::optional<DataRange> take_returned(std::uint64_t count);
  std::optional<DataRange> take_new(std::uint64_t count);
  std::vector<DataRange> take_out(std::uint32_t seat, const DataRange& range);

  const std::uint64_t epochs_;
  DataState state_;
  bool restored_ = false;
};

}  // namespace yeto::sync
