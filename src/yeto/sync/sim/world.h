// SPDX-License-Identifier: Apache-2.0
// World: one run of a plan in virtual time: the real core and jobs in a syncer's process, real
// clients in islands, simulated network, disk, clocks and faults, and the checks that look at all
// of it. Deterministic: the same plan gives the same tape hash. Not for threads; different worlds
// may run on different threads.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "yeto/base/rng.h"
#include "yeto/sync/sim/checks.h"
#include "yeto/sync/sim/event_queue.h"
#include "yeto/sync/sim/island.h"
#include "yeto/sync/sim/network.h"
#include "yeto/sync/sim/plan.h"
#include "yeto/sync/sim/syncer_host.h"

namespace yeto::sync::sim {

constexpr Nanos local_time(const ClockShape& clock, Nanos now) {
  return now + clock.offset + now / 1'000'000 * clock.ppm;
}
std::string to_words(const wire::Message& message);
std::string to_words(const TapeRecord& record);

// What a world tells while it runs.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_tape(const TapeRecord&, Nanos /*now*/) {}
  virtual void on_fault(const Fault&, Nanos /*now*/) {}
  virtual void on_ready(Nanos /*since_start*/) {}
  // True: on_step makes the optimizer steps instead of the made-up ones, and every step is an event
  // of its own, so that islands with equal step times take the same step one after the other.
  virtual bool trains() const { return false; }
  virtual void on_step(std::uint32_t /*island*/, std::uint64_t /*step*/, IslandValues&) {}
};

struct Trace {
  std::set<std::string> rooms;  // core, round, network, client, jobs, world
  std::FILE* out = nullptr;
};

struct Outcome {
  std::string violation;  // empty: every rule held
  std::uint64_t tape_hash = 0;
  std::uint64_t final_hash = 0;  // of the final values; 0: none
  bool ended = false;
  int exit_code = -1;
  std::string end_reason;
  Nanos now = 0;
  std::uint64_t events = 0;
  Checks::Totals totals;
  CoreStatus status;  // the syncer's last
  bool good() const { return violation.empty(); }
};

class World {
 public:
  explicit World(const Plan& plan, Trace trace = {}, Observer* observer = nullptr);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Until the run and all its islands have ended, a rule is broken, or plan.end_at.
  Outcome run();
  // Until this time, at most; for tests that look in between. False: it is over.
  bool run_until(Nanos until);
  Outcome outcome();

  Nanos now() const { return queue_.now(); }
  EventQueue& queue() { return queue_; }
  const Plan& plan() const { return plan_; }
  Network& network() { return *network_; }
  Checks& checks() { return checks_; }
  SyncerHost& syncer() { return *syncer_; }
  Island& island(std::uint32_t index) { return *islands_[index]; }
  std::uint32_t island_count() const { return static_cast<std::uint32_t>(islands_.size()); }
  const IslandShape& island_shape(ConnId conn) const {
    return plan_.islands[network_->island_of(conn)];
  }
  Observer* trainer() const {
    return observer_ != nullptr && observer_->trains() ? observer_ : nullptr;
  }
  Rng& rng() { return rng_; }
  std::shared_ptr<const Bytes> layout_bytes() const { return layout_bytes_; }
  bool disk_is_slow() const { return queue_.now() < disk_slow_until_; }
  void inject(const Fault& fault);

  void on_tape(const TapeRecord& record);
  void note_ready(Nanos since_start);
  void sample_staleness(std::uint64_t staleness);
  double mean_staleness() const {
    return staleness_count_ == 0
               ? 0.0
               : static_cast<double>(staleness_sum_) / static_cast<double>(staleness_count_);
  }

  template <class Words>
  void trace(const char* room, Words&& words) {
    if (trace_.out != nullptr && trace_.rooms.contains(room)) {
      print_trace(room, words());
    }
  }

 private:
  void print_trace(const char* room, const std::string& text);
  void schedule_all();
  bool over();
  void check_end();
  bool excused(Nanos at) const;
  bool roster_has_gone_home() const;
  static bool before_frame(World& world, ConnId conn, End to, const wire::Message& message);
  static void after_piece(World& world, ConnId conn, End to, wire::TransferKind kind);

  const Plan plan_;
  Trace trace_;
  Observer* const observer_;
  EventQueue queue_;
  Rng rng_;
  Checks checks_;
  std::shared_ptr<const Bytes> layout_bytes_;
  std::unique_ptr<SyncerHost> syncer_;
  std::unique_ptr<Network> network_;
  std::vector<std::unique_ptr<Island>> islands_;
  Nanos limit_ = 0;
  Nanos disk_slow_until_ = 0;
  Nanos disk_fails_until_ = 0;
  std::uint64_t frames_of_cut_island_ = 0;
  std::uint32_t pieces_seen_ = 0;
  Nanos ended_at_ = 0;
  Nanos empty_since_ = 0;  // nobody is left who would work
  std::uint64_t staleness_sum_ = 0;
  std::uint64_t staleness_count_ = 0;
  bool over_ = false;
};

}  // namespace yeto::sync::sim
