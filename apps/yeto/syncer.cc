// SPDX-License-Identifier: Apache-2.0
// `yeto syncer`: serves one run until it ends. TERM or INT: last checkpoint, then out; a second
// one: out now.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "flags_syncer.h"
#include "verbs.h"
#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/store/object_store.h"
#include "yeto/sync/server/server.h"

namespace yeto::apps {
namespace {

// TERM and INT arrive in a thread that waits for them, so no code runs in a signal handler. USR1
// ends it.
class SignalWatch {
 public:
  // Blocks the signals in this thread and all that it starts afterwards.
  SignalWatch() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
  }
  void start(sync::Server& server) {
    thread_ = std::thread([this, &server] { watch(server); });
  }
  ~SignalWatch() {
    if (thread_.joinable()) {
      ::kill(::getpid(), SIGUSR1);
      thread_.join();
    }
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  void watch(sync::Server& server) {
    for (bool second = false;; second = true) {
      int number = 0;
      if (sigwait(&signals_, &number) != 0 || number == SIGUSR1) {
        return;
      }
      if (second) {
        std::_Exit(128 + number);
      }
      server.interrupt(128 + number);
    }
  }

  sigset_t signals_;
  std::thread thread_;
};

int report(const Error& error) {
  std::fputs(error.text().c_str(), stderr);
  return error_exit_code(error.code);
}

void say_hello(const sync::Server& server, const SyncerRequest& request) {
  const sync::ServerOptions& options = request.options;
  log(LogLevel::kInfo, "syncer", "run {} on {}, term {}{}, checkpoint {}", options.core.run_id,
      server.address().text(), server.term(), server.resumed() ? " (resumed)" : "",
      request.checkpoint.string());
  log_line(LogLevel::kInfo, "syncer", timeouts_text(options));
}

int serve(SyncerRequest& request) {
  SignalWatch signals;
  Result<std::shared_ptr<store::LocalFolder>> folder = store::LocalFolder::open(request.checkpoint);
  if (!folder) {
    return report(folder.error());
  }
  request.options.checkpoint = *folder;
  Result<std::unique_ptr<sync::Server>> server = sync::Server::open(request.options);
  if (!server) {
    return report(server.error());
  }
  say_hello(**server, request);
  signals.start(**server);
  const int exit_code = (*server)->run();
  if ((*server)->work_left()) {
    // A job is still at work on values nobody wants any more; waiting for it would break the
    // promise to leave in time. Tape and status are on disk.
    std::_Exit(exit_code);
  }
  return exit_code;
}

}  // namespace

int run_syncer(int argc, char** argv) {
  const std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  SyncerRequest request = read_syncer_flags(args);
  if (request.help) {
    std::fputs(fleet::help_text(fleet::kSyncer).c_str(), stdout);
    return 0;
  }
  for (const fleet::FlagError& error : request.errors) {
    std::fputs(error.text().c_str(), stderr);
  }
  if (!request.errors.empty()) {
    return fleet::exit_code_of(request.errors);
  }
  return serve(request);
}

}  // namespace yeto::apps
