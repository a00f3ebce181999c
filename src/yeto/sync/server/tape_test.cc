// SPDX-License-Identifier: Apache-2.0
// Goal: the tape survives what a crash or a full disk does to it, and its lines are what the format
// page says. Method: real files in a temporary folder, damaged by hand; lines are read back as
// JSON.
#include "yeto/sync/server/tape.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/sync/server/records.h"
#include "yeto/sync/server/tape_repair.h"

namespace yeto::sync {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class TapeTest : public ::testing::Test {
 protected:
  TapeTest() : folder_(fs::temp_directory_path() / strf("yeto-tape-{:016x}", random_u64())) {
    fs::create_directories(folder_);
  }
  ~TapeTest() override { fs::remove_all(folder_); }

  fs::path path() const { return folder_ / "events" / "syncer.jsonl"; }
  void write(const std::string& text) const {
    fs::create_directories(path().parent_path());
    std::ofstream(path(), std::ios::binary) << text;
  }
  std::string read(const fs::path& file) const {
    Result<std::string> text = read_text_file(file);
    return text ? *text : "cannot read: " + text.error().what;
  }

  fs::path folder_;
};

std::string line(std::uint64_t seq) { return tape_line({1.5, seq, 3}, TapeFinish{"limit"}); }

TEST_F(TapeTest, NewTapeStartsAtZeroAndMakesItsFolder) {
  Result<TapeFile> tape = TapeFile::open(path());
  ASSERT_TRUE(tape) << tape.error().text();
  EXPECT_EQ(tape->next_seq(), 0U);
  ASSERT_TRUE(tape->append(line(0)));
  EXPECT_EQ(read(path()), line(0) + "\n");
}

TEST_F(TapeTest, SeqGoesOnAfterReopening) {
  write(line(0) + "\n" + line(1) + "\n");
  Result<TapeFile> tape = TapeFile::open(path());
  ASSERT_TRUE(tape) << tape.error().text();
  EXPECT_EQ(tape->next_seq(), 2U);
  EXPECT_EQ(tape->bytes_cut_off(), 0U);
}

TEST_F(TapeTest, TornLastLineIsCutOffAtEveryLength) {
  const std::string whole = line(0) + "\n" + line(1) + "\n";
  const std::string torn = line(2);
  for (std::size_t length = 1; length <= torn.size(); ++length) {
    write(whole + torn.substr(0, length));
    Result<TapeFile> tape = TapeFile::open(path());
    ASSERT_TRUE(tape) << tape.error().text();
    EXPECT_EQ(tape->next_seq(), 2U);
    EXPECT_EQ(tape->bytes_cut_off(), length);
    ASSERT_TRUE(tape->append(line(2)));
    EXPECT_EQ(read(path()), whole + line(2) + "\n");
  }
}

TEST_F(TapeTest, TornOnlyLineLeavesAnEmptyTape) {
  write("{\"ts\":1.0,\"seq\":0");
  Result<TapeFile> tape = TapeFile::open(path());
  ASSERT_TRUE(tape) << tape.error().text();
  EXPECT_EQ(tape->next_seq(), 0U);
  EXPECT_EQ(read(path()), "");
}

TEST_F(TapeTest, LinesLongerThanTheReadWindowAreFound) {
  const std::string long_line = tape_line({1, 41, 1}, TapeError{std::string(300'000, 'x')}) + "\n";
  write(long_line + std::string(200'000, 'y'));
  Result<TapeFile> tape = TapeFile::open(path());
  ASSERT_TRUE(tape) << tape.error().text();
  EXPECT_EQ(tape->next_seq(), 42U);
  EXPECT_EQ(tape->bytes_cut_off(), 200'000U);
}

TEST_F(TapeTest, DamagedLastLineIsRefusedByPlace) {
  write(line(0) + "\nnot json\n");
  Result<TapeFile> tape = TapeFile::open(path());
  ASSERT_FALSE(tape);
  EXPECT_EQ(tape.error().code, ErrorCode::kDamaged);
  EXPECT_NE(tape.error().where.find(strf("byte {}", line(0).size() + 1)), std::string::npos)
      << tape.error().text();
}

TEST_F(TapeTest, FullDiskLeavesWholeLinesAndWritingGoesOnLater) {
  Result<TapeFile> tape = TapeFile::open(path());
  ASSERT_TRUE(tape) << tape.error().text();
  ASSERT_TRUE(tape->append(line(0)));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* const old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{line(0).size() + 10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const Status written = tape->append(line(1));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(written);
  EXPECT_EQ(read(path()), line(0) + "\n");
  ASSERT_TRUE(tape->append(line(1)));
  EXPECT_EQ(read(path()), line(0) + "\n" + line(1) + "\n");
}

TEST_F(TapeTest, RecorderWritesEveryLineInOrderAndTheNewestStatus) {
  Result<TapeFile> tape = TapeFile::open(path());
  ASSERT_TRUE(tape) << tape.error().text();
  const fs::path status = folder_ / "status.json";
  std::string expected;
  {
    Recorder recorder(std::move(*tape), status);
    for (std::uint64_t seq = 0; seq < 500; ++seq) {
      recorder.tape(line(seq));
      recorder.status(strf("status {}", seq));
      expected += line(seq) + "\n";
    }
    recorder.close();
    recorder.tape("after the end");
    EXPECT_EQ(recorder.error(), "");
  }
  EXPECT_EQ(read(path()), expected);
  EXPECT_EQ(read(status), "status 499");
}

TEST_F(TapeTest, RecorderReportsAStatusFileItCannotWrite) {
  Result<TapeFile> tape = TapeFile::open(path());
  ASSERT_TRUE(tape) << tape.error().text();
  Recorder recorder(std::move(*tape), folder_ / "missing" / "status.json");
  recorder.status("x");
  recorder.close();
  EXPECT_NE(recorder.error().find("status file"), std::string::npos) << recorder.error();
}

TEST(RecordsTest, RoundLineHasTheDocumentedKeys) {
  TapeRound round;
  round.round = 7;
  round.fragment = 2;
  round.version = 3;
  round.committed = true;
  round.launched = 2 * kSecond;
  round.committed_at = 4 * kSecond;
  round.expected = {0, 1};
  round.responded = {0};
  round.dropped = {{1, "late"}};
  round.tokens = {{0, 123}};
  round.norms = {{0, 0.5}};
  round.digest[0] = 0xab;
  const std::string text = tape_line({1000.25, 9, 2}, round, {{0, 1.0}});
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const Json json = Json::parse(text);
  EXPECT_EQ(json["event"], "round");
  EXPECT_EQ(json["ts"], 1000.25);
  EXPECT_EQ(json["seq"], 9);
  EXPECT_EQ(json["term"], 2);
  EXPECT_EQ(json["launch"], 2.0);
  EXPECT_TRUE(json["quorum"].is_null());
  EXPECT_EQ(json["commit"], 4.0);
  EXPECT_EQ(json["dropped"], Json::parse(R"([{"seat":1,"reason":"late"}])"));
  EXPECT_EQ(json["weights"], Json::parse(R"([{"seat":0,"weight":1.0}])"));
  EXPECT_EQ(json["tokens"], Json::parse(R"([{"seat":0,"tokens":123}])"));
  EXPECT_EQ(json["digest"], "ab" + std::string(30, '0'));
}

TEST(RecordsTest, MetricThatIsNotAnObjectIsReportedNotCopied) {
  for (const char* bad : {"[1]", "{\"a\":NaN}", "{", "", "{\"a\":1}\n{\"b\":2}"}) {
    const Json json = Json::parse(tape_line({}, TapeMetric{4, bad}));
    EXPECT_TRUE(json["data"].is_null()) << bad;
    EXPECT_FALSE(json["error"].get<std::string>().empty()) << bad;
  }
  const Json good = Json::parse(tape_line({}, TapeMetric{4, "{\"a\":\n1}"}));
  EXPECT_EQ(good["data"]["a"], 1);
  EXPECT_EQ(good["seat"], 4);
}

TEST(RecordsTest, PeerTextThatIsNotUtf8IsReplaced) {
  const std::string text = tape_line({}, TapeJoin{1, 2, false, "bad \xff\xfe text\n"});
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_TRUE(Json::accept(text)) << text;
}

TEST(RecordsTest, StatusShowsUnknownAsNull) {
  StatusRecord record;
  record.run_id = "r";
  record.core.phase = RunPhase::kTraining;
  record.core.versions = {5};
  record.fragment_values = {100, 200};
  SeatStatus seat;
  seat.state = "live";
  seat.phase = wire::Phase::kEval;
  seat.participation = 0.5;
  record.core.seats = {seat};
  const Json json = Json::parse(status_text(record));
  EXPECT_EQ(json["schema"], "yeto.syncer-status/1");
  EXPECT_EQ(json["phase"], "training");
  EXPECT_TRUE(json["total_steps"].is_null());
  EXPECT_TRUE(json["error"].is_null());
  EXPECT_TRUE(json["exit"].is_null());
  EXPECT_TRUE(json["seats"][0]["step_time_s"].is_null());
  EXPECT_EQ(json["seats"][0]["phase"], "eval");
  EXPECT_EQ(json["seats"][0]["participation"], 0.5);
  EXPECT_EQ(json["fragments"][0]["version"], 5);
  EXPECT_TRUE(json["fragments"][1]["version"].is_null());
  EXPECT_EQ(json["fragments"][1]["values"], 200);
}

TEST(RecordsTest, NumbersThatAreNotFiniteBecomeNull) {
  TapeRound round;
  round.norms = {{0, std::numeric_limits<double>::infinity()}};
  const Json json = Json::parse(tape_line({}, round));
  EXPECT_TRUE(json["norms"][0]["norm"].is_null());
}

TEST(RecordsTest, EndpointRoundTripsAndRefusesByName) {
  const EndpointRecord record{"127.0.0.1", 40123, "run", 2, 77};
  Result<EndpointRecord> back = parse_endpoint(endpoint_text(record), "endpoint.json");
  ASSERT_TRUE(back) << back.error().text();
  EXPECT_EQ(back->host, "127.0.0.1");
  EXPECT_EQ(back->port, 40123);
  EXPECT_EQ(back->run_id, "run");
  EXPECT_EQ(back->term, 2U);
  EXPECT_EQ(back->pid, 77U);
  const char* const good =
      R"({"schema":"yeto.endpoint/1","host":"h","port":1,"run_id":"r","term":1,"pid":1})";
  ASSERT_TRUE(parse_endpoint(good, "f"));
  for (const char* bad :
       {"", "[]", "{}", R"({"schema":"yeto.endpoint/2"})",
        R"({"schema":"yeto.endpoint/1","host":1,"port":1,"run_id":"r","term":1,"pid":1})",
        R"({"schema":"yeto.endpoint/1","host":"h","port":65536,"run_id":"r","term":1,"pid":1})",
        R"({"schema":"yeto.endpoint/1","host":"h","port":-1,"run_id":"r","term":1,"pid":1})",
        R"({"schema":"yeto.endpoint/1","host":"h","port":1,"run_id":"r","pid":1})"}) {
    const Result<EndpointRecord> refused = parse_endpoint(bad, "some/file");
    ASSERT_FALSE(refused) << bad;
    EXPECT_EQ(refused.error().code, ErrorCode::kConfig);
    EXPECT_EQ(refused.error().where, "some/file");
  }
}

// ---- repair at a restart
// -------------------------------------------------------------------------------------------------

TapeRound round_of(std::uint64_t round, std::uint32_t fragment, std::uint64_t version,
                   std::uint8_t mark) {
  TapeRound record;
  record.round = round;
  record.fragment = fragment;
  record.version = version;
  record.committed = true;
  record.digest[0] = mark;
  return record;
}

checkpoint::CommitRecord commit_of(std::uint64_t round, std::uint32_t fragment,
                                   std::uint64_t version, std::uint8_t mark) {
  checkpoint::CommitRecord commit;
  commit.round = round;
  commit.fragment = fragment;
  commit.version = version;
  commit.digest[0] = mark;
  commit.bytes_in = 80;
  commit.pushes = {{0, version - 1, 24, 1000, 0.5}, {1, version - 2, 8, 400, 0.25}};
  commit.weights = {{0, 0.75}, {1, 0.25}};
  return commit;
}

// A tape of `rounds`, all of term 1, and a manifest of term 1 that holds the commits.
struct RepairCase {
  std::vector<TapeRound> rounds;
  std::vector<checkpoint::CommitRecord> commits;
};

class TapeRepairTest : public TapeTest {
 protected:
  Result<TapeRepair> repair(const RepairCase& given) {
    std::string text;
    std::uint64_t seq = 0;
    for (const TapeRound& round : given.rounds) {
      text += tape_line({1.0, seq++, 1}, round) + "\n";
      text +=
          tape_line({1.0, seq++, 1}, TapeMetric{0, R"({"event":"round","committed":true})"}) + "\n";
    }
    write(text);
    YETO_ASSIGN(TapeFile tape, TapeFile::open(path()));
    checkpoint::Manifest manifest;
    manifest.state.term = 1;
    manifest.commits = given.commits;
    YETO_ASSIGN(TapeRepair done, repair_tape(tape, manifest, 9.0));
    const std::string after = read(path());
    EXPECT_TRUE(after.starts_with(text)) << "what stands there stays";
    added_ = after.substr(text.size());
    next_seq_ = tape.next_seq();
    EXPECT_EQ(repair_tape(tape, manifest, 9.0)->rounds.size(), 0U) << "once is enough";
    return done;
  }
  std::string added_;
  std::uint64_t next_seq_ = 0;
};

TEST_F(TapeRepairTest, ALineThatStandsThereIsNotWrittenAgain) {
  const auto done = repair({{round_of(1, 0, 1, 7), round_of(2, 1, 1, 8)},
                            {commit_of(1, 0, 1, 7), commit_of(2, 1, 1, 8)}});
  ASSERT_TRUE(done);
  EXPECT_TRUE(done->rounds.empty());
  EXPECT_EQ(added_, "");
}

TEST_F(TapeRepairTest, TheCommitThatTheTapeLacksIsWrittenFromTheManifest) {
  const auto done = repair({{round_of(1, 0, 1, 7), round_of(2, 1, 1, 8)}, {commit_of(3, 0, 2, 9)}});
  ASSERT_TRUE(done);
  EXPECT_EQ(done->rounds, std::vector<std::uint64_t>{3});
  EXPECT_EQ(done->lost, 0U);
  EXPECT_EQ(next_seq_, 5U);
  const Json line = Json::parse(added_);
  EXPECT_EQ(line["event"], "round");
  EXPECT_EQ(line["seq"], 4);
  EXPECT_EQ(line["term"], 1);
  EXPECT_EQ(line["repaired"], true);
  EXPECT_EQ(line["committed"], true);
  EXPECT_EQ(line["version"], 2);
  EXPECT_EQ(line["digest"], "09000000000000000000000000000000");
  EXPECT_EQ(line["launch"], nullptr);
  EXPECT_EQ(line["responded"], Json::array({0}));
  EXPECT_EQ(line["carried"][0]["seat"], 1);
  EXPECT_EQ(line["carried"][0]["lag"], 1);
  EXPECT_EQ(line["tokens"][1]["tokens"], 400);
  EXPECT_EQ(line["weights"][0]["weight"], 0.75);
  EXPECT_EQ(line["bytes_in"], 80);
}

TEST_F(TapeRepairTest, CommitsBeforeItOfWhichNothingIsKnownAreCounted) {
  const auto done = repair({{round_of(1, 0, 1, 7)}, {commit_of(9, 0, 5, 9)}});
  ASSERT_TRUE(done);
  EXPECT_EQ(done->rounds.size(), 1U);
  EXPECT_EQ(done->lost, 3U);
}

TEST_F(TapeRepairTest, ALineOfAVoidTermDoesNotCountAsTheCommit) {
  // Version 2 was committed by a term whose checkpoint never held it.
  const auto done = repair({{round_of(1, 0, 1, 7), round_of(2, 0, 2, 66), round_of(3, 0, 3, 67)},
                            {commit_of(2, 0, 2, 9)}});
  ASSERT_TRUE(done);
  EXPECT_EQ(done->rounds, std::vector<std::uint64_t>{2});
  EXPECT_EQ(done->lost, 0U);
}

TEST_F(TapeRepairTest, AnEmptyTapeIsANewOne) {
  const auto done = repair({{}, {commit_of(2, 0, 2, 9)}});
  ASSERT_TRUE(done);
  EXPECT_TRUE(done->rounds.empty());
}

TEST_F(TapeRepairTest, ATapeThatLostItsEndIsNoticedAndNumbersGoOn) {
  write(line(0) + "\n");
  Result<TapeFile> tape = TapeFile::open(path());
  ASSERT_TRUE(tape);
  checkpoint::Manifest manifest;
  manifest.tape = checkpoint::TapePosition{tape->bytes() + 100, 50};
  EXPECT_EQ(repair_tape(*tape, manifest, 9.0)->missing_bytes, 100U);
  EXPECT_EQ(tape->next_seq(), 50U);
}

TEST_F(TapeTest, LinesAreReadBackwardsOverAllWindows) {
  std::string text;
  std::vector<std::string> lines;
  for (std::uint64_t i = 0; i < 40; ++i) {
    lines.push_back(tape_line({1.0, i, 1}, TapeError{std::string(i * 1000, 'x')}));
    text += lines.back() + "\n";
  }
  write(text);
  Result<TapeFile> tape = TapeFile::open(path());
  ASSERT_TRUE(tape);
  std::vector<std::string> seen;
  ASSERT_TRUE(tape->each_line_backwards([&](std::string_view one) {
    seen.emplace_back(one);
    return TapeFile::Go::kOn;
  }));
  std::reverse(seen.begin(), seen.end());
  EXPECT_EQ(seen, lines);
  int calls = 0;
  ASSERT_TRUE(tape->each_line_backwards(
      [&](std::string_view) { return ++calls == 3 ? TapeFile::Go::kStop : TapeFile::Go::kOn; }));
  EXPECT_EQ(calls, 3);
}

TEST_F(TapeTest, ThePositionLiesBehindEveryLineGivenBefore) {
  Result<TapeFile> tape = TapeFile::open(path());
  ASSERT_TRUE(tape);
  Recorder recorder(std::move(*tape), {});
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    recorder.tape(line(i));
    bytes += line(i).size() + 1;
    const auto position = recorder.position();
    ASSERT_TRUE(position);
    EXPECT_EQ(position->bytes, bytes);
    EXPECT_EQ(position->seq, i + 1);
    EXPECT_EQ(fs::file_size(path()), bytes);
  }
  recorder.close();
  EXPECT_EQ(recorder.position()->bytes, bytes);
  Recorder without(std::nullopt, {});
  EXPECT_FALSE(without.position());
}

}  // namespace
}  // namespace yeto::sync
