// SPDX-License-Identifier: Apache-2.0
// Goal: what fleet writes and reads: run id, run.json, state.json, journal, registry, secrets,
// delivery.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "yeto/base/digest.h"
#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/fleet/run/commands.h"
#include "yeto/fleet/run/delivery.h"
#include "yeto/fleet/run/journal.h"
#include "yeto/fleet/run/observed.h"
#include "yeto/fleet/run/registry.h"
#include "yeto/fleet/run/run_record.h"
#include "yeto/fleet/run/ulid.h"

namespace yeto::fleet {
namespace {

namespace fs = std::filesystem;

class FleetFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "yeto-fleet-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    dir_ = name;
  }
  void TearDown() override { fs::remove_all(dir_); }
  void put(const fs::path& path, std::string_view text) {
    fs::create_directories(path.parent_path());
    ASSERT_TRUE(write_file_atomic(path, text));
  }
  static unsigned mode_of(const fs::path& path) {
    struct stat info{};
    ::stat(path.c_str(), &info);
    return info.st_mode & 0777;
  }
  // An adapter folder with a manifest that fits.
  void put_adapter(const fs::path& folder, const std::string& weights) {
    put(folder / "adapter_model.safetensors", weights);
    put(folder / "yeto_manifest.json",
        strf(R"({{"files": {{"adapter_model.safetensors": {{"bytes": {}, "sha256": "{}"}}}}}})",
             weights.size(), hex(sha256(as_bytes_view(std::string_view(weights))))));
  }
  fs::path dir_;
};

RunRecord sample_record() {
  RunRecord record;
  record.name = "demo";
  record.run_id = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
  record.version = "0.1.0";
  record.created_at = 1000.5;
  const std::vector<std::string> args = {"--gpu=local:2xcpu,local:1xcpu",
                                         "--model=m",
                                         "--data=rows.jsonl",
                                         "--total-steps=4",
                                         "--stall-timeout=7.5",
                                         "--lockstep",
                                         "--sample-prompt=what is \"it\"?"};
  record.flags = parse_line(kLaunch, args).values;
  record.islands = parse_fleet("local:2xcpu,local:1xcpu").fleet.slots;
  record.programs = {
      {"/bin/yeto", "syncer"}, {"python3", "-m", "yeto.learner"}, {"/bin/yeto", "_finish"}, {}};
  record.output = "/data/out";
  record.check_json = R"({"rows": 12})";
  return record;
}

TEST(Ulid, IdsAreOrderedAndUnlike) {
  std::set<std::string> seen;
  std::string before;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = make_ulid();
    ASSERT_EQ(id.size(), 26u);
    ASSERT_LE(id[0], '7') << "128 bits fit into 26 digits";
    ASSERT_TRUE(seen.insert(id).second);
    ASSERT_LE(before.substr(0, 10), id.substr(0, 10)) << "the time stands in front";
    before = id;
  }
  EXPECT_EQ(run6("01ARZ3NDEKTSV4RRFFQ69G5FAV"), "9g5fav");
}

TEST_F(FleetFiles, RunRecordComesBackEqual) {
  const RunPaths paths{dir_};
  const RunRecord record = sample_record();
  ASSERT_TRUE(write_run_record(paths, record));
  const Result<RunRecord> back = read_run_record(paths);
  ASSERT_TRUE(back) << back.error().text();
  EXPECT_EQ(run_record_json(*back), run_record_json(record));
  EXPECT_EQ(back->flags.find("total-steps")->origin, "argv");
  EXPECT_EQ(back->flags.find("seed")->origin, "default");
  EXPECT_EQ(core_config(*back).stall_timeout, from_seconds(7.5));
  EXPECT_EQ(core_config(*back).islands, 2);
}

