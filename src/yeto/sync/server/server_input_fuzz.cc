// SPDX-License-Identifier: Apache-2.0
// The way of everything that a syncer is sent: sockets, door, links, core, jobs, tape. The input is
// a script of peers that connect, prove themselves or not, attach streams, send right, bent, torn
// and random frames before and after admission, answer as good learners do, close, and let time
// pass. Whatever they do: no crash, no broken invariant of the core, every frame they get is right,
// memory stays within what the run needs, and when they are gone no session and no stranger is
// left. Time of the core is the script's; jobs are carried out on the loop's thread.
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "yeto/base/fuzz_testing.h"
#include "yeto/base/log.h"
#include "yeto/net/loop.h"
#include "yeto/sync/core/core.h"
#include "yeto/sync/jobs/jobs.h"
#include "yeto/sync/server/fuzz_learner_testing.h"
#include "yeto/sync/server/hub.h"
#include "yeto/sync/server/metrics_text.h"
#include "yeto/sync/server/records.h"
#include "yeto/sync/server/worker.h"

namespace {

using namespace yeto;
using namespace yeto::sync;
using wire::Direction;
using wire::Type;

constexpr std::size_t kMostPeers = 6;
constexpr int kMostSteps = 64;
constexpr Nanos kPatience = 10 * kSecond;
// Of buffers: images, pushes and layouts of the small run, and what late work may hold.
constexpr std::uint64_t kMostBufferBytes = std::uint64_t{1} << 20;

// Two fragments: one of three chunks as f32, one of a single block.
const Layout& layout() {
  static const Layout made = [] {
    LayoutOptions options;
    options.fragments = 2;
    return make_layout({{"a.weight", {35, 20}, DType::kF32, MergeMode::kRda},
                        {"embed.weight", {6}, DType::kF32, MergeMode::kAvg}},
                       options)
        .value();
  }();
  return made;
}

CoreOptions core_options(std::uint32_t what) {
  CoreOptions options;
  options.run_id = "run";
  options.learners = 1 + (what & 1U);
  options.sync_interval_steps = 2;
  options.chunk_bytes = wire::kMinChunkBytes;
  options.data_leases = (what & 2U) != 0;
  options.epochs = options.data_leases ? 1 : 0;
  options.lockstep = (what & 12U) == 4U;
  if ((what & 12U) == 8U) {
    options.fixed_roster = {0, 1};
  }
  options.push_codec = static_cast<CodecId>((what >> 4U) % 3U);
  options.broadcast_codec = static_cast<CodecId>((what >> 6U) % 3U);
  options.durability = (what & 256U) != 0 ? Durability::kInterval : Durability::kCommit;
  options.total_steps = (what & 512U) != 0 ? 3 : 0;
  return options;
}

// As sync/server's Server, without files, threads and clocks.
class Syncer {
 public:
  explicit Syncer(std::uint32_t what)
      : jobs_(jobs_for(core_options(what))),
        core_(core_options(what), std::nullopt, now_),
        hub_(loop_, door_options(), *jobs_, [this](Event event) { feed(std::move(event)); }) {
    YETO_CHECK(hub_.open({"127.0.0.1", 0}), "a listener of this machine");
    feed(Tick{});
  }

  static SessionKey run_token() {
    SessionKey out{};
    out.fill(7);
    return out;
  }
  std::uint16_t port() const { return hub_.address().port; }
  bool ended() const { return ended_; }
  std::size_t sessions() const { return hub_.sessions(); }
  std::size_t strangers() const { return hub_.door_counters().unadmitted; }
  RunPhase phase() const { return core_.status(now_).phase; }

  // Lets the loop run what is due now.
  void turn(int times) {
    for (int i = 0; i < times; ++i) {
      bool ran = false;
      loop_.post([&] { ran = true; });
      YETO_CHECK(loop_.run_until([&] { return ran; }, kPatience), "a loop that stands still");
    }
  }
  void wait_until_nobody_is_here() {
    YETO_CHECK(loop_.run_until([this] { return sessions() == 0 && strangers() == 0; }, kPatience),
               "a peer is gone, and its session is not");
    turn(2);
  }
  void pass_time(Nanos time) {
    now_ += time;
    feed(Tick{});
  }
  void finish(wire::FinishMode mode) { feed(FinishRequested{mode, "asked"}); }
  // What is shown of the state, whatever peers have put into it.
  void show() const {
    StatusRecord record;
    record.run_id = "run";
    record.core = core_.status(now_);
    static_cast<void>(status_text(record));
    static_cast<void>(metrics_text({record, hub_.door_counters(), jobs_->held_bytes(), 0.0}));
  }

