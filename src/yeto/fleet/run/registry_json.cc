// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/fleet/run/registry.h"
#include "yeto/fleet/run/ulid.h"

namespace yeto::fleet {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Status make_folder(const fs::path& path, unsigned mode) {
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) {
    return fail(io_error("cannot create folder", path.string(), errno));
  }
  return Unit{};
}

Status make_parents(const fs::path& path) {
  std::error_code problem;
  fs::create_directories(path, problem);
  if (problem) {
    return fail(ErrorCode::kIo, "cannot create folder: " + problem.message(), path.string(),
                "set YETO_HOME to a folder that can be written");
  }
  return Unit{};
}

}  // namespace

fs::path Registry::default_dir() {
  if (const std::string runs = environment("YETO_RUNS_DIR"); !runs.empty()) {
    return fs::absolute(runs).lexically_normal();
  }
  if (const std::string home = environment("YETO_HOME"); !home.empty()) {
    return fs::absolute(home).lexically_normal() / "runs";
  }
  return fs::path(environment("HOME")) / ".yeto" / "runs";
}

Result<FileHandle> Registry::lock_claims() const {
  YETO_TRY(make_parents(dir_ / "claims"));
  const fs::path path = dir_ / "claims" / ".lock";
  FileHandle file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!file || ::flock(file.get(), LOCK_EX) != 0) {
    return fail(io_error("cannot lock the claims", path.string(), errno));
  }
  return file;
}

std::optional<Claim> Registry::read_claim(const std::string& name) const {
  const fs::path path = dir_ / "claims" / name;
  const Result<std::string> text = read_text_file(path, 1 << 16);
  if (!text) {
    return std::nullopt;
  }
  Claim out;
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  try {
    out.run_id = json.at("run_id").get<std::string>();
    out.folder = json.at("folder").get<std::string>();
    out.by = {json.value("pid", std::int64_t{0}), json.value("start_time", std::uint64_t{0})};
    out.at = json.value("at", 0.0);
  } catch (const nlohmann::json::exception&) {
    // A launch that died between making and filling the claim. It holds the name for nobody.
    return Claim{};
  }
  return out;
}

Status Registry::claim(const std::string& name, const Claim& claim) const {
  const fs::path path = dir_ / "claims" / name;
  FileHandle file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) {
    if (errno == EEXIST) {
      return fail(ErrorCode::kNameTaken, strf("the name {} is in use", name), path.string());
    }
    return fail(io_error("cannot claim the name", path.string(), errno));
  }
  const nlohmann::ordered_json json = {{"schema", "yeto.claim/1"},
                                       {"run_id", claim.run_id},
                                       {"folder", claim.folder},
                                       {"pid", claim.by.pid},
                                       {"start_time", claim.by.start_time},
                                       {"at", claim.at}};
  const std::string text = json.dump() + "\n";
  YETO_TRY(write_all(file.get(), as_bytes_view(std::string_view(text)), path));
  if (::fsync(file.get()) != 0) {
    return fail(io_error("cannot sync the claim", path.string(), errno));
  }
  return sync_directory(path.parent_path());
}

Status Registry::release(const std::string& name, const std::string& run_id) const {
  const std::optional<Claim> held = read_claim(name);
  if (!held || held->run_id != run_id) {
    return Unit{};
  }
  const fs::path path = dir_ / "claims" / name;
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return fail(io_error("cannot release the name", path.string(), errno));
  }
  return sync_directory(path.parent_path());
}

Result<RunPaths> Registry::create(const std::string& name, const std::string& run_id) const {
  YETO_TRY(make_parents(dir_));
  const RunPaths paths{dir_ / strf("{}.{}", name, run6(run_id))};
  if (::mkdir(paths.root.c_str(), 0755) != 0) {
    return fail(io_error("cannot create the run folder", paths.root.string(), errno));
  }
  YETO_TRY(make_folder(paths.security(), 0700));
  for (const fs::path& folder : {paths.logs(), paths.logs() / "learner", paths.tape().parent_path(),
                                 paths.checkpoint(), paths.root / "islands"}) {
    YETO_TRY(make_folder(folder, 0755));
  }
  return paths;
}

Status Registry::link_newest(const std::string& name, const RunPaths& paths) const {
  const fs::path link = dir_ / name;
  const fs::path temp = dir_ / strf(".{}.{:016x}.tmp", name, random_u64());
  if (::symlink(paths.root.filename().c_str(), temp.c_str()) != 0) {
    return fail(io_error("cannot link the run", temp.string(), errno));
  }
  if (::rename(temp.c_str(), link.c_str()) != 0) {
    const int problem = errno;
    ::unlink(temp.c_str());
    return fail(io_error("cannot link the run", link.string(), problem));
  }
  return sync_directory(dir_);
}

Result<RunPaths> Registry::find(const std::string& name) const {
  const auto missing = [&] {
    return fail(ErrorCode::kNotFound, strf("there is no run \"{}\"", name), dir_.string(),
                "yeto status lists the runs; YETO_HOME or YETO_RUNS_DIR says where they are");
  };
  if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos) {
    return missing();
  }
  std::error_code problem;
  const fs::path folder = fs::canonical(dir_ / name, problem);
  if (problem || !fs::exists(folder / "run.json", problem)) {
    return missing();
  }
  return RunPaths{folder};
}

std::vector<RunPaths> Registry::list() const {
  std::vector<std::pair<fs::file_time_type, RunPaths>> found;
  std::error_code problem;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_, problem)) {
    const RunPaths paths{entry.path()};
    if (!entry.is_symlink(problem) && entry.is_directory(problem) &&
        fs::exists(paths.run_json(), problem)) {
      found.emplace_back(fs::last_write_time(paths.run_json(), problem), paths);
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first, a.second.root) < std::tie(b.first, b.second.root);
  });
  std::vector<RunPaths> out;
  for (auto& [time, paths] : found) {
    out.push_back(std::move(paths));
  }
  return out;
}

Status write_secrets(const RunPaths& paths, int seats) {
  std::array<std::uint8_t, 32> secret{};
  random_bytes(secret);
  YETO_TRY(write_file_atomic(paths.run_token(), hex(secret) + "\n", 0600));
  for (int seat = 0; seat < seats; ++seat) {
    const std::string info = strf("yeto-seat-{}", seat);
    const Sha256 key = hkdf_sha256(secret, as_bytes_view(std::string_view(info)));
    YETO_TRY(write_file_atomic(paths.seat_key(seat), hex(key) + "\n", 0600));
  }
  return Unit{};
}

}  // namespace yeto::fleet
