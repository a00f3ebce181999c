// SPDX-License-Identifier: Apache-2.0
// The values of one island's fragments beside the tensors: anchor θ̂ in the anchor dtype, the
// reference that deltas are taken against, and P, the snapshot of the last delta. Carries out the
// value work of the client, in the memory of the tensors, tile by tile.
//
// Only the trainer's thread uses it. Snapshots and references are immutable once made, so a worker
// may read them while training goes on.
#pragma once

#include <cstdint>
#include <vector>

#include "yeto/sync/boundary/flat_values.h"
#include "yeto/sync/boundary/tensors.h"
#include "yeto/sync/client/protocol.h"
#include "yeto/sync/jobs/memory_pool.h"

namespace yeto::sync::client {

// What a delta is made of: reference − snapshot.
struct DeltaSource {
  FlatValues reference;
  FlatValues snapshot;  // f32
};

class FragmentValues {
 public:
  // Snapshots are taken from `pool`.
  FragmentValues(std::vector<TensorView> views, const Layout& layout, MemoryPool pool);

  // P ← local, or P stays as it is (`again`). Only while the fragment has an anchor, and a P.
  DeltaSource take_push(std::uint32_t fragment, bool again = false);
  FlatValues snapshot(std::uint32_t fragment) const;
  // Anchor ← theta; local values by apply.mode. P is forgotten.
  void apply(const Apply& apply, const FlatValues& theta);
  void overwrite(std::uint32_t fragment, const FlatValues& theta);

  const Tensors& tensors() const { return tensors_; }

 private:
  struct State {
    FlatValues reference;  // the anchor, or f32 values between it and what was kept (blended)
    FlatValues pushed;     // P; none after an application
  };

  Tensors tensors_;
  MemoryPool pool_;
  std::vector<State> states_;
};

}  // namespace yeto::sync::client
