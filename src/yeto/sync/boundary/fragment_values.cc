// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/boundary/fragment_values.h"

#include <algorithm>
#include <utility>

#include "yeto/base/result.h"
#include "yeto/sync/client/values.h"

namespace yeto::sync::client {

FragmentValues::FragmentValues(std::vector<TensorView> views, const Layout& layout, MemoryPool pool)
    : tensors_(std::move(views), layout),
      pool_(std::move(pool)),
      states_(layout.fragments.size()) {}

FlatValues FragmentValues::snapshot(std::uint32_t fragment) const {
  const auto memory = pool_.take(tensors_.values(fragment) * sizeof(float));
  tensors_.gather(fragment, as_f32(*memory));
  return {memory, DType::kF32};
}

DeltaSource FragmentValues::take_push(std::uint32_t fragment, bool again) {
  State& state = states_[fragment];
  YETO_CHECK(state.reference, "a delta needs an anchor");
  YETO_CHECK(!again || state.pushed, "the last delta once more needs P");
  if (!again) {
    state.pushed = snapshot(fragment);
  }
  return {state.reference, state.pushed};
}

void FragmentValues::overwrite(std::uint32_t fragment, const FlatValues& theta) {
  Tile scratch;
  tensors_.each_tile(fragment, [&](std::span<float> local, std::uint64_t first) {
    const std::span<const float> values = theta.tile(first, local.size(), scratch);
    std::copy(values.begin(), values.end(), local.begin());
  });
  states_[fragment] = State{theta, {}};
}

void FragmentValues::apply(const Apply& apply, const FlatValues& theta) {
  if (apply.mode == ApplyMode::kOverwrite) {
    overwrite(apply.fragment, theta);
    return;
  }
  State& state = states_[apply.fragment];
  const auto alpha = static_cast<float>(apply.alpha);
  const bool after_push = apply.mode == ApplyMode::kAfterPush;
  YETO_CHECK(!after_push || state.pushed, "an application after a push needs P");
  std::shared_ptr<Bytes> blended;
  if (apply.blended && alpha != 0.0F) {
    blended = pool_.take(theta.size() * sizeof(float));
  }
  Tile scratch;
  tensors_.each_tile(apply.fragment, [&](std::span<float> local, std::uint64_t first) {
    const std::span<const float> value = theta.tile(first, local.size(), scratch);
    const std::span<const float> pushed =
        after_push ? state.pushed.f32().subspan(first, local.size()) : std::span<const float>();
    if (blended) {
      blended_reference(value, after_push ? pushed : local, alpha,
                        as_f32(*blended).subspan(first, local.size()));
    }
    if (after_push) {
      apply_after_push(value, pushed, alpha, local);
    } else {
      apply_without_push(value, alpha, local);
    }
  });
  state = State{blended ? FlatValues(blended, DType::kF32) : theta, {}};
}

}  // namespace yeto::sync::client
