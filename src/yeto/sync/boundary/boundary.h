// SPDX-License-Identifier: Apache-2.0
// Boundary: a learner's end of the exchange. It keeps a session with the syncer on its own threads
// and, at the boundaries the trainer gives it, reads and writes the trainer's tensors.
//
//   auto boundary = Boundary::open(options, tensors);
//   boundary->wait_ready(0);                  // initial or current values are in the tensors
//   while (more) {
//     …one optimizer step on the tensors…
//     report = boundary->step(tokens);        // answers pulls, applies broadcasts
//     if (report->draining) break;
//   }
//   boundary->finalize(reason, 0);            // final values are in the tensors
//
// Threads. wait_ready, step, set_phase, request_rows and finalize are for one thread, the
// trainer's; only inside them are tensors touched and callbacks called. metric, leave and close may
// be called from any thread, also from a callback; leave and close end a call of the trainer that
// waits (kClosed). Inside run one I/O thread (sockets) and one worker (encode, decode, hash).
//
// Blocking. step() copies only fragments that are due. It waits only in lockstep, and when the
// syncer has been away for longer than max_alone: then until it is back. In lockstep a lost session
// ends step() with kClosed; with a fixed roster the syncer keeps the seat, and step() waits for the
// same session to be resumed, at most max_alone (kUnreachable). wait_ready and finalize
// wait for the syncer, at most `timeout` (0: no limit), and give up with kUnreachable after
// max_alone without a session. While a call waits, `keep_waiting` is asked ten times a second.
//
// Errors end the boundary's use but for leave and close: kRefused (the syncer excludes this learner
// for good), kClosed (the run ended, leave, close, lockstep session lost, keep_waiting said no),
// kUnreachable, kTimeout, kDamaged (final values differ), or what a callback returned.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "yeto/base/clock.h"
#include "yeto/base/result.h"
#include "yeto/net/tls.h"
#include "yeto/sync/boundary/tensors.h"
#include "yeto/sync/client/rows.h"
#include "yeto/tensor/layout.h"
#include "yeto/wire/messages.h"

