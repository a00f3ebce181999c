// SPDX-License-Identifier: Apache-2.0
// World: a core with made-up learners, jobs and time, for tests. Jobs and transfers answer at once
// unless held.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "yeto/sync/core/core.h"

namespace yeto::sync {

inline Layout test_layout(std::uint32_t fragments, std::uint64_t values = 4) {
  std::vector<TensorSpec> tensors;
  for (std::uint32_t i = 0; i < fragments; ++i) {
    tensors.push_back({.name = "t" + std::to_string(i), .shape = {values}});
  }
  return *make_layout(std::move(tensors), {.fragments = fragments});
}

// One made-up process of a seat.
struct TestLearner {
  Seat seat = 0;
  std::uint64_t incarnation = 0;
  ConnId conn = 0;
  wire::Welcome welcome;
  std::optional<wire::Refused> refused;
  bool closed = false;
  std::vector<wire::Pull> pulls;  // rounds only
  std::vector<wire::Verdict> verdicts;
  std::vector<wire::Cancel> cancels;
  std::vector<wire::Held> held;
  std::optional<wire::Final> final_state;
  std::set<std::uint32_t> finals;
  std::vector<wire::Data> data;
  std::vector<wire::Offer> broadcasts;
  std::vector<std::string> goodbyes;
  std::vector<std::uint32_t> live;
  std::uint64_t next_transfer = 1;
  wire::LearnerBeat beat{
      .local_step = 0, .tokens = 0, .phase = wire::Phase::kTrain, .step_time_s = 1.0};
};

class World {
 public:
  explicit World(CoreOptions options, std::optional<Restored> restored = std::nullopt,
                 Nanos start = 0)
      : layout(restored ? restored->layout : test_layout(4)),
        now(start),
        core(std::move(options), std::move(restored), start) {
    give(Tick{});
  }

  Layout layout;
  Nanos now = 0;
  Core core;
  std::map<ConnId, TestLearner> learners;
  std::vector<TapeRecord> tape;
  std::vector<Merge> merges;
  std::vector<Merge> committed;                    // those whose result was finite
  std::map<BufferId, std::uint64_t> push_buffers;  // bytes of pushes that are not freed
  std::map<std::uint32_t, std::uint64_t> saved;    // versions of the newest answered checkpoint
  bool must_be_saved = false;                      // checks durable before broadcast
  std::vector<CoreState> checkpoints;
  std::vector<std::string> order;  // "checkpoint", "broadcast", "verdict", "merge"
  std::optional<Ended> ended;
  std::set<BufferId> buffers;   // accepted or made, not freed
  bool hold_transfers = false;  // incoming transfers do not arrive
  bool hold_sends = false;      // broadcasts do not arrive
  bool hold_checkpoints = false;
  bool hold_merges = false;
  bool hold_inspections = false;
  bool fail_checkpoints = false;
  bool finite_merges = true;
  std::function<PushInspected(const InspectPush&)> inspect = [](const InspectPush& job) {
    return PushInspected{job.job, job.buffer, true, 1.0};
  };
  std::vector<Event> held;
  std::vector<std::uint64_t> aborted;  // tickets
  std::set<Seat> slow_readers;         // broadcasts to them do not arrive

  // Feeds an event and everything that follows at once.
  void give(Event event) {
    std::deque<Event> events{std::move(event)};
    while (!events.empty()) {
      note(events.front());
      for (Action& action : core.on(events.front(), now)) {
        std::visit([&](auto& it) { carry_out(it, events); }, action);
      }
      events.pop_front();
    }
  }
  void release_held() {
    std::vector<Event> all;
    all.swap(held);
    for (Event& event : all) {
      if (const auto* sent = std::get_if<TransferSent>(&event)) {
        const auto& [conn, offer] = under_way_[sent->ticket];
        if (offer.kind == wire::TransferKind::kBroadcast) {
          learners[conn].held[offer.fragment] = {offer.term, offer.version};
        }
      }
      give(std::move(event));
    }
  }
  // Lets time pass in steps of `step`; connected learners beat each second.
  void pass(Nanos duration, Nanos step = 100 * kMillisecond) {
    const Nanos end = now + duration;
    while (now < end) {
      now = std::min(end, now + step);
      for (auto& [conn, learner] : learners) {
        if (!learner.closed && !silent.contains(learner.seat) &&
            now - last_beat_[conn] >= kSecond) {
          beat(learner);
        }
      }
      give(Tick{});
    }
  }
  std::set<Seat> silent;  // seats whose processes are stopped

