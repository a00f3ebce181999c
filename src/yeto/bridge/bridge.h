// SPDX-License-Identifier: Apache-2.0
// Bridge: how this program uses SDKs that exist for Python only. A child process
// `python -m yeto.bridge NAME` answers JSON-RPC 2.0, one object per line on stdin and stdout; large
// payloads travel as paths of files; what it writes to stderr goes to the log. Secrets reach it by
// its environment, which it inherits, never by arguments.
//
// The child is started by the first call and again by the next call after it died. A call whose
// child dies fails and is not repeated here: only the caller knows whether it may be. A child that
// died three times within a minute without having answered is not started again until that minute
// is over. It ends by itself when this process ends, because its stdin does.
#pragma once

#include <sys/types.h>
#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "yeto/base/clock.h"
#include "yeto/base/files.h"
#include "yeto/base/result.h"
#include "yeto/base/thread.h"

namespace yeto::bridge {

inline constexpr std::size_t kMaxReplyBytes = std::size_t{16} << 20;

struct BridgeOptions {
  std::string name;  // which part of yeto.bridge: "store"
  // The child's program and arguments. Empty: $YETO_PYTHON, else the python3 beside this program,
  // else the one on PATH, with -m yeto.bridge NAME.
  std::vector<std::string> command;
  Nanos stop_grace = 2 * kSecond;  // from the end of its stdin until it is killed
};

// Thread-safe; one call at a time, others wait.
class Bridge {
 public:
  explicit Bridge(BridgeOptions options);
  ~Bridge();
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;

  // `params` is a JSON object as text, and so is the result. An error of the far side keeps its
  // code, place and hint. kSetup if the child cannot be started; kClosed if it died meanwhile, with
  // its last lines; kTimeout (the child is then killed); kProtocol for an answer that is none.
  Result<std::string> call(std::string_view method, std::string_view params, Nanos timeout);
  // Ends the call in progress and all later ones with kClosed. Any thread.
  void stop();

 private:
  struct Child {
    pid_t pid = 0;
    FileHandle socket;  // its stdin and stdout
    JoiningThread log;  // reads its stderr
  };
  Status start() YETO_REQUIRES(call_mutex_);
  Status spawn(std::vector<std::string> command) YETO_REQUIRES(call_mutex_);
  Status send(std::string_view line, Nanos deadline) YETO_REQUIRES(call_mutex_);
  Result<std::string> receive(Nanos deadline) YETO_REQUIRES(call_mutex_);
  Status wait_for(short events, Nanos deadline) YETO_REQUIRES(call_mutex_);
  Error died() YETO_REQUIRES(call_mutex_);
  // Waits for the child's end, at most the grace, then kills it. Its exit in words.
  std::string end_child(Nanos grace) YETO_REQUIRES(call_mutex_);
  void read_log(int fd);
  std::string place() const;

  const BridgeOptions options_;
  std::atomic<bool> stopped_{false};
  std::atomic<pid_t> pid_{0};  // for stop(); 0: no child that may be signalled

  Mutex call_mutex_;
  Child child_ YETO_GUARDED_BY(call_mutex_);
  std::string received_ YETO_GUARDED_BY(call_mutex_);  // the beginning of the next line
  std::uint64_t next_id_ YETO_GUARDED_BY(call_mutex_) = 1;
  std::deque<Nanos> starts_ YETO_GUARDED_BY(call_mutex_);  // since the last answer
  Mutex log_mutex_;
  std::deque<std::string> last_lines_ YETO_GUARDED_BY(log_mutex_);
};

}  // namespace yeto::bridge
