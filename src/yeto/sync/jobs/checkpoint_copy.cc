// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/jobs/checkpoint_copy.h"

#include <charconv>
#include <chrono>
#include <utility>
#include <vector>

#include "yeto/base/clock.h"
#include "yeto/base/format.h"
#include "yeto/base/log.h"

namespace yeto::sync {
namespace checkpoint {
namespace {

constexpr std::string_view kTermPart = "term-";
constexpr std::string_view kStepPart = "step-";
constexpr std::size_t kDigits = 20;

std::string term_prefix(std::uint64_t term) { return strf("{}{:020}.", kTermPart, term); }
std::string claim_key(std::uint64_t term) { return term_prefix(term) + "claim"; }
std::string manifest_key(std::uint64_t term, std::uint64_t step) {
  return strf("{}{}{:020}.{}", term_prefix(term), kStepPart, step, kManifestName);
}
std::string file_key(std::uint64_t term, std::string_view name) {
  return strf("{}{}", term_prefix(term), name);
}

// The term of an object's key; nothing if it is none of ours.
std::optional<std::uint64_t> term_of(std::string_view key) {
  if (!key.starts_with(kTermPart) || key.size() <= kTermPart.size() + kDigits ||
      key[kTermPart.size() + kDigits] != '.') {
    return std::nullopt;
  }
  const char* const begin = key.data() + kTermPart.size();
  std::uint64_t term = 0;
  const auto [end, error] = std::from_chars(begin, begin + kDigits, term);
  return error == std::errc{} && end == begin + kDigits ? std::optional(term) : std::nullopt;
}

bool is_manifest(std::string_view key) {
  return term_of(key) && key.substr(kTermPart.size() + kDigits + 1).starts_with(kStepPart) &&
         key.ends_with(kManifestName);
}

tl::unexpected<Error> damaged_copy(const store::ObjectStore& target, std::string_view key,
                                   std::string what) {
  return fail(ErrorCode::kDamaged, "the copy of the checkpoint is damaged: " + std::move(what),
              strf("{} in {}", key, target.place()),
              "remove the objects of that term, or start a new run at another place");
}

Result<Manifest> read_newest(const store::ObjectStore& target, const CopyFound& found) {
  YETO_ASSIGN(const Bytes bytes, target.get(found.newest_manifest, kMaxManifestBytes));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return manifest_from_json(text, strf("{} in {}", found.newest_manifest, target.place()));
}

// Checked here as well as at every restore: a damaged object must not become a local file that
// looks as if the disk had damaged it.
Status fetch_file(const store::ObjectStore& target, std::uint64_t term, const FileEntry& file,
                  store::ObjectStore& folder) {
  const std::string key = file_key(term, file.name);
  Result<Bytes> bytes = target.get(key, file.bytes);
  if (!bytes &&
      (bytes.error().code == ErrorCode::kNotFound || bytes.error().code == ErrorCode::kData)) {
    return damaged_copy(target, key, "an object is missing or too large");
  }
  YETO_TRY(bytes);
  if (bytes->size() != file.bytes || sha256(*bytes) != file.sha256) {
    return damaged_copy(target, key, "an object is not the one that the manifest names");
  }
  const ByteView part = *bytes;
  YETO_TRY(folder.put(file.name, {&part, 1}, store::PutMode::kReplace));
  return Unit{};
}

}  // namespace

Result<CopyFound> look_at_copy(const store::ObjectStore& target) {
  YETO_ASSIGN(const std::vector<std::string> keys, target.list());
  CopyFound found;
  for (const std::string& key : keys) {  // ascending
    if (const std::optional<std::uint64_t> term = term_of(key)) {
      found.highest_term = std::max(found.highest_term, *term);
      if (is_manifest(key)) {
        found.newest_manifest = key;
        found.manifest_term = *term;
      }
    }
  }
  return found;
}

Result<bool> claim_term(store::ObjectStore& target, std::uint64_t term, std::string_view run_id) {
  return target.put(claim_key(term), strf("{}\n", run_id), store::PutMode::kCreate);
}

Status fetch_copy(const store::ObjectStore& target, const CopyFound& found, std::string_view run_id,
                  store::ObjectStore& folder) {
  YETO_ASSIGN(const Manifest manifest, read_newest(target, found));
  if (manifest.run_id != run_id) {
    return fail(ErrorCode::kConflict,
                strf("the checkpoint belongs to run {}, not to {}", manifest.run_id, run_id),
                target.place(), "give the place of this run");
  }
  const std::uint64_t term = found.manifest_term;
  YETO_TRY(fetch_file(target, term, manifest.layout, folder));
  for (const FileEntry& file : manifest.fragments) {
    YETO_TRY(fetch_file(target, term, file, folder));
  }
  return write_manifest(folder, manifest);
}

}  // namespace checkpoint

CheckpointCopy::CheckpointCopy(Options options)
    : options_(std::move(options)), claimed_(options_.claimed) {
  thread_ = JoiningThread([this] { copy_offers(); });
}

CheckpointCopy::~CheckpointCopy() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

Status CheckpointCopy::offer(const checkpoint::Manifest& manifest) {
  MutexLock lock(mutex_);
  const std::uint64_t number = ++offered_;
  next_ = Waiting{manifest, number};
  changed_.notify_all();
  if (!options_.wait) {
    return Unit{};
  }
  while (tried_ < number && !closed_) {
    changed_.wait(mutex_);
  }
  if (error_) {
    return fail(*error_);
  }
  return Unit{};
}

std::set<std::string> CheckpointCopy::files_in_use() const {
  std::set<std::string> names;
  MutexLock lock(mutex_);
  for (const std::optional<Waiting>* waiting : {&next_, &under_way_}) {
    if (*waiting) {
      for (const checkpoint::FileEntry& file : (*waiting)->manifest.fragments) {
        names.insert(file.name);
      }
    }
  }
  return names;
}

CopyStatus CheckpointCopy::status() const {
  MutexLock lock(mutex_);
  return {options_.target->place(), copied_step_,
          error_ ? strf("{} ({})", error_->what, error_->where) : std::string()};
}

bool CheckpointCopy::finish(Nanos limit) {
  const Nanos end = monotonic_now() + limit;
  MutexLock lock(mutex_);
  while (next_ || under_way_) {
    const Nanos left = end - monotonic_now();
    if (left <= 0) {
      return false;
    }
    changed_.wait_for(mutex_, std::chrono::nanoseconds(left));
  }
  return !error_;
}

void CheckpointCopy::copy_offers() {
  for (;;) {
    const checkpoint::Manifest* manifest = nullptr;
    {
      MutexLock lock(mutex_);
      while (!next_ && !closed_) {
        changed_.wait(mutex_);
      }
      if (closed_) {
        return;
      }
      under_way_ = std::exchange(next_, std::nullopt);
      manifest = &under_way_->manifest;  // only this thread replaces it
    }
    const Status copied = copy(*manifest);
    if (!copied) {
      log(LogLevel::kWarn, "checkpoint", "no copy in {}: {} ({})", options_.target->place(),
          copied.error().what, copied.error().where);
    }
    MutexLock lock(mutex_);
    tried_ = under_way_->number;
    if (copied) {
      copied_step_ = under_way_->manifest.state.global_step;
      error_.reset();
    } else {
      error_ = copied.error();
    }
    under_way_.reset();
    changed_.notify_all();
  }
}

// Keys of this term and of lower ones. kConflict as soon as there is a higher one.
Result<std::vector<std::string>> CheckpointCopy::list_below_own_term() const {
  YETO_ASSIGN(const std::vector<std::string> keys, options_.target->list());
  std::vector<std::string> out;
  for (const std::string& key : keys) {
    const std::optional<std::uint64_t> term = checkpoint::term_of(key);
    if (term && *term > options_.term) {
      return fail(
          ErrorCode::kConflict,
          strf("a newer syncer (term {}) writes there; this one has term {}", *term, options_.term),
          options_.target->place(), "stop this syncer: another one has taken its place");
    }
    if (term) {
      out.push_back(key);
    }
  }
  return out;
}

Status CheckpointCopy::copy_file(const checkpoint::FileEntry& file) {
  if (copied_.contains(file.name)) {
    return Unit{};
  }
  const std::string key = checkpoint::file_key(options_.term, file.name);
  // An object of that key is one that an earlier try had sent before it failed: keys of a claimed
  // term have one writer, and a file of one name never changes within a term.
  YETO_TRY(options_.target->copy_in(*options_.source, file.name, key, file.bytes));
  copied_.insert(file.name);
  return Unit{};
}

// The target could not be reached when the syncer began.
Status CheckpointCopy::claim() {
  YETO_ASSIGN(const bool ours,
              checkpoint::claim_term(*options_.target, options_.term, options_.run_id));
  if (!ours) {
    return fail(ErrorCode::kConflict, strf("term {} is taken by another syncer", options_.term),
                options_.target->place(), "start this syncer again, so that it takes another term");
  }
  claimed_ = true;
  return Unit{};
}

Status CheckpointCopy::copy(const checkpoint::Manifest& manifest) {
  YETO_TRY(list_below_own_term());
  if (!claimed_) {
    YETO_TRY(claim());
  }
  YETO_TRY(copy_file(manifest.layout));
  for (const checkpoint::FileEntry& file : manifest.fragments) {
    YETO_TRY(copy_file(file));
  }
  const std::string key = checkpoint::manifest_key(options_.term, manifest.state.global_step);
  const std::string text = checkpoint::manifest_to_json(manifest);
  YETO_ASSIGN(const bool created, options_.target->put(key, text, store::PutMode::kCreate));
  if (!created) {
    // A second checkpoint of one step (the run was asked to end meanwhile): the term is ours alone.
    YETO_TRY(options_.target->put(key, text, store::PutMode::kReplace));
  }
  if (const Status removed = remove_old_objects(manifest); !removed) {
    log(LogLevel::kWarn, "checkpoint", "old objects stay in {}: {}", options_.target->place(),
        removed.error().what);
  }
  return Unit{};
}

Status CheckpointCopy::remove_old_objects(const checkpoint::Manifest& manifest) {
  std::set<std::string> keep{checkpoint::claim_key(options_.term),
                             checkpoint::manifest_key(options_.term, manifest.state.global_step),
                             checkpoint::file_key(options_.term, manifest.layout.name)};
  std::set<std::string> names{manifest.layout.name};
  for (const checkpoint::FileEntry& file : manifest.fragments) {
    keep.insert(checkpoint::file_key(options_.term, file.name));
    names.insert(file.name);
  }
  YETO_ASSIGN(const std::vector<std::string> keys, list_below_own_term());
  std::erase_if(copied_, [&](const std::string& name) { return !names.contains(name); });
  for (const std::string& key : keys) {
    if (!keep.contains(key)) {
      YETO_TRY(options_.target->remove(key));
    }
  }
  return Unit{};
}

}  // namespace yeto::sync
