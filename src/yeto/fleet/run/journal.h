// SPDX-License-Identifier: Apache-2.0
// journal.jsonl: what the controller intended, decided and saw, in order, each line on disk before
// its effect. A line is one JSON object followed by a blank and the CRC-32C of the object's bytes
// as 8 hex digits. A torn last line (crash while writing) is ignored and cut off by the next
// writer; damage before it is an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "yeto/base/files.h"
#include "yeto/base/result.h"
#include "yeto/fleet/run/core.h"
#include "yeto/fleet/run/provider.h"

namespace yeto::fleet {

struct JournalEntry {
  std::string kind =
      {};  // controller, intent, spawned, spawn_failed, decision, stop, delivered, state
  int who = kWholeRun;  // seat, kSyncerSeat or kWholeRun
  int attempt = -1;
  std::string token = {};  // of intent and spawned
  Handle handle = {};      // of spawned, controller
  std::string what = {};   // of decision; the stop request's id; the state's name
  std::string reason = {};
  std::uint64_t seq = 0;  // set by the journal
  double ts = 0;          // wall seconds, set by the journal
};

class Journal {
 public:
  // Opens for appending; cuts a torn last line off. One writer at a time (the caller holds the
  // run's lock).
  static Result<Journal> open(const std::filesystem::path& path);
  // Returns when the line is on disk.
  Status append(JournalEntry entry);

 private:
  Journal(FileHandle file, std::filesystem::path path, std::uint64_t next)
      : file_(std::move(file)), path_(std::move(path)), next_seq_(next) {}
  FileHandle file_;
  std::filesystem::path path_;
  std::uint64_t next_seq_ = 0;
};

// All whole lines; empty if there is no file. Readers need no lock.
Result<std::vector<JournalEntry>> read_journal(const std::filesystem::path& path);

// The handles of all processes the journal says were created, oldest first; intents without an
// outcome have pid 0 and are to be looked for by their token.
struct Recorded {
  int who = kWholeRun;
  int attempt = -1;
  std::string token = {};
  Handle handle = {};
};
std::vector<Recorded> recorded_processes(const std::vector<JournalEntry>& entries);

}  // namespace yeto::fleet
