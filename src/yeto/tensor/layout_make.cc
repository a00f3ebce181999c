// SPDX-License-Identifier: Apache-2.0
// How tensors are dealt over fragments.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <map>
#include <optional>

#include "yeto/base/format.h"
#include "yeto/tensor/layout.h"

namespace yeto {
namespace {

using TensorIndex = std::uint32_t;

constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

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

// Values [first, first + count) of a tensor, dealt as one.
struct Slice {
  TensorIndex tensor = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};
using Groups = std::vector<std::vector<Slice>>;  // one per fragment

Slice whole(const std::vector<TensorSpec>& tensors, TensorIndex tensor) {
  return {tensor, 0, tensors[tensor].values()};
}

// Bins that slices are put into; each becomes a fragment.
class Bins {
 public:
  Bins(const std::vector<TensorSpec>& tensors, std::size_t count)
      : tensors_(tensors), members_(count), values_(count) {}

  void put(std::size_t bin, const Slice& slice) {
    members_[bin].push_back(slice);
    values_[bin] += slice.count;
  }
  std::uint64_t values(std::size_t bin) const { return values_[bin]; }
  // Largest first into the emptiest bin; ties by name and place, then the lowest bin.
  void pack(std::vector<Slice> slices) {
    std::sort(slices.begin(), slices.end(), [&](const Slice& a, const Slice& b) {
      return a.count != b.count     ? a.count > b.count
             : a.tensor != b.tensor ? tensors_[a.tensor].name < tensors_[b.tensor].name
                                    : a.first < b.first;
    });
    for (const Slice& slice : slices) {
      const auto emptiest = std::min_element(values_.begin(), values_.end());
      put(static_cast<std::size_t>(emptiest - values_.begin()), slice);
    }
  }
  Groups take() { return std::move(members_); }

 private:
  const std::vector<TensorSpec>& tensors_;
  Groups members_;
  std::vector<std::uint64_t> values_;
};

// Distinct layer numbers go round the bins; what has none, or would fill its bin beyond `bin_max`,
// is packed after them.
Groups deal_strided(const std::vector<TensorSpec>& tensors, const std::vector<Slice>& slices,
                    std::size_t bin_count, std::uint64_t bin_max) {
  std::map<std::uint64_t, std::vector<Slice>> layers;
  std::vector<Slice> rest;
  for (const Slice& slice : slices) {
    if (const auto layer = layer_number(tensors[slice.tensor].name)) {
      layers[*layer].push_back(slice);
    } else {
      rest.push_back(slice);
    }
  }
  // So many that every bin gets a layer or a tensor, where layers are not cut.
  if (bin_max == kNoLimit) {
    bin_count = std::min(bin_count, layers.size() + rest.size());
  }
  Bins bins(tensors, bin_count);
  std::size_t turn = 0;
  for (const auto& [layer, members] : layers) {
    const std::size_t bin = turn++ % bin_count;
    for (const Slice& slice : members) {
      if (slice.count <= bin_max - std::min(bin_max, bins.values(bin))) {
        bins.put(bin, slice);
      } else {
        rest.push_back(slice);
      }
    }
  }
  bins.pack(std::move(rest));
  return bins.take();
}

Groups deal(const std::vector<TensorSpec>& tensors, std::vector<Slice> slices,
            FragmentPattern pattern, std::size_t bins_max, std::uint64_t bin_max) {
  if (slices.empty()) {
    return {};
  }
  if (pattern == FragmentPattern::kStrided) {
    return deal_strided(tensors, slices, bins_max, bin_max);
  }
  Bins bins(tensors, std::min(bins_max, slices.size()));
  bins.pack(std::move(slices));
  return bins.take();
}

// Slices of one fragment in order; neighbours become one piece.
Fragment make_fragment(std::vector<Slice> slices) {
  std::sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) {
    return std::pair(a.tensor, a.first) < std::pair(b.tensor, b.first);
  });
  Fragment fragment;
  for (const Slice& slice : slices) {
    Piece* last = fragment.pieces.empty() ? nullptr : &fragment.pieces.back();
    if (last != nullptr && last->tensor == slice.tensor &&
        last->first + last->count == slice.first) {
      last->count += slice.count;
    } else {
      fragment.pieces.push_back({slice.tensor, slice.first, slice.count, fragment.values});
    }
    fragment.values += slice.count;
  }
  return fragment;
}

// The trainable tensors as they are dealt: embedding-like ones alone, the others together.
struct Kinds {
  std::vector<TensorIndex> alone;
  std::vector<TensorIndex> shared;
};

std::uint64_t values_of(const std::vector<TensorSpec>& tensors,
                        const std::vector<TensorIndex>& indices) {
  std::uint64_t sum = 0;
  for (const TensorIndex tensor : indices) {
    sum += tensors[tensor].values();
  }
  return sum;
}

