// SPDX-License-Identifier: Apache-2.0
// CheckpointCopy: each durable checkpoint also goes to a second store, which may be far away,
// shared and slow. It is copied on a thread of its own; while one copy is under way newer
// checkpoints replace each other, so the newest one is copied next.
//
// What stands in the target, all created if absent:
//   term-<term>.claim                        this term is taken; its text names the run
//   term-<term>.<file of the checkpoint>     as in the folder
//   term-<term>.step-<step>.MANIFEST.json    written last; the highest (term, step) is the newest
// Numbers have 20 digits, so that keys sort by them. A syncer writes under its own term only; as
// soon as it sees a higher one it stops copying, and it removes only objects of its own term and of
// lower ones. So a syncer that was believed dead cannot harm what its successor wrote.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "yeto/base/result.h"
#include "yeto/base/thread.h"
#include "yeto/store/object_store.h"
#include "yeto/sync/jobs/checkpoint.h"

namespace yeto::sync {

namespace checkpoint {

// What a target holds before a syncer writes to it.
struct CopyFound {
  std::uint64_t highest_term = 0;   // 0: nothing there
  std::string newest_manifest;      // its key; empty: no whole checkpoint
  std::uint64_t manifest_term = 0;  // of that key
};
// kIo, kPermission, kNotFound (no such bucket), kUnreachable.
Result<CopyFound> look_at_copy(const store::ObjectStore& target);
// Takes the term. False: somebody else has it.
Result<bool> claim_term(store::ObjectStore& target, std::uint64_t term, std::string_view run_id);
// Loads the newest checkpoint of the target into an empty folder, its manifest last. kConflict if
// it is of another run; kDamaged, naming the object.
Status fetch_copy(const store::ObjectStore& target, const CopyFound& found, std::string_view run_id,
                  store::ObjectStore& folder);

}  // namespace checkpoint

struct CopyStatus {
  std::string place;
  std::optional<std::uint64_t> global_step;  // of the newest whole copy of this term
  std::string error;                         // why the last try failed; empty: it did not
};

// Thread-safe.
class CheckpointCopy {
 public:
  struct Options {
    std::shared_ptr<store::ObjectStore> source;  // the checkpoint folder
    std::shared_ptr<store::ObjectStore> target;
    std::string run_id;
    std::uint64_t term = 0;
    bool claimed = false;  // else the term is claimed before the first copy
    bool wait = false;     // offer() returns when the copy is whole: it is the only durable one
  };
  explicit CheckpointCopy(Options options);
  ~CheckpointCopy();
  CheckpointCopy(const CheckpointCopy&) = delete;
  CheckpointCopy& operator=(const CheckpointCopy&) = delete;

  // A checkpoint that is whole in the source. Its files stay there until the copy no longer needs
  // them (files_in_use). An error only if the copy is waited for.
  Status offer(const checkpoint::Manifest& manifest);
  std::set<std::string> files_in_use() const;
  CopyStatus status() const;
  // True when nothing waits to be copied; waits for that at most `limit`.
  bool finish(Nanos limit);

 private:
  struct Waiting {
    checkpoint::Manifest manifest;
    std::uint64_t number = 0;
  };
  void copy_offers();
  Status copy(const checkpoint::Manifest& manifest);
  Status claim();
  Status copy_file(const checkpoint::FileEntry& file);
  Result<std::vector<std::string>> list_below_own_term() const;
  Status remove_old_objects(const checkpoint::Manifest& manifest);

  const Options options_;
  bool claimed_;                  // the thread's own, as is
  std::set<std::string> copied_;  // files of this term in the target
  mutable Mutex mutex_;
  mutable ConditionVariable changed_;
  std::optional<Waiting> next_ YETO_GUARDED_BY(mutex_);
  std::optional<Waiting> under_way_ YETO_GUARDED_BY(mutex_);
  std::uint64_t offered_ YETO_GUARDED_BY(mutex_) = 0;  // numbers the offers: 1, 2 …
  std::uint64_t tried_ YETO_GUARDED_BY(mutex_) = 0;    // of the last one that ended
  std::optional<std::uint64_t> copied_step_ YETO_GUARDED_BY(mutex_);
  std::optional<Error> error_ YETO_GUARDED_BY(mutex_);
  bool closed_ YETO_GUARDED_BY(mutex_) = false;
  JoiningThread thread_;
};

}  // namespace yeto::sync
