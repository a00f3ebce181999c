// SPDX-License-Identifier: Apache-2.0
// Every message of the protocol, declared once as a list of fields. Encoder, decoder, size bound,
// printer and fuzz generator (codec.h) all walk `fields`. Format page: docs/PROTOCOL.md.
// A decoder ignores extra trailing bytes (a newer minor) and refuses missing ones.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/tensor/layout.h"

namespace yeto::wire {

inline constexpr std::uint8_t kMajor = 1;
inline constexpr std::uint16_t kMinor = 0;
inline constexpr std::uint32_t kNoSeat = 0xffffffff;
// PULL of this fragment, round 0 asks for the layout (transfer LAYOUT).
inline constexpr std::uint32_t kLayoutFragment = 0xffffffff;
inline constexpr std::uint32_t kMaxChunkBytes = 4U << 20;
inline constexpr std::uint32_t kDefaultChunkBytes = 1U << 20;
// What a peer may send before it is admitted.
inline constexpr std::uint32_t kMaxUnadmittedBytes = 16U << 10;

enum class Type : std::uint8_t {
  kChallenge = 1,
  kHello = 2,
  kWelcome = 3,
  kRefused = 4,
  kAttach = 5,
  kAttached = 6,
  kPull = 7,
  kCancel = 8,
  kVerdict = 9,
  kHeartbeat = 10,
  kLeave = 11,
  kFinish = 12,
  kLimit = 13,
  kFinal = 14,
  kFinalAck = 15,
  kGoodbye = 16,
  kOffer = 17,
  kHave = 18,
  kDone = 19,
  kData = 20,
  kMetric = 21,
  kChunk = 22
};

enum class Role : std::uint8_t { kLearner = 0, kController = 1, kObserver = 2 };
enum class Phase : std::uint8_t { kLoad = 0, kTrain = 1, kEval = 2, kSnapshot = 3, kPaused = 4 };
using yeto::CodecId;
enum class TransferKind : std::uint8_t {
  kLayout = 0,
  kInit = 1,
  kPush = 2,
  kBroadcast = 3,
  kFinal = 4
};
enum class Outcome : std::uint8_t { kMerged = 0, kCarried = 1, kDropped = 2 };
enum class LeaveReason : std::uint8_t { kDone = 0, kPreempted = 1, kError = 2 };
enum class FinishMode : std::uint8_t { kFinish = 0, kNow = 1 };
enum class DataAction : std::uint8_t { kRequest = 0, kGrant = 1, kComplete = 2, kReturn = 3 };
enum class RefuseCode : std::uint16_t {
  kProtocol = 1,
  kRun = 2,
  kProof = 3,
  kSeat = 4,
  kLayout = 5,
  kContract = 6,
  kBusySeat = 7,
  kEnded = 8,
  kFull = 9,
  kRole = 10
};

using Nonce = std::array<std::uint8_t, 32>;
using Proof = std::array<std::uint8_t, 32>;
using SessionToken = std::array<std::uint8_t, 16>;  // all zero: none
using Digest16 = std::array<std::uint8_t, 16>;
using Digest32 = std::array<std::uint8_t, 32>;

// Bound of a text, list or byte field.
struct Max {
  std::size_t count;
};

struct ContractPair {
  std::string name;
  std::array<std::uint8_t, 8> hash{};
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("name", s.name, Max{64});
    f("hash", s.hash);
  }
  bool operator==(const ContractPair&) const = default;
};

// A version of a fragment together with the term it was committed in.
struct Held {
  std::uint64_t term = 0;  // 0: nothing held
  std::uint64_t version = 0;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("term", s.term);
    f("version", s.version);
  }
  bool operator==(const Held&) const = default;
};

// S→L, first frame on every accepted connection.
struct Challenge {
  static constexpr Type kType = Type::kChallenge;
  Nonce nonce{};
  std::uint64_t term = 0;
  std::uint16_t minor = kMinor;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("nonce", s.nonce);
    f("term", s.term);
    f("minor", s.minor);
  }
  bool operator==(const Challenge&) const = default;
};

