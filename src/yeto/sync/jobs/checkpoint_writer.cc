// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/jobs/checkpoint_writer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "yeto/base/log.h"

namespace yeto::sync {

bool CheckpointWriter::is_durable(std::uint32_t fragment, std::uint64_t version) const {
  return durable_ && durable_->state.versions[fragment] == version;
}

Status CheckpointWriter::write_fragments(Snapshot& snapshot) {
  std::vector<FragmentShare>& shares = snapshot.fragments;
  checkpoint::Manifest& manifest = snapshot.manifest;
  manifest.fragments.resize(shares.size());
  std::vector<std::uint32_t> changed;
  for (std::uint32_t i = 0; i < shares.size(); ++i) {
    if (is_durable(i, shares[i].version)) {
      manifest.fragments[i] = durable_->fragments[i];
      shares[i] = {};
    } else {
      changed.push_back(i);
    }
  }
  // Fragments are merged in turn: what has the lowest version is replaced next.
  std::sort(changed.begin(), changed.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(shares[a].version, a) < std::pair(shares[b].version, b);
  });
  for (const std::uint32_t i : changed) {
    FragmentShare share = std::exchange(shares[i], {});
    YETO_ASSIGN(
        manifest.fragments[i],
        checkpoint::write_fragment(*store_, manifest.run_id,
                                   {snapshot.layout.get(), i, share.version, *share.values,
                                    *share.momentum, manifest.broadcast_codec, *share.shown}));
    if (share.commit) {
      manifest.commits.push_back(std::move(*share.commit));
    }
  }
  std::sort(manifest.commits.begin(), manifest.commits.end(),
            [](const auto& a, const auto& b) { return a.round < b.round; });
  return Unit{};
}

Status CheckpointWriter::write(Snapshot snapshot) {
  if (durable_) {
    snapshot.manifest.layout = durable_->layout;
  } else {
    YETO_ASSIGN(snapshot.manifest.layout, checkpoint::write_layout(*store_, *snapshot.layout));
  }
  YETO_TRY(write_fragments(snapshot));
  YETO_TRY(checkpoint::write_manifest(*store_, snapshot.manifest));
  durable_ = std::move(snapshot.manifest);
  const Status copied = copy_ == nullptr ? Status(Unit{}) : copy_->offer(*durable_);
  remove_old_files();
  return copied;
}

// The checkpoint is whole; what cannot be removed now is tried again next time.
void CheckpointWriter::remove_old_files() const {
  const Status removed = checkpoint::remove_unreferenced(
      *store_, *durable_, copy_ == nullptr ? std::set<std::string>() : copy_->files_in_use());
  if (!removed) {
    log(LogLevel::kWarn, "checkpoint", "old files stay: {} ({})", removed.error().what,
        removed.error().where);
  }
}

}  // namespace yeto::sync
