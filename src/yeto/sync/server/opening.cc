// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/server/opening.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "yeto/base/clock.h"
#include "yeto/base/digest.h"
#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/sync/jobs/checkpoint.h"
#include "yeto/sync/jobs/checkpoint_copy.h"
#include "yeto/sync/server/tape_repair.h"

namespace yeto::sync {
namespace {

// A first checkpoint that was broken off leaves files without a manifest; anything else in the
// folder is somebody's, and writing a checkpoint would remove it.
bool is_ours(const std::string& name) {
  return name == checkpoint::kTermName || name == checkpoint::kLayoutName ||
         name.rfind("fragment-", 0) == 0;
}

Status check_folder_without_checkpoint(const store::ObjectStore& folder) {
  YETO_ASSIGN(const std::vector<std::string> names, folder.list());
  const auto foreign = std::find_if(names.begin(), names.end(),
                                    [](const std::string& name) { return !is_ours(name); });
  if (foreign != names.end()) {
    return fail(
        ErrorCode::kConflict,
        strf("the checkpoint folder holds no checkpoint but other files, such as {}", *foreign),
        folder.place(), "give --checkpoint a new or empty folder");
  }
  return Unit{};
}

// The seed is not used by the syncer itself; it belongs to the run, and a checkpoint goes with one.
Status check_seed(const checkpoint::Manifest& manifest, const ServerOptions& options,
                  const std::string& place) {
  const auto ours = std::find_if(options.settings.begin(), options.settings.end(),
                                 [](const auto& setting) { return setting.first == "seed"; });
  const auto theirs = manifest.settings.find("seed");
  if (ours == options.settings.end() || theirs == manifest.settings.end() ||
      ours->second == theirs->second) {
    return Unit{};
  }
  return fail(ErrorCode::kConflict,
              strf("the checkpoint was made with seed {}, not with --seed {}", theirs->second,
                   ours->second),
              place, "give the seed of this run, or leave --seed out");
}

Status check_folder(const ServerOptions& options, const store::ObjectStore& folder,
                    const std::optional<checkpoint::Manifest>& manifest) {
  if (!manifest) {
    return check_folder_without_checkpoint(folder);
  }
  if (manifest->run_id != options.core.run_id) {
    return fail(
        ErrorCode::kConflict,
        strf("the checkpoint belongs to run {}, not to {}", manifest->run_id, options.core.run_id),
        folder.place(), "give --checkpoint the folder of this run");
  }
  if (!options.resume) {
    return fail(ErrorCode::kConflict,
                strf("the folder holds a checkpoint of this run at global step {}",
                     manifest->state.global_step),
                folder.place(),
                "add --resume to go on from it, or give --checkpoint another folder");
  }
  return check_seed(*manifest, options, folder.place());
}

// A local folder for the files of a checkpoint whose real place is a shared store. It goes with the
// object; what a killed syncer of the same run left is removed by the next one.
class Scratch {
 public:
  static Result<std::shared_ptr<store::ObjectStore>> make(const ServerOptions& options) {
    namespace fs = std::filesystem;
    const std::string key = options.core.run_id + "\n" + options.checkpoint->place();
    const std::string name =
        strf("yeto-checkpoint-{}-", hex(ByteView(sha256(as_bytes_view(key))).first(8)));
    const fs::path parent = fs::temp_directory_path();
    remove_left(parent, name);
    auto scratch = std::make_shared<Scratch>(parent / strf("{}{}", name, ::getpid()));
    YETO_ASSIGN(scratch->folder_, store::LocalFolder::open(scratch->path_));
    return std::shared_ptr<store::ObjectStore>(scratch, scratch->folder_.get());
  }
  explicit Scratch(std::filesystem::path path) : path_(std::move(path)) {}
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

