// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/server/opening.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/sync/jobs/checkpoint.h"

namespace yeto::sync {
namespace {

// A first checkpoint that was broken off leaves files without a manifest; anything else in the
// folder is somebody's, and writing a checkpoint would remove it.
bool is_ours(const std::string& name) {
  return name == checkpoint::kTermName || name == checkpoint::kLayoutName ||
         name.rfind("fragment-", 0) == 0;
}

Status check_folder_without_checkpoint(const ServerOptions& options) {
  YETO_ASSIGN(const std::vector<std::string> names, options.checkpoint->list());
  const auto foreign = std::find_if(names.begin(), names.end(),
                                    [](const std::string& name) { return !is_ours(name); });
  if (foreign != names.end()) {
    return fail(
        ErrorCode::kConflict,
        strf("the checkpoint folder holds no checkpoint but other files, such as {}", *foreign),
        options.checkpoint->place(), "give --checkpoint a new or empty folder");
  }
  if (options.resume) {
    log(LogLevel::kWarn, "syncer",
        "--resume: no checkpoint in {}; the run starts from the beginning",
        options.checkpoint->place());
  }
  return Unit{};
}

Status check_folder(const ServerOptions& options) {
  YETO_ASSIGN(const std::optional<checkpoint::Manifest> manifest,
              checkpoint::read_manifest(*options.checkpoint));
  if (!manifest) {
    return check_folder_without_checkpoint(options);
  }
  if (manifest->run_id != options.core.run_id) {
    return fail(
        ErrorCode::kConflict,
        strf("the checkpoint belongs to run {}, not to {}", manifest->run_id, options.core.run_id),
        options.checkpoint->place(), "give --checkpoint the folder of this run");
  }
  if (!options.resume) {
    return fail(ErrorCode::kConflict,
                strf("the folder holds a checkpoint of this run at global step {}",
                     manifest->state.global_step),
                options.checkpoint->place(),
                "add --resume to go on from it, or give --checkpoint another folder");
  }
  return Unit{};
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
  YETO_TRY(check_folder(options));
  JobsOptions jobs;
  jobs.run_id = options.core.run_id;
  jobs.push_codec = options.core.push_codec;
  jobs.broadcast_codec = options.core.broadcast_codec;
  jobs.outer = options.outer;
  jobs.weights = options.weights;
  jobs.checkpoint = options.checkpoint;
  jobs.settings =
      std::map<std::string, std::string>(options.settings.begin(), options.settings.end());
  jobs.threads = options.threads;
  Opening opening;
  YETO_ASSIGN(opening.jobs, Jobs::make(std::move(jobs)));
  YETO_ASSIGN(opening.restored, opening.jobs->restore());
  YETO_ASSIGN(opening.term, checkpoint::raise_term(*options.checkpoint));
  return opening;
}

}  // namespace yeto::sync
