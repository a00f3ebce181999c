// SPDX-License-Identifier: Apache-2.0
// Jobs: the values behind buffer ids. The core orders work on ids; here it is done: decode and
// measure pushes, merge, encode images, hash, checkpoint and restore.
//
// Per fragment it holds the master values Θ (f32), the momentum (f32, if the outer rule keeps one)
// and the image of the public value, shared with the buffer it was given out as.
//
// Threads: allocate, image, free and buffer_bytes may be called from any thread; a freed buffer
// lives until the last reader lets go of it. All other functions: one thread at a time, in the
// order the core gave them.
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
#include "yeto/sync/jobs/memory_pool.h"
#include "yeto/tensor/layout.h"

namespace yeto::sync {

struct JobsOptions {
  std::string run_id;
  // None: codec::default_codec.
  std::optional<CodecId> push_codec;
  std::optional<CodecId> broadcast_codec;
  merge::OuterRule outer;
  merge::WeightRule weights = merge::WeightRule::kTokens2;
  std::shared_ptr<store::ObjectStore> checkpoint;  // none: checkpoint() refuses
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
  // Durable when it returns. `state.versions` must be those of the values: the core orders a
  // checkpoint only when every merge it ordered before is in `state`. On an error the last
  // checkpoint stands. kIo (disk full included), kInternal.
  Status checkpoint(const CoreState& state);
  // Loads the checkpoint of the store. Nothing if there is none; kDamaged naming the file;
  // kConflict for another run id, codec or outer kind; kNotInBuild for a checkpoint of a newer
  // major.
  Result<std::optional<Restored>> restore();

  // Of broadcasts; known once a layout is loaded.
  std::optional<CodecId> codec() const;

 private:
  struct Buffer {
    std::shared_ptr<Bytes> bytes;
    std::vector<double> square_norms;  // per piece, once inspected
  };
  struct State {
    std::vector<float> values;
    std::vector<float> momentum;
    std::shared_ptr<Bytes> image;
    std::uint64_t version = 0;
    bool loaded = false;
  };

  explicit Jobs(JobsOptions options);
  Result<Buffer> buffer(BufferId id) const;
  Image give_out(BufferId id, std::shared_ptr<Bytes> bytes);
  void use_layout(Layout layout);
  Status check_fragment(std::uint32_t fragment) const;
  Status check_all_loaded(std::size_t ids) const;
  Status encode_public(State& state) const;
  Result<MergeReport> try_merge(const Merge& job);
  Status check_checkpoint(const CoreState& state) const;
  Result<checkpoint::FileEntry> save_fragment(std::uint32_t fragment);
  Status check_restored(const checkpoint::Manifest& manifest) const;

  const JobsOptions options_;
  MemoryPool pool_;
  mutable Mutex mutex_;
  std::unordered_map<BufferId, Buffer> buffers_ YETO_GUARDED_BY(mutex_);
  std::uint64_t buffer_bytes_ YETO_GUARDED_BY(mutex_) = 0;

  std::optional<Layout> layout_;
  bool in_use_ = false;            // images were given out: the layout stands
  CodecId codec_ = CodecId::kF32;  // of broadcasts; decides the anchor dtype
  CodecId push_codec_ = CodecId::kF32;
  std::vector<State> states_;
  // Where a merge writes before it is known to be finite; swapped with the fragment's own.
  std::vector<float> spare_values_;
  std::vector<float> spare_momentum_;
  std::optional<checkpoint::Manifest> durable_;  // the last one written or restored
};

}  // namespace yeto::sync
