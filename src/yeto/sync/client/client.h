// SPDX-License-Identifier: Apache-2.0
// Client: the learner's side of the protocol and every decision of the step boundary, without I/O.
//
// Not thread-safe: its shell (sync/boundary) calls it under one mutex, from the thread that runs
// the sockets (on) and from the trainer's thread (boundary, step, finalize, final_applied). Times
// are monotonic nanoseconds of the caller. Actions are explained in protocol.h.
//
// Order at a boundary, per fragment:
//   0. values that were found not to be finite go back to the anchor;
//   1. a PULL whose base version is the anchor's is answered (a later base waits for its broadcast,
//      an older one is dropped), with at least one step since the last delta unless finishing;
//   2. work that no other push can carry is offered late, unasked (round 0), if the syncer may
//   still
//      merge it: what a break kept from its push, and what an overwrite would throw away;
//   3. a ready broadcast is applied; the first one after a join overwrites.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "yeto/base/clock.h"
#include "yeto/sync/client/protocol.h"
#include "yeto/sync/client/rows.h"
#include "yeto/tensor/layout.h"
#include "yeto/wire/messages.h"

namespace yeto::sync::client {

struct ClientOptions {
  std::string run_id;
  std::uint32_t seat = wire::kNoSeat;  // kNoSeat: the syncer gives one
  std::uint64_t incarnation = 0;       // random, fixed for the life of the process
  std::vector<wire::ContractPair> contract;
  std::uint16_t streams = 4;
  std::string device;
};

// Steps and tokens of training, what a push is weighted by.
struct Work {
  std::uint64_t steps = 0;
  std::uint64_t tokens = 0;
  Work& operator+=(const Work& other) {
    steps += other.steps;
    tokens += other.tokens;
    return *this;
  }
  Work& operator-=(const Work& other) {
    steps -= other.steps;
    tokens -= other.tokens;
    return *this;
  }
  bool operator==(const Work&) const = default;
};

// A broadcast that was verified and waits for the next boundary.
struct ReadyImage {
  ImageId image = 0;
  std::uint64_t version = 0;
};

struct FragmentState {
  // Version of the values that deltas are taken against. Term 0: none, or void after a join.
  wire::Held anchor;
  // Until the first broadcast after a join has been applied: that one overwrites, and nothing may
  // be pushed before it.
  bool overwrite = true;
  // The shell holds P: a delta was taken since the last application.
  bool pushed = false;
  Work work;      // since the last delta was taken
  Work taken;     // in deltas taken since the last application and not returned
  Work returned;  // in deltas that never reached the syncer: the next delta counts it again
  // The last delta was on its way when a session ended, and no broadcast was applied since.
  bool broken_off = false;
  // After a break: the anchor that the values are still based on. It is behind, but its bytes are
  // the run's, so that the work since may be offered late before it is overwritten.
  std::optional<wire::Held> late;
  std::optional<wire::Pull> pull;             // newest PULL not answered yet
  std::optional<std::uint32_t> init_attempt;  // the syncer asked for initial values
  std::optional<ReadyImage> ready;            // newest broadcast not applied yet
  // A delta was not finite: at the next boundary the values go back to the anchor.
  bool reset = false;
  std::uint64_t applications = 0;  // broadcasts applied, and resets: what replaced local work
  std::uint64_t replaced = 0;      // `applications` when nothing of the local values was kept
  std::uint64_t newest = 0;        // highest version heard of in this session
};

// Totals over the life of the process.
struct Counters {
  std::uint64_t pushes = 0;            // non-empty pushes that reached the syncer
  std::uint64_t merged = 0;            // verdicts
  std::uint64_t carried = 0;           // verdicts; such a push ends as merged or dropped
  std::uint64_t dropped = 0;           // verdicts
  std::uint64_t late_offers = 0;       // pushes that were not asked for
  std::uint64_t nonfinite_pushes = 0;  // deltas that were not finite and so not sent
  std::uint64_t resets = 0;            // fragments that went back to their anchor for that
  std::uint64_t damaged_images = 0;    // received bodies whose digest was wrong
  std::uint64_t bytes_pushed = 0;      // bodies of pushes that reached the syncer
  std::uint64_t bytes_received = 0;    // bodies of broadcasts and final values
  std::uint64_t discarded_tokens = 0;  // fragment-tokens of work that no push can carry any more
};

// What the syncer last said about the run.
struct RunView {
  std::uint64_t term = 0;
  std::uint64_t global_step = 0;
  std::uint64_t durable_step = 0;
  std::uint64_t run_tokens = 0;
  std::vector<std::uint32_t> live;  // seats, ascending
};

class Client {
 public:
  Client(ClientOptions options, const Layout& layout);

  // The HELLO of the next connection, with a zero proof.
  wire::Hello hello() const;
  Actions on(const Event& event);

  // ---- the trainer's thread --------------------------------------------------------------------