// L→S. `proof` is HMAC-SHA256(seat key, nonce ‖ encoding of this message with a zero proof).
struct Hello {
  static constexpr Type kType = Type::kHello;
  std::uint16_t minor = kMinor;
  std::string run_id;
  Role role = Role::kLearner;
  std::uint32_t seat = kNoSeat;
  std::uint64_t incarnation = 0;
  SessionToken session{};  // of the session to resume
  Proof proof{};
  Digest32 layout{};
  std::uint64_t values = 0;  // of the whole layout; decides the automatic codec
  std::vector<ContractPair> contract;
  std::vector<Held> held;  // one per fragment, or empty
  std::uint64_t tokens = 0;
  std::uint64_t local_step = 0;
  std::uint16_t streams = 0;
  std::string device;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("minor", s.minor);
    f("run_id", s.run_id, Max{64});
    f("role", s.role);
    f("seat", s.seat);
    f("incarnation", s.incarnation);
    f("session", s.session);
    f("proof", s.proof);
    f("layout", s.layout);
    f("values", s.values);
    f("contract", s.contract, Max{64});
    f("held", s.held, Max{kMaxFragments});
    f("tokens", s.tokens);
    f("local_step", s.local_step);
    f("streams", s.streams);
    f("device", s.device, Max{256});
  }
  bool operator==(const Hello&) const = default;
};

struct Settings {
  std::uint32_t sync_interval_steps = 24;  // H
  double merge_alpha = 0.0;                // α
  std::uint8_t delta_blended = 0;          // 0 raw, 1 blended
  std::uint8_t lockstep = 0;
  std::uint32_t max_lag = 2;
  std::uint64_t total_steps = 0;  // 0: no such limit
  std::uint8_t data_leases = 0;   // 1: the syncer hands out ranges of the sample order
  // 1: exactly the named seats take part; a lost one is awaited, and its session may be resumed
  // also in lockstep.
  std::uint8_t fixed_roster = 0;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("sync_interval_steps", s.sync_interval_steps);
    f("merge_alpha", s.merge_alpha);
    f("delta_blended", s.delta_blended);
    f("lockstep", s.lockstep);
    f("max_lag", s.max_lag);
    f("total_steps", s.total_steps);
    f("data_leases", s.data_leases);
    f("fixed_roster", s.fixed_roster);
  }
  bool operator==(const Settings&) const = default;
};

// S→L. `valid[p]` is the highest version of fragment p whose bytes the learner may keep (the fork
// point for its held term, or the current version in the same term); `versions[p]` the current one.
// Both are empty while the state is not initialised.
struct Welcome {
  static constexpr Type kType = Type::kWelcome;
  std::uint32_t seat = 0;
  SessionToken session{};
  std::uint8_t resumed = 0;  // 1: same session as before, nothing to overwrite
  CodecId broadcast_codec = CodecId::kF32;
  CodecId push_codec = CodecId::kF32;
  std::uint32_t chunk_bytes = kDefaultChunkBytes;
  std::uint32_t heartbeat_ms = 1000;
  std::uint32_t lease_ms = 5000;
  std::uint64_t term = 0;
  std::vector<std::uint64_t> valid;
  std::vector<std::uint64_t> versions;
  std::uint64_t global_step = 0;
  std::uint64_t durable_step = 0;
  std::uint64_t seat_tokens =
      0;  // highest cumulative count of this seat; a process without a snapshot goes on from it
  Settings settings;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("seat", s.seat);
    f("session", s.session);
    f("resumed", s.resumed);
    f("broadcast_codec", s.broadcast_codec);
    f("push_codec", s.push_codec);
    f("chunk_bytes", s.chunk_bytes);
    f("heartbeat_ms", s.heartbeat_ms);
    f("lease_ms", s.lease_ms);
    f("term", s.term);
    f("valid", s.valid, Max{kMaxFragments});
    f("versions", s.versions, Max{kMaxFragments});
    f("global_step", s.global_step);
    f("durable_step", s.durable_step);
    f("seat_tokens", s.seat_tokens);
    f("settings", s.settings);
  }
  bool operator==(const Welcome&) const = default;
};

// S→L, then the connection is closed.
struct Refused {
  static constexpr Type kType = Type::kRefused;
  RefuseCode code = RefuseCode::kProtocol;
  std::uint8_t retryable = 0;
  std::string text;
  std::vector<std::array<std::uint8_t, 8>> tensors;  // kLayout: tensor_hashes() of the run's layout
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("code", s.code);
    f("retryable", s.retryable);
    f("text", s.text, Max{4096});
    f("tensors", s.tensors, Max{1U << 20});
  }
  bool operator==(const Refused&) const = default;
};

// First frame of a data stream. `proof` as in HELLO.
struct Attach {
  static constexpr Type kType = Type::kAttach;
  SessionToken session{};
  Proof proof{};
  std::uint16_t stream = 0;
  std::uint16_t rank = 0;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("session", s.session);
    f("proof", s.proof);
    f("stream", s.stream);
    f("rank", s.rank);
  }
  bool operator==(const Attach&) const = default;
};

struct Attached {
  static constexpr Type kType = Type::kAttached;
  std::uint16_t stream = 0;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("stream", s.stream);
  }
  bool operator==(const Attached&) const = default;
};

