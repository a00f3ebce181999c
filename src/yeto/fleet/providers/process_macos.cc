// SPDX-License-Identifier: Apache-2.0
#include <sys/sysctl.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>

#include "yeto/fleet/providers/process.h"

namespace yeto::fleet {
namespace {

std::vector<kinfo_proc> list(std::vector<int> name) {
  std::size_t bytes = 0;
  if (::sysctl(name.data(), static_cast<unsigned>(name.size()), nullptr, &bytes, nullptr, 0) != 0) {
    return {};
  }
  std::vector<kinfo_proc> out(bytes / sizeof(kinfo_proc) + 16);
  bytes = out.size() * sizeof(kinfo_proc);
  if (::sysctl(name.data(), static_cast<unsigned>(name.size()), out.data(), &bytes, nullptr, 0) !=
      0) {
    return {};
  }
  out.resize(bytes / sizeof(kinfo_proc));
  return out;
}

std::uint64_t start_of(const kinfo_proc& info) {
  const timeval& at = info.kp_proc.p_starttime;
  return static_cast<std::uint64_t>(at.tv_sec) * 1'000'000 + static_cast<std::uint64_t>(at.tv_usec);
}

bool is_dead(const kinfo_proc& info) { return info.kp_proc.p_stat == SZOMB; }

std::optional<kinfo_proc> find(std::int64_t pid) {
  for (const kinfo_proc& info : list({CTL_KERN, KERN_PROC, KERN_PROC_PID, static_cast<int>(pid)})) {
    if (info.kp_proc.p_pid == pid) {
      return info;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> process_start_time(std::int64_t pid) {
  const std::optional<kinfo_proc> info = find(pid);
  return !info || is_dead(*info) ? std::nullopt : std::optional(start_of(*info));
}

std::optional<std::uint64_t> child_start_time(std::int64_t pid) {
  const std::optional<kinfo_proc> info = find(pid);
  return info ? std::optional(start_of(*info)) : std::nullopt;
}

std::vector<std::int64_t> group_members(std::int64_t group) {
  std::vector<std::int64_t> out;
  for (const kinfo_proc& info :
       list({CTL_KERN, KERN_PROC, KERN_PROC_PGRP, static_cast<int>(group)})) {
    if (!is_dead(info)) {
      out.push_back(info.kp_proc.p_pid);
    }
  }
  return out;
}

std::vector<std::int64_t> processes_with_environment(const std::string& entry) {
  std::vector<std::int64_t> out;
  for (const kinfo_proc& info :
       list({CTL_KERN, KERN_PROC, KERN_PROC_UID, static_cast<int>(::getuid())})) {
    int name[] = {CTL_KERN, KERN_PROCARGS2, info.kp_proc.p_pid};
    std::vector<char> text(ARG_MAX);
    std::size_t bytes = text.size();
    if (is_dead(info) || ::sysctl(name, 3, text.data(), &bytes, nullptr, 0) != 0) {
      continue;
    }
    // The buffer holds argv and environment as zero-ended strings.
    const std::string all(text.data(), bytes);
    if (all.find(std::string(1, '\0') + entry + '\0') != std::string::npos) {
      out.push_back(info.kp_proc.p_pid);
    }
  }
  return out;
}

Handle own_handle() {
  const std::int64_t pid = ::getpid();
  return Handle{pid, process_start_time(pid).value_or(0)};
}

}  // namespace yeto::fleet
