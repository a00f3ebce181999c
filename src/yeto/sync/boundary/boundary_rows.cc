// SPDX-License-Identifier: Apache-2.0
// Data leases: the trainer asks for the rows of its next step.
#include "yeto/base/format.h"
#include "yeto/sync/boundary/boundary_impl.h"

namespace yeto::sync {

Result<std::optional<RowRange>> Boundary::Impl::rows_here(std::uint64_t rows, std::uint64_t count) {
  client::Actions actions;
  std::optional<RowRange> here;
  {
    MutexLock lock(mutex_);
    seen_ = changes_;
    if (!client_.admitted()) {
      return fail(ErrorCode::kUsage, "rows were asked for before wait_ready()");
    }
    if (client_.settings().data_leases == 0) {
      return fail(ErrorCode::kConflict, "the syncer of this run leases no rows", options_.syncer,
                  "start the syncer with --data-leases, or split the rows by seat");
    }
    if (client_.rows_of_epoch() != 0 && client_.rows_of_epoch() != rows) {
      return fail(ErrorCode::kUsage, strf("{} rows per epoch were named before, now {}",
                                          client_.rows_of_epoch(), rows));
    }
    if (client_.draining()) {
      return std::optional<RowRange>(RowRange{});
    }
    here = client_.take_rows(count);
    actions = client_.want_rows(rows, count);
    if (!here && client_.rows_exhausted()) {
      here = RowRange{};
    }
  }
  post(std::move(actions));
  return here;
}

Result<RowRange> Boundary::Impl::request_rows(std::uint64_t rows, std::uint64_t count) {
  if (rows == 0 || count == 0) {
    return fail(ErrorCode::kRange, strf("{} of {} rows were asked for", count, rows));
  }
  const Wait wait{0, "waiting for rows", false};
  for (bool waited = false;; waited = true) {
    YETO_TRY(usable());
    if (waited) {
      YETO_TRY(turn(&waited_));
    }
    // After the turn, so that a grant that comes meanwhile ends the rest.
    YETO_ASSIGN(const std::optional<RowRange> here, rows_here(rows, count));
    if (here) {
      if (waited) {
        // The step begins now. All the while pulls were answered, so the phase stayed "train".
        MutexLock lock(mutex_);
        client_.resume_training(monotonic_now());
      }
      return *here;
    }
    YETO_TRY(rest(wait));
  }
}

}  // namespace yeto::sync
