// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/boundary/fragment_values.h"

#include <utility>

#include "yeto/base/result.h"
#include "yeto/sync/client/values.h"

namespace yeto::sync::client {

FragmentValues::FragmentValues(std::vector<TensorView> views, const Layout& layout)
    : tensors_(std::move(views), layout), states_(layout.fragments.size()) {}

Values FragmentValues::snapshot(std::uint32_t fragment) const {
  return std::make_shared<const std::vector<float>>(tensors_.gather(fragment));
}

DeltaSource FragmentValues::take_push(std::uint32_t fragment) {
  State& state = states_[fragment];
  YETO_CHECK(state.reference != nullptr, "a delta needs an anchor");
  state.pushed = snapshot(fragment);
  return DeltaSource{state.reference, state.pushed};
}

void FragmentValues::overwrite(std::uint32_t fragment, const Values& theta) {
  tensors_.scatter(fragment, *theta);
  states_[fragment] = State{theta, theta, nullptr};
}

void FragmentValues::apply(const Apply& apply, const Values& theta) {
  if (apply.mode == ApplyMode::kOverwrite) {
    overwrite(apply.fragment, theta);
    return;
  }
  State& state = states_[apply.fragment];
  const auto alpha = static_cast<float>(apply.alpha);
  std::vector<float> local = tensors_.gather(apply.fragment);
  const bool after_push = apply.mode == ApplyMode::kAfterPush;
  YETO_CHECK(!after_push || state.pushed != nullptr, "an application after a push needs P");
  Values reference = theta;
  if (apply.blended && alpha != 0.0F) {
    auto blended = std::make_shared<std::vector<float>>(theta->size());
    blended_reference(*theta, after_push ? *state.pushed : local, alpha, *blended);
    reference = std::move(blended);
  }
  if (after_push) {
    apply_after_push(*theta, *state.pushed, alpha, local);
  } else {
    apply_without_push(*theta, alpha, local);
  }
  tensors_.scatter(apply.fragment, local);
  state = State{theta, std::move(reference), nullptr};
}

}  // namespace yeto::sync::client
