// SPDX-License-Identifier: Apache-2.0
// Core: the syncer as a state machine. Events in, actions out; no socket, file, clock, thread or
// value. Not thread-safe; the server's one executor runs it. Times are monotonic nanoseconds given
// by the caller.
//
// Life of a run: waiting (for learners) → initialising (one donor gives layout and values) →
// training (rounds) → sweeping (one last pull per fragment) → final (f32 values to all,
// acknowledgements) → ended. Files: core.cc the chain of one event; core_join.cc admission,
// core_init.cc the initial values and the start; core_round.cc launch and close; core_push.cc
// pushes, in time and late; core_commit.cc merges, commits and checkpoints; core_buffer.cc the
// budget of buffers; core_fixed.cc the fixed roster; core_data.cc data leases; core_end.cc the last
// sweep and the final values; core_status.cc what is shown.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "yeto/sync/broadcast/broadcast.h"
#include "yeto/sync/core/buffer_budget.h"
#include "yeto/sync/core/carried.h"
#include "yeto/sync/core/events.h"
#include "yeto/sync/round/round.h"
#include "yeto/sync/session/data_leases.h"
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
  // What became of a push while it was on the way.
  enum class Fate : std::uint8_t {
    kWanted,
    kLate,      // its round closed without it, or nobody asked for it
    kCancelled  // its attempt was abandoned
  };
  // A transfer that the core has accepted and that has not arrived or not been measured yet.
  struct Incoming {
    wire::Offer offer;
    BufferId buffer = 0;
    Seat seat = 0;
    std::uint64_t incarnation = 0;
    Fate fate = Fate::kWanted;
  };
  struct OpenRound {
    Attempt attempt;
    std::map<Seat, Push> pushes;  // accepted
    std::vector<Push> carried;    // late work of earlier rounds, while it is merged here
    std::uint64_t reserved = 0;   // bytes of the budget
    TapeRound tape;
  };
  // A pull that a process has not answered.
  struct Owed {
    std::uint64_t round = 0;
    std::uint32_t attempt = 0;
    std::uint64_t base_version = 0;
  };
  using SeatFragment = std::pair<Seat, std::uint32_t>;
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
  wire::Offer broadcast_offer(const BroadcastOrder& order) const;
  void end_broadcast(Seat seat);
  void emit(Action action) { out_.push_back(std::move(action)); }
  void tape(TapeRecord record) { emit(Tape{std::move(record)}); }
  void free_all(const std::vector<BufferId>& buffers);
  void trouble(std::string text);
  bool owes_push(Seat seat) const;
  bool live(const Member& member) const;

  void check_invariants() const;

  // ---- core_join.cc
  void admit_learner(const HelloArrived& event);
  void admit_controller(const HelloArrived& event);
  std::string room_objection(const wire::Hello& hello) const;
  wire::Welcome welcome_for(const Admission& admission, const wire::Hello& hello) const;
  std::vector<std::uint64_t> valid_versions(std::uint64_t held_term) const;
  void join_broadcasts(const Admission& admission, const wire::Hello& hello);
  void forget_connection(ConnId conn, bool ask_now);
  void forget_process(Seat seat);
  void resend_state(const Member& member);
  void lose(Seat seat);

  // ---- core_init.cc
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
  void remember_owed(const wire::Pull& ask, Seat seat);
  void ask_again(OpenRound& round);
  void abandon(OpenRound& round, const std::string& reason);
  void recapture(OpenRound& round);
  void ask(OpenRound& round, const std::vector<Seat>& seats);
  OpenRound* find_round(std::uint64_t round);
  std::optional<Nanos> pace() const;
  std::uint64_t at_step(std::uint64_t round) const;

  // ---- core_push.cc
  void judge_push(const OfferArrived& event, Member& member);
  void judge_late(const OfferArrived& event, Member& member);
  std::string form_objection(const wire::Offer& offer) const;
  std::string late_objection(const wire::Offer& offer, const Member& member) const;
  std::uint64_t next_base(std::uint32_t fragment) const;
  bool sweep_is_over(std::uint32_t fragment) const;
  void accept_transfer(const OfferArrived& event, const Member& member, Fate fate);
  void refuse_push(const OfferArrived& event, Member& member, const std::string& reason);
  void push_arrived(const Incoming& incoming);
  void push_broken_off(const Incoming& incoming, bool ask_now);
  void inspected_late(const Push& push, const std::string& fault, bool bad);
  void accept_push(OpenRound& round, const Push& push);
  void drop_bad(OpenRound& round, const Push& push, const std::string& reason);
  void drop(const Push& push, const std::string& reason);
  void drop_late(const Push& push, const std::string& reason);
  void drop_all_late(const std::string& reason);
  void count_bad(Member& member);
  void close_late(const OpenRound& round, Fate fate);
  void verdict(const Push& push, wire::Outcome outcome, const std::string& reason);

  // ---- core_commit.cc
  void start_merge(OpenRound& round, const std::string& reason);
  void take_carried(OpenRound& round);
  static PushInput input_of(const Push& push, double factor);
  double factor_of(const OpenRound& round, const Push& late) const;
  void merge_failed(OpenRound& round);
  void commit();
  void count_merged(const Push& push);
  void publish();
  void publish_image(std::uint32_t fragment);
  void tape_commit(OpenRound& round);
  void checkpoint();
  void checkpoint_if_due();

  // ---- core_buffer.cc
  std::uint32_t present_members() const;
  std::uint64_t buffer_cap() const;
  BufferUse buffer_use() const;
  std::uint64_t push_bytes(std::uint32_t fragment) const;
  bool fit_round(std::uint32_t fragment, std::vector<Seat>& seats);
  bool fit_attempt(OpenRound& round, std::vector<Seat>& seats);
  bool room_for_late(std::uint64_t bytes);
  void keep_images_in_budget();
  bool abort_slowest_reader();
  std::set<Seat> seats_sending_late() const;

  // ---- core_fixed.cc
  bool fixed() const { return !options_.fixed_roster.empty(); }
  void watch_fixed_roster();
  void end_if_overdue(const std::string& overdue);
  void ask_returned_seats();
  std::map<Seat, std::string> missing_seats() const;

  // ---- core_data.cc
  void data_message(Member& member, const wire::Data& data);
  void grant_data(Member& member, const wire::Data& data);
  void send_grant(const Member& member, const DataRange& range);
  void return_data(Seat seat, const char* why, const std::vector<DataRange>& ranges);
  void resend_data(const Member& member);

  // ---- core_status.cc
  EffectiveSettings effective_settings() const;

  // ---- core_end.cc
  void look_for_end();
  bool all_reached_limit() const;
  std::string reason_to_end() const;
  void begin_sweep(const std::string& reason);
  void begin_final();
  bool final_saved();
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
  std::map<JobId, Incoming> inspections_;
  std::map<JobId, BufferId> loading_;  // layout and initial values being read

  std::optional<Layout> layout_;
  std::optional<Donation> donation_;
  std::optional<Broadcasts> broadcasts_;
  std::map<std::uint64_t, Seat> broadcast_tickets_;  // transfers under way
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
  Image commit_full_;  // buffer 0: the image is the whole
  bool commit_durable_ = false;
  Ledger ledger_;
  std::map<SeatFragment, std::vector<Owed>> owed_;       // of the seat's present process
  std::map<SeatFragment, wire::Verdict> last_verdicts_;  // likewise
  std::map<SeatFragment, wire::Held> late_rights_;       // likewise: what it may offer unasked
  std::map<SeatFragment, std::uint64_t> counted_bases_;  // 1 + newest base that was accepted
  std::map<SeatFragment, std::uint64_t> merged_bases_;   // 1 + newest base that was merged
  CarriedPushes carried_;
  BufferSizes buffer_sizes_;
  std::string unfit_;  // not empty: an option does not fit the layout; the run ends at once
  std::uint32_t most_members_ = 0;  // present at once, in this life
  DataLeases data_;
  bool data_changed_ = false;            // since the last checkpoint
  std::map<Seat, Nanos> missing_since_;  // seats of the fixed roster
  std::string pause_reason_;             // not empty: the fixed roster waits for seats
  std::string pending_end_;              // not empty: exit 4 once the checkpoint is written
  std::string launch_obstacle_;
  std::string room_obstacle_;  // not empty: the next round waits for buffer room

  JobId checkpoint_job_ = 0;           // outstanding; 0: none
  std::uint64_t checkpoint_step_ = 0;  // what it covers
  std::uint64_t durable_step_ = 0;
  bool saved_once_ = false;
  bool last_save_failed_ = false;
  bool saved_before_ = false;  // by an earlier life of the syncer
  Nanos last_checkpoint_ = 0;

  std::string finish_reason_;  // not empty: asked to end
  bool finish_now_ = false;
  std::uint64_t sweep_until_ = 0;  // last round of the sweep
  bool finals_ready_ = false;
  JobId finals_job_ = 0;
  bool final_save_tried_ = false;
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