TEST_F(FleetFiles, AnotherSchemaIsRefused) {
  put(dir_ / "run.json", R"({"schema": "yeto.run/2"})");
  EXPECT_EQ(read_run_record(RunPaths{dir_}).error().code, ErrorCode::kDamaged);
  put(dir_ / "run.json", "{");
  EXPECT_EQ(read_run_record(RunPaths{dir_}).error().code, ErrorCode::kDamaged);
  put(dir_ / "run.json", R"({"schema": "yeto.run/1", "name": 3})");
  EXPECT_EQ(read_run_record(RunPaths{dir_}).error().code, ErrorCode::kDamaged);
}

TEST_F(FleetFiles, StateKeepsUnknownAsNull) {
  StoredState state;
  state.name = "demo";
  state.run_id = "id";
  state.phase = "TRAINING";
  state.state = RunState::kRunning;
  state.islands = {{0, "RUNNING", 1, Handle{5, 77}, {}, 1}, {1, "WAITING", 0, {}, 9, 0}};
  state.syncer = {Handle{4, 66}, 2};
  state.seq = 8;
  ASSERT_TRUE(write_state(RunPaths{dir_}, state));
  const std::string text = read_text_file(dir_ / "state.json").value_or("");
  EXPECT_NE(text.find("\"exit\": null"), std::string::npos);
  EXPECT_NE(text.find("\"artifact\": null"), std::string::npos);
  const Result<StoredState> back = read_state(RunPaths{dir_});
  ASSERT_TRUE(back) << back.error().text();
  EXPECT_EQ(back->islands[0].handle, (Handle{5, 77}));
  EXPECT_FALSE(back->islands[1].handle.has_value());
  EXPECT_EQ(back->islands[1].exit, 9);
  EXPECT_EQ(back->syncer.restarts, 2);
}

TEST_F(FleetFiles, StopRequestComesBack) {
  ASSERT_TRUE(write_stop(RunPaths{dir_}, {"id1", StopMode::kNow, "me", "why"}));
  const Result<StopRequest> back = read_stop(RunPaths{dir_});
  ASSERT_TRUE(back);
  EXPECT_EQ(back->mode, StopMode::kNow);
  EXPECT_EQ(back->id, "id1");
}

TEST_F(FleetFiles, JournalIgnoresATornLastLine) {
  const fs::path path = dir_ / "journal.jsonl";
  {
    Result<Journal> journal = Journal::open(path);
    ASSERT_TRUE(journal);
    ASSERT_TRUE(journal->append({.kind = "intent", .who = 0, .attempt = 0, .token = "t0"}));
    ASSERT_TRUE(journal->append(
        {.kind = "spawned", .who = 0, .attempt = 0, .token = "t0", .handle = {7, 9}}));
  }
  const std::string whole = read_text_file(path).value_or("");
  const std::size_t second = whole.find('\n') + 1;
  // Cut at every byte of the last line: it is ignored, and the next writer goes on behind the
  // first.
  for (std::size_t cut = second; cut < whole.size(); ++cut) {
    put(path, whole.substr(0, cut));
    const auto entries = read_journal(path);
    ASSERT_TRUE(entries) << cut;
    ASSERT_EQ(entries->size(), 1u) << cut;
    Result<Journal> journal = Journal::open(path);
    ASSERT_TRUE(journal);
    ASSERT_TRUE(journal->append({.kind = "decision", .what = "x"}));
    ASSERT_EQ(read_journal(path)->size(), 2u) << cut;
    ASSERT_EQ(read_journal(path)->back().seq, 1u);
  }
  // Damage in the middle is told.
  std::string bad = whole;
  bad[3] ^= 1;
  put(path, bad);
  EXPECT_EQ(read_journal(path).error().code, ErrorCode::kDamaged);
}

