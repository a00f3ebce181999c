// SPDX-License-Identifier: Apache-2.0
// The provider port: how the controller gets, watches and ends what it runs. Owned by this room,
// implemented in fleet/providers. All calls come from the controller's thread. Done callbacks come
// on that thread too, within the call or from a later call of poll(). No call blocks for longer
// than a spawn.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "yeto/base/result.h"

namespace yeto::fleet {

// A process of this machine. A pid alone is reused by the system; with the start time it is unique.
struct Handle {
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;  // in the system's own unit; only compared
  bool operator==(const Handle&) const = default;
};

// What to create. `token` is unique for the run, the seat and the attempt, and is recorded before
// create is called; a create whose outcome is not known is resolved by find().
struct Intent {
  std::string token = {};  // "<name>-<run6>-l<seat>-a<attempt>"
  std::vector<std::string> argv = {};
  std::vector<std::string> env = {};    // "KEY=VALUE", added to the controller's own environment
  std::filesystem::path log_file = {};  // stdout and stderr, appended
};

enum class NodeState { kUp, kGone };
struct NodeReport {
  NodeState state = NodeState::kUp;
  std::optional<int> exit = {};  // known only for processes this provider object created
  int signal = 0;                // that ended it; 0 if none or not known
};

enum class GoneVerdict { kGone, kPresent };
enum class Force { kAsk, kKill };

template <class T>
using Done = std::function<void(Result<T>)>;

class Provider {
 public:
  virtual ~Provider() = default;
  // Idempotent on the token while the process it made runs.
  virtual void create(Intent intent, Done<Handle> done) = 0;
  // Live processes that carry the token, oldest first.
  virtual void find(std::string token, Done<std::vector<Handle>> done) = 0;
  virtual void observe(Handle handle, Done<NodeReport> done) = 0;
  // Signals the whole process group. A process that is gone is success.
  virtual void terminate(Handle handle, Force force, Done<Unit> done) = 0;
  // Own query: the process and everything left of its group.
  virtual void verify_gone(Handle handle, Done<GoneVerdict> done) = 0;
  // Gives the provider time for outstanding work.
  virtual void poll() {}
};

}  // namespace yeto::fleet
