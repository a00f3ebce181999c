// SPDX-License-Identifier: Apache-2.0
// How tensors are dealt over fragments.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>

#include "yeto/base/format.h"
#include "yeto/tensor/layout.h"

namespace yeto {
namespace {

using TensorIndex = std::uint32_t;

// Calls `visit` with each dot-separated part of a tensor's name until it returns true.
template <class Visit>
bool any_part(std::string_view name, Visit&& visit) {
  while (true) {
    const std::size_t dot = name.find('.');
    if (visit(name.substr(0, dot))) {
      return true;
    }
    if (dot == std::string_view::npos) {
      return false;
    }
    name.remove_prefix(dot + 1);
  }
}

// The first part of a name that is a number: 12 of "model.layers.12.mlp.weight".
std::optional<std::uint64_t> layer_number(std::string_view name) {
  std::optional<std::uint64_t> layer;
  any_part(name, [&](std::string_view part) {
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (part.empty() || error != std::errc{} || end != part.data() + part.size()) {
      return false;
    }
    layer = value;
    return true;
  });
  return layer;
}

// Bins that tensors are put into; each becomes a fragment.
class Bins {
 public:
  Bins(const std::vector<TensorSpec>& tensors, std::size_t count)
      : tensors_(tensors), members_(count), values_(count) {}

  void put(std::size_t bin, TensorIndex tensor) {
    members_[bin].push_back(tensor);
    values_[bin] += tensors_[tensor].values();
  }
  // Largest first into the emptiest bin; ties by name, then the lowest bin.
  void pack(std::vector<TensorIndex> indices) {
    std::sort(indices.begin(), indices.end(), [&](TensorIndex a, TensorIndex b) {
      const std::uint64_t values_a = tensors_[a].values();
      const std::uint64_t values_b = tensors_[b].values();
      return values_a != values_b ? values_a > values_b : tensors_[a].name < tensors_[b].name;
    });
    for (const TensorIndex tensor : indices) {
      const auto emptiest = std::min_element(values_.begin(), values_.end());
      put(static_cast<std::size_t>(emptiest - values_.begin()), tensor);
    }
  }
  std::vector<std::vector<TensorIndex>> take() { return std::move(members_); }

 private:
  const std::vector<TensorSpec>& tensors_;
  std::vector<std::vector<TensorIndex>> members_;
  std::vector<std::uint64_t> values_;
};

std::vector<std::vector<TensorIndex>> deal_binpack(const std::vector<TensorSpec>& tensors,
                                                   std::vector<TensorIndex> indices,
                                                   std::size_t bins_max) {
  Bins bins(tensors, std::min(bins_max, indices.size()));
  bins.pack(std::move(indices));
  return bins.take();
}

std::vector<std::vector<TensorIndex>> deal_strided(const std::vector<TensorSpec>& tensors,
                                                   const std::vector<TensorIndex>& indices,
                                                   std::size_t bins_max) {
  std::map<std::uint64_t, std::vector<TensorIndex>> layers;
  std::vector<TensorIndex> without;
  for (const TensorIndex tensor : indices) {
    if (const auto layer = layer_number(tensors[tensor].name)) {
      layers[*layer].push_back(tensor);
    } else {
      without.push_back(tensor);
    }
  }
  // So many that every bin gets a layer or a tensor.
  const std::size_t bin_count = std::min(bins_max, layers.size() + without.size());
  Bins bins(tensors, bin_count);
  std::size_t turn = 0;
  for (const auto& [layer, members] : layers) {
    for (const TensorIndex tensor : members) {
      bins.put(turn % bin_count, tensor);
    }
    ++turn;
  }
  bins.pack(std::move(without));
  return bins.take();
}

Fragment make_fragment(const std::vector<TensorSpec>& tensors, std::vector<TensorIndex> members) {
  std::sort(members.begin(), members.end());
  Fragment fragment;
  for (const TensorIndex tensor : members) {
    const std::uint64_t values = tensors[tensor].values();
    fragment.pieces.push_back({tensor, 0, values, fragment.values});
    fragment.values += values;
  }
  return fragment;
}

Status check_options(const std::vector<TensorSpec>& tensors, const LayoutOptions& options) {
  if (tensors.empty()) {
    return fail(ErrorCode::kModel, "the model has no trainable tensor", "layout",
                "check the adapter's target modules");
  }
  for (const TensorSpec& tensor : tensors) {
    YETO_TRY(tensor.check());
  }
  if (options.fragments == 0 || options.fragments > kMaxFragments) {
    return fail(ErrorCode::kRange,
                strf("{} fragments: must be 1 to {}", options.fragments, kMaxFragments),
                "--fragments");
  }
  return Unit{};
}

}  // namespace

bool is_embedding_like(std::string_view tensor_name) {
  constexpr std::string_view kShared = "shared.weight";
  const bool shared = tensor_name.ends_with(kShared) &&
                      (tensor_name.size() == kShared.size() ||
                       tensor_name[tensor_name.size() - kShared.size() - 1] == '.');
  return shared || any_part(tensor_name, [](std::string_view part) {
           return part.find("embed") != std::string_view::npos || part == "wte" || part == "wpe" ||
                  part == "lm_head";
         });
}

Result<Layout> make_layout(std::vector<TensorSpec> tensors, const LayoutOptions& options) {
  YETO_TRY(check_options(tensors, options));
  std::vector<TensorIndex> alone;
  std::vector<TensorIndex> shared;
  for (TensorIndex i = 0; i < tensors.size(); ++i) {
    const bool embedding = is_embedding_like(tensors[i].name);
    tensors[i].merge = embedding ? MergeMode::kAvg : options.matrix_merge;
    (embedding ? alone : shared).push_back(i);
  }
  // Embedding-like tensors count among the fragments asked for; the rest shares what is left, at
  // least one.
  const std::size_t bins_max =
      options.fragments > alone.size() ? options.fragments - alone.size() : 1;
  std::vector<std::vector<TensorIndex>> groups;
  if (!shared.empty()) {
    groups = options.pattern == FragmentPattern::kBinpack
                 ? deal_binpack(tensors, std::move(shared), bins_max)
                 : deal_strided(tensors, shared, bins_max);
  }
  for (const TensorIndex tensor : alone) {
    groups.push_back({tensor});
  }
  if (groups.size() > kMaxFragments) {
    return fail(ErrorCode::kModel,
                strf("{} embedding-like tensors need a fragment each; the limit is {}",
                     alone.size(), kMaxFragments),
                "layout", "train fewer of them");
  }
  Layout layout;
  for (auto& group : groups) {
    layout.fragments.push_back(make_fragment(tensors, std::move(group)));
  }
  layout.tensors = std::move(tensors);
  // What a syncer would refuse is refused here, before anything is sent.
  return Layout::decode(layout.encode());
}

}  // namespace yeto
