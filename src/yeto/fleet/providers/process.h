// SPDX-License-Identifier: Apache-2.0
// What the operating system knows of processes. Thread-safe, no state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "yeto/fleet/run/provider.h"

namespace yeto::fleet {

// Start time of a process, in the system's own unit; nothing if there is no such process or it is a
// zombie (it has ended and only its parent has not looked).
std::optional<std::uint64_t> process_start_time(std::int64_t pid);
// As above, for a child that may have ended already: a zombie still tells it.
std::optional<std::uint64_t> child_start_time(std::int64_t pid);
// Live members (no zombies) of a process group.
std::vector<std::int64_t> group_members(std::int64_t group);
// Live processes of this user whose environment holds the entry "NAME=value".
std::vector<std::int64_t> processes_with_environment(const std::string& entry);

inline bool is_alive(const Handle& handle) {
  return handle.pid > 0 && process_start_time(handle.pid) == handle.start_time;
}
// This process.
Handle own_handle();

}  // namespace yeto::fleet