  TestLearner& connect(Seat seat, std::uint64_t incarnation,
                       const std::function<void(wire::Hello&)>& change = {}) {
    const ConnId conn = ++last_conn_;
    TestLearner& learner = learners[conn];
    learner.seat = seat;
    learner.incarnation = incarnation;
    learner.conn = conn;
    last_beat_[conn] = now;
    wire::Hello hello;
    hello.run_id = "run";
    hello.seat = seat;
    hello.incarnation = incarnation;
    hello.layout = layout.fingerprint();
    hello.values = layout.values();
    if (change) {
      change(hello);
    }
    learner.held = hello.held;
    learner.held.resize(layout.fragments.size());
    give(HelloArrived{conn, hello, true, wire::SessionToken{static_cast<std::uint8_t>(conn)}});
    return learner;
  }
  void beat(TestLearner& learner) {
    last_beat_[learner.conn] = now;
    give(MessageArrived{learner.conn, learner.beat});
  }
  // One optimizer step of a learner, told at once.
  void step(TestLearner& learner, std::uint64_t steps = 1, std::uint64_t tokens = 10) {
    learner.beat.local_step += steps;
    learner.beat.tokens += steps * tokens;
    beat(learner);
  }
  void disconnect(TestLearner& learner) {
    learner.closed = true;
    give(ConnClosed{learner.conn, "test"});
  }
  // Answers the newest pull (or the given one).
  void push(TestLearner& learner, std::uint64_t tokens = 100, std::uint64_t steps = 2) {
    ASSERT_FALSE(learner.pulls.empty()) << "seat " << learner.seat << " was not asked";
    push(learner, learner.pulls.back(), tokens, steps);
  }
  void push(TestLearner& learner, const wire::Pull& ask, std::uint64_t tokens, std::uint64_t steps,
            const std::function<void(wire::Offer&)>& change = {}) {
    wire::Offer offer;
    offer.transfer = learner.next_transfer++;
    offer.kind = wire::TransferKind::kPush;
    offer.term = ask.term;
    offer.fragment = ask.fragment;
    offer.round = ask.round;
    offer.attempt = ask.attempt;
    offer.base_version = ask.base_version;
    offer.bytes =
        steps == 0 ? 0 : transfer_bytes(CodecId::kF32, layout.fragments[ask.fragment].values);
    offer.c_steps = steps;
    offer.c_tokens = tokens;
    offer.norm = 1.0;
    if (change) {
      change(offer);
    }
    pushing_ = true;
    give(OfferArrived{learner.conn, offer});
    pushing_ = false;
  }
  void acknowledge(TestLearner& learner) {
    ASSERT_TRUE(learner.final_state);
    const wire::Final& final_state = *learner.final_state;
    give(MessageArrived{learner.conn, wire::FinalAck{final_state.global_step, final_state.versions,
                                                     final_state.digests}});
  }
  // N learners join, the donor gives everything, training starts.
  std::vector<TestLearner*> start(std::uint32_t count) {
    std::vector<TestLearner*> out;
    for (std::uint32_t seat = 0; seat < count; ++seat) {
      out.push_back(&connect(seat, 100 + seat));
    }
    EXPECT_EQ(core.status(now).phase, RunPhase::kTraining);
    return out;
  }
  template <class T>
  std::vector<T> records() const {
    std::vector<T> out;
    for (const TapeRecord& record : tape) {
      if (const T* it = std::get_if<T>(&record)) {
        out.push_back(*it);
      }
    }
    return out;
  }
  std::vector<TapeRound> commits() const {
    auto rounds = records<TapeRound>();
    std::erase_if(rounds, [](const TapeRound& round) { return !round.committed; });
    return rounds;
  }
  void expect_ledger_balances() const {
    const Ledger ledger = core.status(now).ledger;
    EXPECT_EQ(ledger.pushed, ledger.merged + ledger.dropped + ledger.waiting);
  }

 private:
  void note(const Event& event) {
    if (const auto* done = std::get_if<Checkpointed>(&event)) {
      const auto& versions = checkpoint_versions_[done->job];
      for (std::uint32_t i = 0; i < versions.size(); ++i) {
        saved[i] = versions[i];
      }
    }
  }
  static wire::Digest16 digest_of(std::uint32_t fragment, std::uint64_t version) {
    wire::Digest16 out{};
    out[0] = static_cast<std::uint8_t>(fragment);
    out[1] = static_cast<std::uint8_t>(version);
    return out;
  }
  Image image(BufferId buffer, std::uint32_t fragment, std::uint64_t version) {
    buffers.insert(buffer);
    return {buffer, 4 * layout.fragments[fragment].values, digest_of(fragment, version)};
  }
  void later(std::deque<Event>& events, bool hold, Event event) {
    if (hold) {
      held.push_back(std::move(event));
    } else {
      events.push_back(std::move(event));
    }
  }

