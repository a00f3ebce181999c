// SPDX-License-Identifier: Apache-2.0
// Worker: the threads that carry out jobs. One carries them out in the order given; a checkpoint is
// only snapshotted there, and a second thread writes it while the first goes on. Results come in
// the order of the orders, except that of a checkpoint, which comes when it is durable.
#pragma once

#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "yeto/base/queue.h"
#include "yeto/base/thread.h"
#include "yeto/merge/merge.h"
#include "yeto/sync/core/events.h"
#include "yeto/sync/jobs/jobs.h"

namespace yeto::sync {

using JobOrder =
    std::variant<LoadLayout, LoadInit, InspectPush, Merge, MakeImages, Checkpoint, MakeFinals>;

struct JobResult {
  Event event;
  // Of a merge: the shares of the pushes, for the tape.
  std::uint32_t fragment = 0;
  std::uint64_t version = 0;
  std::vector<merge::SeatWeight> weights;
  // Trouble that the event has no field for; empty: none.
  std::string trouble;
};

// Carries out one order at once, on the calling thread; a checkpoint is also written. What a Worker
// does, without its threads.
JobResult carry_out(Jobs& jobs, const JobOrder& order);

// Orders that wait. The core orders one job per push, merge and checkpoint in flight, far fewer
// than this.
inline constexpr std::size_t kMaxWaitingJobs = 1U << 16;
// Snapshots that wait for the disk. The core orders the next checkpoint after the last one ended;
// only a syncer that is interrupted may order one more.
inline constexpr std::size_t kMaxWaitingSnapshots = 2;

class Worker {
 public:
  using TapePosition = std::function<std::optional<checkpoint::TapePosition>()>;

  // `deliver` is called on either of the worker's threads, `position` on the writing one before a
  // checkpoint is written. `jobs` must outlive the worker.
  Worker(Jobs& jobs, std::function<void(JobResult)> deliver, TapePosition position = {});
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Any thread. Waits at kMaxWaitingJobs. Does nothing after close().
  void order(JobOrder order);
  // Orders not begun are dropped; waits for those in progress. Their results are still delivered.
  void close();

 private:
  struct Writing {
    JobId job = 0;
    Snapshot snapshot;
  };
  void carry_out(const JobOrder& order);
  void take_snapshot(const Checkpoint& order);
  void write_checkpoint(Writing writing);

  Jobs& jobs_;
  const std::function<void(JobResult)> deliver_;
  const TapePosition position_;
  BoundedQueue<JobOrder> orders_;
  BoundedQueue<Writing> snapshots_;
  JoiningThread thread_;
  JoiningThread writer_;
};

}  // namespace yeto::sync
