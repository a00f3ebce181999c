// SPDX-License-Identifier: Apache-2.0
// What a restart mends on the tape. A syncer that dies between a durable checkpoint and the line of
// the commit in it leaves a commit that stands nowhere on the tape; its line is written again from
// the manifest. Lines of commits that the checkpoint does not hold (interval durability) stay: they
// happened. The `run` line of the new term names the versions it begins with, and round lines of
// older terms above them are void.
#pragma once

#include <cstdint>
#include <vector>

#include "yeto/base/result.h"
#include "yeto/sync/jobs/checkpoint.h"
#include "yeto/sync/server/tape.h"

namespace yeto::sync {

struct TapeRepair {
  std::vector<std::uint64_t> rounds;  // whose lines were written again
  std::uint64_t lost = 0;             // commits before them of which nothing is known any more
  std::uint64_t missing_bytes = 0;    // the file is that much shorter than the manifest says
};

// `wall_s` becomes the time of the lines. An empty tape is a new one and stays empty. kIo.
Result<TapeRepair> repair_tape(TapeFile& tape, const checkpoint::Manifest& manifest, double wall_s);

}  // namespace yeto::sync