// Whole tensors only. Embedding-like tensors count among the fragments asked for; the rest shares
// what is left, at least one.
Groups deal_whole(const std::vector<TensorSpec>& tensors, const Kinds& kinds,
                  const LayoutOptions& options) {
  const std::size_t alone = kinds.alone.size();
  const std::size_t bins_max = options.fragments > alone ? options.fragments - alone : 1;
  std::vector<Slice> shared;
  for (const TensorIndex tensor : kinds.shared) {
    shared.push_back(whole(tensors, tensor));
  }
  Groups groups = deal(tensors, std::move(shared), options.pattern, bins_max, kNoLimit);
  for (const TensorIndex tensor : kinds.alone) {
    groups.push_back({whole(tensors, tensor)});
  }
  return groups;
}

// `parts` slices of nearly equal size.
void cut(const Slice& slice, std::uint64_t parts, std::vector<Slice>& out) {
  std::uint64_t first = slice.first;
  for (std::uint64_t i = 0; i < parts; ++i) {
    const std::uint64_t count = slice.count / parts + (i < slice.count % parts ? 1 : 0);
    out.push_back({slice.tensor, first, count});
    first += count;
  }
}

// Tensors of one kind over `bins` bins of at most `bin_max` values. A bin takes its last slice when
// it holds no more than the mean of the bins, so slices are cut to what is then left of it.
Groups deal_sliced(const std::vector<TensorSpec>& tensors, const std::vector<TensorIndex>& indices,
                   FragmentPattern pattern, std::uint64_t bins, std::uint64_t bin_max) {
  const std::uint64_t mean = (values_of(tensors, indices) - 1) / bins + 1;
  const std::uint64_t slice_max = bin_max > mean ? bin_max - mean : 1;
  std::vector<Slice> slices;
  for (const TensorIndex tensor : indices) {
    const Slice all = whole(tensors, tensor);
    cut(all, (all.count - 1) / slice_max + 1, slices);
  }
  return deal(tensors, std::move(slices), pattern, bins, bin_max);
}

// At most `fragments` fragments, none larger than twice their mean: each kind of tensors gets its
// share of them, one by one, the next always to whom has more values per fragment (so none has more
// than 1.5 times the mean). `fragments` is at least 3; two never need a cut.
Groups deal_sliced(const std::vector<TensorSpec>& tensors, const Kinds& kinds,
                   FragmentPattern pattern, std::uint64_t fragments) {
  const std::uint64_t alone_values = values_of(tensors, kinds.alone);
  const std::uint64_t shared_values = values_of(tensors, kinds.shared);
  const std::uint64_t fragment_max = 2 * (alone_values + shared_values) / fragments;
  std::uint64_t alone = alone_values > 0 ? 1 : 0;
  std::uint64_t shared = shared_values > 0 ? 1 : 0;
  while (alone + shared < fragments) {
    const bool to_shared =
        alone == 0 || (shared > 0 && shared_values / shared >= alone_values / alone);
    (to_shared ? shared : alone) += 1;
  }
  Groups groups;
  const auto append = [&groups](Groups more) {
    for (std::vector<Slice>& group : more) {
      if (!group.empty()) {
        groups.push_back(std::move(group));
      }
    }
  };
  if (shared > 0) {
    append(deal_sliced(tensors, kinds.shared, pattern, shared, fragment_max));
  }
  if (alone > 0) {
    append(deal_sliced(tensors, kinds.alone, FragmentPattern::kBinpack, alone, fragment_max));
  }
  return groups;
}

bool within_twice_the_mean(const Groups& groups) {
  std::uint64_t total = 0;
  std::uint64_t largest = 0;
  for (const std::vector<Slice>& group : groups) {
    std::uint64_t values = 0;
    for (const Slice& slice : group) {
      values += slice.count;
    }
    total += values;
    largest = std::max(largest, values);
  }
  return groups.empty() || largest <= 2 * total / groups.size();
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
  Kinds kinds;
  for (TensorIndex i = 0; i < tensors.size(); ++i) {
    const bool embedding = is_embedding_like(tensors[i].name);
    tensors[i].merge = embedding ? MergeMode::kAvg : options.matrix_merge;
    (embedding ? kinds.alone : kinds.shared).push_back(i);
  }
  Groups groups = deal_whole(tensors, kinds, options);
  // Only where whole tensors do not fit are some cut.
  if (!within_twice_the_mean(groups) && groups.size() <= kMaxFragments) {
    groups = deal_sliced(tensors, kinds, options.pattern, groups.size());
  }
  if (groups.size() > kMaxFragments) {
    return fail(ErrorCode::kModel,
                strf("{} embedding-like tensors need a fragment each; the limit is {}",
                     kinds.alone.size(), kMaxFragments),
                "layout", "train fewer of them");
  }
  Layout layout;
  for (auto& group : groups) {
    layout.fragments.push_back(make_fragment(std::move(group)));
  }
  layout.tensors = std::move(tensors);
  // What a syncer would refuse is refused here, before anything is sent.
  return Layout::decode(layout.encode());
}

}  // namespace yeto
