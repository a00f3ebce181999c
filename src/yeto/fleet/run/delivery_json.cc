// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "yeto/base/digest.h"
#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/fleet/run/delivery.h"

namespace yeto::fleet {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "yeto_manifest.json";

Status io_status(const std::error_code& problem, const char* what, const fs::path& path) {
  if (problem) {
    return fail(ErrorCode::kDelivery, strf("{}: {}", what, problem.message()), path.string());
  }
  return Unit{};
}

// A manifest comes from another process; a name in it must not lead out of the folder.
bool is_inside(const fs::path& name) {
  if (name.empty() || name.is_absolute()) {
    return false;
  }
  for (const fs::path& part : name) {
    if (part == ".." || part == ".") {
      return false;
    }
  }
  return true;
}

Status verify_file(const fs::path& folder, const std::string& name, const nlohmann::json& entry) {
  const auto damaged = [&](const std::string& what) {
    return fail(ErrorCode::kDamaged, strf("{} {}", name, what), folder.string());
  };
  if (!is_inside(name)) {
    return damaged("is no name inside the artifact");
  }
  std::error_code problem;
  const fs::path path = folder / name;
  if (!fs::is_regular_file(fs::symlink_status(path, problem))) {
    return damaged("is missing or no regular file");
  }
  const std::uintmax_t size = fs::file_size(path, problem);
  if (problem || size != entry.at("bytes").get<std::uintmax_t>()) {
    return damaged(strf("has {} bytes, the manifest says {}", size, entry.at("bytes").dump()));
  }
  YETO_ASSIGN(const Sha256 digest, sha256_file(path));
  if (hex(digest) != entry.at("sha256").get<std::string>()) {
    return damaged("has another SHA-256 than the manifest says");
  }
  return Unit{};
}

Status sync_file(const fs::path& path) {
  FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file || ::fsync(file.get()) != 0) {
    return fail(io_error("cannot sync file", path.string(), errno));
  }
  return Unit{};
}

// Regular files and folders only: a link could point anywhere by the time it is read.
Status copy_tree(const fs::path& from, const fs::path& to) {
  std::error_code problem;
  fs::create_directories(to, problem);
  YETO_TRY(io_status(problem, "cannot create folder", to));
  for (const fs::directory_entry& entry : fs::directory_iterator(from, problem)) {
    const fs::path target = to / entry.path().filename();
    const fs::file_status status = entry.symlink_status(problem);
    if (fs::is_directory(status)) {
      YETO_TRY(copy_tree(entry.path(), target));
    } else if (fs::is_regular_file(status)) {
      fs::copy_file(entry.path(), target, fs::copy_options::overwrite_existing, problem);
      YETO_TRY(io_status(problem, "cannot copy", target));
      YETO_TRY(sync_file(target));
    } else {
      return fail(ErrorCode::kDamaged, "holds something that is no file", entry.path().string());
    }
  }
  YETO_TRY(io_status(problem, "cannot list", from));
  return sync_directory(to);
}

Status remove_tree(const fs::path& path) {
  std::error_code problem;
  fs::remove_all(path, problem);
  return io_status(problem, "cannot remove", path);
}

Status rename_folder(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    return fail(
        ErrorCode::kDelivery,
        strf("cannot move the artifact into place: {}", std::generic_category().message(errno)),
        to.string());
  }
  return sync_directory(to.parent_path());
}

fs::path staging(const RunPaths& paths) { return paths.root / ".artifacts.tmp"; }

bool same_manifest(const fs::path& a, const fs::path& b) {
  const Result<std::string> left = read_text_file(a / kManifest);
  const Result<std::string> right = read_text_file(b / kManifest);
  return left && right && *left == *right;
}

}  // namespace

Status verify_artifact(const fs::path& folder) {
  YETO_ASSIGN(const std::string text, read_text_file(folder / kManifest, std::size_t{1} << 26));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  try {
    const auto& files = json.at("files");
    if (!files.is_object() || files.empty()) {
      return fail(ErrorCode::kDamaged, "the manifest lists no file", folder.string());
    }
    for (const auto& [name, entry] : files.items()) {
      YETO_TRY(verify_file(folder, name, entry));
    }
  } catch (const nlohmann::json::exception& problem) {
    return fail(ErrorCode::kDamaged, strf("the manifest cannot be read: {}", problem.what()),
                (folder / kManifest).string());
  }
  return Unit{};
}

Status check_output(const fs::path& output) {
  std::error_code problem;
  const auto refuse = [&](const char* what, const char* hint) {
    return fail(ErrorCode::kDelivery, what, output.string(), hint);
  };
  const fs::file_status status = fs::status(output, problem);
  if (fs::exists(status)) {
    if (!fs::is_directory(status)) {
      return refuse("is a file", "name a new or empty folder");
    }
    if (!fs::is_empty(output, problem) || problem) {
      return refuse("is a folder that is not empty", "name a new or empty folder");
    }
  }
  // The nearest existing ancestor decides whether the folder can be made.
  fs::path parent = output.parent_path();
  while (!fs::exists(parent, problem) && parent.has_relative_path()) {
    parent = parent.parent_path();
  }
  if (!fs::is_directory(parent, problem)) {
    return refuse("lies below something that is no folder", "name another place");
  }
  if (::access(parent.c_str(), W_OK | X_OK) != 0) {
    return fail(ErrorCode::kPermission,
                strf("cannot be created: {} may not be written", parent.string()), output.string(),
                "name another place, or change the permissions");
  }
  return Unit{};
}

Result<fs::path> stage_artifact(const RunPaths& paths, int seat) {
  // A controller that took over finds the work of the one before it.
  if (verify_artifact(paths.artifacts())) {
    return paths.artifacts();
  }
  YETO_TRY(remove_tree(staging(paths)));
  YETO_TRY(copy_tree(paths.adapter(seat), staging(paths)));
  YETO_TRY(verify_artifact(staging(paths)));
  return staging(paths);
}

Result<fs::path> publish_artifact(const RunPaths& paths, const fs::path& staged,
                                  const fs::path& output) {
  if (staged != paths.artifacts()) {
    YETO_TRY(remove_tree(paths.artifacts()));
    YETO_TRY(rename_folder(staged, paths.artifacts()));
  }
  if (output.empty()) {
    return paths.artifacts();
  }
  if (same_manifest(output, paths.artifacts()) && verify_artifact(output)) {
    return output;
  }
  Status fit = check_output(output);
  if (!fit) {
    return fail(ErrorCode::kDelivery, "the output folder " + fit.error().what, fit.error().where,
                strf("the artifact is in {}", paths.artifacts().string()));
  }
  std::error_code problem;
  fs::create_directories(output.parent_path(), problem);
  YETO_TRY(io_status(problem, "cannot create folder", output.parent_path()));
  const fs::path temp = output.parent_path() / strf(".{}.{}.tmp", output.filename().string(),
                                                    paths.root.filename().string());
  YETO_TRY(remove_tree(temp));
  Status copied = copy_tree(paths.artifacts(), temp);
  if (copied) {
    copied = verify_artifact(temp);
  }
  if (copied) {
    copied = rename_folder(temp, output);
  }
  if (!copied) {
    fs::remove_all(temp, problem);
    return fail(std::move(copied).error());
  }
  return output;
}

}  // namespace yeto::fleet
