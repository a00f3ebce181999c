// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/boundary/row_source.h"

#include <algorithm>

#include "yeto/base/format.h"

namespace yeto::sync {

Result<StaticSplit> StaticSplit::make(std::uint64_t rows, std::uint32_t seat, std::uint32_t seats,
                                      std::uint64_t epochs, std::uint64_t done) {
  if (rows == 0 || seat >= seats) {
    return fail(
        ErrorCode::kRange,
        strf("seat {} of {} in a split of {} rows: there must be a row, and a seat is below "
             "the number of seats",
             seat, seats, rows));
  }
  return StaticSplit(rows, seat, seats, epochs, done);
}

Result<RowRange> StaticSplit::next(std::uint64_t most) {
  if (most == 0) {
    return fail(ErrorCode::kRange, "0 rows were asked for");
  }
  const std::uint64_t epoch = share_ == 0 ? 0 : done_ / share_;
  if (share_ == 0 || (epochs_ != 0 && epoch >= epochs_)) {
    return RowRange{};
  }
  const std::uint64_t at = done_ % share_;
  const RowRange range{epoch, seat_ + at * seats_, std::min(most, share_ - at), seats_};
  done_ += range.count;
  return range;
}

}  // namespace yeto::sync
