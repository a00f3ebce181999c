// SPDX-License-Identifier: Apache-2.0
// SyncerHost: the syncer's process in a world: what sync/server does around the core, over the
// simulated network, disk, worker and clock. The process can be killed and started again; only the
// disk stays.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "yeto/sync/core/core.h"
#include "yeto/sync/sim/job_host.h"
#include "yeto/sync/sim/network.h"
#include "yeto/sync/sim/plan.h"

namespace yeto::sync::sim {

class World;

class SyncerHost final : public EndHandler {
 public:
  explicit SyncerHost(World& world);

  void start();
  // `machine`: nothing is sent any more, not even a close.
  void kill(bool machine);
  void pause(Nanos until);
  void jump_clock(Nanos by) { clock_.offset += by; }
  void finish(const std::string& reason);

  bool up() const { return core_ != nullptr; }
  bool ended() const { return exit_code_.has_value(); }
  int exit_code() const { return exit_code_.value_or(-1); }
  const std::string& end_reason() const { return end_reason_; }
  std::uint32_t lives() const { return lives_; }
  const CoreStatus& last_status() const { return last_status_; }
  CoreStatus status() const { return core_->status(local_now()); }
  Durable& durable() { return durable_; }
  std::uint64_t buffer_bytes() const { return jobs_ ? jobs_->buffer_bytes() : 0; }
  std::uint64_t buffer_bytes_most() const { return buffer_bytes_most_; }
  // Merges whose result differs from that of the jobs that were never restarted.
  std::uint64_t shadow_differences() const { return shadow_differences_; }
  std::uint64_t shadow_merges() const { return shadow_merges_; }

  // ---- from the network
  void on_message(ConnId conn, wire::Message message) override;
  void on_offer(ConnId conn, const wire::Offer& offer) override;
  void on_received(ConnId conn, std::uint64_t transfer, bool ok, const Body& body) override;
  void on_sent(ConnId conn, std::uint64_t ticket, bool ok) override;
  void on_heard(ConnId conn) override;
  void on_closed(ConnId conn, const std::string& reason) override;
  Nanos standing_until() const override { return standing_until_; }
  bool machine_up() const override { return machine_up_; }

  // A dial came through: is anybody listening?
  bool listening() const { return up() && !ended(); }

 private:
  struct Session {
    Seat seat = 0;
    std::uint64_t incarnation = 0;
    std::map<std::uint64_t, BufferId> receiving;  // transfer → buffer
  };

  void feed(Event event);
  void arm_timer();
  void on_timer(std::uint64_t token);
  Nanos local_now() const;
  Nanos time_of(const Event& event) const;
  void hello_arrived(ConnId conn, wire::Hello hello);
  void order(JobOrder job);
  void run_next_job();
  void job_done();
  void checkpoint_done();
  Nanos duration_of(const JobOrder& job) const;
  void note_result(const JobOrder& order, const Event& result);

  void perform(Admit& action);
  void perform(Refuse& action);
  void perform(Send& action);
  void perform(Close& action);
  void perform(AcceptTransfer& action);
  void perform(RefuseTransfer& action);
  void perform(SendTransfer& action);
  void perform(AbortTransfer& action);
  void perform(FreeBuffer& action);
  void perform(LoadLayout& action) { order(action); }
  void perform(LoadInit& action);
  void perform(InspectPush& action) { order(action); }
  void perform(Merge& action);
  void perform(MakeImages& action);
  void perform(Checkpoint& action) { order(action); }
  void perform(MakeFinals& action) { order(action); }
  void perform(Tape& action);
  void perform(Ended& action);

  World& world_;
  const Plan& plan_;
  Durable durable_;
  ClockShape clock_;
  std::uint32_t lives_ = 0;
  bool machine_up_ = true;
  Nanos standing_until_ = 0;

  // Of the process.
  std::unique_ptr<JobHost> jobs_;
  std::unique_ptr<Core> core_;
  std::deque<Event> events_;
  bool draining_ = false;
  std::map<ConnId, Session> sessions_;
  wire::Hello candidate_;
  ConnId candidate_conn_ = 0;
  std::uint64_t timer_token_ = 0;
  Nanos timer_at_ = 0;  // virtual; 0: none
  std::deque<JobOrder> orders_;
  std::optional<Event> result_;  // of the job in progress
  std::optional<Event> checkpoint_result_;
  CoreState checkpoint_state_;
  std::uint64_t next_token_ = 1;

  // Jobs beside the syncer's, over a disk of their own, that live through its restarts.
  void open_shadow();
  void shadow(const JobOrder& job, const Event& result);
  Durable shadow_durable_;
  std::unique_ptr<JobHost> shadow_;
  std::set<BufferId> shadow_buffers_;
  std::vector<std::uint64_t> shadow_versions_;
  bool shadow_valid_ = true;
  std::uint64_t shadow_differences_ = 0;
  std::uint64_t shadow_merges_ = 0;

  std::optional<int> exit_code_;
  std::string end_reason_;
  CoreStatus last_status_;
  std::uint64_t buffer_bytes_most_ = 0;
};

}  // namespace yeto::sync::sim
