// SPDX-License-Identifier: Apache-2.0
// JobHost: carries out the core's jobs in a world. RealJobs runs sync/jobs on small tensors and the
// simulated disk; PhantomJobs answers with sizes and made-up digests, for plans whose tensors would
// not fit. Both outlive a syncer's process only through what is durable.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "yeto/sync/core/events.h"
#include "yeto/sync/jobs/jobs.h"
#include "yeto/sync/sim/disk.h"
#include "yeto/sync/sim/network.h"
#include "yeto/sync/sim/plan.h"

namespace yeto::sync::sim {

// One of the core's actions that are jobs.
using JobOrder =
    std::variant<LoadLayout, LoadInit, InspectPush, Merge, MakeImages, Checkpoint, MakeFinals>;

class JobHost {
 public:
  virtual ~JobHost() = default;
  // What a start finds: the durable state (if any) and the term of this life.
  struct Opened {
    std::optional<Restored> restored;
    std::uint64_t term = 0;
  };
  virtual Result<Opened> open() = 0;

  virtual void allocate(BufferId buffer, std::uint64_t bytes) = 0;
  virtual void fill(BufferId buffer, const Body& body) = 0;
  virtual void free(BufferId buffer) = 0;
  // Nothing if there is no such buffer.
  virtual std::optional<Body> body(BufferId buffer) const = 0;
  virtual std::uint64_t buffer_bytes() const = 0;
  // The event that answers the order. A checkpoint is taken and written, durable by make_durable().
  virtual Event carry_out(const JobOrder& order) = 0;
  // What the last checkpoint wrote is durable.
  virtual void make_durable() = 0;
  // Bytes that an order reads and writes, for its duration.
  virtual std::uint64_t work_bytes(const JobOrder& order) const = 0;
};

// The disk outlives the syncer's processes; so does what a phantom holds for durable.
struct Durable {
  Disk disk;
  std::optional<CoreState> state;  // of phantom jobs
  std::optional<CoreState> writing;
  std::uint64_t term = 0;
};

// `life`: 1 for the first start of the syncer.
std::unique_ptr<JobHost> make_jobs(const Plan& plan, std::uint32_t life, Durable& durable);

}  // namespace yeto::sync::sim
