// SPDX-License-Identifier: Apache-2.0
// The values of one island's fragments beside the tensors: anchor θ̂, the reference that deltas are
// taken against, and P, the snapshot of the last delta. Carries out the value work of the client.
//
// Only the trainer's thread uses it. Snapshots and references are immutable once made, so a worker
// may read them while training goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "yeto/sync/boundary/tensors.h"
#include "yeto/sync/client/protocol.h"

namespace yeto::sync::client {

using Values = std::shared_ptr<const std::vector<float>>;

// What a delta is made of: reference − snapshot.
struct DeltaSource {
  Values reference;
  Values snapshot;
};

class FragmentValues {
 public:
  FragmentValues(std::vector<TensorView> views, const Layout& layout);

  // P ← local. Only while the fragment has an anchor.
  DeltaSource take_push(std::uint32_t fragment);
  Values snapshot(std::uint32_t fragment) const;
  // Anchor ← theta; local values by apply.mode. P is forgotten.
  void apply(const Apply& apply, const Values& theta);
  void overwrite(std::uint32_t fragment, const Values& theta);

  const Tensors& tensors() const { return tensors_; }

 private:
  struct State {
    Values anchor;
    Values reference;
    Values pushed;  // P; none after an application
  };

  Tensors tensors_;
  std::vector<State> states_;
};

}  // namespace yeto::sync::client