  void carry_out(Admit& it, std::deque<Event>&) { learners[it.conn].welcome = it.welcome; }
  void carry_out(Refuse& it, std::deque<Event>& events) {
    learners[it.conn].refused = it.refused;
    learners[it.conn].closed = true;
    events.push_back(ConnClosed{it.conn, "refused"});
  }
  void carry_out(Close& it, std::deque<Event>& events) {
    learners[it.conn].closed = true;
    events.push_back(ConnClosed{it.conn, it.reason});
  }
  void carry_out(Send& it, std::deque<Event>& events) {
    TestLearner& learner = learners[it.conn];
    if (const auto* pull = std::get_if<wire::Pull>(&it.message)) {
      return pull->round == 0 ? donate(learner, *pull, events) : learner.pulls.push_back(*pull);
    }
    if (const auto* verdict = std::get_if<wire::Verdict>(&it.message)) {
      order.emplace_back("verdict");
      learner.verdicts.push_back(*verdict);
    } else if (const auto* cancel = std::get_if<wire::Cancel>(&it.message)) {
      learner.cancels.push_back(*cancel);
    } else if (const auto* final_state = std::get_if<wire::Final>(&it.message)) {
      learner.final_state = *final_state;
    } else if (const auto* bye = std::get_if<wire::Goodbye>(&it.message)) {
      learner.goodbyes.push_back(bye->reason);
    } else if (const auto* grant = std::get_if<wire::Data>(&it.message)) {
      learner.data.push_back(*grant);
    } else if (const auto* beat_in = std::get_if<wire::SyncerBeat>(&it.message)) {
      learner.live = beat_in->live;
    }
  }
  void donate(TestLearner& learner, const wire::Pull& ask, std::deque<Event>& events) {
    if (hold_donor) {
      return;
    }
    wire::Offer offer;
    offer.transfer = learner.next_transfer++;
    const bool is_layout = ask.fragment == wire::kLayoutFragment;
    offer.kind = is_layout ? wire::TransferKind::kLayout : wire::TransferKind::kInit;
    offer.fragment = ask.fragment;
    offer.attempt = ask.attempt;
    offer.bytes = is_layout ? layout.encode().size() : 4 * layout.fragments[ask.fragment].values;
    events.push_back(OfferArrived{learner.conn, offer});
  }
  void carry_out(AcceptTransfer& it, std::deque<Event>& events) {
    buffers.insert(it.buffer);
    if (pushing_) {
      push_buffers[it.buffer] = it.bytes;
    }
    later(events, hold_transfers, TransferArrived{it.conn, it.transfer, it.buffer, true});
  }
  void carry_out(RefuseTransfer& it, std::deque<Event>&) { refused_transfers.push_back(it.reason); }
  void carry_out(SendTransfer& it, std::deque<Event>& events) {
    EXPECT_TRUE(buffers.contains(it.buffer));
    TestLearner& learner = learners[it.conn];
    if (it.offer.kind == wire::TransferKind::kBroadcast) {
      learner.broadcasts.push_back(it.offer);
      if (must_be_saved) {
        EXPECT_LE(it.offer.version, saved[it.offer.fragment]) << "broadcast before it is durable";
      }
      if (it.offer.codec == CodecId::kQ4) {
        EXPECT_EQ(learner.held[it.offer.fragment].version, it.offer.base_version);
      }
      order.emplace_back("broadcast");
      if (!hold_sends && !slow_readers.contains(learner.seat)) {
        learner.held[it.offer.fragment] = {it.offer.term, it.offer.version};
      }
    } else {
      learner.finals.insert(it.offer.fragment);
    }
    const bool slow =
        it.offer.kind == wire::TransferKind::kBroadcast && slow_readers.contains(learner.seat);
    under_way_[it.ticket] = {it.conn, it.offer};
    later(events, hold_sends || slow, TransferSent{it.conn, it.ticket, true});
  }
  void carry_out(AbortTransfer& it, std::deque<Event>& events) {
    aborted.push_back(it.ticket);
    std::erase_if(held, [&](const Event& event) {
      const auto* sent = std::get_if<TransferSent>(&event);
      return sent != nullptr && sent->ticket == it.ticket;
    });
    events.push_back(TransferSent{it.conn, it.ticket, false});
  }
  void carry_out(FreeBuffer& it, std::deque<Event>&) {
    push_buffers.erase(it.buffer);
    EXPECT_EQ(buffers.erase(it.buffer), 1u) << "buffer " << it.buffer << " freed twice or unknown";
  }
  void carry_out(LoadLayout& it, std::deque<Event>& events) {
    events.push_back(LayoutLoaded{it.job, layout, ""});
  }
  void carry_out(LoadInit& it, std::deque<Event>& events) {
    events.push_back(InitLoaded{it.job, init_error.empty(), init_error});
  }
  void carry_out(InspectPush& it, std::deque<Event>& events) {
    later(events, hold_inspections, inspect(it));
  }
  void carry_out(Merge& it, std::deque<Event>& events) {
    order.emplace_back("merge");
    merges.push_back(it);
    Merged result{it.job, finite_merges, {}, {}};
    if (finite_merges) {
      committed.push_back(it);
      result.image = image(it.image, it.fragment, it.version);
      if (it.full != 0) {
        result.full = image(it.full, it.fragment, it.version);
        result.image.bytes = delta_bytes;
      }
    }
    later(events, hold_merges, result);
  }
  void carry_out(MakeImages& it, std::deque<Event>& events) {
    ImagesMade made{it.job, {}};
    for (std::uint32_t i = 0; i < it.images.size(); ++i) {
      made.images.push_back(image(it.images[i], i, 0));
    }
    events.push_back(made);
  }
  void carry_out(Checkpoint& it, std::deque<Event>& events) {
    order.emplace_back("checkpoint");
    checkpoints.push_back(it.state);
    checkpoint_versions_[it.job] = it.state.versions;
    later(events, hold_checkpoints,
          Checkpointed{it.job, !fail_checkpoints, fail_checkpoints ? "disk full" : ""});
  }
  void carry_out(MakeFinals& it, std::deque<Event>& events) {
    FinalsMade made{it.job, {}, std::vector<wire::Digest32>(it.images.size())};
    for (std::uint32_t i = 0; i < it.images.size(); ++i) {
      made.images.push_back(image(it.images[i], i, 99));
      made.digests[i] = {static_cast<std::uint8_t>(i + 1)};
    }
    events.push_back(made);
  }
  void carry_out(Tape& it, std::deque<Event>&) { tape.push_back(it.record); }
  void carry_out(Ended& it, std::deque<Event>&) { ended = it; }

