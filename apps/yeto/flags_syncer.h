// SPDX-License-Identifier: Apache-2.0
// `yeto syncer`: from its arguments to the server's options.
#pragma once

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "yeto/fleet/spec/flags.h"
#include "yeto/sync/server/server.h"

namespace yeto::apps {

struct SyncerRequest {
  bool help = false;
  sync::ServerOptions options;           // checkpoint and its copy are not opened yet
  std::string checkpoint;                // their folder or URL
  std::string checkpoint_copy;           // empty: none
  std::vector<fleet::FlagError> errors;  // not empty: nothing else counts
};

// Touches nothing but the token file, or the three TLS files.
SyncerRequest read_syncer_flags(std::span<const std::string> args);

// All limits and timeouts with their effective values, one per line.
std::vector<std::string> limit_lines(const sync::ServerOptions& options);

}  // namespace yeto::apps
