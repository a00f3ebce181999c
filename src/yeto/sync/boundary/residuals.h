// SPDX-License-Identifier: Apache-2.0
// Residuals: error feedback of q4 pushes. What a push loses by rounding is added to a later delta
// of its fragment, once the syncer has kept the push.
//
// The books are linear, so that several pushes may be under way at once: a delta takes the whole
// residual of its fragment with it (zero is left), and when the push is settled either its rounding
// error is added (kept) or the residual it took (not kept). Kept as bf16. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "yeto/base/thread.h"
#include "yeto/sync/boundary/flat_values.h"
#include "yeto/sync/client/protocol.h"
#include "yeto/sync/jobs/memory_pool.h"

namespace yeto::sync::client {

class Residuals {
 public:
  Residuals(std::size_t fragments, MemoryPool pool)
      : pool_(std::move(pool)), fragments_(fragments) {}

  // The push takes the fragment's residual with it: bf16, or nothing where it is zero.
  FlatValues lend(std::uint32_t fragment, Ticket ticket);
  // What the push lost by rounding; nothing happens if it has been settled.
  void rounded(Ticket ticket, FlatValues error, double norm);
  // Nothing happens for a ticket that lend() does not know or clear() has ended.
  void settle(Ticket ticket, bool kept);
  // The fragment is overwritten: its residual and what is under way for it are void.
  void clear(std::uint32_t fragment);
  // Of the newest rounding errors of all fragments together.
  double norm() const;

 private:
  struct Fragment {
    FlatValues residual;
    double square_norm = 0.0;  // of the newest rounding error
  };
  struct Lent {
    std::uint32_t fragment = 0;
    FlatValues taken;
    FlatValues error;
  };
  void add(FlatValues& to, const FlatValues& more) const;

  const MemoryPool pool_;
  mutable Mutex mutex_;
  std::vector<Fragment> fragments_ YETO_GUARDED_BY(mutex_);
  std::map<Ticket, Lent> lent_ YETO_GUARDED_BY(mutex_);
};

}  // namespace yeto::sync::client
