// SPDX-License-Identifier: Apache-2.0
// Worker: the thread that carries out jobs, one after the other, in the order given.
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

// Orders that wait. The core orders one job per push, merge and checkpoint in flight, far fewer
// than this.
inline constexpr std::size_t kMaxWaitingJobs = 1U << 16;

class Worker {
 public:
  // `deliver` is called on the worker's thread. `jobs` must outlive the worker.
  Worker(Jobs& jobs, std::function<void(JobResult)> deliver);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Any thread. Waits at kMaxWaitingJobs. Does nothing after close().
  void order(JobOrder order);
  // Orders not begun are dropped; waits for the one in progress. Results are still delivered.
  void close();

 private:
  JobResult carry_out(const JobOrder& order);
  JobResult run(const LoadLayout& order);
  JobResult run(const LoadInit& order);
  JobResult run(const InspectPush& order);
  JobResult run(const Merge& order);
  JobResult run(const MakeImages& order);
  JobResult run(const Checkpoint& order);
  JobResult run(const MakeFinals& order);

  Jobs& jobs_;
  const std::function<void(JobResult)> deliver_;
  BoundedQueue<JobOrder> orders_;
  JoiningThread thread_;
};

}  // namespace yeto::sync