 private:
  static DoorOptions door_options() {
    DoorOptions options;
    options.run_id = "run";
    options.run_token = run_token();
    options.term = 1;
    return options;
  }
  static std::unique_ptr<Jobs> jobs_for(const CoreOptions& core) {
    JobsOptions options;
    options.run_id = core.run_id;
    options.push_codec = core.push_codec;
    options.broadcast_codec = core.broadcast_codec;
    options.checkpoint = std::make_shared<store::MemoryStore>();
    return *Jobs::make(std::move(options));
  }

  void feed(Event event) {
    events_.push_back(std::move(event));
    if (draining_) {
      return;
    }
    draining_ = true;
    while (!events_.empty() && !ended_) {
      const Event next = std::move(events_.front());
      events_.pop_front();
      for (const Action& action : core_.on(next, now_)) {
        std::visit([this](const auto& a) { perform(a); }, action);
      }
    }
    events_.clear();
    draining_ = false;
    YETO_CHECK(ended_ || core_.next_deadline() >= now_, "a deadline in the past");
    YETO_CHECK(jobs_->buffer_bytes() <= kMostBufferBytes, "peers make the syncer hold too much");
  }

  template <class A>
  void perform(const A& action) {
    if constexpr (requires { JobOrder(action); }) {
      loop_.post([this, job = JobOrder(action)] { feed(carry_out(*jobs_, job).event); });
    } else {
      hub_.carry_out(action);
    }
  }
  void perform(const FreeBuffer& action) { jobs_->free(action.buffer); }
  // What a checkpoint would hold is put together; writing it is no input's business.
  void perform(const Checkpoint& action) {
    loop_.post([this, action] {
      const bool ok = jobs_->snapshot(action.state).has_value();
      feed(Checkpointed{action.job, ok, ok ? "" : "no snapshot"});
    });
  }
  void perform(const Tape& action) {
    YETO_CHECK(tape_line({1.0, seq_++, 1}, action.record, {}).find('\n') == std::string::npos,
               "a record of several lines");
  }
  void perform(const Ended&) {
    ended_ = true;
    hub_.close_all(2 * kSecond, [] {});
  }

  Nanos now_ = 1000 * kSecond;
  std::unique_ptr<Jobs> jobs_;
  Core core_;
  net::Loop loop_;
  Hub hub_;
  std::deque<Event> events_;
  bool draining_ = false;
  bool ended_ = false;
  std::uint64_t seq_ = 0;
};

class Script {
 public:
  explicit Script(fuzz::Input& in) : in_(in), what_(in.number<std::uint32_t>()), syncer_(what_) {}

  void run() {
    if ((what_ & 1024U) != 0) {
      come_to_training();
    }
    for (int i = 0; i < kMostSteps && !in_.empty(); ++i) {
      step();
      turn();
    }
    peers_.clear();
    syncer_.wait_until_nobody_is_here();
    syncer_.pass_time(600 * kSecond);
    syncer_.show();
  }

 private:
  using Peers = std::vector<std::unique_ptr<FuzzLearner>>;

  void turn() {
    syncer_.turn(4);
    for (const auto& peer : peers_) {
      peer->read();
    }
  }
  FuzzLearner& connect() {
    peers_.push_back(std::make_unique<FuzzLearner>(syncer_.port(), layout(), Syncer::run_token()));
    turn();
    return *peers_.back();
  }
  FuzzLearner& any() { return *peers_[in_.below(peers_.size())]; }

  // Good learners until rounds are open, or not, as the script's settings have it.
  void come_to_training() {
    for (std::uint32_t seat = 0; seat < 2; ++seat) {
      FuzzLearner& learner = connect();
      learner.say(learner.hello_of(seat, wire::Role::kLearner));
    }
    constexpr int kMostTurns = 16;
    for (int i = 0; i < kMostTurns && syncer_.phase() != RunPhase::kTraining; ++i) {
      turn();
      all_answer();
      syncer_.pass_time(kMillisecond);
    }
  }
  void all_answer() {
    for (const auto& peer : peers_) {
      peer->answer();
    }
  }