  // Everything that is due now while the trainer stands still. Call again after any event.
  Actions boundary();
  // An optimizer step has ended; counts it. Follow it by boundary().
  void step(std::uint64_t tokens, Nanos now);
  // The trainer goes on (after step(), or the first time). Starts the clock of the next step.
  void resume_training(Nanos now);
  void set_phase(wire::Phase phase, Nanos now);
  // Every step waits for what is due at it.
  bool lockstep() const { return settings_.lockstep != 0 && !finishing_; }
  // Lockstep: the trainer must not go on before boundary() has done what is due at this step.
  bool must_wait() const;
  // Why a lockstep run cannot go on (session lost, joined late, not finite); empty if it can. With
  // a fixed roster the syncer keeps the seat of a lost session, and the wait goes on until that
  // session is resumed; another session ends it.
  const std::string& lockstep_fault() const { return lockstep_fault_; }
  // No more steps will be taken. `limit`: this learner reached its own limit.
  Actions finalize(bool limit);
  // ApplyFinal has been carried out; SHA-256 of the f32 values that are now in the tensors.
  Actions final_applied(std::vector<wire::Digest32> digests);

  // ---- data leases (only where settings().data_leases says so)

  // A step takes about `count` of the `rows` positions of an epoch: asks for more in time.
  Actions want_rows(std::uint64_t rows, std::uint64_t count);
  // At most `most` granted positions for the next step; nothing if none is here. They are told to
  // be complete once their work is merged and durable.
  std::optional<RowRange> take_rows(std::uint64_t most) { return rows_.take(most); }
  // Nothing is left to be granted.
  bool rows_exhausted() const { return rows_.exhausted(); }
  // Positions of an epoch, as want_rows() was told first; 0: it was not called yet.
  std::uint64_t rows_of_epoch() const { return rows_.rows(); }
  // This learner leaves: what was not trained goes back.
  Actions return_rows();

  // ---- state -----------------------------------------------------------------------------------

  bool connected() const { return connected_; }
  // There has been a session.
  bool admitted() const { return admitted_once_; }
  // Every fragment holds values of this run: training may begin.
  bool ready() const;
  // The last sweep has begun: no more steps, call finalize().
  bool draining() const { return draining_; }
  bool finishing() const { return finishing_; }
  bool acknowledged() const { return !own_final_.empty(); }
  // The FINAL of this session; without digests before it came.
  const wire::Final& final_message() const { return final_; }
  // GOODBYE came: the session is over and must not be made again.
  bool ended() const { return ended_; }
  const std::string& end_reason() const { return end_reason_; }
  bool joined_late() const { return joined_late_; }
  std::uint32_t seat() const { return options_.seat; }
  const RunView& run() const { return run_; }
  const Counters& counters() const { return counters_; }
  const wire::Settings& settings() const { return settings_; }
  wire::LearnerBeat beat() const;
  std::uint64_t local_step() const { return local_step_; }
  const FragmentState& fragment(std::uint32_t index) const { return fragments_[index]; }
  std::uint32_t fragment_count() const { return static_cast<std::uint32_t>(fragments_.size()); }
  // Largest distance between the newest version heard of and the anchor's, over all fragments.
  std::uint64_t staleness_max() const;
  std::uint64_t pulls_waiting() const;

 private:
  struct Incoming {
    std::uint64_t transfer = 0;
    wire::Offer offer;
  };
  struct Outgoing {
    wire::Offer offer;
    bool sent = false;  // its OFFER may have reached the syncer
    bool cancelled = false;
  };
  // A push whose fate is not known, from its delta to its verdict.
  struct Push {
    enum class State : std::uint8_t {
      kLive,     // being encoded, under way or received
      kUnsure,   // a session ended while it was under way: its work is counted as returned
      kRefused,  // it did not reach the syncer, settled; only its verdict may still come
      kCarried   // kept for the fragment's next round, settled
    };
    Ticket ticket = 0;
    std::uint32_t fragment = 0;
    std::uint64_t round = 0;
    std::uint32_t attempt = 0;
    std::uint64_t base_version = 0;
    Work work;
    std::uint64_t applications = 0;  // of the fragment when the delta was taken
    State state = State::kLive;
    bool returned = false;  // kUnsure: its work is in the fragment's returned work
  };
  using Pushes = std::list<Push>;

  void handle(const Admitted& event, Actions& out);
  void handle(const SessionLost& event, Actions& out);
  void handle(const MessageArrived& event, Actions& out);
  void handle(const OfferArrived& event, Actions& out);
  void handle(const ImageArrived& event, Actions& out);
  void handle(const ImageChecked& event, Actions& out);
  void handle(const PushEncoded& event, Actions& out);
  void handle(const InitEncoded& event, Actions& out);
  void handle(const BodySent& event, Actions& out);

