// SPDX-License-Identifier: Apache-2.0
// Jobs: the values behind buffer ids. The core orders work on ids; here it is done: decode and
// measure pushes, merge, encode images, hash, checkpoint and restore.
//
// Per fragment it holds the master values Θ (f32), the momentum (f32, if the outer rule keeps one)
// and the public value θ̂ in the anchor dtype (under f32 that is Θ itself). They are shared and
// never changed: images given out, finals and snapshots hold the very same memory, and a merge
// writes to other memory and puts it in their place.
//
// Threads: allocate, image, free, buffer_bytes and copy_status may be called from any thread; a
// freed buffer lives until the last reader lets go of it. write() may run on a second thread beside
// all others, one at a time. All other functions: one thread at a time, in the order the core gave
// them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/base/result.h"
#include "yeto/base/thread.h"
#include "yeto/merge/merge.h"
#include "yeto/store/object_store.h"
#include "yeto/sync/core/events.h"
#include "yeto/sync/jobs/checkpoint.h"
#include "yeto/sync/jobs/checkpoint_copy.h"
#include "yeto/sync/jobs/checkpoint_writer.h"
#include "yeto/sync/jobs/memory_pool.h"
#include "yeto/tensor/layout.h"

namespace yeto::sync {

struct JobsOptions {
  std::string run_id;
  // None: codec::default_codec.
  std::optional<CodecId> push_codec;
  std::optional<CodecId> broadcast_codec;
  merge::OuterRule outer;
  merge::Correction correction = merge::Correction::kNone;
  merge::WeightRule weights = merge::WeightRule::kTokens2;
  std::shared_ptr<store::ObjectStore> checkpoint;  // none: checkpoints are refused
  std::map<std::string, std::string> settings;     // the recipe, as text, for the manifest
  int threads = 1;                                 // of a merge
};

struct PushReport {
  bool finite = false;
  double norm = 0.0;
};
struct MergeReport {
  bool ok = false;  // false: nothing changed
  Image image;
  Image full;                              // buffer 0: the image is the whole
  std::string reason;                      // why not, in words
  std::vector<merge::SeatWeight> weights;  // shares by ascending seat
};
struct Finals {
  std::vector<Image> images;            // f32 values of Θ
  std::vector<wire::Digest32> digests;  // SHA-256 of them
};

class Jobs {
 public:
  // kRange or kNotInBuild for options that cannot work.
  static Result<std::unique_ptr<Jobs>> make(JobsOptions options);
  ~Jobs();
  Jobs(const Jobs&) = delete;
  Jobs& operator=(const Jobs&) = delete;

  // ---- buffers (any thread) ----
  // Memory to receive into, or nothing if the machine has none. An id is used once.
  Result<MutableByteView> allocate(BufferId id, std::uint64_t bytes);
  // Null if there is no such buffer. Do not read a buffer that is still being received into.
  std::shared_ptr<const Bytes> image(BufferId id) const;
  void free(BufferId id);
  std::uint64_t buffer_bytes() const;  // of all buffers together

  // ---- jobs (one thread at a time) ----
  // kData if the bytes are no layout; kConflict if another one is in use. Until the first images
  // are made another donor's layout may take the place of the one before; its values then have to
  // be loaded again.
  Result<Layout> load_layout(BufferId id);
  // f32 values of a fragment become Θ at version 0, momentum 0. kData for a wrong size or a value
  // that is not finite.
  Status load_init(std::uint32_t fragment, BufferId id);
  // Measures a push. kData for a wrong size.
  Result<PushReport> inspect(std::uint32_t fragment, BufferId id);
  // New values, momentum and image of the fragment; the image becomes buffer `job.image`.
  MergeReport merge(const Merge& job);
  // Images of the current public values, one per fragment.
  Result<std::vector<Image>> make_images(std::span<const BufferId> ids);
  // f32 values of Θ as buffers, one per fragment.
  Result<Finals> make_finals(std::span<const BufferId> ids);