 private:
  static void remove_left(const std::filesystem::path& parent, const std::string& name) {
    std::error_code error;
    for (std::filesystem::directory_iterator at(parent, error), end; !error && at != end;
         at.increment(error)) {
      const std::string found = at->path().filename().string();
      if (found.starts_with(name)) {
        const int pid = std::atoi(found.c_str() + name.size());
        if (pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH) {
          std::error_code ignored;
          std::filesystem::remove_all(at->path(), ignored);
        }
      }
    }
  }

  const std::filesystem::path path_;
  std::shared_ptr<store::LocalFolder> folder_;
};

// Where checkpoints are written, and where they are copied to.
struct Places {
  std::shared_ptr<store::ObjectStore> folder;
  std::shared_ptr<store::ObjectStore> copy;  // null: nowhere
  bool wait = false;                         // only the copy is durable
};

Result<Places> places_of(const ServerOptions& options) {
  if (!options.checkpoint->is_shared()) {
    return Places{options.checkpoint, options.checkpoint_copy, false};
  }
  if (options.checkpoint_copy) {
    return fail(ErrorCode::kConflict, "a checkpoint that is not in a folder cannot be copied again",
                strf("{} and {}", options.checkpoint->place(), options.checkpoint_copy->place()),
                "give --checkpoint a folder, or leave --checkpoint-copy away");
  }
  YETO_ASSIGN(std::shared_ptr<store::ObjectStore> folder, Scratch::make(options));
  return Places{std::move(folder), options.checkpoint, true};
}

// What the copy holds; nothing if it cannot be reached and the folder is enough to go on.
Result<std::optional<checkpoint::CopyFound>> look_at_copy(
    const Places& places, const std::optional<checkpoint::Manifest>& manifest) {
  if (!places.copy) {
    return std::optional<checkpoint::CopyFound>();
  }
  Result<checkpoint::CopyFound> found = checkpoint::look_at_copy(*places.copy);
  if (!found && manifest) {
    log(LogLevel::kWarn, "syncer", "the copy of the checkpoint cannot be reached now: {} ({})",
        found.error().what, found.error().where);
    return std::optional<checkpoint::CopyFound>();
  }
  YETO_TRY(found);
  return std::optional<checkpoint::CopyFound>(std::move(*found));
}

// Brings the folder to what the run has to go on from.
Status settle_folder(const ServerOptions& options, const Places& places,
                     const std::optional<checkpoint::Manifest>& manifest,
                     const checkpoint::CopyFound& found) {
  if (found.newest_manifest.empty()) {
    return Unit{};
  }
  const std::string place = places.copy->place();
  if (!options.resume) {
    return fail(ErrorCode::kConflict,
                strf("there is a checkpoint already: {}", found.newest_manifest), place,
                "add --resume to go on from it, or give another place");
  }
  if (!manifest) {
    log(LogLevel::kInfo, "syncer", "loading {} from {}", found.newest_manifest, place);
    return checkpoint::fetch_copy(*places.copy, found, options.core.run_id, *places.folder);
  }
  if (found.manifest_term > manifest->state.term) {
    return fail(ErrorCode::kConflict,
                strf("the copy is of term {}, the folder of term {}: another syncer went on with "
                     "this run",
                     found.manifest_term, manifest->state.term),
                strf("{} and {}", place, places.folder->place()),
                "remove the folder to go on from the copy, or leave --checkpoint-copy away");
  }
  return Unit{};
}

// A term above all that are known, durable here and taken at the copy.
Result<std::uint64_t> take_term(const ServerOptions& options, const Places& places,
                                const std::optional<checkpoint::CopyFound>& found) {
  std::uint64_t known = found ? found->highest_term : 0;
  for (;;) {
    YETO_ASSIGN(const std::uint64_t term, checkpoint::raise_term(*places.folder, known));
    if (!found) {
      return term;
    }
    YETO_ASSIGN(const bool ours, checkpoint::claim_term(*places.copy, term, options.core.run_id));
    if (ours) {
      return term;
    }
    known = term;
  }
}

Result<std::optional<TapeFile>> open_tape(const ServerOptions& options) {
  if (options.tape.empty()) {
    return std::optional<TapeFile>();
  }
  YETO_ASSIGN(TapeFile tape, TapeFile::open(options.tape));
  if (tape.bytes_cut_off() > 0) {
    log(LogLevel::kWarn, "syncer", "the tape ended with half a line; {} bytes were cut off",
        tape.bytes_cut_off());
  }
  return std::optional<TapeFile>(std::move(tape));
}

Status mend_tape(TapeFile& tape, const checkpoint::Manifest& manifest) {
  YETO_ASSIGN(const TapeRepair repair, repair_tape(tape, manifest, wall_now()));
  if (repair.missing_bytes > 0) {
    log(LogLevel::kWarn, "syncer", "the tape {} is {} bytes shorter than the checkpoint says",
        tape.path().string(), repair.missing_bytes);
  }
  for (const std::uint64_t round : repair.rounds) {
    log(LogLevel::kWarn, "syncer", "the tape lacked round {}; written again from the checkpoint",
        round);
  }
  if (repair.lost > 0) {
    log(LogLevel::kWarn, "syncer", "the tape lacks {} earlier commits for good", repair.lost);
  }
  return Unit{};
}

JobsOptions jobs_options(const ServerOptions& options, const Places& places) {
  JobsOptions jobs;
  jobs.run_id = options.core.run_id;
  jobs.push_codec = options.core.push_codec;
  jobs.broadcast_codec = options.core.broadcast_codec;
  jobs.outer = options.outer;
  jobs.correction = options.correction;
  jobs.weights = options.weights;
  jobs.checkpoint = places.folder;
  jobs.settings =
      std::map<std::string, std::string>(options.settings.begin(), options.settings.end());
  jobs.threads = options.threads;
  return jobs;
}

}  // namespace

Result<SessionKey> read_token_file(const std::filesystem::path& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) == 0 && (info.st_mode & 077) != 0) {
    return fail(ErrorCode::kPermission, "the token file can be read by others", path.string(),
                strf("chmod 600 {}", path.string()));
  }
  YETO_ASSIGN(std::string text, read_text_file(path, 4096));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
    text.pop_back();
  }
  const std::optional<Bytes> bytes = from_hex(text);
  SessionKey key{};
  if (!bytes || bytes->size() != key.size()) {
    return fail(ErrorCode::kData, "the token file must hold 64 hex digits (32 bytes)",
                path.string());
  }
  std::copy(bytes->begin(), bytes->end(), key.begin());
  return key;
}