TEST_F(FleetFiles, AnIntentWithoutOutcomeIsRemembered) {
  std::vector<JournalEntry> entries = {
      {.kind = "intent", .who = 0, .attempt = 0, .token = "a"},
      {.kind = "spawned", .who = 0, .attempt = 0, .token = "a", .handle = {5, 6}},
      {.kind = "intent", .who = 1, .attempt = 0, .token = "b"},
      {.kind = "spawn_failed", .who = 1, .attempt = 0, .token = "b"},
      {.kind = "intent", .who = 0, .attempt = 1, .token = "c"},
  };
  const std::vector<Recorded> found = recorded_processes(entries);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].handle.pid, 5);
  EXPECT_EQ(found[1].token, "c");
  EXPECT_EQ(found[1].handle.pid, 0);
}

TEST_F(FleetFiles, ANameIsClaimedOnce) {
  const Registry registry(dir_);
  const auto lock = registry.lock_claims();
  ASSERT_TRUE(lock);
  EXPECT_FALSE(registry.read_claim("demo").has_value());
  ASSERT_TRUE(registry.claim("demo", {"run-a", "demo.aaaaaa", {3, 4}, 1.0}));
  EXPECT_EQ(registry.claim("demo", {"run-b", "demo.bbbbbb", {}, 2.0}).error().code,
            ErrorCode::kNameTaken);
  EXPECT_EQ(registry.read_claim("demo")->run_id, "run-a");
  EXPECT_EQ(registry.read_claim("demo")->by, (Handle{3, 4}));
  ASSERT_TRUE(registry.release("demo", "run-b"));
  EXPECT_TRUE(registry.read_claim("demo").has_value()) << "only the holder releases";
  ASSERT_TRUE(registry.release("demo", "run-a"));
  EXPECT_FALSE(registry.read_claim("demo").has_value());
}

