// SPDX-License-Identifier: Apache-2.0
// The JSON texts the syncer leaves behind: lines of the tape, the status file, the endpoint file.
// Pure functions; every text is one line without its end. Invalid UTF-8 of a peer is replaced, a
// number that is not finite becomes null.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "yeto/base/result.h"
#include "yeto/sync/core/events.h"
#include "yeto/sync/jobs/checkpoint_copy.h"

namespace yeto::sync {

// What stands in every line of the tape.
struct TapeHead {
  double wall_s = 0.0;
  std::uint64_t seq = 0;
  std::uint64_t term = 0;
};

// `weights` belong to a round record: the share of each push in the merge, adding up to 1. Times of
// a round are printed in seconds since the syncer's start.
std::string tape_line(const TapeHead& head, const TapeRecord& record,
                      const std::vector<SeatValue>& weights = {});

// A committed round that was written again from a checkpoint: marked `repaired`, its times null.
std::string tape_repaired_line(const TapeHead& head, const TapeRound& record,
                               const std::vector<SeatValue>& weights);

using TextPairs = std::vector<std::pair<std::string, std::string>>;

// First line of a term: {"event":"run", …, "settings":{…}}.
struct RunRecord {
  std::string run_id;
  std::uint64_t pid = 0;
  bool resumed = false;
  TextPairs settings;
  // Of a resumed run: what it begins with. Round lines of older terms above these versions are
  // void.
  std::uint64_t global_step = 0;
  std::vector<std::uint64_t> versions;
};
std::string tape_run_line(const TapeHead& head, const RunRecord& record);

// "seq" of a line; nothing if the line is not a tape record.
std::optional<std::uint64_t> seq_of_tape_line(std::string_view line);

// What tells one commit from all others. Nothing if the line is not that of a committed round.
struct CommittedRound {
  std::uint32_t fragment = 0;
  std::uint64_t version = 0;
  wire::Digest16 digest{};
};
std::optional<CommittedRound> committed_round_of(std::string_view line);

struct StatusRecord {
  std::string run_id;
  std::uint64_t pid = 0;
  double wall_s = 0.0;
  CoreStatus core;
  std::vector<std::uint64_t> fragment_values;  // empty while the layout is unknown
  std::string error;                           // trouble outside the core; empty: none
  std::optional<int> exit;
  std::optional<CopyStatus> checkpoint_copy;  // none: checkpoints are not copied
};
std::string status_text(const StatusRecord& record);

struct EndpointRecord {
  std::string host;
  std::uint16_t port = 0;
  std::string run_id;
  std::uint64_t term = 0;
  std::uint64_t pid = 0;
};
std::string endpoint_text(const EndpointRecord& record);
// kConfig with what is missing or wrong; `where` names the file in the error.
Result<EndpointRecord> parse_endpoint(std::string_view text, const std::string& where);

std::string_view phase_name(RunPhase phase);
std::string_view phase_name(wire::Phase phase);

}  // namespace yeto::sync
