// SPDX-License-Identifier: Apache-2.0
// Core: the syncer as a state machine. Events in, actions out; no socket, file, clock, thread or
// value. Not thread-safe; the server's one executor runs it. Times are monotonic nanoseconds given
// by the caller.
//
// Life of a run: waiting (for learners) → initialising (one donor gives layout and values) →
// training (rounds) → sweeping (one last pull per fragment) → final (f32 values to all,
// acknowledgements) → ended. Files: core.cc the chain of one event; core_join.cc admission and
// initial values; core_round.cc rounds and commits; core_end.cc the last sweep and the final
// values; core_status.cc what is shown.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "yeto/sync/broadcast/broadcast.h"
#include "yeto/sync/core/events.h"
#include "yeto/sync/round/round.h"
#include "yeto/sync/session/roster.h"

namespace yeto::sync {

class Core {
 public:
  Core(CoreOptions options, std::optional<Restored> restored, Nanos now);

  // Takes one event and returns what is to be done, in order.
  std::vector<Action> on(const Event& event, Nanos now);
  // When Tick is wanted at the latest.
  Nanos next_deadline() const;
  CoreStatus status(Nanos now) const;
  // What a checkpoint made now would hold.
  CoreState state() const;

 private:
  // A transfer that the core has accepted and that has not arrived yet.
  struct Incoming {
    wire::Offer offer;
    BufferId buffer = 0;
    Seat seat = 0;
    std::uint64_t incarnation = 0;
    bool late = false;  // its round closed while it was on the way
  };
  struct Push {
    BufferId buffer = 0;
    std::uint64_t c_steps = 0;
    std::uint64_t c_tokens = 0;
    std::uint64_t bytes = 0;
    double norm = 0.0;
  };
  struct OpenRound {
    Attempt attempt;
    std::map<Seat, Push> pushes;  // accepted or being measured
    TapeRound tape;
  };
  struct Inspection {
    std::uint64_t round = 0;
    Seat seat = 0;
  };
  // The donor of layout and initial values.
  struct Donation {
    Seat seat = 0;
    std::uint32_t attempt = 0;
    std::vector<bool> loaded;
    std::map<JobId, std::uint32_t> jobs;  // job → fragment
    JobId layout_job = 0;
  };
  struct FinalReader {
    bool announced = false;
    std::uint32_t next = 0;    // fragment
    std::uint64_t ticket = 0;  // of the transfer under way; 0: none
  };
  enum class Commit : std::uint8_t { kIdle, kMerging, kSaving };

  // ---- core.cc: the chain
  void dispatch(const Event& event);
  void advance();
  void handle(const HelloArrived& event);
  void handle(const ConnClosed& event);
  void handle(const MessageArrived& event);
  void handle(const Heard& event);
  void handle(const OfferArrived& event);
  void handle(const TransferArrived& event);
  void handle(const TransferSent& event);
  void handle(const LayoutLoaded& event);
  void handle(const InitLoaded& event);
  void handle(const PushInspected& event);
  void handle(const Merged& event);
  void handle(const ImagesMade& event);
  void handle(const Checkpointed& event);
  void handle(const FinalsMade& event);
  void handle(const FinishRequested& event);
  void handle(const Tick&) {}
  void on_message(Member& member, const wire::Message& message);
  void send_heartbeats();
  void send_broadcasts();
  void emit(Action action) { out_.push_back(std::move(action)); }
  void tape(TapeRecord record) { emit(Tape{std::move(record)}); }
  void free_all(const std::vector<BufferId>& buffers);
  void trouble(std::string text);
  bool owes_push(Seat seat) const;
  bool live(const Member& member) const;

  // ---- core_join.cc
  void admit_learner(const HelloArrived& event);
  void admit_controller(const HelloArrived& event);
  wire::Welcome welcome_for(const Admission& admission, const wire::Hello& hello) const;
  std::vector<std::uint64_t> valid_versions(std::uint64_t held_term) const;
  void join_broadcasts(Seat seat, const wire::Hello& hello);
  void forget_process(Seat seat);
  void resend_open_pulls(const Member& member);
  void lose(Seat seat);
  void initialise();
  void ask_donor_for_values();
  void donor_failed(std::string why);
  void set_codecs(std::uint64_t values);
  void set_layout(Layout layout);
  void make_images();
  void try_start();
  std::string start_obstacle() const;