  ConnId last_conn_ = 0;
  bool pushing_ = false;
  std::map<JobId, std::vector<std::uint64_t>> checkpoint_versions_;
  std::map<std::uint64_t, std::pair<ConnId, wire::Offer>> under_way_;  // by ticket
  std::map<ConnId, Nanos> last_beat_;

 public:
  bool hold_donor = false;
  std::string init_error;
  std::uint64_t delta_bytes = 1;  // of an image under q4
  std::vector<std::string> refused_transfers;
};

inline CoreOptions options_for(std::uint32_t learners) {
  CoreOptions options;
  options.run_id = "run";
  options.learners = learners;
  options.sync_interval_steps = 8;
  return options;
}

inline std::string state_of(const World& world, Seat seat) {
  for (const SeatStatus& row : world.core.status(world.now).seats) {
    if (row.seat == seat) {
      return row.state;
    }
  }
  return "unknown";
}

// Everybody makes the steps a round needs and answers each pull at once, until `rounds` commits are
// made.
inline void run_rounds(World& world, const std::vector<TestLearner*>& learners,
                       std::size_t rounds) {
  const std::size_t goal = world.commits().size() + rounds;
  for (int turn = 0; turn < 1000 && world.commits().size() < goal; ++turn) {
    world.pass(kSecond);
    for (TestLearner* learner : learners) {
      world.step(*learner, 1);
      while (!learner->pulls.empty()) {
        const wire::Pull ask = learner->pulls.front();
        learner->pulls.erase(learner->pulls.begin());
        world.push(*learner, ask, 100, 2);
      }
    }
  }
  ASSERT_GE(world.commits().size(), goal);
}

// All answer the sweep; nobody steps.
inline void sweep(World& world, const std::vector<TestLearner*>& learners) {
  for (int turn = 0; turn < 50; ++turn) {
    for (TestLearner* learner : learners) {
      while (!learner->pulls.empty()) {
        const wire::Pull ask = learner->pulls.front();
        learner->pulls.erase(learner->pulls.begin());
        world.push(*learner, ask, 30, 1);
      }
    }
    world.pass(100 * kMillisecond);
  }
}

}  // namespace yeto::sync
