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
#include "yeto/base/thread.h"
#include "yeto/store/remote_store.h"
#include "yeto/sync/server/server.h"

namespace yeto::apps {
namespace {

// TERM and INT arrive in a thread that waits for them, so no code runs in a signal handler. USR1
// ends it. Before there is a server the first signal ends the process at once: nothing of it is
// worth keeping, and loading a checkpoint may take long.
class SignalWatch {
 public:
  // Blocks the signals in this thread and all that it starts afterwards, and begins to wait.
  SignalWatch() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
    thread_ = std::thread([this] { watch(); });
  }
  // From now on the first signal interrupts the server, which must outlive this object.
  void serve(sync::Server& server) {
    MutexLock lock(mutex_);
    server_ = &server;
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
  void watch() {
    for (bool second = false;; second = true) {
      int number = 0;
      if (sigwait(&signals_, &number) != 0 || number == SIGUSR1) {
        return;
      }
      MutexLock lock(mutex_);
      if (second || server_ == nullptr) {
        std::_Exit(128 + number);
      }
      server_->interrupt(128 + number);
    }
  }

  sigset_t signals_;
  Mutex mutex_;
  sync::Server* server_ YETO_GUARDED_BY(mutex_) = nullptr;
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
      request.checkpoint);
  if (const auto pages = server.http_address()) {
    log(LogLevel::kInfo, "syncer", "status pages on http://{}/status, /metrics and /healthz",
        pages->text());
  }
  if (options.tls) {
    log(LogLevel::kInfo, "syncer", "TLS 1.3, both ends by certificate; ours is valid until {}",
        options.tls->valid_until());
  }
  log_line(LogLevel::kInfo, "syncer", "effective limits:");
  for (const std::string& line : limit_lines(options)) {
    log(LogLevel::kInfo, "syncer", "  {}", line);
  }
}

Result<std::unique_ptr<sync::Server>> open_server(SyncerRequest& request) {
  YETO_ASSIGN(request.options.checkpoint, store::open_checkpoint_store(request.checkpoint));
  if (!request.checkpoint_copy.empty()) {
    YETO_ASSIGN(request.options.checkpoint_copy,
                store::open_checkpoint_store(request.checkpoint_copy));
  }
  return sync::Server::open(request.options);
}

int serve(SyncerRequest& request) {
  std::unique_ptr<sync::Server> owner;  // outlives the watch
  SignalWatch signals;
  Result<std::unique_ptr<sync::Server>> server = open_server(request);
  if (!server) {
    return report(server.error());
  }
  owner = std::move(*server);
  say_hello(*owner, request);
  signals.serve(*owner);
  const int exit_code = owner->run();
  if (owner->work_left()) {
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
