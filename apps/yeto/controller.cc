// SPDX-License-Identifier: Apache-2.0
// `yeto _controller RUN_DIR`: the controller of one run. Started by launch; started by hand it
// takes over a run whose controller is gone. TERM means `yeto down`.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>

#include "verbs.h"
#include "yeto/base/clock.h"
#include "yeto/fleet/providers/local.h"
#include "yeto/fleet/providers/process.h"
#include "yeto/fleet/run/controller.h"

namespace yeto::apps {
namespace {

volatile sig_atomic_t down_seen = 0;
int wake_pipe = -1;

// A byte in the pipe ends the wait of the main loop; only calls that are safe in a handler are
// used.
void on_signal(int number) {
  if (number != SIGCHLD) {
    down_seen = 1;
  }
  const int before = errno;
  const char byte = 0;
  [[maybe_unused]] const ssize_t count = ::write(wake_pipe, &byte, 1);
  errno = before;
}

bool install(std::array<int, 2>& ends) {
  if (::pipe(ends.data()) != 0) {
    return false;
  }
  for (const int end : ends) {
    ::fcntl(end, F_SETFD, FD_CLOEXEC);
    ::fcntl(end, F_SETFL, O_NONBLOCK);
  }
  wake_pipe = ends[1];
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  for (const int number : {SIGTERM, SIGINT, SIGCHLD}) {
    ::sigaction(number, &action, nullptr);
  }
  ::signal(SIGHUP, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  return true;
}

void wait_on(int wake, Nanos limit) {
  pollfd file{wake, POLLIN, 0};
  if (::poll(&file, 1, static_cast<int>(limit / kMillisecond)) > 0) {
    std::array<char, 256> bytes{};
    while (::read(wake, bytes.data(), bytes.size()) > 0) {
    }
  }
}

}  // namespace

int run_controller(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: yeto _controller RUN_DIR\n", stderr);
    return 64;
  }
  std::error_code problem;
  const std::filesystem::path folder = std::filesystem::canonical(argv[1], problem);
  const fleet::RunPaths paths{problem ? std::filesystem::path(argv[1]) : folder};
  Result<fleet::RunRecord> record = fleet::read_run_record(paths);
  if (!record) {
    std::fputs(record.error().text().c_str(), stderr);
    return error_exit_code(record.error().code);
  }
  std::array<int, 2> ends{};
  if (!install(ends)) {
    std::fputs("error[E_IO]: cannot make a pipe\n", stderr);
    return 1;
  }
  fleet::LocalProvider provider;
  fleet::Controller controller(paths, std::move(*record), provider,
                               {fleet::own_handle(), [] { return down_seen != 0; },
                                [&](Nanos limit) { wait_on(ends[0], limit); }});
  const Result<int> code = controller.run();
  if (!code) {
    std::fputs(code.error().text().c_str(), stderr);
    return error_exit_code(code.error().code);
  }
  return *code;
}

}  // namespace yeto::apps