TEST_F(FleetFiles, RunsAreFoundByNameAndByFolder) {
  const Registry registry(dir_);
  RunRecord record = sample_record();
  const Result<RunPaths> first = registry.create("demo", record.run_id);
  ASSERT_TRUE(first) << first.error().text();
  ASSERT_TRUE(write_run_record(*first, record));
  ASSERT_TRUE(registry.link_newest("demo", *first));
  record.run_id = "01ARZ3NDEKTSV4RRFFQ6ZZZZZZ";
  const Result<RunPaths> second = registry.create("demo", record.run_id);
  ASSERT_TRUE(second);
  ASSERT_TRUE(write_run_record(*second, record));
  ASSERT_TRUE(registry.link_newest("demo", *second));
  EXPECT_EQ(registry.find("demo")->root.filename(), "demo.zzzzzz");
  EXPECT_EQ(registry.find("demo.9g5fav")->root.filename(), "demo.9g5fav");
  EXPECT_EQ(registry.list().size(), 2u);
  EXPECT_EQ(registry.find("other").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(registry.find("../x").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(mode_of(second->security()), 0700u);
}

TEST_F(FleetFiles, SecretsAreDerivedAndPrivate) {
  const RunPaths paths{dir_};
  fs::create_directories(paths.security());
  ASSERT_TRUE(write_secrets(paths, 2));
  const std::string token = read_text_file(paths.run_token()).value_or("");
  ASSERT_EQ(token.size(), 65u);
  const Bytes secret = from_hex(token.substr(0, 64)).value_or(Bytes{});
  ASSERT_EQ(secret.size(), 32u);
  const std::string info = "yeto-seat-1";
  EXPECT_EQ(read_text_file(paths.seat_key(1)).value_or(""),
            hex(hkdf_sha256(secret, as_bytes_view(std::string_view(info)))) + "\n");
  EXPECT_EQ(mode_of(paths.run_token()), 0600u);
  EXPECT_EQ(mode_of(paths.seat_key(0)), 0600u);
}

TEST_F(FleetFiles, CommandsNameSecretsAsFilesOnly) {
  const RunPaths paths{dir_};
  fs::create_directories(paths.security());
  ASSERT_TRUE(write_secrets(paths, 2));
  const std::string token = read_text_file(paths.run_token()).value_or("").substr(0, 64);
  const RunRecord record = sample_record();
  for (const auto& argv : {syncer_argv(record, paths, true), island_argv(record, paths, 1),
                           finish_argv(record, paths, StopMode::kFinish)}) {
    for (const std::string& arg : argv) {
      EXPECT_EQ(arg.find(token), std::string::npos);
    }
  }
  EXPECT_EQ(syncer_argv(record, paths, true).back(), "--resume");
  EXPECT_EQ(island_argv(record, paths, 0).back(), "--threads=2");
  EXPECT_EQ(process_token(record, 1, 3), "demo-9g5fav-l1-a3");
  EXPECT_EQ(process_token(record, kSyncerSeat, 0), "demo-9g5fav-syncer-a0");
}

TEST_F(FleetFiles, StatusWithHolesStaysUnknown) {
  put(dir_ / "status.json",
      R"({"phase": "training", "global_step": 3, "total_steps": null, "exit": null,
      "updated_at": 12.5, "seats": [{"seat": 1, "state": "live", "incarnation": 18446744073709551615,
      "phase": "train", "local_step": 9, "tokens": null}, 7]})");
  const Result<SyncerStatus> status = read_syncer_status(dir_ / "status.json");
  ASSERT_TRUE(status);
  EXPECT_EQ(status->global_step, 3);
  EXPECT_FALSE(status->total_steps.has_value());
  ASSERT_EQ(status->seats.size(), 1u);
  EXPECT_EQ(status->seats[0].incarnation, "18446744073709551615");
  EXPECT_FALSE(status->seats[0].tokens.has_value());
  const event::Report report = report_of(*status);
  EXPECT_TRUE(report.seats[0].joined && report.seats[0].live);
}

TEST_F(FleetFiles, NewestStepOfTheMetrics) {
  put(dir_ / "m.jsonl",
      "{\"step\": 1, \"loss\": 3.0, \"tok_s\": 80}\n{\"step\": 2, \"loss\": 2.5, \"tok_s\": 81.5}\n"
      "{\"event\": \"eval\", \"when\": \"after\", \"loss\": 1.0}\n{\"step\": 3, \"lo");
  const IslandMetrics metrics = read_last_metrics(dir_ / "m.jsonl");
  EXPECT_EQ(metrics.loss, 2.5);
  EXPECT_EQ(metrics.tokens_per_s, 81.5);
  EXPECT_EQ(metrics.step, 2);
  EXPECT_FALSE(read_last_metrics(dir_ / "none").loss.has_value());
}

TEST_F(FleetFiles, DeliveryIsWholeAndVerified) {
  const RunPaths paths{dir_ / "run"};
  put_adapter(paths.adapter(0), "weights");
  const fs::path out = dir_ / "deep" / "out";
  const Result<fs::path> staged = stage_artifact(paths, 0);
  ASSERT_TRUE(staged) << staged.error().text();
  put(*staged / "summary.json", "{}");
  const Result<fs::path> place = publish_artifact(paths, *staged, out);
  ASSERT_TRUE(place) << place.error().text();
  EXPECT_EQ(*place, out);
  EXPECT_TRUE(verify_artifact(out));
  EXPECT_TRUE(verify_artifact(paths.artifacts()));
  EXPECT_TRUE(fs::exists(out / "summary.json"));
  // A second controller repeats it without harm.
  const Result<fs::path> again = stage_artifact(paths, 0);
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, paths.artifacts());
  EXPECT_TRUE(publish_artifact(paths, *again, out));
}