  // ---- core_round.cc
  void drop_members_that_are_gone();
  void close_head();
  void launch_rounds();
  bool launch_one();
  std::optional<std::vector<Seat>> capture(std::uint32_t fragment);
  std::optional<std::vector<Seat>> capture_for_sweep(std::uint32_t fragment);
  bool may_capture(const Member& member, std::uint32_t fragment) const;
  void pull(const OpenRound& round, const Member& member);
  void start_merge(OpenRound& round, const std::string& reason);
  void ask_again(OpenRound& round);
  void abandon(OpenRound& round, const std::string& reason);
  void recapture(OpenRound& round);
  void ask(OpenRound& round, const std::vector<Seat>& seats);
  void commit();
  void publish();
  void judge_push(const OfferArrived& event, Member& member);
  void refuse_push(const OfferArrived& event, Member& member, const std::string& reason);
  void push_arrived(const Incoming& incoming);
  void push_broken_off(const Incoming& incoming);
  void accept_push(OpenRound& round, Member& member, double norm);
  void drop_push(OpenRound& round, Member& member, const std::string& reason);
  void verdict(const Member& member, const Attempt& attempt, wire::Outcome outcome,
               const std::string& reason);
  void close_late(OpenRound& round);
  OpenRound* find_round(std::uint64_t round);
  std::optional<Nanos> pace() const;
  std::uint64_t at_step(std::uint64_t round) const;
  void checkpoint();
  void checkpoint_if_due();

  // ---- core_end.cc
  void look_for_end();
  bool all_reached_limit() const;
  std::string reason_to_end() const;
  void begin_sweep(const std::string& reason);
  void begin_final();
  void send_finals();
  void final_ack(Member& member, const wire::FinalAck& ack);
  void end_if_acknowledged();
  void end(int exit_code, std::string reason);

  CoreOptions options_;
  RoundOptions round_options_;
  Nanos now_ = 0;
  std::vector<Action> out_;

  RunPhase phase_ = RunPhase::kWaiting;
  Roster roster_;
  std::set<ConnId> controllers_;
  std::map<std::pair<ConnId, std::uint64_t>, Incoming> incoming_;
  std::map<JobId, Inspection> inspections_;
  std::map<JobId, BufferId> loading_;  // layout and initial values being read

  std::optional<Layout> layout_;
  std::optional<Donation> donation_;
  std::optional<Broadcasts> broadcasts_;
  std::map<std::uint64_t, Seat> broadcast_tickets_;
  std::map<Seat, Nanos> broadcast_retry_at_;
  CodecId push_codec_ = CodecId::kF32;
  CodecId broadcast_codec_ = CodecId::kF32;
  bool codec_known_ = false;
  Durability durability_ = Durability::kCommit;
  bool images_asked_ = false;
  bool initialised_ = false;
  bool started_ = false;
  Nanos began_at_ = 0;  // of this life
  std::optional<Nanos> first_join_at_;
  Nanos started_at_ = 0;
  std::set<Seat> awaited_;  // seats of the life before that should come back
  JobId images_job_ = 0;
  std::vector<BufferId> images_wanted_;

  std::vector<std::uint64_t> versions_;
  std::vector<Fork> forks_;
  std::vector<NormWatch> norms_;
  std::deque<OpenRound> rounds_;  // in flight, in order; only the first may close
  std::uint64_t next_round_ = 1;
  std::uint64_t global_step_ = 0;
  std::uint64_t rounds_this_term_ = 0;
  Nanos last_launch_ = 0;
  Nanos merge_began_ = 0;
  Nanos commit_time_ = 0;  // close → broadcast, of the last commit
  Commit commit_ = Commit::kIdle;
  JobId commit_job_ = 0;
  Image commit_image_;
  Ledger ledger_;
  std::string launch_obstacle_;

  JobId checkpoint_job_ = 0;           // outstanding; 0: none
  std::uint64_t checkpoint_step_ = 0;  // what it covers
  std::uint64_t durable_step_ = 0;
  bool saved_once_ = false;
  Nanos last_checkpoint_ = 0;

  std::string finish_reason_;  // not empty: asked to end
  bool finish_now_ = false;
  std::uint64_t sweep_until_ = 0;  // last round of the sweep
  bool finals_ready_ = false;
  JobId finals_job_ = 0;
  bool final_checkpoint_done_ = false;
  std::vector<Image> finals_;
  std::vector<wire::Digest32> final_digests_;
  std::map<Seat, FinalReader> final_readers_;
  std::set<Seat> acknowledged_;
  Nanos final_began_ = 0;
  bool ended_ = false;

  Nanos next_heartbeat_ = 0;
  std::uint64_t next_buffer_ = 1;
  std::uint64_t next_job_ = 1;
  std::uint64_t next_ticket_ = 1;
  std::string error_;
};

}  // namespace yeto::sync