// S→L: asks for a push. Round 0 asks for what a new run needs from one donor: the layout
// (fragment kLayoutFragment) or the initial values of a fragment (transfer INIT).
struct Pull {
  static constexpr Type kType = Type::kPull;
  std::uint64_t term = 0;
  std::uint32_t fragment = 0;
  std::uint64_t round = 0;
  std::uint32_t attempt = 0;
  std::uint64_t base_version = 0;
  std::uint64_t at_step = 0;  // 0: next boundary
  std::uint8_t sweep = 0;     // 1: last sweep; the learner stops stepping
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("term", s.term);
    f("fragment", s.fragment);
    f("round", s.round);
    f("attempt", s.attempt);
    f("base_version", s.base_version);
    f("at_step", s.at_step);
    f("sweep", s.sweep);
  }
  bool operator==(const Pull&) const = default;
};

// S→L: an attempt is abandoned (never sent at a commit).
struct Cancel {
  static constexpr Type kType = Type::kCancel;
  std::uint64_t round = 0;
  std::uint32_t attempt = 0;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("round", s.round);
    f("attempt", s.attempt);
  }
  bool operator==(const Cancel&) const = default;
};

struct Verdict {
  static constexpr Type kType = Type::kVerdict;
  std::uint64_t term = 0;
  std::uint32_t fragment = 0;
  std::uint64_t round = 0;
  std::uint32_t attempt = 0;
  Outcome outcome = Outcome::kMerged;
  std::string reason;  // of a drop
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("term", s.term);
    f("fragment", s.fragment);
    f("round", s.round);
    f("attempt", s.attempt);
    f("outcome", s.outcome);
    f("reason", s.reason, Max{256});
  }
  bool operator==(const Verdict&) const = default;
};

// HEARTBEAT L→S.
struct LearnerBeat {
  static constexpr Type kType = Type::kHeartbeat;
  std::uint64_t local_step = 0;
  std::uint64_t tokens = 0;  // cumulative over the seat's life in this process
  Phase phase = Phase::kLoad;
  double step_time_s = 0.0;  // EMA without blocked time; 0: unknown
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("local_step", s.local_step);
    f("tokens", s.tokens);
    f("phase", s.phase);
    f("step_time_s", s.step_time_s);
  }
  bool operator==(const LearnerBeat&) const = default;
};

// HEARTBEAT S→L.
struct SyncerBeat {
  static constexpr Type kType = Type::kHeartbeat;
  std::uint64_t term = 0;
  std::uint64_t global_step = 0;
  std::uint64_t durable_step = 0;
  std::uint64_t run_tokens = 0;
  std::vector<std::uint32_t> live;  // seats, ascending
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("term", s.term);
    f("global_step", s.global_step);
    f("durable_step", s.durable_step);
    f("run_tokens", s.run_tokens);
    f("live", s.live, Max{4096});
  }
  bool operator==(const SyncerBeat&) const = default;
};

struct Leave {
  static constexpr Type kType = Type::kLeave;
  LeaveReason reason = LeaveReason::kDone;
  std::uint32_t notice_ms = 0;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("reason", s.reason);
    f("notice_ms", s.notice_ms);
  }
  bool operator==(const Leave&) const = default;
};

// Controller→S.
struct Finish {
  static constexpr Type kType = Type::kFinish;
  FinishMode mode = FinishMode::kFinish;
  std::string reason;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("mode", s.mode);
    f("reason", s.reason, Max{256});
  }
  bool operator==(const Finish&) const = default;
};

// L→S: this learner reached its own limit.
struct Limit {
  static constexpr Type kType = Type::kLimit;
  std::uint64_t local_step = 0;
  std::uint64_t tokens = 0;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("local_step", s.local_step);
    f("tokens", s.tokens);
  }
  bool operator==(const Limit&) const = default;
};

template <Type kMessageType>
struct FinalState {
  static constexpr Type kType = kMessageType;
  std::uint64_t global_step = 0;
  std::vector<std::uint64_t> versions;
  std::vector<Digest32> digests;  // SHA-256 of the f32 values, per fragment
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("global_step", s.global_step);
    f("versions", s.versions, Max{kMaxFragments});
    f("digests", s.digests, Max{kMaxFragments});
  }
  bool operator==(const FinalState&) const = default;
};
using Final = FinalState<Type::kFinal>;        // S→L
using FinalAck = FinalState<Type::kFinalAck>;  // L→S

struct Goodbye {
  static constexpr Type kType = Type::kGoodbye;
  std::string reason;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("reason", s.reason, Max{256});
  }
  bool operator==(const Goodbye&) const = default;
};

