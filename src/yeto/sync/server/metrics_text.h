// SPDX-License-Identifier: Apache-2.0
// The state of a syncer as a Prometheus text page. Every name ends with its unit (or _total for
// what only grows); seats and fragments are labels. What is not known is left out. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "yeto/sync/server/door.h"
#include "yeto/sync/server/records.h"

namespace yeto::sync {

inline constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

struct MetricsRecord {
  StatusRecord status;
  DoorCounters door;
  std::uint64_t memory_bytes = 0;  // of all buffers of the jobs
  double loop_silence_s = 0.0;     // since the loop last came round
};

std::string metrics_text(const MetricsRecord& record);

}  // namespace yeto::sync
