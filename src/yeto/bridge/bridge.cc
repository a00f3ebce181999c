// SPDX-License-Identifier: Apache-2.0
#include "yeto/bridge/bridge.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/base/process.h"
#include "yeto/bridge/rpc.h"

extern char** environ;

namespace yeto::bridge {
namespace {

constexpr std::size_t kMaxStarts = 3;
constexpr Nanos kStartWindow = 60 * kSecond;
constexpr std::size_t kLastLines = 5;
constexpr std::size_t kMaxLogLine = 4096;

std::string exit_in_words(int status) {
  if (WIFSIGNALED(status)) {
    return strf("killed by signal {}", WTERMSIG(status));
  }
  return strf("exit {}", WEXITSTATUS(status));
}

}  // namespace

Bridge::Bridge(BridgeOptions options) : options_(std::move(options)) {}

Bridge::~Bridge() {
  stopped_ = true;
  MutexLock lock(call_mutex_);
  end_child(options_.stop_grace);
}

std::string Bridge::place() const { return strf("bridge {}", options_.name); }

void Bridge::stop() {
  stopped_ = true;
  const pid_t pid = pid_.exchange(0);
  if (pid > 0) {
    ::kill(pid, SIGKILL);  // the call in progress sees the end of its stream
  }
}

// ---- the child
// -----------------------------------------------------------------------------------------

Status Bridge::start() {
  if (child_.pid > 0) {
    return Unit{};
  }
  const Nanos now = monotonic_now();
  while (!starts_.empty() && now - starts_.front() > kStartWindow) {
    starts_.pop_front();
  }
  if (starts_.size() >= kMaxStarts) {
    return fail(ErrorCode::kSetup,
                strf("the bridge process ended {} times within a minute and is not started again "
                     "before that minute is over",
                     kMaxStarts),
                place(), "the log has its last lines");
  }
  starts_.push_back(now);
  std::vector<std::string> command = options_.command;
  if (command.empty()) {
    YETO_ASSIGN(const std::string python, find_python());
    command = {python, "-m", "yeto.bridge", options_.name};
  }
  return spawn(std::move(command));
}

Status Bridge::spawn(std::vector<std::string> command) {
  int ends[2];
  int log_ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return fail(io_error("cannot make a socket pair", place(), errno));
  }
  FileHandle near(ends[0]);
  const FileHandle far(ends[1]);
  if (::pipe2(log_ends, O_CLOEXEC) != 0) {
    return fail(io_error("cannot make a pipe", place(), errno));
  }
  FileHandle log_read(log_ends[0]);
  const FileHandle log_write(log_ends[1]);
  std::vector<char*> arguments = exec_pointers(command);
  SpawnSetup setup;
  ::posix_spawn_file_actions_adddup2(&setup.files, far.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&setup.files, far.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&setup.files, log_write.get(), STDERR_FILENO);
  // A group of its own: Ctrl-C at a terminal must not end it before its parent has used it for the
  // last time.
  setup.stand_apart(POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, command.front().c_str(), &setup.files, &setup.attributes,
                                   arguments.data(), environ);
  if (error != 0) {
    return fail(ErrorCode::kSetup, strf("{} cannot be started", command.front()), place(),
                "set YETO_PYTHON to a Python that has yeto");
  }
  child_.pid = pid;
  child_.socket = std::move(near);
  received_.clear();
  pid_ = pid;
  child_.log = JoiningThread([this, fd = std::move(log_read)] { read_log(fd.get()); });
  return Unit{};
}

void Bridge::read_log(int fd) {
  std::string text;
  char buffer[4096];
  const auto tell = [&](std::string_view line) {
    log(LogLevel::kInfo, place(), "{}", line);
    MutexLock lock(log_mutex_);
    last_lines_.emplace_back(line);
    if (last_lines_.size() > kLastLines) {
      last_lines_.pop_front();
    }
  };
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      break;
    }
    text.append(buffer, static_cast<std::size_t>(got));
    std::size_t begin = 0;
    for (std::size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', begin)) {
      tell(std::string_view(text).substr(begin, at - begin));
      begin = at + 1;
    }
    text.erase(0, begin);
    if (text.size() > kMaxLogLine) {
      tell(text);
      text.clear();
    }
  }
  if (!text.empty()) {
    tell(text);
  }
}

