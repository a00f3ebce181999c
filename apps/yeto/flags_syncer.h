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
  sync::ServerOptions options;           // checkpoint is not opened yet
  std::filesystem::path checkpoint;      // its folder
  std::vector<fleet::FlagError> errors;  // not empty: nothing else counts
};

// Touches nothing but the token file.
SyncerRequest read_syncer_flags(std::span<const std::string> args);

// Effective limits in one line, for the log.
std::string timeouts_text(const sync::ServerOptions& options);

}  // namespace yeto::apps
