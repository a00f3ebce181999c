// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/boundary/tensors.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "yeto/base/format.h"

namespace yeto::sync {
namespace client {

Tensors::Tensors(std::vector<TensorView> views, const Layout& layout)
    : views_(std::move(views)), layout_(layout) {
  std::vector<std::uint32_t> fragments_of(views_.size(), 0);
  for (const Fragment& fragment : layout_.fragments) {
    std::set<std::uint32_t> tensors;
    for (const Piece& piece : fragment.pieces) {
      tensors.insert(piece.tensor);
    }
    for (const std::uint32_t tensor : tensors) {
      ++fragments_of[tensor];
    }
    tensors_of_.emplace_back(tensors.begin(), tensors.end());
  }
  for (const std::vector<std::uint32_t>& tensors : tensors_of_) {
    std::vector<std::uint32_t> shared;
    std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(shared),
                 [&](std::uint32_t tensor) { return fragments_of[tensor] > 1; });
    shared_of_.push_back(std::move(shared));
  }
}

void Tensors::gather(std::uint32_t fragment, std::span<float> out) const {
  each_tile(fragment, [&](std::span<const float> local, std::uint64_t first) {
    std::copy(local.begin(), local.end(), out.begin() + static_cast<std::ptrdiff_t>(first));
  });
}

}  // namespace client

namespace {

Status check_overlap(const std::vector<TensorView>& views) {
  std::vector<const TensorView*> order;
  for (const TensorView& view : views) {
    if (!view.values.empty()) {
      order.push_back(&view);
    }
  }
  std::sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) {
    return std::less<>()(a->values.data(), b->values.data());
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const std::span<float> before = order[i - 1]->values;
    if (std::less<>()(order[i]->values.data(), before.data() + before.size())) {
      return fail(ErrorCode::kModel,
                  strf("tensors {} and {} share memory", order[i - 1]->name, order[i]->name), {},
                  "give tied weights once, under one name");
    }
  }
  return Unit{};
}

}  // namespace

Status check_tensors(const std::vector<TensorView>& views) {
  if (views.empty()) {
    return fail(ErrorCode::kModel, "no trainable tensor", {}, "give at least one tensor");
  }
  std::set<std::string> names;
  for (const TensorView& view : views) {
    if (view.name.empty()) {
      return fail(ErrorCode::kModel, "a tensor without a name");
    }
    if (!names.insert(view.name).second) {
      return fail(ErrorCode::kModel, strf("two tensors are named {}", view.name));
    }
    TensorSpec spec;
    spec.shape = view.shape;
    if (spec.values() != view.values.size()) {
      return fail(ErrorCode::kModel, strf("tensor {}: its shape has {} values, its memory {}",
                                          view.name, spec.values(), view.values.size()));
    }
  }
  return check_overlap(views);
}

}  // namespace yeto::sync
