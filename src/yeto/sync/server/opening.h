// SPDX-License-Identifier: Apache-2.0
// What a syncer does before it listens: judge the checkpoint folder, load it (from its copy, if
// this machine has none), raise the term and take it at the copy, mend the tape.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "yeto/base/result.h"
#include "yeto/sync/jobs/jobs.h"
#include "yeto/sync/server/server.h"
#include "yeto/sync/server/tape.h"

namespace yeto::sync {

struct Opening {
  std::unique_ptr<Jobs> jobs;
  std::optional<Restored> restored;
  std::uint64_t term = 0;  // durable
  std::optional<TapeFile> tape;
};

// Errors as Server::open.
Result<Opening> open_checkpoint(const ServerOptions& options);

}  // namespace yeto::sync
