// SPDX-License-Identifier: Apache-2.0
#include "yeto/base/process.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "yeto/base/format.h"

namespace yeto {
namespace {

namespace fs = std::filesystem;

bool is_program(const fs::path& path) {
  std::error_code problem;
  return fs::is_regular_file(path, problem) && ::access(path.c_str(), X_OK) == 0;
}

std::optional<std::string> on_path(const std::string& name) {
  const char* variable = std::getenv("PATH");
  const std::string folders = variable == nullptr ? "" : variable;
  for (std::size_t from = 0; from <= folders.size();) {
    const std::size_t to = std::min(folders.find(':', from), folders.size());
    const fs::path candidate = fs::path(folders.substr(from, to - from)) / name;
    if (is_program(candidate)) {
      return candidate.string();
    }
    from = to + 1;
  }
  return std::nullopt;
}

}  // namespace

Result<std::string> find_python() {
  const char* variable = std::getenv("YETO_PYTHON");
  if (variable != nullptr && *variable != '\0') {
    const std::string named = variable;
    std::error_code problem;
    if (named.find('/') != std::string::npos) {
      if (is_program(named)) {
        // Not canonical: a virtual environment is found by the name of its link.
        return fs::absolute(named, problem).string();
      }
    } else if (const std::optional<std::string> found = on_path(named)) {
      return *found;
    }
    return fail(ErrorCode::kSetup, strf("YETO_PYTHON names no program: {}", named), "",
                "set it to a Python that has yeto, or unset it");
  }
  const fs::path here = fs::path(own_program()).parent_path();
  for (const char* name : {"python3", "python"}) {
    if (is_program(here / name)) {
      return (here / name).string();
    }
  }
  if (const std::optional<std::string> found = on_path("python3")) {
    return *found;
  }
  return fail(ErrorCode::kSetup, "no Python was found", "beside this program and on PATH",
              "set YETO_PYTHON to a Python that has yeto");
}

std::vector<char*> exec_pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) {
    out.push_back(text.data());
  }
  out.push_back(nullptr);
  return out;
}

SpawnSetup::SpawnSetup() {
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
}

SpawnSetup::~SpawnSetup() {
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&attributes);
}

void SpawnSetup::stand_apart(short group_flag) {
  sigset_t none;
  ::sigemptyset(&none);
  sigset_t handled;
  ::sigemptyset(&handled);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGCHLD, SIGQUIT}) {
    ::sigaddset(&handled, signal);
  }
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &handled);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(
      &attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | group_flag));
}

}  // namespace yeto
