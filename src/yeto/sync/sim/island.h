// SPDX-License-Identifier: Apache-2.0
// Island: one learner in a world: what sync/boundary does around the client (courier, worker,
// trainer's loop) over the simulated network, with a trainer that only takes time. Its process can
// be killed and another one started on the same seat.
//
// Steps of the trainer cost no event while nothing waits for a boundary: they are caught up with
// before anything looks at them, which gives the same sequence of calls.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "yeto/sync/client/client.h"
#include "yeto/sync/sim/island_values.h"
#include "yeto/sync/sim/network.h"
#include "yeto/sync/sim/plan.h"

namespace yeto::sync::sim {

class World;

class Island final : public EndHandler {
 public:
  Island(World& world, std::uint32_t index);

  void start();
  void kill(bool machine);
  void hang(Nanos until);
  void pause(Nanos until);
  void spoil();
  void cut(const std::string& reason);
  void cut_data();
  void jump_clock(Nanos by) { clock_.offset += by; }

  enum class State : std::uint8_t {
    kDown,       // no process
    kJoining,    // wait_ready()
    kTraining,   // the trainer computes
    kWaiting,    // it stands at a boundary: lockstep, or alone for too long
    kFinishing,  // finalize()
    kOver        // the process has ended by itself
  };
  State state() const { return state_; }
  Seat seat() const { return shape_.seat; }
  // It has acknowledged the final values.
  bool acknowledged() const { return acknowledged_; }
  const std::string& end_reason() const { return end_reason_; }
  std::uint64_t steps() const { return steps_; }  // of all processes
  std::uint64_t tokens() const { return steps_ * shape_.tokens; }
  std::uint32_t processes() const { return processes_; }
  IslandValues* values() { return values_ ? &*values_ : nullptr; }
  const client::Client* client() const { return client_.get(); }
  std::uint64_t incarnation() const { return incarnation_; }
  const client::Counters& counters() const { return counters_; }
  Nanos ready_after() const { return ready_after_; }  // of the newest process, from its start
  std::uint64_t staleness_most() const { return staleness_most_; }

  // ---- from the network
  void on_message(ConnId conn, wire::Message message) override;
  void on_offer(ConnId conn, const wire::Offer& offer) override;
  void on_received(ConnId conn, std::uint64_t transfer, bool ok, const Body& body) override;
  void on_sent(ConnId conn, std::uint64_t ticket, bool ok) override;
  void on_heard(ConnId conn) override;
  void on_closed(ConnId conn, const std::string& reason) override;
  Nanos standing_until() const override { return standing_until_; }
  bool machine_up() const override { return machine_up_; }

 private:
  enum class Courier : std::uint8_t { kIdle, kDialing, kAsking, kSession, kStopped };

  // Calls `run(island, c)` later, unless the process has ended by then.
  using Later = void (*)(Island& island, std::uint64_t c);
  void later(Nanos at, Later run, std::uint64_t c = 0);
  Nanos local_now() const;

  // ---- courier, island_courier.cc
  void attempt();
  void dialed(std::uint64_t attempt);
  void attempt_failed(const std::string& why);
  void try_later();
  void stop_for_good(const std::string& why);
  void refused(const wire::Refused& refused);
  void admit(wire::Welcome welcome);
  void watch(std::uint64_t session);
  void send_beat();
  void lose(const std::string& reason);
  void close_link();

  // ---- client
  void on_event(const client::Event& event);
  void carry(client::Actions& actions);
  void carry_out(client::Action& action);
  void check_image(const client::CheckImage& order);
  void image_checked(std::uint64_t image, bool ok);
  void send_body(client::Ticket ticket, const wire::Offer& offer);

  // ---- trainer, island_trainer.cc
  void catch_up();
  void take_step(Nanos at);
  void begin_step(Nanos at);
  void look();  // after anything that may have made a boundary due
  bool something_waits() const;
  void plan_boundary();
  void at_boundary();
  void turn();
  void do_value_work(const client::Action& action);
  void try_ready();
  void finish(bool limit);
  void look_for_end();
  bool has_rows();
  void end(std::string reason);
  bool alone_too_long() const;

  World& world_;
  const std::uint32_t index_;
  const IslandShape& shape_;
  ClockShape clock_;
  Rng rng_;
  bool machine_up_ = true;
  Nanos standing_until_ = 0;
  std::uint32_t processes_ = 0;
  std::uint64_t steps_ = 0;
  bool acknowledged_ = false;
  std::string end_reason_;
  client::Counters counters_;
  std::uint64_t staleness_most_ = 0;

  // Of the process.
  State state_ = State::kDown;
  std::uint64_t incarnation_ = 0;
  std::unique_ptr<client::Client> client_;
  std::optional<IslandValues> values_;
  Nanos started_at_ = 0;
  Nanos ready_after_ = 0;
  Nanos worker_free_at_ = 0;
  Nanos step_ends_ = 0;
  Nanos boundary_at_ = 0;  // planned; 0: none
  bool in_turn_ = false;
  bool turn_again_ = false;

  Courier courier_ = Courier::kIdle;
  ConnId conn_ = 0;
  wire::Hello hello_;
  std::uint64_t attempts_ = 0;
  std::uint64_t session_ = 0;
  std::uint32_t failures_ = 0;
  std::uint32_t failed_since_session_ = 0;
  bool refused_for_good_ = false;
  Nanos heard_at_ = 0;     // local
  Nanos alone_since_ = 0;  // virtual
  wire::Welcome welcome_;
  std::map<std::uint64_t, client::ImageId> receiving_;     // transfer → image
  std::map<client::Ticket, client::PushEncoded> encoded_;  // by the worker, not told yet
  std::map<client::Ticket, client::InitEncoded> init_encoded_;
  bool spoiled_ = false;
  bool rows_taken_ = false;  // for the step to come
};

}  // namespace yeto::sync::sim
