// SPDX-License-Identifier: Apache-2.0
// RowSource: where a sampler gets the next rows from. Two ways behind one call: a static split that
// needs nobody, and data leases, by which the syncer gives out ranges of the sample order, so that
// the rows of a lost learner are trained by others.
//
// A position counts rows in the order of an epoch; which row stands there is the sampler's business
// (a seeded permutation). For one thread, the trainer's.
#pragma once

#include <cstdint>

#include "yeto/base/result.h"
#include "yeto/sync/boundary/boundary.h"

namespace yeto::sync {

class RowSource {
 public:
  virtual ~RowSource() = default;
  // At most `most` positions of one epoch for the step that comes next; fewer where a range or an
  // epoch ends. `count` 0: nothing is left. kRange if `most` is 0.
  virtual Result<RowRange> next(std::uint64_t most) = 0;
};

// Positions that leave `seat` when divided by `seats`. Never waits.
class StaticSplit final : public RowSource {
 public:
  // `rows` per epoch; `epochs` 0: without end; `done`: where to go on, in positions of this seat.
  // kRange for no rows, no seats, or a seat that is not below `seats`.
  static Result<StaticSplit> make(std::uint64_t rows, std::uint32_t seat, std::uint32_t seats,
                                  std::uint64_t epochs, std::uint64_t done = 0);
  Result<RowRange> next(std::uint64_t most) override;

 private:
  StaticSplit(std::uint64_t rows, std::uint32_t seat, std::uint32_t seats, std::uint64_t epochs,
              std::uint64_t done)
      : seat_(seat),
        seats_(seats),
        share_(seat < rows ? (rows - seat + seats - 1) / seats : 0),
        epochs_(epochs),
        done_(done) {}
  std::uint64_t seat_;
  std::uint64_t seats_;
  std::uint64_t share_;  // positions of this seat in an epoch; 0: fewer rows than seats
  std::uint64_t epochs_;
  std::uint64_t done_;
};

// Ranges that the syncer leases to this learner (Boundary::request_rows).
class LeasedRows final : public RowSource {
 public:
  // `boundary` must outlive the object.
  LeasedRows(Boundary* boundary, std::uint64_t rows) : boundary_(boundary), rows_(rows) {}
  Result<RowRange> next(std::uint64_t most) override {
    return boundary_->request_rows(rows_, most);
  }

 private:
  Boundary* boundary_;
  std::uint64_t rows_;
};

}  // namespace yeto::sync
