// SPDX-License-Identifier: Apache-2.0
// Controller: FleetCore with real files, a provider and a clock. One thread; one controller for
// each run, kept so by a lock on the run's folder. A controller that dies leaves syncer and islands
// running; the next one reads the journal and takes them over by pid and start time.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "yeto/base/files.h"
#include "yeto/base/result.h"
#include "yeto/fleet/run/core.h"
#include "yeto/fleet/run/journal.h"
#include "yeto/fleet/run/observed.h"
#include "yeto/fleet/run/provider.h"
#include "yeto/fleet/run/registry.h"
#include "yeto/fleet/run/run_record.h"

namespace yeto::fleet {

inline constexpr int kExitFenced = 9;  // another controller has the run

// What the surrounding process gives.
struct ControllerHooks {
  Handle self;                           // this process
  std::function<bool()> down_requested;  // a TERM has come
  std::function<void(Nanos)> wait;       // waits so long, or until a signal
};

class Controller {
 public:
  Controller(RunPaths paths, RunRecord record, Provider& provider, ControllerHooks hooks);
  // Runs until the run is over; the run's exit code, or the error that kept the controller from
  // starting.
  Result<int> run();

 private:
  struct Live {
    int attempt = 0;
    std::string token;
    Handle handle;
  };
  struct PendingStart {
    action::Start start;
    Nanos next = 0;
  };

  Status take_run();
  Status begin_or_restore();
  void adopt(const std::map<int, Recorded>& newest);
  void step();
  void feed(const Event& event);
  void apply(const Action& action);
  void apply_start(const action::Start& start);
  Status start_process(const action::Start& start);
  Intent intent_of(const action::Start& start) const;
  void apply_terminate(const action::Terminate& order);
  void apply_finish(StopMode mode);
  void apply_deliver(const std::vector<int>& seats);
  void finish_delivery();
  void watch_processes();
  void process_gone(int who, const NodeReport& report);
  void watch_helpers();
  void watch_status();
  void watch_stop();
  void save_state();
  int close_run();
  std::vector<std::string> survivors();
  void note(JournalEntry entry);
  NodeReport observe(const Handle& handle);
  std::optional<Handle> spawn_helper(const std::string& name, std::vector<std::string> argv);
  bool has_artifact(int seat) const;

  const RunPaths paths_;
  const RunRecord record_;
  Provider& provider_;
  const ControllerHooks hooks_;
  FleetCore core_;
  FileHandle lock_;
  std::optional<Journal> journal_;
  std::map<int, Live> live_;
  std::deque<Event> queue_;
  std::vector<PendingStart> pending_starts_;
  std::optional<Handle> finish_;  // the process that sends FINISH
  Nanos finish_deadline_ = 0;
  std::optional<Handle> plot_;
  Nanos plot_deadline_ = 0;
  std::filesystem::path staged_;  // delivery under way
  double status_seen_ = 0;
  std::string stop_seen_;
  int helpers_ = 0;
  std::uint64_t seq_ = 0;
  std::string saved_;  // what state.json was made from
};

}  // namespace yeto::fleet