TEST_F(FleetFiles, ADamagedAdapterIsNotDelivered) {
  const RunPaths paths{dir_ / "run"};
  put_adapter(paths.adapter(0), "weights");
  put(paths.adapter(0) / "adapter_model.safetensors", "wexghts");
  EXPECT_EQ(stage_artifact(paths, 0).error().code, ErrorCode::kDamaged);
  put(paths.adapter(0) / "yeto_manifest.json",
      R"({"files": {"../../x": {"bytes": 1, "sha256": ""}}})");
  EXPECT_EQ(stage_artifact(paths, 0).error().code, ErrorCode::kDamaged);
  fs::remove(paths.adapter(0) / "yeto_manifest.json");
  EXPECT_FALSE(stage_artifact(paths, 0));
}

TEST_F(FleetFiles, ALinkInTheAdapterIsRefused) {
  const RunPaths paths{dir_ / "run"};
  put_adapter(paths.adapter(0), "weights");
  fs::create_symlink("/etc/hostname", paths.adapter(0) / "link");
  EXPECT_EQ(stage_artifact(paths, 0).error().code, ErrorCode::kDamaged);
}

TEST_F(FleetFiles, AnOutputInUseIsKept) {
  const RunPaths paths{dir_ / "run"};
  put_adapter(paths.adapter(0), "weights");
  put(dir_ / "out" / "mine.txt", "keep");
  const Result<fs::path> staged = stage_artifact(paths, 0);
  ASSERT_TRUE(staged);
  EXPECT_EQ(publish_artifact(paths, *staged, dir_ / "out").error().code, ErrorCode::kDelivery);
  EXPECT_EQ(read_text_file(dir_ / "out" / "mine.txt").value_or(""), "keep");
  EXPECT_TRUE(verify_artifact(paths.artifacts())) << "the run folder keeps the artifact";
}

TEST_F(FleetFiles, OutputPlacesAreCheckedBeforehand) {
  fs::create_directories(dir_ / "empty");
  put(dir_ / "file", "x");
  EXPECT_TRUE(check_output(dir_ / "new" / "deep"));
  EXPECT_TRUE(check_output(dir_ / "empty"));
  EXPECT_FALSE(check_output(dir_ / "file"));
  EXPECT_FALSE(check_output(dir_ / "file" / "below"));
  EXPECT_FALSE(check_output(dir_));
  EXPECT_FALSE(fs::exists(dir_ / "new"));
}

TEST_F(FleetFiles, SummaryHasTheFiguresAndNullForTheRest) {
  const RunPaths paths{dir_};
  const RunRecord record = sample_record();
  put(paths.metrics(0),
      "{\"step\": 1, \"ts\": 100.0, \"step_s\": 2.0}\n{\"step\": 2, \"ts\": 130.0, \"step_s\": "
      "2.0}\n"
      "{\"event\": \"eval\", \"when\": \"before\", \"loss\": 3.25}\n"
      "{\"event\": \"sample\", \"when\": \"before\", \"prompt\": \"p?\", \"text\": \"dunno\"}\n");
  put(paths.tape(),
      "{\"event\": \"metric\", \"seat\": 1, \"data\": {\"event\": \"eval\", \"when\": \"after\", "
      "\"loss\": 2.0}}\n{\"event\": \"round\"}\ntorn");
  put(paths.status_json(),
      R"({"phase": "ended", "global_step": 36, "run_tokens": 4000, "updated_at": 1,
      "seats": [{"seat": 0, "state": "done", "tokens": 2000, "pushes": 18, "bytes_pushed": 5,
      "bytes_received": 6}]})");
  RunView view;
  view.islands.resize(2);
  view.islands[1].restarts = 3;
  const std::string text = summary_json(paths, record, view);
  for (const char* part :
       {"\"heldout_loss_before\": 3.25", "\"heldout_loss_after\": 2.0", "\"train_seconds\": 32.0",
        "\"tokens\": 4000", "\"commits\": 36", "\"pushes\": 18", "\"restarts\": 3",
        "\"prompt\": \"p?\"", "\"sample_before\": \"dunno\"", "\"sample_after\": null",
        "\"bytes_received\": null"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

}  // namespace
}  // namespace yeto::fleet
