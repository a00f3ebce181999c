// SPDX-License-Identifier: Apache-2.0
// sync/sim as yeto._core.simulate: the real core, jobs and clients of one run in this process and
// in virtual time, around optimizer steps that Python makes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "yeto/base/format.h"
#include "yeto/codec/codec.h"
#include "yeto/sync/sim/world.h"

namespace nb = nanobind;

namespace yeto::python {
namespace {

using sync::sim::IslandShape;
using sync::sim::IslandValues;
using sync::sim::Outcome;
using sync::sim::Plan;
using sync::sim::World;

using Values = std::vector<float>;
using Array = nb::ndarray<nb::numpy, float, nb::ndim<1>, nb::c_contig>;
using OnStep = std::function<void(std::uint32_t, std::uint64_t, nb::list)>;

template <class T>
T value_or_raise(Result<T> result) {
  if (!result) {
    throw nb::value_error(result.error().text().c_str());
  }
  return std::move(*result);
}

Plan plan_of(const nb::dict& settings, std::vector<TensorSpec> tensors) {
  const auto text = [&](const char* key) { return nb::cast<std::string>(settings[key]); };
  const auto number = [&](const char* key) { return nb::cast<std::uint64_t>(settings[key]); };
  Plan plan;
  plan.seed = number("seed");
  LayoutOptions layout;
  layout.fragments = static_cast<std::uint32_t>(number("fragments"));
  layout.matrix_merge = text("matrix_merge") == "avg" ? MergeMode::kAvg : MergeMode::kRda;
  plan.layout = value_or_raise(make_layout(std::move(tensors), layout));
  plan.outer = merge::OuterRule::of(value_or_raise(merge::outer_kind_from_name(text("outer"))));
  plan.correction = value_or_raise(merge::correction_from_name(text("correction")));
  const auto islands = static_cast<std::uint32_t>(number("islands"));
  plan.core.learners = islands;
  plan.core.quorum = static_cast<std::uint32_t>(number("quorum"));
  plan.core.sync_interval_steps = static_cast<std::uint32_t>(number("sync_interval_steps"));
  plan.core.merge_alpha = nb::cast<double>(settings["merge_alpha"]);
  plan.core.delta_blended = text("delta_reference") == "blended";
  plan.core.push_codec = value_or_raise(codec::codec_from_name(text("codec")));
  plan.core.broadcast_codec = plan.core.push_codec;
  plan.core.durability = sync::Durability::kInterval;
  const bool uneven = nb::cast<bool>(settings["uneven_links"]);
  if (uneven) {
    plan.core.grace_cap = 0;
  }
  for (std::uint32_t i = 0; i < islands; ++i) {
    IslandShape island;
    island.seat = i;
    island.tokens = number("tokens");
    island.limit_steps = number("limit_steps");
    island.link.jitter = uneven ? island.step : 0;
    plan.islands.push_back(island);
  }
  return plan;
}

// Tensors of the islands as Python sees them, and the way between them and the fragments.
class Trainer final : public sync::sim::Observer {
 public:
  Trainer(const Layout& layout, std::uint32_t islands, OnStep on_step)
      : layout_(layout), on_step_(std::move(on_step)), tensors_(islands) {
    for (std::vector<Values>& island : tensors_) {
      for (const TensorSpec& tensor : layout_.tensors) {
        island.emplace_back(tensor.values());
      }
      nb::list arrays;
      for (Values& values : island) {
        // The memory is the trainer's, which outlives the call that sees it.
        arrays.append(nb::cast(Array(values.data(), {values.size()}), nb::rv_policy::reference));
      }
      views_.append(arrays);
    }
  }
  void watch(World& world) { world_ = &world; }

  bool trains() const override { return true; }
  void on_step(std::uint32_t island, std::uint64_t step, IslandValues& values) override {
    if (step == next_step_) {  // the first island that comes to this step
      ++next_step_;
      for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
        gather(world_->island(i).values()->local(), tensors_[i]);
      }
    }
    on_step_(island, step, views_);
    scatter(tensors_[island], values.local());
  }
  // Tensors of the island's values now.
  const std::vector<Values>& read(std::uint32_t island) {
    gather(world_->island(island).values()->local(), tensors_[island]);
    return tensors_[island];
  }

