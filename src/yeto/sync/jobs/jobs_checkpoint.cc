// SPDX-License-Identifier: Apache-2.0
// Snapshots of the values, and what a restart takes from a checkpoint.
#include <algorithm>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/codec/codec.h"
#include "yeto/sync/jobs/jobs.h"

namespace yeto::sync {

Status Jobs::check_checkpoint(const CoreState& state) const {
  if (!options_.checkpoint) {
    return fail(ErrorCode::kInternal, "a checkpoint without a place for it", "sync/jobs");
  }
  YETO_TRY(check_all_loaded(state.versions.size()));
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].version != state.versions[i]) {
      return fail(ErrorCode::kInternal,
                  strf("a checkpoint of version {} of values at version {}", state.versions[i],
                       states_[i].version),
                  strf("fragment {}", i));
    }
  }
  return Unit{};
}

Result<Snapshot> Jobs::snapshot(const CoreState& state) const {
  YETO_TRY(check_checkpoint(state));
  Snapshot out;
  out.layout = layout_;
  out.manifest.run_id = options_.run_id;
  out.manifest.state = state;
  out.manifest.push_codec = push_codec_;
  out.manifest.broadcast_codec = codec_;
  out.manifest.outer = options_.outer;
  out.manifest.correction = options_.correction;
  out.manifest.weights = options_.weights;
  out.manifest.fingerprint = layout_->fingerprint();
  out.manifest.settings = options_.settings;
  for (const State& fragment : states_) {
    out.fragments.push_back(
        {fragment.version, fragment.values, fragment.momentum, fragment.shown, fragment.commit});
  }
  return out;
}

Status Jobs::write(Snapshot snapshot) { return writer_.write(std::move(snapshot)); }

Status Jobs::checkpoint(const CoreState& state) {
  YETO_ASSIGN(Snapshot snapshot, this->snapshot(state));
  return write(std::move(snapshot));
}

void Jobs::copy_checkpoints(CheckpointCopy::Options options) {
  copy_ = std::make_unique<CheckpointCopy>(std::move(options));
  writer_.set_copy(copy_.get());
}

std::optional<CopyStatus> Jobs::copy_status() const {
  return copy_ == nullptr ? std::nullopt : std::optional(copy_->status());
}

bool Jobs::finish_copy(Nanos limit) { return copy_ == nullptr || copy_->finish(limit); }

// ---- restore
// --------------------------------------------------------------------------------------------------

Status Jobs::check_restored(const checkpoint::Manifest& manifest) const {
  const auto refuse = [&](std::string what, std::string hint) {
    return fail(ErrorCode::kConflict, std::move(what), options_.checkpoint->place(),
                std::move(hint));
  };
  if (manifest.run_id != options_.run_id) {
    return refuse(strf("the checkpoint is of run {}, not {}", manifest.run_id, options_.run_id),
                  "give --checkpoint the folder of this run");
  }
  if (options_.broadcast_codec && *options_.broadcast_codec != manifest.broadcast_codec) {
    return refuse(strf("the checkpoint was made with the broadcast codec {}, not {}",
                       codec::codec_name(manifest.broadcast_codec),
                       codec::codec_name(*options_.broadcast_codec)),
                  "leave --wire-dtype and --bcast-dtype as they were");
  }
  if (options_.push_codec && *options_.push_codec != manifest.push_codec) {
    return refuse(
        strf("the checkpoint was made with the push codec {}, not {}",
             codec::codec_name(manifest.push_codec), codec::codec_name(*options_.push_codec)),
        "leave --wire-dtype and --push-dtype as they were");
  }
  if (manifest.outer.kind != options_.outer.kind) {
    return refuse(strf("the checkpoint was made with the outer rule {}, not {}",
                       merge::outer_kind_name(manifest.outer.kind),
                       merge::outer_kind_name(options_.outer.kind)),
                  "leave --outer as it was");
  }
  const auto seed = manifest.settings.find("seed");
  const auto wanted = options_.settings.find("seed");
  if (seed != manifest.settings.end() && wanted != options_.settings.end() &&
      seed->second != wanted->second) {
    return refuse(strf("the run was begun with the seed {}, not {}", seed->second, wanted->second),
                  "leave --seed as it was");
  }
  return Unit{};
}

// What may change from one life to the next, but should not change unseen.
void Jobs::log_differences(const checkpoint::Manifest& manifest) const {
  const auto tell = [](std::string_view name, const std::string& before, const std::string& now) {
    if (before != now) {
      log(LogLevel::kWarn, "checkpoint", "{} was {} before the restart and is {} now", name, before,
          now);
    }
  };
  tell("outer lr", strf("{}", manifest.outer.lr), strf("{}", options_.outer.lr));
  tell("outer momentum", strf("{}", manifest.outer.momentum), strf("{}", options_.outer.momentum));
  tell("correction", std::string(merge::correction_name(manifest.correction)),
       std::string(merge::correction_name(options_.correction)));
  tell("weights", std::string(merge::weight_rule_name(manifest.weights)),
       std::string(merge::weight_rule_name(options_.weights)));
  for (const auto& [name, before] : manifest.settings) {
    const auto now = options_.settings.find(name);
    if (now != options_.settings.end()) {
      tell("--" + name, before, now->second);
    }
  }
}

Result<std::optional<Restored>> Jobs::restore() {
  if (!options_.checkpoint) {
    return std::optional<Restored>();
  }
  const store::ObjectStore& store = *options_.checkpoint;
  YETO_ASSIGN(std::optional<checkpoint::Manifest> manifest, checkpoint::read_manifest(store));
  if (!manifest) {
    return std::optional<Restored>();
  }
  YETO_TRY(check_restored(*manifest));
  log_differences(*manifest);
  YETO_ASSIGN(Layout layout, checkpoint::read_layout(store, *manifest));
  std::vector<State> states;
  for (std::uint32_t i = 0; i < layout.fragments.size(); ++i) {
    YETO_ASSIGN(checkpoint::FragmentValues read,
                checkpoint::read_fragment(store, *manifest, layout, i));
    State& state = states.emplace_back();
    state.values = pool_.keep(std::move(read.values));
    state.momentum = pool_.keep(std::move(read.momentum));
    state.shown = manifest->broadcast_codec == CodecId::kF32 ? state.values
                                                             : pool_.keep(std::move(read.shown));
    state.version = manifest->state.versions[i];
    state.loaded = true;
  }
  use_layout(layout);
  codec_ = manifest->broadcast_codec;
  push_codec_ = manifest->push_codec;
  states_ = std::move(states);
  in_use_ = true;
  Restored restored{std::move(layout), manifest->state, push_codec_, codec_};
  writer_.set_durable(std::move(*manifest));
  return std::optional<Restored>(std::move(restored));
}

}  // namespace yeto::sync
