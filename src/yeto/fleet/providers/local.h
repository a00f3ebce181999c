// SPDX-License-Identifier: Apache-2.0
// LocalProvider: processes of this machine. Callbacks come within the call. Not thread-safe.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "yeto/fleet/run/provider.h"

namespace yeto::fleet {

// The environment variable by which a process carries its token.
inline constexpr const char* kTokenVariable = "YETO_PROCESS";

class LocalProvider : public Provider {
 public:
  void create(Intent intent, Done<Handle> done) override;
  void find(std::string token, Done<std::vector<Handle>> done) override;
  void observe(Handle handle, Done<NodeReport> done) override;
  void terminate(Handle handle, Force force, Done<Unit> done) override;
  void verify_gone(Handle handle, Done<GoneVerdict> done) override;

 private:
  struct Child {
    Handle handle;
    bool ended = false;
    NodeReport report;
  };
  void reap(Child& child);
  Child* child_of(const Handle& handle);

  std::map<std::string, Child> children_;  // by token
};

// Starts a program that outlives this process: own session, stdin closed, output appended to
// `log_file`.
Result<Handle> spawn_detached(const std::vector<std::string>& argv,
                              const std::filesystem::path& log_file);

}  // namespace yeto::fleet
