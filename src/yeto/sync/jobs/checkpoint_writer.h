// SPDX-License-Identifier: Apache-2.0
// Snapshot and CheckpointWriter: a checkpoint in two steps, so that merges go on while it is
// written.
//
// A snapshot shares the values of all fragments instead of copying them: nobody changes them, a
// merge writes to other memory and lets go of the old. The writer lets go of each fragment as soon
// as it is on disk, those first that will be merged next, so that old values rarely live beside new
// ones.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/base/result.h"
#include "yeto/store/object_store.h"
#include "yeto/sync/jobs/checkpoint.h"
#include "yeto/sync/jobs/checkpoint_copy.h"
#include "yeto/tensor/layout.h"

namespace yeto::sync {

struct FragmentShare {
  std::uint64_t version = 0;
  std::shared_ptr<const Bytes> values;             // f32
  std::shared_ptr<const Bytes> momentum;           // f32; empty if the outer rule keeps none
  std::shared_ptr<const Bytes> shown;              // the public value
  std::optional<checkpoint::CommitRecord> commit;  // that made this version; none after a restart
};
struct Snapshot {
  checkpoint::Manifest manifest;  // the writer fills layout, fragments and commits
  std::shared_ptr<const Layout> layout;
  std::vector<FragmentShare> fragments;
};

// One thread at a time.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::shared_ptr<store::ObjectStore> store) : store_(std::move(store)) {}

  // Durable when it returns. Writes what is not in the last durable checkpoint, then the manifest,
  // then removes old files. On an error the last checkpoint stands. kIo (disk full included);
  // whatever the copy says where it is waited for.
  Status write(Snapshot snapshot);
  // The checkpoint that was restored: what it holds is not written again.
  void set_durable(checkpoint::Manifest manifest) { durable_ = std::move(manifest); }
  // The last one written or restored.
  const std::optional<checkpoint::Manifest>& durable() const { return durable_; }
  // Where each durable checkpoint also goes. Before the first write; must outlive the writer.
  void set_copy(CheckpointCopy* copy) { copy_ = copy; }

 private:
  bool is_durable(std::uint32_t fragment, std::uint64_t version) const;
  Status write_fragments(Snapshot& snapshot);
  void remove_old_files() const;

  const std::shared_ptr<store::ObjectStore> store_;
  CheckpointCopy* copy_ = nullptr;
  std::optional<checkpoint::Manifest> durable_;
};

}  // namespace yeto::sync
