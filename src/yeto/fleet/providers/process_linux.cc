// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "yeto/base/format.h"
#include "yeto/fleet/providers/process.h"

namespace yeto::fleet {
namespace {

struct Stat {
  char state = '?';
  std::int64_t group = 0;
  std::uint64_t start_time = 0;
};

// /proc/<pid>/stat; the name in parentheses may hold anything, so fields are counted after the last
// ')'.
std::optional<Stat> read_stat(std::int64_t pid) {
  std::ifstream in(strf("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(in, text)) {
    return std::nullopt;
  }
  const std::size_t close = text.rfind(')');
  if (close == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream fields(text.substr(close + 1));
  Stat out;
  std::string word;
  // Field 3 is the state, 5 the group, 22 the start time.
  for (int field = 3; field <= 22 && fields >> word; ++field) {
    if (field == 3) {
      out.state = word[0];
    } else if (field == 5) {
      out.group = std::strtoll(word.c_str(), nullptr, 10);
    } else if (field == 22) {
      out.start_time = std::strtoull(word.c_str(), nullptr, 10);
    }
  }
  return out;
}

bool is_dead(const Stat& stat) {
  return stat.state == 'Z' || stat.state == 'X' || stat.state == 'x';
}

std::vector<std::int64_t> all_pids() {
  std::vector<std::int64_t> out;
  DIR* folder = ::opendir("/proc");
  if (folder == nullptr) {
    return out;
  }
  while (const dirent* entry = ::readdir(folder)) {
    char* end = nullptr;
    const long long pid = std::strtoll(entry->d_name, &end, 10);
    if (*end == '\0' && pid > 0) {
      out.push_back(pid);
    }
  }
  ::closedir(folder);
  return out;
}

}  // namespace

std::optional<std::uint64_t> process_start_time(std::int64_t pid) {
  const std::optional<Stat> stat = read_stat(pid);
  return !stat || is_dead(*stat) ? std::nullopt : std::optional(stat->start_time);
}

std::optional<std::uint64_t> child_start_time(std::int64_t pid) {
  const std::optional<Stat> stat = read_stat(pid);
  return stat ? std::optional(stat->start_time) : std::nullopt;
}

std::vector<std::int64_t> group_members(std::int64_t group) {
  std::vector<std::int64_t> out;
  for (const std::int64_t pid : all_pids()) {
    const std::optional<Stat> stat = read_stat(pid);
    if (stat && stat->group == group && !is_dead(*stat)) {
      out.push_back(pid);
    }
  }
  return out;
}

std::vector<std::int64_t> processes_with_environment(const std::string& entry) {
  std::vector<std::int64_t> out;
  for (const std::int64_t pid : all_pids()) {
    std::ifstream in(strf("/proc/{}/environ", pid), std::ios::binary);
    for (std::string one; std::getline(in, one, '\0');) {
      if (one == entry && process_start_time(pid)) {
        out.push_back(pid);
        break;
      }
    }
  }
  return out;
}

Handle own_handle() {
  const std::int64_t pid = ::getpid();
  return Handle{pid, process_start_time(pid).value_or(0)};
}

}  // namespace yeto::fleet