  void receive(const wire::Pull& pull, Actions& out);
  void receive(const wire::Cancel& cancel, Actions& out);
  void receive(const wire::Verdict& verdict, Actions& out);
  void receive(const wire::SyncerBeat& beat, Actions& out);
  void receive(const wire::Data& data, Actions& out);
  void receive(const wire::Final& final, Actions& out);
  void receive(const wire::Goodbye& goodbye, Actions& out);

  std::string welcome_fault(const wire::Welcome& welcome) const;
  void rejoin(const wire::Welcome& welcome, Actions& out);
  void keep_or_void(std::uint32_t index, const wire::Welcome& welcome, Actions& out);
  void void_anchor(std::uint32_t index, const wire::Welcome& welcome, Actions& out);
  void first_admission(const wire::Welcome& welcome);
  void resume_rows(bool resumed, Actions& out);
  wire::Held held(const FragmentState& fragment) const;
  std::string offer_fault(const wire::Offer& offer) const;
  std::string broadcast_fault(const wire::Offer& offer) const;
  void keep_broadcast(ImageId image, const wire::Offer& offer, Actions& out);
  void keep_final(ImageId image, std::uint32_t index, Actions& out);
  void drop_ready(FragmentState& fragment, Actions& out);
  void send_limit(Actions& out) const;
  void send_layout(std::uint32_t attempt, Actions& out);
  void send_empty_push(const wire::Offer& offer, Actions& out);
  void not_finite(const Outgoing& outgoing, const Push& push, Actions& out);

  // The fate of pushes.
  Pushes::iterator push_of(Ticket ticket);
  Pushes::iterator push_named(const wire::Verdict& verdict);
  void settle(const Push& push, bool kept, Actions& out) const;
  void take_back_work(Push& push);
  void push_failed(Push& push, Actions& out);
  void push_unsure(Push& push);
  void push_kept(Push& push, Actions& out);
  Pushes::iterator end_push(Pushes::iterator push, Actions& out);
  void supersede_pushes(std::uint32_t index, Actions& out);
  void forget_pushes(Actions& out);
  void settle_rows(Actions& out);

  void answer_init(std::uint32_t index, Actions& out);
  void answer_pull(std::uint32_t index, Actions& out);
  void take_push(std::uint32_t index, Actions& out);
  void take_delta(std::uint32_t index, wire::Offer offer, bool again, Actions& out);
  void offer_late(std::uint32_t index, Actions& out);
  void apply_ready(std::uint32_t index, Actions& out);
  void reset_values(std::uint32_t index, Actions& out);
  void account_application(std::uint32_t index, ApplyMode mode);
  void ask_again(std::uint32_t index, Actions& out);
  bool lockstep_round_due() const;
  bool lockstep_round_done(Actions& out);
  void apply_final(Actions& out);
  wire::Offer push_offer(std::uint32_t index, const wire::Pull& pull) const;
  void send_final_ack(Actions& out) const;

  ClientOptions options_;
  std::vector<std::uint64_t> values_;  // per fragment
  std::uint64_t layout_bytes_ = 0;
  wire::Digest32 layout_digest_{};
  std::uint64_t layout_values_ = 0;

  bool connected_ = false;
  bool admitted_once_ = false;
  bool joined_late_ = false;
  wire::SessionToken session_{};
  CodecId push_codec_ = CodecId::kF32;
  CodecId broadcast_codec_ = CodecId::kF32;
  wire::Settings settings_;
  RunView run_;

  std::vector<FragmentState> fragments_;
  std::map<ImageId, Incoming> incoming_;
  std::map<Ticket, Outgoing> outgoing_;
  Pushes pushes_;  // oldest first
  RowBook rows_;
  std::uint64_t next_id_ = 1;

  std::uint64_t local_step_ = 0;
  std::uint64_t tokens_ = 0;
  wire::Phase phase_ = wire::Phase::kLoad;
  double step_time_s_ = 0.0;
  Nanos train_time_ = 0;              // of the step in progress, before train_since_
  std::optional<Nanos> train_since_;  // the trainer computes since then

  std::uint64_t lockstep_round_ = 1;  // next one to carry out
  bool lockstep_pushed_ = false;      // its push has been taken
  std::string lockstep_fault_;
  std::string lockstep_broken_;  // the session was lost and may be resumed

  bool draining_ = false;
  bool drain_lost_ = false;  // a sweep had begun, and the syncer came back without it
  bool finishing_ = false;
  bool limit_ = false;
  bool ended_ = false;
  std::string end_reason_;
  wire::Final final_;
  std::vector<std::optional<ImageId>> final_images_;
  std::vector<wire::Digest32> own_final_;
  Counters counters_;
};

// The local step after which round t (1, 2, …) is pushed in lockstep: ceil(t · H / F).
std::uint64_t lockstep_due(std::uint64_t round, std::uint32_t sync_interval_steps,
                           std::uint32_t fragments);

}  // namespace yeto::sync::client
