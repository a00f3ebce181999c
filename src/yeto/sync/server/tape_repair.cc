// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/server/tape_repair.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "yeto/sync/server/records.h"

namespace yeto::sync {
namespace {

constexpr std::string_view kRepairReason =
    "written again from the checkpoint: the syncer ended before this line was on the tape";

TapeRound record_of(const checkpoint::CommitRecord& commit) {
  TapeRound out;
  out.round = commit.round;
  out.fragment = commit.fragment;
  out.version = commit.version;
  out.committed = true;
  out.reason = kRepairReason;
  out.bytes_in = commit.bytes_in;
  out.bytes_out = commit.bytes_out;
  out.digest = commit.digest;
  for (const checkpoint::CommittedPush& push : commit.pushes) {
    const std::uint64_t lag = commit.version - 1 - push.base_version;
    if (lag > 0) {
      out.carried.push_back({push.seat, static_cast<double>(lag)});
    } else {
      out.responded.push_back(push.seat);
    }
    out.tokens.push_back({push.seat, static_cast<double>(push.tokens)});
    out.steps.push_back({push.seat, static_cast<double>(push.steps)});
    out.norms.push_back({push.seat, push.norm});
  }
  // What each kept of its weight is in the weights alone.
  out.expected = out.responded;
  return out;
}

std::vector<SeatValue> weights_of(const checkpoint::CommitRecord& commit) {
  std::vector<SeatValue> out;
  for (const merge::SeatWeight& weight : commit.weights) {
    out.push_back({weight.seat, weight.weight});
  }
  return out;
}

}  // namespace

Result<TapeRepair> repair_tape(TapeFile& tape, const checkpoint::Manifest& manifest,
                               double wall_s) {
  TapeRepair out;
  if (tape.bytes() == 0) {
    return out;
  }
  if (manifest.tape) {
    out.missing_bytes = manifest.tape->bytes - std::min(manifest.tape->bytes, tape.bytes());
    tape.raise_seq(manifest.tape->seq);
  }
  // By fragment: what is looked for, and what of it turned out to be missing.
  std::map<std::uint32_t, const checkpoint::CommitRecord*> wanted;
  std::map<std::uint64_t, std::pair<const checkpoint::CommitRecord*, std::uint64_t>> missing;
  for (const checkpoint::CommitRecord& commit : manifest.commits) {
    wanted[commit.fragment] = &commit;
    missing[commit.round] = {&commit, 0};  // the last version on the tape
  }
  const auto look = [&](std::string_view line) {
    const std::optional<CommittedRound> round = committed_round_of(line);
    const auto found = round ? wanted.find(round->fragment) : wanted.end();
    if (found != wanted.end()) {
      const checkpoint::CommitRecord& commit = *found->second;
      // A line of the same version with another digest is that of an older term, and void.
      if (round->version == commit.version && round->digest == commit.digest) {
        missing.erase(commit.round);
        wanted.erase(found);
      } else if (round->version < commit.version) {
        missing[commit.round].second = round->version;
        wanted.erase(found);
      }
    }
    return wanted.empty() ? TapeFile::Go::kStop : TapeFile::Go::kOn;
  };
  if (!wanted.empty()) {
    YETO_TRY(tape.each_line_backwards(look));
  }
  for (const auto& [round, entry] : missing) {
    const auto& [commit, before] = entry;
    const std::uint64_t seq = tape.next_seq();
    YETO_TRY(tape.append(tape_repaired_line({wall_s, seq, manifest.state.term}, record_of(*commit),
                                            weights_of(*commit))));
    tape.raise_seq(seq + 1);
    out.rounds.push_back(round);
    out.lost += commit->version - 1 - before;
  }
  if (!out.rounds.empty()) {
    YETO_TRY(tape.sync());
  }
  return out;
}

}  // namespace yeto::sync
