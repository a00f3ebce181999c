// SPDX-License-Identifier: Apache-2.0
// The registry of runs: $YETO_RUNS_DIR, else $YETO_HOME/runs, else ~/.yeto/runs. One folder for
// each run,
// `<name>` links to the newest of that name, claims/<name> says which run holds the name now.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "yeto/base/files.h"
#include "yeto/base/result.h"
#include "yeto/fleet/run/provider.h"
#include "yeto/fleet/run/run_paths.h"

namespace yeto::fleet {

struct Claim {
  std::string run_id = {};
  std::string folder = {};  // name of the run's folder
  Handle by = {};           // the launch that made it
  double at = 0;            // wall seconds
};

class Registry {
 public:
  explicit Registry(std::filesystem::path dir) : dir_(std::move(dir)) {}
  static std::filesystem::path default_dir();
  const std::filesystem::path& dir() const { return dir_; }

  // Held while a claim is looked at and changed, so that two launches cannot both take over a stale
  // one.
  Result<FileHandle> lock_claims() const;
  std::optional<Claim> read_claim(const std::string& name) const;
  // kNameTaken if the claim exists.
  Status claim(const std::string& name, const Claim& claim) const;
  // Takes the claim away if it is this run's.
  Status release(const std::string& name, const std::string& run_id) const;

  // Makes the run's folder with its subfolders (security/ with mode 0700).
  Result<RunPaths> create(const std::string& name, const std::string& run_id) const;
  // Lets `<name>` point to the folder.
  Status link_newest(const std::string& name, const RunPaths& paths) const;

  // A run by name (the newest) or by folder name. kNotFound says where it looked.
  Result<RunPaths> find(const std::string& name) const;
  // All run folders, oldest first.
  std::vector<RunPaths> list() const;

 private:
  std::filesystem::path dir_;
};

// The run's secret (64 hex digits, mode 0600) and one key for each seat: HKDF-SHA256(secret,
// "yeto-seat-<n>").
Status write_secrets(const RunPaths& paths, int seats);

}  // namespace yeto::fleet