  // ---- checkpoints
  // Shares all values as they are now; copies nothing. `state.versions` must be those of the
  // values: the core orders a checkpoint only when every merge it ordered before is in `state`.
  // kInternal.
  Result<Snapshot> snapshot(const CoreState& state) const;
  // Durable when it returns; on an error the last checkpoint stands. kIo (disk full included).
  Status write(Snapshot snapshot);
  // Both, one after the other.
  Status checkpoint(const CoreState& state);
  // Loads the checkpoint of the store, before any other job. Nothing if there is none; kDamaged
  // naming the file; kConflict naming what differs: run id, codec of either direction, outer rule,
  // seed; kNotInBuild for a checkpoint of a newer major. Settings that differ and may are logged.
  Result<std::optional<Restored>> restore();
  // The manifest that was restored or written last; not while write() runs.
  const std::optional<checkpoint::Manifest>& durable() const { return writer_.durable(); }
  // From now on each durable checkpoint is also copied there. Before the first write().
  void copy_checkpoints(CheckpointCopy::Options options);
  // Nothing if there is no copy.
  std::optional<CopyStatus> copy_status() const;
  // True when the newest checkpoint is copied, or there is no copy; waits at most `limit`.
  bool finish_copy(Nanos limit);

  // Of broadcasts; known once a layout is loaded.
  std::optional<CodecId> codec() const;
  // Of pushes, likewise.
  std::optional<CodecId> push_codec() const;
  // Memory of buffers and values together, unused buffers included.
  std::uint64_t held_bytes() const { return pool_.held_bytes(); }

 private:
  struct Buffer {
    std::shared_ptr<Bytes> bytes;
    double norm = 0.0;                 // both once inspected
    std::vector<double> square_norms;  // per piece
  };
  struct State {
    std::shared_ptr<Bytes> values;    // f32
    std::shared_ptr<Bytes> momentum;  // f32; empty if the outer rule keeps none
    std::shared_ptr<Bytes> shown;     // θ̂; under f32 the very same as `values`
    std::uint64_t version = 0;
    bool loaded = false;
    std::optional<checkpoint::CommitRecord> commit;  // that made this version
  };
  struct Fresh;  // what a merge writes to

  explicit Jobs(JobsOptions options);
  Result<Buffer> buffer(BufferId id) const;
  Image give_out(BufferId id, std::shared_ptr<Bytes> bytes, const wire::Digest16& digest);
  void use_layout(Layout layout);
  Status check_fragment(std::uint32_t fragment) const;
  Status check_all_loaded(std::size_t ids) const;
  Result<std::shared_ptr<Bytes>> make_public(const std::shared_ptr<Bytes>& values) const;
  Result<std::vector<Buffer>> pushes_of(const Merge& job) const;
  Fresh take_fresh(const State& state) const;
  Result<MergeReport> try_merge(const Merge& job);
  Status run_merge(const Merge& job, const std::vector<Buffer>& buffers, const Fresh& fresh,
                   MergeReport& report) const;
  void install(const Merge& job, const std::vector<Buffer>& buffers, Fresh fresh,
               MergeReport& report);
  Status check_checkpoint(const CoreState& state) const;
  Status check_restored(const checkpoint::Manifest& manifest) const;
  void log_differences(const checkpoint::Manifest& manifest) const;

  const JobsOptions options_;
  MemoryPool pool_;
  mutable Mutex mutex_;
  std::unordered_map<BufferId, Buffer> buffers_ YETO_GUARDED_BY(mutex_);
  std::uint64_t buffer_bytes_ YETO_GUARDED_BY(mutex_) = 0;

  std::shared_ptr<const Layout> layout_;
  bool in_use_ = false;            // images were given out: the layout stands
  CodecId codec_ = CodecId::kF32;  // of broadcasts; decides the anchor dtype
  CodecId push_codec_ = CodecId::kF32;
  std::vector<State> states_;
  std::unique_ptr<CheckpointCopy> copy_;
  CheckpointWriter writer_;  // write() alone touches it while jobs run
};

}  // namespace yeto::sync
