// SPDX-License-Identifier: Apache-2.0
// Server: the syncer as a process. One loop thread runs the core and all sockets, one worker thread
// the jobs, one thread writes tape and status, one watches the loop.
//
// open() checks the checkpoint folder, raises the term and makes it durable, and only then listens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "yeto/base/result.h"
#include "yeto/merge/merge.h"
#include "yeto/net/address.h"
#include "yeto/net/tls.h"
#include "yeto/store/object_store.h"
#include "yeto/sync/core/events.h"
#include "yeto/sync/server/door.h"
#include "yeto/sync/server/records.h"

namespace yeto::sync {

struct ServerOptions {
  net::Address bind{"127.0.0.1", 0};
  CoreOptions core;  // `term` is filled by open()
  merge::OuterRule outer;
  merge::Correction correction = merge::Correction::kNone;
  merge::WeightRule weights = merge::WeightRule::kTokens2;
  int threads = 1;  // of a merge
  // Who learners are: by certificates, or without them by keys made from the run token.
  std::shared_ptr<const net::Tls> tls;
  SessionKey run_token{};
  bool insecure = false;  // plain TCP is allowed on an address that is not loopback
  // A folder, or a shared store (then a checkpoint is durable when it is there).
  std::shared_ptr<store::ObjectStore> checkpoint;
  // A shared store that each checkpoint of the folder is also copied to; may be null.
  std::shared_ptr<store::ObjectStore> checkpoint_copy;
  bool resume = false;
  std::optional<net::Address> http;  // of the status pages; none: not served
  // Empty: not written.
  std::filesystem::path endpoint;
  std::filesystem::path status;
  std::filesystem::path tape;
  TextPairs settings;  // effective flags, for manifest and tape
  // Limits with the values of the protocol; tests make them smaller.
  Nanos first_frame_timeout = 10 * kSecond;
  std::size_t max_unadmitted = 64;
  Nanos watchdog_limit = 2 * kSecond;
  Nanos status_interval = 1 * kSecond;
  Nanos leave_limit = from_millis(4500);  // of an interrupted syncer, from the signal
};

// 32 bytes as 64 hex digits in a file that others cannot read. kNotFound, kData, kPermission.
Result<SessionKey> read_token_file(const std::filesystem::path& path);

class Server {
 public:
  // kPermission for an address that is not loopback with neither TLS nor `insecure`, and for a
  // certificate that is not of this run's syncer; kConflict for a checkpoint without `resume`, a
  // folder with other content, or another run; kDamaged; kUnreachable or kIo when the address is
  // taken.
  static Result<std::unique_ptr<Server>> open(ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  net::Address address() const;
  // Of the status pages, with the real port.
  std::optional<net::Address> http_address() const;
  std::uint64_t term() const;
  bool resumed() const;

  // Serves until the run ends (0 or 4), interrupt() (its code) or an internal failure (70). Once.
  int run();
  // Checkpoint what is not durable and leave run() with this code, after `leave_limit` at the
  // latest. Any thread.
  void interrupt(int exit_code);
  // As a controller's FINISH. Any thread.
  void request_finish(wire::FinishMode mode, std::string reason);
  // After run(): a job is still in progress, and destroying the server would wait for it.
  bool work_left() const;

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace yeto::sync