Result<Opening> open_checkpoint(const ServerOptions& options) {
  Opening opening;
  YETO_ASSIGN(opening.tape, open_tape(options));
  YETO_ASSIGN(const Places places, places_of(options));
  YETO_ASSIGN(const std::optional<checkpoint::Manifest> manifest,
              checkpoint::read_manifest(*places.folder));
  YETO_TRY(check_folder(options, *places.folder, manifest));
  YETO_ASSIGN(const std::optional<checkpoint::CopyFound> found, look_at_copy(places, manifest));
  if (found) {
    YETO_TRY(settle_folder(options, places, manifest, *found));
  }
  YETO_ASSIGN(opening.jobs, Jobs::make(jobs_options(options, places)));
  YETO_ASSIGN(opening.restored, opening.jobs->restore());
  if (options.resume && !opening.restored) {
    log(LogLevel::kWarn, "syncer",
        "--resume: no checkpoint in {}; the run starts from the beginning",
        options.checkpoint->place());
  }
  YETO_ASSIGN(opening.term, take_term(options, places, found));
  if (opening.tape && opening.restored) {
    YETO_TRY(mend_tape(*opening.tape, *opening.jobs->durable()));
  }
  if (places.copy) {
    opening.jobs->copy_checkpoints({places.folder, places.copy, options.core.run_id, opening.term,
                                    found.has_value(), places.wait});
  }
  return opening;
}

}  // namespace yeto::sync