std::string Bridge::end_child(Nanos grace) {
  if (child_.pid <= 0) {
    return "not running";
  }
  pid_ = 0;
  child_.socket.reset();
  int status = 0;
  const Nanos deadline = monotonic_now() + grace;
  while (::waitpid(child_.pid, &status, WNOHANG) == 0) {
    if (monotonic_now() >= deadline) {
      ::kill(-child_.pid, SIGKILL);  // and whatever it started
      ::kill(child_.pid, SIGKILL);
      ::waitpid(child_.pid, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  child_.pid = 0;
  child_.log.join();
  return exit_in_words(status);
}

Error Bridge::died() {
  // A child that closes its side but lives on is of no use either.
  const std::string how = end_child(options_.stop_grace);
  if (stopped_) {
    return {ErrorCode::kClosed, "the bridge was stopped", place(), ""};
  }
  std::string said;
  {
    MutexLock lock(log_mutex_);
    for (const std::string& line : last_lines_) {
      said += (said.empty() ? "" : " | ") + line;
    }
  }
  return {ErrorCode::kClosed, strf("the bridge process ended ({}) during a call", how),
          said.empty() ? place() : strf("{}: {}", place(), said), "the next call starts it again"};
}

// ---- calls
// ---------------------------------------------------------------------------------------------

Status Bridge::wait_for(short events, Nanos deadline) {
  for (;;) {
    const Nanos left = deadline - monotonic_now();
    if (left <= 0) {
      end_child(0);
      return fail(ErrorCode::kTimeout, "the bridge did not answer in time; it was ended", place(),
                  "the next call starts it again");
    }
    pollfd entry{child_.socket.get(), events, 0};
    const auto millis = static_cast<int>(std::min<Nanos>(left / kMillisecond + 1, 60'000));
    const int ready = ::poll(&entry, 1, millis);
    if (ready > 0) {
      return Unit{};
    }
    if (ready < 0 && errno != EINTR) {
      return fail(io_error("cannot wait for the bridge", place(), errno));
    }
  }
}

Status Bridge::send(std::string_view line, Nanos deadline) {
  while (!line.empty()) {
    const ssize_t sent =
        ::send(child_.socket.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      line.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      YETO_TRY(wait_for(POLLOUT, deadline));
    } else if (errno != EINTR) {
      return fail(died());
    }
  }
  return Unit{};
}

Result<std::string> Bridge::receive(Nanos deadline) {
  std::size_t searched = 0;
  for (;;) {
    const std::size_t at = received_.find('\n', searched);
    if (at != std::string::npos) {
      std::string line = received_.substr(0, at);
      received_.erase(0, at + 1);
      return line;
    }
    searched = received_.size();
    if (searched > kMaxReplyBytes) {
      end_child(0);
      return fail(ErrorCode::kProtocol, "the bridge's answer is too long", place());
    }
    char buffer[16384];
    const ssize_t got = ::recv(child_.socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got > 0) {
      received_.append(buffer, static_cast<std::size_t>(got));
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      YETO_TRY(wait_for(POLLIN, deadline));
    } else if (got == 0 || errno != EINTR) {
      return fail(died());
    }
  }
}

Result<std::string> Bridge::call(std::string_view method, std::string_view params, Nanos timeout) {
  MutexLock lock(call_mutex_);
  if (stopped_) {
    return fail(ErrorCode::kClosed, "the bridge was stopped", place());
  }
  const Nanos deadline = monotonic_now() + timeout;
  YETO_TRY(start());
  if (stopped_) {  // meanwhile: stop() may have seen no child yet
    return fail(died());
  }
  const std::uint64_t id = next_id_++;
  YETO_ASSIGN(std::string line, request_line(id, method, params));
  YETO_TRY(send(line + "\n", deadline));
  YETO_ASSIGN(const std::string reply, receive(deadline));
  Result<std::string> result = parse_reply(reply, id);
  if (!result && result.error().code == ErrorCode::kProtocol) {
    end_child(0);  // what comes after it cannot be told apart
    return result;
  }
  starts_.clear();
  return result;
}

}  // namespace yeto::bridge
