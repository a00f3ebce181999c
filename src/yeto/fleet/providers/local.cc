// SPDX-License-Identifier: Apache-2.0
#include "yeto/fleet/providers/local.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "yeto/base/format.h"
#include "yeto/base/process.h"
#include "yeto/fleet/providers/process.h"

// The environment of this process; POSIX declares it nowhere.
extern char** environ;

namespace yeto::fleet {
namespace {

// Own entries win over inherited ones of the same name.
std::vector<std::string> merged_environment(const std::vector<std::string>& own) {
  std::vector<std::string> out = own;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const std::string name = text.substr(0, text.find('=') + 1);
    const bool replaced = std::any_of(
        own.begin(), own.end(), [&](const std::string& one) { return one.starts_with(name); });
    if (!replaced) {
      out.push_back(text);
    }
  }
  return out;
}

struct SpawnPlan {
  std::vector<std::string> argv;
  std::vector<std::string> env;
  std::filesystem::path log_file;
  short group_flag = POSIX_SPAWN_SETPGROUP;
};

Result<Handle> spawn(SpawnPlan plan) {
  SpawnSetup spawn;
  spawn.stand_apart(plan.group_flag);
  const std::string log = plan.log_file.string();
  ::posix_spawn_file_actions_addopen(&spawn.files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&spawn.files, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                     0644);
  ::posix_spawn_file_actions_adddup2(&spawn.files, 1, 2);
  std::vector<char*> argv = exec_pointers(plan.argv);
  std::vector<char*> env = exec_pointers(plan.env);
  pid_t pid = 0;
  const int problem =
      ::posix_spawnp(&pid, argv[0], &spawn.files, &spawn.attributes, argv.data(), env.data());
  if (problem != 0) {
    return fail(ErrorCode::kSetup,
                strf("cannot start {}: {}", plan.argv[0], std::strerror(problem)), log,
                "check that the program exists and may be executed");
  }
  return Handle{pid, child_start_time(pid).value_or(0)};
}

Result<Handle> handle_of(std::int64_t pid) {
  const std::optional<std::uint64_t> start = process_start_time(pid);
  if (!start) {
    return fail(ErrorCode::kNotFound, strf("pid {} is gone", pid));
  }
  return Handle{pid, *start};
}

}  // namespace

void LocalProvider::create(Intent intent, Done<Handle> done) {
  YETO_CHECK(!intent.argv.empty(), "an intent names a program");
  if (const auto found = children_.find(intent.token); found != children_.end()) {
    reap(found->second);
    if (!found->second.ended) {
      done(found->second.handle);
      return;
    }
  }
  SpawnPlan plan;
  plan.argv = std::move(intent.argv);
  intent.env.push_back(strf("{}={}", kTokenVariable, intent.token));
  plan.env = merged_environment(intent.env);
  plan.log_file = std::move(intent.log_file);
  Result<Handle> made = spawn(std::move(plan));
  if (made) {
    children_[intent.token] = Child{*made, false, {}};
  }
  done(std::move(made));
}

void LocalProvider::find(std::string token, Done<std::vector<Handle>> done) {
  std::vector<Handle> out;
  for (const std::int64_t pid : processes_with_environment(strf("{}={}", kTokenVariable, token))) {
    if (const Result<Handle> handle = handle_of(pid)) {
      out.push_back(*handle);
    }
  }
  // Children inherit the variable; the oldest is the one that was created.
  std::sort(out.begin(), out.end(), [](const Handle& a, const Handle& b) {
    return std::pair(a.start_time, a.pid) < std::pair(b.start_time, b.pid);
  });
  done(std::move(out));
}

LocalProvider::Child* LocalProvider::child_of(const Handle& handle) {
  for (auto& [token, child] : children_) {
    if (child.handle == handle) {
      return &child;
    }
  }
  return nullptr;
}

void LocalProvider::reap(Child& child) {
  int status = 0;
  if (child.ended || ::waitpid(static_cast<pid_t>(child.handle.pid), &status, WNOHANG) <= 0) {
    return;
  }
  child.ended = true;
  child.report.state = NodeState::kGone;
  if (WIFEXITED(status)) {
    child.report.exit = WEXITSTATUS(status);
  } else if (WIFSIGNALED(status)) {
    child.report.signal = WTERMSIG(status);
  }
}

void LocalProvider::observe(Handle handle, Done<NodeReport> done) {
  if (Child* child = child_of(handle)) {
    reap(*child);
    done(child->report);
    return;
  }
  done(NodeReport{.state = is_alive(handle) ? NodeState::kUp : NodeState::kGone});
}

void LocalProvider::terminate(Handle handle, Force force, Done<Unit> done) {
  if (Child* child = child_of(handle)) {
    reap(*child);
  }
  // Either the leader is ours, or its pid is free and the group, if there is one, is what it left
  // behind: the system does not give out a pid that is still the number of a group.
  const bool leader = is_alive(handle);
  const bool orphans =
      !leader && !child_start_time(handle.pid) && !group_members(handle.pid).empty();
  if (handle.pid <= 1 || (!leader && !orphans)) {
    done(Unit{});
    return;
  }
  const int signal = force == Force::kKill ? SIGKILL : SIGTERM;
  if (::kill(static_cast<pid_t>(-handle.pid), signal) != 0 && errno != ESRCH) {
    done(fail(io_error("cannot signal the process group", strf("pid {}", handle.pid), errno)));
    return;
  }
  done(Unit{});
}

void LocalProvider::verify_gone(Handle handle, Done<GoneVerdict> done) {
  if (Child* child = child_of(handle)) {
    reap(*child);
  }
  if (is_alive(handle)) {
    done(GoneVerdict::kPresent);
    return;
  }
  // Another process with this pid means that ours is gone and so is its group.
  const bool reused = child_start_time(handle.pid).has_value();
  done(reused || group_members(handle.pid).empty() ? GoneVerdict::kGone : GoneVerdict::kPresent);
}

Result<Handle> spawn_detached(const std::vector<std::string>& argv,
                              const std::filesystem::path& log_file) {
  SpawnPlan plan;
  plan.argv = argv;
  plan.env = merged_environment({});
  plan.log_file = log_file;
#ifdef POSIX_SPAWN_SETSID
  plan.group_flag = POSIX_SPAWN_SETSID;
#endif
  return spawn(std::move(plan));
}

}  // namespace yeto::fleet