  void step() {
    const std::uint8_t what = in_.byte() % 20U;
    if (peers_.empty() || (what == 0 && peers_.size() < kMostPeers)) {
      connect();
      return;
    }
    switch (what) {
      case 0:
      case 1:
        peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(in_.below(peers_.size())));
        return;
      case 2:
        return hello();
      case 3:
        return any().attach_to(any(), static_cast<std::uint16_t>(in_.below(4)));
      case 4:
        return send_payload();
      case 5:
        return send_random();
      case 6:
        return any().peer.raw(in_.take(in_.byte()));
      case 7:
      case 8:
        return send_chunk();
      case 9:
      case 10:
        return all_answer();
      case 11:
        return any().answer();
      case 12:
      case 13:
        return push();
      case 14:
        return any().peer.shut_down_writing();
      case 15:
        return syncer_.pass_time(kMillisecond << in_.below(20));
      case 16:
        return beat();
      case 17:
        return say_small();
      case 18:
        return offer_any();
      default:
        return have_or_done();
    }
  }

  // Bytes that are a right frame but for a bend, in one piece or two.
  void send_bytes(FuzzLearner& to, Type type, Bytes payload) {
    const FrameBend bend = FrameBend::of(in_);
    const Bytes bytes = to.peer.bytes_of(type, payload, bend);
    const std::size_t first = in_.below(4) == 0 ? in_.below(bytes.size() + 1) : bytes.size();
    to.peer.raw(ByteView(bytes).first(first));
    if (first < bytes.size()) {
      syncer_.turn(2);
      to.peer.raw(ByteView(bytes).subspan(first));
    }
  }
  void send_payload() {
    FuzzLearner& to = any();
    const auto type = static_cast<Type>(1 + in_.below(22));
    const ByteView payload = in_.take(in_.byte());
    send_bytes(to, type, Bytes(payload.begin(), payload.end()));
  }
  void send_random() {
    FuzzLearner& to = any();
    const auto type = static_cast<Type>(1 + in_.below(22));
    Rng rng(in_.number<std::uint16_t>());
    const Direction way = wire::type_allowed(type, Direction::kToSyncer) ? Direction::kToSyncer
                                                                         : Direction::kToLearner;
    Bytes payload = wire::encode_message(wire::random_message(rng, type, way));
    for (std::uint64_t bends = in_.below(4); bends > 0 && !payload.empty(); --bends) {
      payload[in_.number<std::uint16_t>() % payload.size()] ^= in_.byte();
    }
    send_bytes(to, type, std::move(payload));
  }
  void hello() {
    FuzzLearner& from = any();
    static constexpr std::uint32_t kSeats[] = {0, 1, 2, wire::kNoSeat};
    wire::Hello hello = from.hello_of(
        kSeats[in_.below(4)], in_.below(8) == 0 ? wire::Role::kController : wire::Role::kLearner);
    const std::uint8_t bends = in_.byte();
    hello.streams = static_cast<std::uint16_t>(bends & 3U);
    hello.incarnation += (bends >> 2U) & 1U;
    if ((bends & 8U) != 0) {
      hello.held.assign(layout().fragments.size(), {1, in_.below(4)});
    }
    if ((bends & 16U) != 0) {
      hello.tokens = in_.number<std::uint64_t>();
      hello.local_step = in_.number<std::uint64_t>();
    }
    if ((bends & 32U) != 0) {
      hello.session = any().welcome.value_or(wire::Welcome{}).session;
    }
    if ((bends & 192U) == 64U) {
      hello.layout[0] ^= in_.byte();
      hello.contract = {{"model", {in_.byte()}}};
      hello.held.resize(in_.byte());
    }
    from.say(hello);
  }
  void send_chunk() {
    FuzzLearner& to = any();
    wire::Chunk chunk;
    chunk.transfer =
        in_.below(8) == 0 ? in_.number<std::uint64_t>() : to.transfers + 1 - in_.below(3);
    chunk.index =
        in_.below(8) == 0 ? in_.number<std::uint32_t>() : static_cast<std::uint32_t>(in_.below(4));
    static constexpr std::size_t kSizes[] = {0, 24, 132, 752, 400, 376, 1024, 1025};
    chunk.bytes.resize(kSizes[in_.below(std::size(kSizes))], in_.byte());
    send_bytes(to, Type::kChunk, wire::encode(chunk));
  }
  // Close to a right push, right ones included.
  wire::Offer bent_offer(const FuzzLearner& from) {
    wire::Offer offer = from.push_offer();
    const std::uint8_t bends = in_.byte();
    offer.fragment += bends & 1U;
    offer.round = (bends & 2U) != 0 ? in_.below(8) : offer.round;
    offer.base_version = (bends & 4U) != 0 ? in_.below(8) : offer.base_version;
    offer.attempt += (bends >> 3U) & 1U;
    offer.c_steps = (bends & 16U) != 0 ? in_.number<std::uint64_t>() : offer.c_steps;
    offer.c_tokens = (bends & 32U) != 0 ? in_.number<std::uint64_t>() : offer.c_tokens;
    offer.norm = (bends & 64U) != 0 ? in_.number<double>() : 0.0;
    offer.bytes = from.bytes_of(offer.codec, offer.fragment);
    if ((bends & 128U) != 0) {
      offer.round = 0;
    }
    return offer;
  }
  void push() {
    FuzzLearner& from = any();
    const wire::Offer offer = bent_offer(from);
    Bytes body(offer.bytes);
    const ByteView values = in_.take(in_.below(64));
    std::copy_n(values.begin(), std::min(values.size(), body.size()), body.begin());
    from.offer(offer, std::move(body));
  }
  void offer_any() {
    FuzzLearner& from = any();
    wire::Offer offer = bent_offer(from);
    const std::uint8_t bends = in_.byte();
    offer.kind = static_cast<wire::TransferKind>(bends % 5U);
    offer.term += (bends & 8U) != 0 ? 1 : 0;
    offer.parts = (bends & 16U) != 0 ? static_cast<std::uint16_t>(in_.below(3)) : 1;
    // Up to a megabyte, or more than any run has.
    offer.bytes = (bends & 32U) != 0 ? in_.number<std::uint64_t>() : offer.bytes;
    if (offer.kind == wire::TransferKind::kLayout) {
      offer.bytes = std::min<std::uint64_t>(offer.bytes, 4096);
    }
    offer.codec = (bends & 64U) != 0 ? static_cast<CodecId>(in_.below(3)) : offer.codec;
    if (in_.below(2) == 0) {
      offer.transfer = from.transfers + in_.below(3) - 1;
      send_bytes(from, Type::kOffer, wire::encode(offer));
    } else {
      from.offer(offer, Bytes(std::min<std::uint64_t>(offer.bytes, 4096)));
    }
  }
  void beat() {
    wire::LearnerBeat beat;
    beat.local_step = in_.below(4) == 0 ? in_.number<std::uint64_t>() : ++steps_;
    beat.tokens = in_.below(4) == 0 ? in_.number<std::uint64_t>() : 10 * steps_;
    beat.phase = static_cast<wire::Phase>(in_.below(5));
    beat.step_time_s = in_.below(4) == 0 ? in_.number<double>() : 0.01;
    any().peer.send(beat);
  }
  void say_small() {
    FuzzLearner& from = any();
    switch (in_.below(8)) {
      case 0:
        return from.peer.send(wire::Limit{in_.below(9), in_.below(99)});
      case 1:
        return from.peer.send(wire::Leave{static_cast<wire::LeaveReason>(in_.below(3)), 1});
      case 2:
        return from.peer.send(wire::Finish{static_cast<wire::FinishMode>(in_.below(2)), "enough"});
      case 3:
        return syncer_.finish(static_cast<wire::FinishMode>(in_.below(2)));
      case 4:
        return from.peer.send(wire::Metric{std::string(fuzz::text_of(in_.take(in_.byte())))});
      case 5: {
        wire::FinalAck ack;
        ack.versions.assign(in_.below(4), in_.below(4));
        ack.digests.resize(in_.below(4));
        return from.peer.send(ack);
      }
      default: {
        wire::Data data;
        data.action = static_cast<wire::DataAction>(in_.below(4));
        data.epoch = in_.below(3);
        data.first = in_.below(8) == 0 ? in_.number<std::uint64_t>() : in_.below(32);
        data.count = in_.below(8) == 0 ? in_.number<std::uint64_t>() : in_.below(16);
        data.rows = in_.below(8) == 0 ? in_.number<std::uint64_t>() : 32;
        return from.peer.send(data);
      }
    }
  }
  void have_or_done() {
    FuzzLearner& from = any();
    const std::uint64_t transfer = 1 + in_.below(6);
    if (in_.coin()) {
      return from.peer.send(wire::Done{transfer, static_cast<std::uint8_t>(in_.below(2))});
    }
    const auto accept = static_cast<std::uint8_t>(in_.below(2));
    const ByteView chunks = in_.take(in_.below(3));
    from.peer.send(wire::Have{transfer, accept, {}, Bytes(chunks.begin(), chunks.end())});
  }

  fuzz::Input& in_;
  const std::uint32_t what_;
  Syncer syncer_;
  Peers peers_;
  std::uint64_t steps_ = 0;
};

}  // namespace

YETO_FUZZ_EXAMPLES(fuzz::any_script)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool quiet = [] {
    set_log_level(LogLevel::kError);
    return true;
  }();
  static_cast<void>(quiet);
  fuzz::Input in(data, size);
  Script(in).run();
  return 0;
}