namespace yeto::sync {

// Positions first, first + stride, … of the sample order of an epoch; `count` 0: nothing is left.
using client::RowRange;

// Gets the ascending indices of tensors. An error ends the call of the trainer that is in progress.
using TensorCallback = std::function<Status(std::span<const std::uint32_t>)>;

struct BoundaryOptions {
  std::string syncer;  // "host:port" or "@FILE" of an endpoint.json, read at every (re)connect
  std::string run_id;
  std::optional<std::uint32_t> seat;  // none: the syncer gives one
  // Who we are: certificate, key and CA (TLS 1.3, for any address), or the key of the seat (plain
  // TCP, for loopback addresses). One of them, not both.
  net::TlsFiles tls;
  std::filesystem::path token_file;
  bool insecure = false;  // plain TCP is allowed to an address that is not loopback
  LayoutOptions layout;
  // Name and text of what all islands of a run must agree on; only hashes travel. At most 64.
  std::vector<std::pair<std::string, std::string>> contract;
  std::uint16_t streams = 4;  // data connections, 0 … 64
  Nanos max_alone = 600 * kSecond;
  std::string device;  // for people
  // Where the tensors are mirrors of device memory: called before they are read (copy from the
  // device) and after they were written (copy to it).
  TensorCallback before_read;
  TensorCallback after_write;
  // False ends the wait in progress with kClosed.
  std::function<bool()> keep_waiting;
  // First and longest wait between two attempts to connect.
  Nanos retry_first = from_millis(200);
  Nanos retry_most = 2 * kSecond;
};

struct ReadyReport {
  std::uint32_t seat = 0;
  std::uint64_t term = 0;
  std::uint64_t global_step = 0;
  std::vector<std::uint32_t> live;  // seats, ascending
  bool joined_late = false;         // training had begun when this process was first admitted
  bool data_leases = false;         // the syncer hands out rows: request_rows()
};

struct AppliedFragment {
  std::uint32_t fragment = 0;
  std::uint64_t version = 0;
  bool overwritten = false;
  wire::Digest16 digest{};  // XXH3-128 of the public value, the same on all islands and on the tape
};

struct PushedFragment {
  std::uint32_t fragment = 0;
  std::uint64_t version = 0;  // the delta's base
  std::uint64_t bytes = 0;
};

struct StepReport {
  std::vector<AppliedFragment> applied;
  std::vector<PushedFragment> pushed;
  std::uint64_t global_step = 0;
  std::uint64_t run_tokens = 0;
  std::vector<std::uint32_t> live;
  std::vector<std::uint64_t> versions;  // per fragment, what the tensors hold
  std::uint64_t staleness_max = 0;      // largest distance to the newest version heard of
  bool draining = false;                // no more steps: call finalize()
  bool connected = false;
  double blocked_ms = 0.0;  // of this call
  // Totals of the process.
  std::uint64_t bytes_pushed = 0;      // bodies of pushes that arrived
  std::uint64_t bytes_received = 0;    // bodies of broadcasts and final values
  std::uint64_t merged = 0;            // pushes the syncer merged
  std::uint64_t carried = 0;           // pushes that came late and were kept for the next round
  std::uint64_t dropped = 0;           // pushes the syncer dropped
  std::uint64_t nonfinite_pushes = 0;  // deltas that were not finite and so not sent
  std::uint64_t resets = 0;            // fragments that went back to their anchor for that
  std::uint64_t late_offers = 0;       // deltas that were offered unasked, after a break
  std::uint64_t discarded_tokens = 0;  // fragment-tokens of work that no push could carry
  double residual_norm = 0.0;          // q4: of the newest rounding errors of all fragments
  std::uint64_t pulls_waiting = 0;     // now
};

struct FinalReport {
  std::uint64_t global_step = 0;
  std::vector<std::uint64_t> versions;
  std::vector<std::uint32_t> live;
  bool lowest = false;  // this seat is the lowest of them
};

enum class FinalizeReason : std::uint8_t {
  kDrain,  // step() reported draining
  kLimit,  // this learner reached its own limit
};

class Boundary {
 public:
  // Makes the layout and starts connecting. kUsage, kRange, kModel, kNotFound, kData, kPermission,
  // kConfig for options, files or tensors that cannot be used. The tensors must outlive the
  // boundary.
  static Result<std::unique_ptr<Boundary>> open(BoundaryOptions options,
                                                std::vector<TensorView> tensors);
  ~Boundary();
  Boundary(const Boundary&) = delete;
  Boundary& operator=(const Boundary&) = delete;

  const Layout& layout() const;

  Result<ReadyReport> wait_ready(Nanos timeout);
  // `tokens`: trained tokens of the optimizer step that has just ended.
  Result<StepReport> step(std::uint64_t tokens);
  void set_phase(wire::Phase phase);
  // One JSON object of at most 8 KiB on one line, for the tape. Sent at once, or kept (the newest
  // 256) until there is a session. kData for anything else.
  Status metric(std::string_view text);
  // Data leases: at most `count` positions of the sample order for the next step (see
  // row_source.h); `rows`: the positions of an epoch, the same in all calls and on all islands.
  // Asks for more in time and waits only if none is here; meanwhile it does what a boundary does,
  // so the tensors must be as after a step. Rows are settled by themselves: complete once the work
  // of the step that follows is merged and durable, back with the syncer if it was lost. `count` 0
  // in the answer: nothing is left, or the run drains. kRange for 0, kUsage before wait_ready() or
  // for other `rows`, kConflict where the syncer leases no rows.
  Result<RowRange> request_rows(std::uint64_t rows, std::uint64_t count);
  Result<FinalReport> finalize(FinalizeReason reason, Nanos timeout);
  // Tells the syncer and ends the session; waits for at most 2 s.
  void leave(wire::LeaveReason reason);
  // Ends everything at once. Idempotent; the destructor does it.
  void close();

 private:
  class Impl;
  explicit Boundary(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace yeto::sync
