// SPDX-License-Identifier: Apache-2.0
// FleetCore: what the controller of a run decides. Sans-I/O: events in, actions out; the time is an
// argument, and there is no file, process, clock or thread in it. Not thread-safe.
//
// Who is who: seat 0 … N-1 are the islands, kSyncerSeat is the syncer. Attempts of each count from
// 0. Life of a run: kRunning → the syncer ends → kSaving (islands save) → kDelivering → kOver; a
// failure or a request to go down leads through kStopping, where everything that still lives is
// ended.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "yeto/base/clock.h"
#include "yeto/fleet/run/states.h"

namespace yeto::fleet {

inline constexpr int kSyncerSeat = -1;
inline constexpr int kWholeRun = -2;  // in decisions only

enum class StopMode { kFinish, kNow };

struct CoreConfig {
  int islands = 1;
  bool relaunch = true;
  int max_recoveries = 10;  // of one island in an hour
  Nanos recover_timeout =
      1200 * kSecond;                    // an island may spend on being restarted; 0: never restart
  Nanos stall_timeout = 900 * kSecond;   // without a step
  Nanos final_timeout = 300 * kSecond;   // of the syncer, for the last acknowledgement
  Nanos setup_timeout = 7200 * kSecond;  // from process start to joining
  Nanos save_timeout = 900 * kSecond;    // from the syncer's end to the island's
  Nanos stop_now_timeout = 30 * kSecond;  // for `stop-run --mode now`
  Nanos kill_grace = 10 * kSecond;        // from TERM to KILL
  int delivery_tries = 3;
};

// What the syncer says about a seat, as far as decisions need it.
struct SeatReport {
  int seat = 0;
  bool joined = false;  // has a session or had one
  bool live = false;
  std::string phase = {};        // load, train, eval, snapshot, paused
  std::string incarnation = {};  // text of the number; empty if unknown
  std::int64_t local_step = 0;
};

namespace event {
struct Begin {};
struct ProcessUp {
  int who = 0;
  int attempt = 0;
};
struct SpawnFailed {
  int who = 0;
  int attempt = 0;
  std::string text = {};
};
struct Exited {
  int who = 0;
  int attempt = 0;
  std::optional<int> exit = {};  // unknown if it was not our child
  int signal = 0;
  bool artifact = false;  // the island's adapter is complete on disk
};
struct Report {
  std::string phase = {};
  std::int64_t global_step = 0;
  std::vector<SeatReport> seats = {};
};
struct Stop {
  StopMode mode = StopMode::kFinish;
};
struct FinishSent {
  bool accepted = false;
};
struct Delivered {
  bool ok = false;
  std::string text = {};  // the place, or what went wrong
};
struct Down {};
struct Tick {};
// First event of a controller that takes over a run: the newest attempt of each process, and
// whether it is still alive. What is not alive is reported by Exited afterwards.
struct Restored {
  struct Process {
    int who = 0;
    int attempt = -1;
    int restarts = 0;
  };
  std::vector<Process> processes = {};
};
}  // namespace event
using Event = std::variant<event::Begin, event::ProcessUp, event::SpawnFailed, event::Exited,
                           event::Report, event::Stop, event::FinishSent, event::Delivered,
                           event::Down, event::Tick, event::Restored>;

namespace action {
struct Start {
  int who = 0;
  int attempt = 0;
};
struct Terminate {
  int who = 0;
  bool force = false;
};
struct SendFinish {
  StopMode mode = StopMode::kFinish;
};
struct Deliver {
  std::vector<int> seats = {};  // finished ones, lowest first
};
// A decision with its reason; nothing follows from it but a journal line.
struct Decide {
  int who = 0;
  std::string what = {};
  std::string reason = {};
};
struct End {};
}  // namespace action
using Action = std::variant<action::Start, action::Terminate, action::SendFinish, action::Deliver,
                            action::Decide, action::End>;

struct IslandView {
  IslandState state = IslandState::kPlanned;
  int attempt = -1;
  int restarts = 0;
  std::optional<int> exit = {};
};
struct RunView {
  RunState state = RunState::kPending;
  std::optional<RunPhase> phase = {};  // none once the run is over
  std::optional<int> exit = {};
  std::string error = {};
  std::vector<IslandView> islands = {};
  int syncer_restarts = 0;
  std::string artifact = {};
};

class FleetCore {
 public:
  explicit FleetCore(CoreConfig config);