  std::vector<Values> fragments_of(const std::vector<Array>& initial) const {
    std::vector<Values> out;
    for (const Fragment& fragment : layout_.fragments) {
      Values& values = out.emplace_back(fragment.values);
      for (const Piece& piece : fragment.pieces) {
        std::copy_n(initial[piece.tensor].data() + piece.first, piece.count,
                    values.data() + piece.offset);
      }
    }
    return out;
  }

 private:
  using Spans = std::vector<std::span<float>>;
  void gather(const Spans& fragments, std::vector<Values>& tensors) const {
    for (std::size_t f = 0; f < fragments.size(); ++f) {
      for (const Piece& piece : layout_.fragments[f].pieces) {
        std::copy_n(fragments[f].data() + piece.offset, piece.count,
                    tensors[piece.tensor].data() + piece.first);
      }
    }
  }
  void scatter(const std::vector<Values>& tensors, const Spans& fragments) const {
    for (std::size_t f = 0; f < fragments.size(); ++f) {
      for (const Piece& piece : layout_.fragments[f].pieces) {
        std::copy_n(tensors[piece.tensor].data() + piece.first, piece.count,
                    fragments[f].data() + piece.offset);
      }
    }
  }

  const Layout layout_;
  const OnStep on_step_;
  World* world_ = nullptr;
  std::uint64_t next_step_ = 0;
  std::vector<std::vector<Values>> tensors_;
  nb::list views_;
};

void check_initial(const Layout& layout, const std::vector<Array>& initial) {
  if (initial.size() != layout.tensors.size()) {
    throw nb::value_error("not one array of initial values for each tensor");
  }
  for (std::size_t i = 0; i < initial.size(); ++i) {
    if (initial[i].size() != layout.tensors[i].values()) {
      throw nb::value_error(strf("initial values of {}: {} where the shape has {}",
                                 layout.tensors[i].name, initial[i].size(),
                                 layout.tensors[i].values())
                                .c_str());
    }
  }
}

nb::dict simulate(const nb::dict& settings,
                  const std::vector<std::pair<std::string, std::vector<std::uint64_t>>>& tensors,
                  const std::vector<Array>& initial, OnStep on_step) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, shape] : tensors) {
    TensorSpec spec;
    spec.name = name;
    spec.shape = shape;
    specs.push_back(std::move(spec));
  }
  Plan plan = plan_of(settings, std::move(specs));
  check_initial(plan.layout, initial);
  Trainer trainer(plan.layout, plan.core.learners, std::move(on_step));
  plan.initial = trainer.fragments_of(initial);
  World world(plan, {}, &trainer);
  trainer.watch(world);
  const Outcome outcome = world.run();
  if (!outcome.good() || !outcome.ended || outcome.exit_code != 0) {
    throw nb::value_error(
        strf("the run did not end well: {} {}", outcome.violation, outcome.end_reason).c_str());
  }
  nb::list values;
  for (const Values& tensor : trainer.read(0)) {
    auto* copy = new Values(tensor);
    const nb::capsule owner(copy, [](void* it) noexcept { delete static_cast<Values*>(it); });
    values.append(Array(copy->data(), {copy->size()}, owner));
  }
  const auto& totals = outcome.totals;
  nb::dict report;
  report["values"] = values;
  report["commits"] = totals.commits;
  report["pushes_merged"] = totals.responded + totals.carried;
  report["pushes_carried"] = totals.carried;
  report["pushes_dropped"] = totals.dropped;
  report["bytes_in"] = totals.bytes_in;
  report["bytes_out"] = totals.bytes_out;
  return report;
}

}  // namespace

void bind_sim(nb::module_& module) {
  module.def("simulate", &simulate, nb::kw_only(), nb::arg("settings"), nb::arg("tensors"),
             nb::arg("initial"), nb::arg("on_step"));
}

}  // namespace yeto::python