// Announces a transfer. Ids count 1, 2, 3 … per session and direction. A push of 0 bytes says
// "nothing new since the last one" (only while finishing). A push of round 0 was not asked for:
// work that a process which lived through a break offers late, before its fragment is overwritten.
// A broadcast under q4 changes `base_version` into `version`; one in the anchor dtype stands alone.
// Sent once more with `parts` 0, an OFFER withdraws its transfer: nothing is owed for it any more.
struct Offer {
  static constexpr Type kType = Type::kOffer;
  std::uint64_t transfer = 0;
  TransferKind kind = TransferKind::kPush;
  std::uint64_t term = 0;
  std::uint32_t fragment = 0;
  std::uint64_t version = 0;
  std::uint64_t base_version = 0;
  CodecId codec = CodecId::kF32;
  std::uint64_t bytes = 0;
  std::uint16_t part = 0;
  std::uint16_t parts = 1;
  std::uint64_t first_value = 0;
  Digest16 digest{};  // XXH3-128 of the decoded bytes: BROADCAST, INIT, FINAL
  std::uint64_t round = 0;
  std::uint32_t attempt = 0;
  std::uint64_t c_steps = 0;  // steps and tokens since the last delta
  std::uint64_t c_tokens = 0;
  double norm = 0.0;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("transfer", s.transfer);
    f("kind", s.kind);
    f("term", s.term);
    f("fragment", s.fragment);
    f("version", s.version);
    f("base_version", s.base_version);
    f("codec", s.codec);
    f("bytes", s.bytes);
    f("part", s.part);
    f("parts", s.parts);
    f("first_value", s.first_value);
    f("digest", s.digest);
    f("round", s.round);
    f("attempt", s.attempt);
    f("c_steps", s.c_steps);
    f("c_tokens", s.c_tokens);
    f("norm", s.norm);
  }
  bool operator==(const Offer&) const = default;
};

// Answers an OFFER. For a transfer that is under way it is sent again when a data stream was lost
// or attached again, each second while one is missing, and when nothing of the transfer has come
// for a lease: what a lost stream carried and the bitmap does not show is to be sent once more.
struct Have {
  static constexpr Type kType = Type::kHave;
  std::uint64_t transfer = 0;
  std::uint8_t accept = 0;
  std::string reason;
  std::vector<std::uint8_t> chunks;  // bitmap of the chunks held; empty: none
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("transfer", s.transfer);
    f("accept", s.accept);
    f("reason", s.reason, Max{256});
    f("chunks", s.chunks, Max{1U << 16});
  }
  bool operator==(const Have&) const = default;
};

struct Done {
  static constexpr Type kType = Type::kDone;
  std::uint64_t transfer = 0;
  std::uint8_t ok = 0;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("transfer", s.transfer);
    f("ok", s.ok);
  }
  bool operator==(const Done&) const = default;
};

// Data leases: positions [first, first + count) of the sample order of an epoch. A request names
// how many positions are wanted and `rows`, the positions of an epoch, the same in all requests of
// a run; a grant of 0 positions says that nothing is left.
struct Data {
  static constexpr Type kType = Type::kData;
  DataAction action = DataAction::kRequest;
  std::uint64_t epoch = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t rows = 0;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("action", s.action);
    f("epoch", s.epoch);
    f("first", s.first);
    f("count", s.count);
    f("rows", s.rows);
  }
  bool operator==(const Data&) const = default;
};

struct Metric {
  static constexpr Type kType = Type::kMetric;
  std::string json;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("json", s.json, Max{8192});
  }
  bool operator==(const Metric&) const = default;
};

// Part of a transfer. On the hot path the bytes are sent from and read into the transfer's own
// buffer; this struct is the declared form. Transfer 0 does not exist: an empty chunk of it keeps
// an idle data stream from being forgotten by what lies between the peers.
struct Chunk {
  static constexpr Type kType = Type::kChunk;
  std::uint64_t transfer = 0;
  std::uint32_t index = 0;
  std::vector<std::uint8_t> bytes;
  template <class S, class F>
  static void fields(S& s, F&& f) {
    f("transfer", s.transfer);
    f("index", s.index);
    f("bytes", s.bytes, Max{kMaxChunkBytes});
  }
  bool operator==(const Chunk&) const = default;
};

using Message = std::variant<Challenge, Hello, Welcome, Refused, Attach, Attached, Pull, Cancel,
                             Verdict, LearnerBeat, SyncerBeat, Leave, Finish, Limit, Final,
                             FinalAck, Goodbye, Offer, Have, Done, Data, Metric, Chunk>;

}  // namespace yeto::wire