  std::vector<Action> on(const Event& event, Nanos now);
  RunView view() const;
  bool over() const { return stage_ == Stage::kOver; }

 private:
  enum class Stage { kRunning, kSaving, kStopping, kDelivering, kOver };

  struct Process {
    int attempt = -1;
    int restarts = 0;
    bool starting = false;  // Start was ordered, no answer yet
    bool up = false;
    Nanos up_since = 0;
    bool waiting = false;  // to be started at next_start
    Nanos next_start = 0;
    int failures = 0;  // in a row, for the pause
    bool ending = false;
    Nanos kill_at = 0;
    std::string ending_why = {};
    std::optional<int> exit = {};
  };
  struct Island : Process {
    IslandState state = IslandState::kPlanned;
    bool joined = false;  // in this attempt
    bool ever_joined = false;
    std::string incarnation = {};
    std::string dead_incarnation = {};
    std::string phase = {};
    std::int64_t local_step = -1;
    Nanos last_progress = 0;
    int setup_failures = 0;
    bool recovering = false;
    Nanos recovering_since = 0;
    Nanos recovery_spent = 0;
    Nanos healthy_since = 0;
    std::deque<Nanos> recoveries;
  };

  void handle(const event::Begin&, Nanos now);
  void handle(const event::ProcessUp& e, Nanos now);
  void handle(const event::SpawnFailed& e, Nanos now);
  void handle(const event::Exited& e, Nanos now);
  void handle(const event::Report& e, Nanos now);
  void handle(const event::Stop& e, Nanos now);
  void handle(const event::FinishSent& e, Nanos now);
  void handle(const event::Delivered& e, Nanos now);
  void handle(const event::Down&, Nanos now);
  void handle(const event::Tick&, Nanos) {}
  void handle(const event::Restored& e, Nanos now);

  void advance(Nanos now);
  void advance_running(Nanos now);
  void advance_island(int seat, Nanos now);
  void advance_finish(Nanos now);
  void check_settled(Nanos now);
  void escalate(int who, Process& process, Nanos now);

  Process& process(int who);
  void start(int who);
  void terminate(int who, Nanos now, std::string why);
  void recover(int seat, Nanos now, const std::string& why);
  void give_up(int seat, IslandState state, const std::string& why);
  void island_exited(int seat, const event::Exited& e, Nanos now);
  void syncer_exited(const event::Exited& e, Nanos now);
  void seat_report(const SeatReport& report, bool training, Nanos now);
  void island_healthy(Island& island, Nanos now);
  void stop_all(Nanos now, const std::string& why);
  void syncer_ended(Nanos now);
  void deliver(Nanos now);
  void end_run();
  void conclude();
  void decide(int who, std::string what, std::string reason);
  Nanos recovery_time(const Island& island, Nanos now) const;
  bool settled(const Island& island) const;
  bool anything_up() const;
  int failure_exit() const;

  const CoreConfig config_;
  Stage stage_ = Stage::kRunning;
  std::vector<Action> actions_;
  Process syncer_;
  std::vector<Island> islands_;
  std::string syncer_phase_;
  std::int64_t global_step_ = 0;
  bool training_seen_ = false;
  Nanos last_report_ = 0;
  std::optional<int> syncer_exit_;  // 0 or 4: the syncer reported the end
  std::optional<StopMode> stop_;
  bool finish_accepted_ = false;
  bool finish_in_flight_ = false;
  Nanos finish_next_ = 0;
  Nanos finish_deadline_ = 0;
  Nanos save_deadline_ = 0;
  std::optional<Nanos> settled_since_;
  bool down_ = false;
  std::optional<int> failure_;  // exit code of a failure found on the way
  std::string error_;
  int delivery_tries_ = 0;
  bool delivery_in_flight_ = false;
  Nanos delivery_next_ = 0;
  std::string artifact_;
  std::string delivery_error_;
  RunState final_state_ = RunState::kFailed;
  std::optional<int> final_exit_;
};

}  // namespace yeto::fleet
