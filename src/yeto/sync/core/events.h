// SPDX-License-Identifier: Apache-2.0
// What the core is told (Event) and what it orders (Action). The core never touches a value: it
// names buffers by id, and jobs answer with norms, finiteness and digests. All times are monotonic
// nanoseconds of the caller.
//
// A connection (ConnId) is one control stream, numbered by the server. A buffer (BufferId) is
// numbered by the core; the server gives it memory when a transfer is accepted or a job makes it,
// and frees it on FreeBuffer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "yeto/base/clock.h"
#include "yeto/sync/session/data_leases.h"
#include "yeto/tensor/layout.h"
#include "yeto/wire/messages.h"

namespace yeto::sync {

using ConnId = std::uint64_t;
using BufferId = std::uint64_t;
using JobId = std::uint64_t;
using Seat = std::uint32_t;

// ---- events
// ----------------------------------------------------------------------------------------------

// The first event of any kind also starts the core (resume: MakeImages); the server begins with
// Tick.
//
// First frame of a control stream. The server has checked the proof; `fresh_session` is random.
struct HelloArrived {
  ConnId conn = 0;
  wire::Hello hello;
  bool proof_ok = false;
  wire::SessionToken fresh_session{};
};
struct ConnClosed {
  ConnId conn = 0;
  std::string reason;
};
// Any other control message except OFFER, HAVE, DONE and CHUNK, which the server's link handles.
struct MessageArrived {
  ConnId conn = 0;
  wire::Message message;
};
// A valid frame came on any stream of the session (bulk data; sent at most every 100 ms).
struct Heard {
  ConnId conn = 0;
};
// Must be answered in the same call by AcceptTransfer or RefuseTransfer.
struct OfferArrived {
  ConnId conn = 0;
  wire::Offer offer;
};
// All bytes of an accepted transfer are in its buffer; or it was broken off (`ok` false).
struct TransferArrived {
  ConnId conn = 0;
  std::uint64_t transfer = 0;
  BufferId buffer = 0;
  bool ok = false;
};
// A transfer ordered by SendTransfer ended: `ok` only after the peer's DONE with an equal digest.
struct TransferSent {
  ConnId conn = 0;
  std::uint64_t ticket = 0;
  bool ok = false;
};
struct LayoutLoaded {
  JobId job = 0;
  std::optional<Layout> layout;
  std::string error;
};
struct InitLoaded {
  JobId job = 0;
  bool ok = false;
  std::string error;
};
// A push has been decoded and measured.
struct PushInspected {
  JobId job = 0;
  BufferId buffer = 0;
  bool finite = false;
  double norm = 0.0;
};
// The image of a fragment: the bytes every learner gets, and the XXH3-128 of the decoded public
// value.
struct Image {
  BufferId buffer = 0;
  std::uint64_t bytes = 0;
  wire::Digest16 digest{};
};
// `ok` false: the merged value was not finite, nothing changed. `image` is what a learner that
// holds the version before needs; `full` the whole public value in the anchor dtype. They are one
// and the same (`full.buffer` 0) unless the broadcast codec is q4. Both carry the digest of the new
// public value.
struct Merged {
  JobId job = 0;
  bool ok = false;
  Image image;
  Image full;
};
// Whole images of the current public values of all fragments, in the anchor dtype (start, resume).
struct ImagesMade {
  JobId job = 0;
  std::vector<Image> images;
};
struct Checkpointed {
  JobId job = 0;
  bool ok = false;
  std::string error;
};
struct FinalsMade {
  JobId job = 0;
  std::vector<Image> images;            // f32 values
  std::vector<wire::Digest32> digests;  // SHA-256 of them
};
// From a signal or the command line; a controller's FINISH message comes as MessageArrived.
struct FinishRequested {
  wire::FinishMode mode = wire::FinishMode::kFinish;
  std::string reason;
};
struct Tick {};

using Event = std::variant<HelloArrived, ConnClosed, MessageArrived, Heard, OfferArrived,
                           TransferArrived, TransferSent, LayoutLoaded, InitLoaded, PushInspected,
                           Merged, ImagesMade, Checkpointed, FinalsMade, FinishRequested, Tick>;

// ---- actions
// ---------------------------------------------------------------------------------------------

// Send WELCOME and make the connection a session that may attach data streams with this token.
struct Admit {
  ConnId conn = 0;
  wire::Welcome welcome;
};
// Send REFUSED and close.
struct Refuse {
  ConnId conn = 0;
  wire::Refused refused;
};
struct Send {
  ConnId conn = 0;
  wire::Message message;
};
struct Close {
  ConnId conn = 0;
  std::string reason;
};
// Receive into a new buffer of `bytes` bytes. For kinds other than PUSH the link answers
// HAVE(accept).
struct AcceptTransfer {
  ConnId conn = 0;
  std::uint64_t transfer = 0;
  BufferId buffer = 0;
  std::uint64_t bytes = 0;
};
struct RefuseTransfer {
  ConnId conn = 0;
  std::uint64_t transfer = 0;
  std::string reason;
};
// OFFER and, after HAVE, the chunks of a buffer. The link fills offer.transfer; TransferSent
// carries `ticket`.
struct SendTransfer {
  ConnId conn = 0;
  std::uint64_t ticket = 0;
  wire::Offer offer;
  BufferId buffer = 0;
};
// Break off a transfer ordered by SendTransfer: the budget of buffers is used up and this reader is
// the slowest. Its image may be freed by the next action; a TransferSent of the ticket is ignored.
struct AbortTransfer {
  ConnId conn = 0;
  std::uint64_t ticket = 0;
};
struct FreeBuffer {
  BufferId buffer = 0;
};
// Jobs. They run one after the other, in the order given.
struct LoadLayout {
  JobId job = 0;
  BufferId buffer = 0;
};
// f32 values of one fragment at version 0.
struct LoadInit {
  JobId job = 0;
  std::uint32_t fragment = 0;
  BufferId buffer = 0;
  wire::Digest16 digest{};  // XXH3-128 the bytes must have
};
struct InspectPush {
  JobId job = 0;
  std::uint32_t fragment = 0;
  BufferId buffer = 0;
};
// One seat may have two pushes in a merge: a carried one and the round's own; the older base comes
// first.
struct PushInput {
  Seat seat = 0;
  BufferId buffer = 0;
  std::uint64_t c_steps = 0;
  std::uint64_t c_tokens = 0;
  std::uint64_t base_version = 0;
  double factor = 1.0;  // of its weight: less than 1 for late work
};
// Merge in ascending (seat, base version) order, outer step, encode; the new image gets buffer id
// `image`. Under a q4 broadcast `full` becomes the whole public value; otherwise it is 0.
struct Merge {
  JobId job = 0;
  std::uint32_t fragment = 0;
  std::uint64_t version = 0;  // after the merge
  std::vector<PushInput> pushes;
  BufferId image = 0;
  BufferId full = 0;
  std::uint64_t round = 0;  // which one commits it, for the checkpoint's manifest
};
struct MakeImages {
  JobId job = 0;
  std::vector<BufferId> images;  // one per fragment
};
struct SeatTokens {
  Seat seat = 0;
  std::uint64_t tokens = 0;  // highest cumulative count over all its processes
  bool active = false;       // it took part when the checkpoint was made
  // By fragment: one more than the newest base version of a push of the seat that was merged; work
  // on an older base is in the values already. Empty: none.
  std::vector<std::uint64_t> merged_bases;
  bool operator==(const SeatTokens&) const = default;
};
struct Ledger {  // fragment-tokens
  std::uint64_t pushed = 0;
  std::uint64_t merged = 0;
  std::uint64_t dropped = 0;
  std::uint64_t waiting = 0;
  bool operator==(const Ledger&) const = default;
};
// A term that began with these versions; what an older term committed above them is void.
struct Fork {
  std::uint64_t term = 0;
  std::vector<std::uint64_t> versions;
  bool operator==(const Fork&) const = default;
};
// What the core needs to go on after a restart; stands in the checkpoint's manifest.
struct CoreState {
  std::uint64_t term = 0;
  std::uint64_t global_step = 0;
  std::vector<std::uint64_t> versions;
  std::vector<SeatTokens> seats;
  Ledger ledger;
  std::vector<Fork> forks;
  std::vector<wire::ContractPair> contract;
  DataState data;
  std::string finish_reason;  // not empty: the run was asked to end
  bool operator==(const CoreState&) const = default;
};
struct Checkpoint {
  JobId job = 0;
  CoreState state;
};
struct MakeFinals {
  JobId job = 0;
  std::vector<BufferId> images;  // one per fragment
};

// Records for the tape.
struct TapeJoin {
  Seat seat = 0;
  std::uint64_t incarnation = 0;
  bool resumed = false;
  std::string device;
};
struct TapeLeave {
  Seat seat = 0;
  std::string reason;
};
struct TapeLost {
  Seat seat = 0;
  std::string reason;
};
struct SeatValue {
  Seat seat = 0;
  double value = 0.0;
};
struct SeatReason {
  Seat seat = 0;
  std::string reason;
};
struct TapeRound {
  std::uint64_t round = 0;
  std::uint32_t fragment = 0;
  std::uint64_t version = 0;
  std::uint32_t attempt = 0;
  bool sweep = false;
  bool committed = false;
  Nanos launched = 0;
  Nanos quorum = 0;  // 0: never reached
  Nanos grace_end = 0;
  Nanos committed_at = 0;
  std::string reason;
  std::vector<Seat> expected;
  std::vector<Seat> responded;
  std::vector<SeatReason> dropped;
  std::vector<SeatValue> carried;  // late pushes merged here, with their lag
  std::vector<SeatValue> factors;  // of them, in the same order: the share of the weight they kept
  std::vector<SeatValue> tokens;
  std::vector<SeatValue> steps;
  std::vector<SeatValue> norms;
  std::uint64_t bytes_in = 0;
  std::uint64_t bytes_out = 0;
  wire::Digest16 digest{};
  Ledger ledger;  // after this round
};
// Late work: its round had closed, or nobody asked for it (round 0).
struct TapeLate {
  Seat seat = 0;
  std::uint32_t fragment = 0;
  std::uint64_t round = 0;
  std::uint64_t base_version = 0;
  std::uint64_t tokens = 0;
  bool carried = false;  // it waits for the fragment's next round; otherwise it is dropped
  std::string reason;    // of a drop: lag, final, replaced, …
};
struct TapeCheckpoint {
  std::uint64_t global_step = 0;
  bool ok = false;
  std::string error;
};
struct TapeMetric {
  Seat seat = 0;
  std::string json;
};
struct TapeFinish {
  std::string reason;
};
struct TapeFinal {
  std::uint64_t global_step = 0;
  std::vector<std::uint64_t> versions;
  std::vector<Seat> acknowledged;
  std::vector<Seat> missing;
};
struct TapeError {
  std::string text;
};
struct TapeData {
  Seat seat = 0;
  std::string what;  // grant, complete, return, lost
  DataRange range;
};
using TapeRecord = std::variant<TapeData, TapeJoin, TapeLeave, TapeLost, TapeRound, TapeLate,
                                TapeCheckpoint, TapeMetric, TapeFinish, TapeFinal, TapeError>;
struct Tape {
  TapeRecord record;
};
// The run is over: flush, close all connections, exit with the code (0, 2: an option does not fit
// the run, 4).
struct Ended {
  int exit_code = 0;
  std::string reason;
};

using Action = std::variant<Admit, Refuse, Send, Close, AcceptTransfer, RefuseTransfer,
                            SendTransfer, AbortTransfer, FreeBuffer, LoadLayout, LoadInit,
                            InspectPush, Merge, MakeImages, Checkpoint, MakeFinals, Tape, Ended>;

// ---- configuration and status
// ----------------------------------------------------------------------------

enum class Durability : std::uint8_t { kCommit, kInterval };

struct CoreOptions {
  std::string run_id;
  std::uint64_t term = 1;      // of this life of the syncer, already durable
  std::uint32_t learners = 1;  // expected at start
  std::uint32_t quorum = 0;    // 0: auto
  bool quorum_all = false;
  std::uint32_t start_quorum = 0;  // 0: the quorum
  Nanos start_timeout = 600 * kSecond;
  std::uint32_t pipeline = 2;
  std::uint32_t sync_interval_steps = 24;
  Nanos min_round = 0;
  Nanos round_timeout = 900 * kSecond;
  std::optional<Nanos> grace_cap;  // none: auto
  double grace_gamma = 0.8;
  double grace_tau = 2.0;
  Nanos lease = 5 * kSecond;
  Nanos heartbeat = 1 * kSecond;
  std::uint64_t total_steps = 0;  // 0: no such limit
  Nanos final_timeout = 300 * kSecond;
  double merge_alpha = 0.0;
  bool delta_blended = false;
  bool lockstep = false;
  std::uint32_t max_lag = 2;       // late pushes of at most this lag are carried
  std::vector<Seat> fixed_roster;  // not empty: exactly these seats, each answers every round
  Nanos recover_timeout = 600 * kSecond;  // of the fixed roster: how long a lost seat is awaited
  std::uint64_t max_buffer = 0;           // bytes, see buffer_budget.h; 0: auto
  bool data_leases = false;
  std::uint64_t epochs = 0;  // of the data leases; 0: without end
  // None: f32 under 64 M values, else bf16.
  std::optional<CodecId> push_codec;
  std::optional<CodecId> broadcast_codec;
  std::optional<Durability> durability;  // none: commit while the state is at most 256 MiB
  Nanos checkpoint_every = 30 * kSecond;
  std::uint32_t chunk_bytes = wire::kDefaultChunkBytes;
};

// What a checkpoint gave back at start.
struct Restored {
  Layout layout;
  CoreState state;  // as it was written; the core starts the term of CoreOptions
  // What the run was begun with; options that name another one have been refused.
  CodecId push_codec = CodecId::kF32;
  CodecId broadcast_codec = CodecId::kF32;
};

enum class RunPhase : std::uint8_t {
  kWaiting,
  kInitialising,
  kTraining,
  kSweeping,
  kFinal,
  kEnded
};

struct SeatStatus {
  Seat seat = 0;
  std::string state;  // joining, live, suspended, stalled, lost, left, done
  std::uint64_t incarnation = 0;
  wire::Phase phase = wire::Phase::kLoad;
  std::uint64_t local_step = 0;
  std::uint64_t tokens = 0;
  std::optional<double> step_time_s;
  std::optional<std::uint64_t> version_lag;  // largest over fragments
  std::optional<double> participation;       // responded / expected
  std::optional<double> heartbeat_age_s;
  std::uint64_t pushes = 0;
  std::uint64_t merged = 0;
  std::uint64_t carried = 0;  // of the pushes: came late and were kept for the next round
  std::uint64_t dropped = 0;
  std::optional<std::uint64_t> quarantined_until;  // last round that leaves the seat out
  std::uint64_t bytes_pushed = 0;
  std::uint64_t bytes_received = 0;
};

// Settings as they work out, once layout and codecs are known.
struct EffectiveSettings {
  std::uint32_t quorum = 0;               // of the expected learners
  std::uint32_t sync_interval_steps = 0;  // H
  std::uint32_t pipeline = 0;
  Nanos stall_floor = 0;
  std::uint32_t max_lag = 0;
  CodecId push_codec = CodecId::kF32;
  CodecId broadcast_codec = CodecId::kF32;
  Durability durability = Durability::kCommit;
  std::uint64_t max_buffer = 0;
};

struct CoreStatus {
  RunPhase phase = RunPhase::kWaiting;
  std::uint64_t term = 0;
  std::uint64_t global_step = 0;
  std::optional<std::uint64_t> total_steps;  // T + F: the last sweep merges each fragment once more
  std::uint64_t durable_step = 0;
  std::uint64_t run_tokens = 0;
  std::vector<SeatStatus> seats;
  std::vector<std::uint64_t> versions;
  Ledger ledger;
  std::string error;        // newest trouble that did not end the run; empty: none
  std::string waiting_for;  // why no round is open, or why the open one cannot close, in words
  std::optional<EffectiveSettings> effective;  // none: not known yet
  std::uint64_t buffer_bytes = 0;              // of the budget, in use
  std::uint64_t carried_pushes = 0;            // late work that waits for a merge
  DataState data;
};

}  // namespace yeto::sync
