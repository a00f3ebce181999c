// SPDX-License-Identifier: Apache-2.0
// Any bytes as a tape that a killed syncer left: opened, its torn end cut off, repaired from a
// manifest and written on, or refused and left as it was. Its last lines are ours, numbers rise.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "yeto/base/fuzz_testing.h"
#include "yeto/base/log.h"
#include "yeto/sync/server/records.h"
#include "yeto/sync/server/tape.h"
#include "yeto/sync/server/tape_repair.h"

namespace {

using namespace yeto;
using namespace yeto::sync;

constexpr std::uint8_t kDigestByte = 7;

std::string round_line(Rng& rng, std::uint64_t seq) {
  TapeRound round;
  round.round = rng.below(5);
  round.fragment = static_cast<std::uint32_t>(rng.below(3));
  round.version = rng.below(5);
  round.committed = rng.below(4) != 0;
  round.digest.fill(rng.below(2) == 0 ? kDigestByte : 1);
  return tape_line({1.5, seq, 1}, round, {{0, 1.0}});
}

Bytes example(Rng& rng) {
  std::string text;
  for (std::uint64_t seq = 0; seq < 1 + rng.below(4); ++seq) {
    text += rng.below(3) == 0 ? tape_line({1.5, seq, 1}, TapeMetric{0, R"({"step":1})"}, {})
                              : round_line(rng, seq);
    text += "\n";
  }
  Bytes out{static_cast<std::uint8_t>(rng.next())};
  out.insert(out.end(), text.begin(), text.end() - static_cast<std::ptrdiff_t>(rng.below(3)));
  return out;
}

checkpoint::Manifest manifest_of(std::uint8_t what) {
  checkpoint::Manifest manifest;
  manifest.state.term = 2;
  manifest.state.versions = {3, 2, 1};
  if ((what & 1U) != 0) {
    manifest.tape = checkpoint::TapePosition{100U * what, what};
  }
  for (std::uint32_t fragment = 0; fragment < what % 4U; ++fragment) {
    checkpoint::CommitRecord commit;
    commit.round = 1 + fragment;
    commit.fragment = fragment;
    commit.version = 3 - fragment;
    commit.digest.fill(kDigestByte);
    commit.pushes = {{0, commit.version - 1, 3, 30, 1.0}, {1, 0, 1, 10, 2.0}};
    commit.weights = {{0, 1.0}};
    manifest.commits.push_back(commit);
  }
  return manifest;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

YETO_FUZZ_EXAMPLES(example)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  set_log_level(LogLevel::kError);
  fuzz::Input in(data, size);
  const std::uint8_t what = in.byte();
  const std::string text(fuzz::text_of(in.rest()));
  static_cast<void>(committed_round_of(text));
  static_cast<void>(seq_of_tape_line(text));
  const std::filesystem::path path = folder.write("tape.jsonl", as_bytes_view(text));
  Result<TapeFile> tape = TapeFile::open(path);
  if (!tape) {
    YETO_CHECK(tape.error().code == ErrorCode::kDamaged, "a tape that cannot be read");
    return 0;
  }
  YETO_CHECK(tape->bytes() + tape->bytes_cut_off() == text.size(), "bytes that are nowhere");
  const auto repair = repair_tape(*tape, manifest_of(what), 2.5);
  YETO_CHECK(repair.has_value(), "a tape that could be opened can be repaired");
  const std::uint64_t seq = tape->next_seq();
  YETO_CHECK(tape->append(tape_line({3.5, seq, 2}, TapeError{"later"}, {})), "a line");
  const std::string now = read(path);
  YETO_CHECK(now.starts_with(text.substr(0, text.size() - tape->bytes_cut_off())),
             "a repair that changes what was there");
  const Result<TapeFile> again = TapeFile::open(path);
  YETO_CHECK(again && again->bytes_cut_off() == 0 && again->next_seq() == seq + 1,
             "what is written on a tape can be read");
  return 0;
}
