// SPDX-License-Identifier: Apache-2.0
// Goal: whatever happens while a checkpoint is written, the folder holds a whole commit; what is
// damaged is refused by name. Method: children that die before each file operation, disks that are
// full there, every bit flip of the manifest, a changed byte in every file.
#include "yeto/sync/jobs/checkpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "yeto/base/files.h"
#include "yeto/sync/jobs/testing.h"
#include "yeto/weights/safetensors.h"

namespace yeto::sync {
namespace {

namespace fs = std::filesystem;
using testing::options_in;
using testing::small_layout;
using testing::TemporaryFolder;
using testing::TestRun;

// A state with all fields in use.
void dress(CoreState& state) {
  state.term = 3;
  state.seats = {{0, 123456789012345ULL, true, {4, 0}}, {7, 5, false, {}}};
  state.ledger = {100, 60, 10, 30};
  state.forks = {{1, std::vector<std::uint64_t>(state.versions.size(), 0)},
                 {3, std::vector<std::uint64_t>(state.versions.size(), 1)}};
  state.data.rows = 1000;
  state.data.next = {2, 300, 0};
  state.data.returned = {{1, 10, 5}, {2, 0, 7}};
  state.data.out = {{0, {2, 100, 100}}, {7, {2, 200, 100}}};
  state.data.settled = {{1, 0, 10}, {1, 15, 985}};
  state.data.repeated = 12;
  state.contract = {{"base model", {1, 2, 3, 4, 5, 6, 7, 8}}, {"seq-len", {0xff}}};
  state.finish_reason = "the controller said \"enough\"";
}

// The digests and images of the first `commits` commits of the run, by global step.
struct Commit {
  std::vector<std::uint64_t> versions;
  std::vector<wire::Digest32> digests;
  std::vector<wire::Digest16> shown;  // of the public values
};
Commit commit_now(TestRun& run) {
  Commit out{run.state().versions, run.digests(), {}};
  for (const Image& image : run.current_images()) {
    out.shown.push_back(image.digest);
  }
  return out;
}
std::vector<Commit> commits_of(JobsOptions options, std::uint64_t commits) {
  options.checkpoint = nullptr;
  TestRun run(std::move(options));
  EXPECT_TRUE(run.start(small_layout()));
  std::vector<Commit> out{commit_now(run)};
  for (std::uint64_t i = 0; i < commits; ++i) {
    EXPECT_TRUE(run.commit().ok);
    out.push_back(commit_now(run));
  }
  return out;
}

TEST(Checkpoint, ARunGoesOnFromItAsIfNothingHadHappened) {
  for (const CodecId codec : {CodecId::kF32, CodecId::kBf16, CodecId::kQ4}) {
    for (const auto kind : {merge::OuterKind::kNesterov, merge::OuterKind::kSgd,
                            merge::OuterKind::kDirect, merge::OuterKind::kAuto}) {
      SCOPED_TRACE(
          strf("codec {} outer {}", codec::codec_name(codec), merge::outer_kind_name(kind)));
      auto store = std::make_shared<store::MemoryStore>();
      JobsOptions options = options_in(store);
      options.push_codec = codec;
      options.broadcast_codec = codec;
      options.outer = merge::OuterRule::of(kind);
      const auto want = commits_of(options, 8);
      std::vector<Image> images;
      CoreState state;
      {
        TestRun run(options);
        ASSERT_TRUE(run.start(small_layout()));
        for (int i = 0; i < 5; ++i) {
          ASSERT_TRUE(run.commit().ok);
        }
        dress(run.state());
        ASSERT_TRUE(run.checkpoint());
        images = run.current_images();
        state = run.state();
      }
      options.broadcast_codec.reset();
      options.push_codec.reset();
      TestRun again(options);
      ASSERT_TRUE(again.resume());
      EXPECT_EQ(again.layout(), small_layout());
      EXPECT_EQ(again.state(), state);
      EXPECT_EQ(again.digests(), want[5].digests);
      for (std::size_t i = 0; i < images.size(); ++i) {
        EXPECT_EQ(again.current_images()[i].digest, images[i].digest) << "same public bytes";
      }
      for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(again.commit().ok);
      }
      EXPECT_EQ(again.digests(), want[8].digests);
      for (std::size_t i = 0; i < images.size(); ++i) {
        EXPECT_EQ(again.current_images()[i].digest, want[8].shown[i]);
      }
      ASSERT_TRUE(again.checkpoint());
    }
  }
}

TEST(Checkpoint, OnlyChangedFragmentsAreWrittenAndOldFilesGo) {
  TemporaryFolder folder;
  std::vector<std::string> published;
  auto store = *store::LocalFolder::open(
      folder.path(), [&](std::string_view step, const fs::path& path) -> Status {
        if (step == "publish") {
          published.push_back(path.filename().string());
        }
        return Unit{};
      });
  TestRun run(options_in(store));
  ASSERT_TRUE(run.start(small_layout()));
  ASSERT_TRUE(run.checkpoint());
  EXPECT_EQ(published, (std::vector<std::string>{"layout.bin", "fragment-0-v0.safetensors",
                                                 "fragment-1-v0.safetensors",
                                                 "fragment-2-v0.safetensors", "MANIFEST.json"}));
  published.clear();
  ASSERT_TRUE(run.commit().ok);
  ASSERT_TRUE(run.checkpoint());
  EXPECT_EQ(published, (std::vector<std::string>{"fragment-0-v1.safetensors", "MANIFEST.json"}));
  EXPECT_EQ(*store->list(), (std::vector<std::string>{"MANIFEST.json", "fragment-0-v1.safetensors",
                                                      "fragment-1-v0.safetensors",
                                                      "fragment-2-v0.safetensors", "layout.bin"}));
  // After a restart the unchanged files stand as well.
  TestRun again(options_in(store));
  ASSERT_TRUE(again.resume());
  published.clear();
  ASSERT_TRUE(again.commit().ok);
  ASSERT_TRUE(again.checkpoint());
  EXPECT_EQ(published, (std::vector<std::string>{"fragment-1-v1.safetensors", "MANIFEST.json"}));
}

TEST(Checkpoint, FilesDescribeThemselves) {
  TemporaryFolder folder;
  TestRun run(options_in(*store::LocalFolder::open(folder.path())));
  ASSERT_TRUE(run.start(small_layout()));
  ASSERT_TRUE(run.checkpoint());
  const auto file = weights::SafetensorsFile::open(folder.path() / "fragment-1-v0.safetensors");
  ASSERT_TRUE(file) << file.error().text();
  const auto& metadata = file->view().metadata();
  EXPECT_EQ(metadata.at("schema"), "yeto.fragment/1");
  EXPECT_EQ(metadata.at("run_id"), "run-1");
  EXPECT_EQ(metadata.at("fragment"), "1");
  EXPECT_EQ(metadata.at("version"), "0");
  EXPECT_EQ(metadata.at("codec"), "f32");
  EXPECT_EQ(metadata.at("pieces"),
            R"([{"tensor":"layers.1.w","dtype":"F32","shape":[40,5],"first":0,"count":200,)"
            R"("offset":0}])");
  EXPECT_TRUE(file->view().read_f32("params", 200));
  EXPECT_TRUE(file->view().read_f32("momentum", 200));
  EXPECT_TRUE(file->view().read_f32("public", 200));
}

// Restores what is in the folder and checks that it is one of the commits, whole.
std::uint64_t expect_a_commit(const fs::path& folder, const std::vector<Commit>& commits) {
  TestRun run(options_in(*store::LocalFolder::open(folder)));
  const Status resumed = run.resume();
  EXPECT_TRUE(resumed) << resumed.error().text();
  if (!resumed) {
    return 0;
  }
  const std::uint64_t step = run.state().global_step;
  EXPECT_EQ(run.state().versions, commits.at(step).versions);
  EXPECT_EQ(run.digests(), commits.at(step).digests);
  // And it goes on.
  EXPECT_TRUE(run.commit().ok);
  EXPECT_TRUE(run.checkpoint());
  TestRun next(options_in(*store::LocalFolder::open(folder)));
  EXPECT_TRUE(next.resume());
  EXPECT_EQ(next.digests(), commits.at(step + 1).digests);
  for (const auto& entry : fs::directory_iterator(folder)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with('.')) << "leftover " << entry;
  }
  return step;
}

TEST(Checkpoint, ASnapshotIsNotTouchedByLaterMerges) {
  for (const CodecId codec : {CodecId::kF32, CodecId::kBf16, CodecId::kQ4}) {
    auto store = std::make_shared<store::MemoryStore>();
    JobsOptions options = options_in(store);
    options.push_codec = codec;
    options.broadcast_codec = codec;
    TestRun run(options);
    ASSERT_TRUE(run.start(small_layout()));
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(run.commit().ok);
    }
    const Commit want = commit_now(run);
    Result<Snapshot> snapshot = run.snapshot();
    ASSERT_TRUE(snapshot);
    for (int i = 0; i < 7; ++i) {
      ASSERT_TRUE(run.commit().ok);
    }
    ASSERT_TRUE(run.jobs().write(std::move(*snapshot)));
    TestRun again(options);
    ASSERT_TRUE(again.resume());
    EXPECT_EQ(again.state().versions, want.versions);
    EXPECT_EQ(again.digests(), want.digests);
    EXPECT_EQ(commit_now(again).shown, want.shown);
    ASSERT_TRUE(run.checkpoint()) << "what changed meanwhile comes with the next one";
    TestRun newest(options);
    ASSERT_TRUE(newest.resume());
    EXPECT_EQ(newest.digests(), run.digests());
  }
}

TEST(Checkpoint, MergesGoOnOnAnotherThreadWhileItIsWritten) {
  TemporaryFolder folder;
  const auto commits = commits_of(options_in(nullptr), 400);
  TestRun run(options_in(*store::LocalFolder::open(folder.path())));
  ASSERT_TRUE(run.start(small_layout()));
  for (int writes = 0; writes < 5; ++writes) {
    Result<Snapshot> snapshot = run.snapshot();
    ASSERT_TRUE(snapshot);
    const std::uint64_t step = run.state().global_step;
    std::atomic<bool> written{false};
    JoiningThread writer([&] {
      EXPECT_TRUE(run.jobs().write(std::move(*snapshot)));
      written = true;
    });
    while (!written && run.state().global_step < 350) {
      ASSERT_TRUE(run.commit().ok);
    }
    ASSERT_TRUE(run.commit().ok);
    writer.join();
    TestRun again(options_in(*store::LocalFolder::open(folder.path())));
    ASSERT_TRUE(again.resume());
    EXPECT_EQ(again.state().global_step, step);
    EXPECT_EQ(again.digests(), commits.at(step).digests);
    EXPECT_EQ(run.digests(), commits.at(run.state().global_step).digests);
  }
}

TEST(Checkpoint, TheManifestTellsTheCommitsThatItIsTheFirstToHold) {
  auto store = std::make_shared<store::MemoryStore>();
  TestRun run(options_in(store));
  ASSERT_TRUE(run.start(small_layout()));
  ASSERT_TRUE(run.checkpoint());
  EXPECT_TRUE(run.jobs().durable()->commits.empty()) << "version 0 is no commit";
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(run.commit().ok);
  }
  ASSERT_TRUE(run.checkpoint());
  const auto commits = (*checkpoint::read_manifest(*store))->commits;
  ASSERT_EQ(commits.size(), 3U);
  EXPECT_EQ(commits[0].round, 2U);
  EXPECT_EQ(commits[2].round, 4U) << "fragment 0 was merged twice, the newest stands";
  EXPECT_EQ(commits[2].fragment, 0U);
  EXPECT_EQ(commits[2].version, 2U);
  EXPECT_EQ(commits[2].digest, run.current_images()[0].digest);
  ASSERT_EQ(commits[2].pushes.size(), 2U);
  EXPECT_EQ(commits[2].pushes[1].tokens, 1001U);
  EXPECT_EQ(commits[2].pushes[1].base_version, 1U);
  EXPECT_GT(commits[2].pushes[1].norm, 0.0);
  EXPECT_EQ(commits[2].weights.size(), 2U);
  ASSERT_TRUE(run.commit().ok);
  ASSERT_TRUE(run.checkpoint());
  EXPECT_EQ((*checkpoint::read_manifest(*store))->commits.size(), 1U);
}

// A merge before each file operation of a checkpoint: the snapshot is written all the same.
TEST(Checkpoint, KilledBeforeAnyFileOperationWhileMergesGoOnItRecoversToACommit) {
  const auto commits = commits_of(options_in(nullptr), 130);
  std::vector<std::uint64_t> recovered;
  for (int steps = 0;; steps += 3) {
    SCOPED_TRACE(strf("killed before operation {}", steps));
    ASSERT_LT(steps, 300);
    TemporaryFolder folder;
    const pid_t child = ::fork();
    if (child == 0) {
      int left = steps;
      TestRun* merging = nullptr;
      bool good = true;
      auto store = *store::LocalFolder::open(folder.path(),
                                             [&](std::string_view, const fs::path&) -> Status {
                                               if (left-- == 0) {
                                                 ::_exit(9);
                                               }
                                               good = good && merging->commit().ok;
                                               return Unit{};
                                             });
      TestRun run(options_in(store));
      merging = &run;
      good = good && run.start(small_layout()).has_value();
      for (int i = 0; i < 4; ++i) {
        good = good && run.checkpoint();
      }
      ::_exit(good ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_TRUE(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 9) << WEXITSTATUS(status);
    if (fs::exists(folder.path() / checkpoint::kManifestName)) {
      recovered.push_back(expect_a_commit(folder.path(), commits));
    }
    if (WEXITSTATUS(status) == 0) {
      break;
    }
  }
  EXPECT_TRUE(std::is_sorted(recovered.begin(), recovered.end())) << "later deaths lose no more";
  EXPECT_GE(std::set<std::uint64_t>(recovered.begin(), recovered.end()).size(), 4U);
}

TEST(Checkpoint, KilledBeforeAnyFileOperationItRecoversToACommit) {
  const auto commits = commits_of(options_in(nullptr), 6);
  std::vector<std::uint64_t> recovered;
  for (int steps = 0;; ++steps) {
    SCOPED_TRACE(strf("killed before operation {}", steps));
    ASSERT_LT(steps, 200);
    TemporaryFolder folder;
    {
      TestRun run(options_in(*store::LocalFolder::open(folder.path())));
      ASSERT_TRUE(run.start(small_layout()));
      ASSERT_TRUE(run.checkpoint());
    }
    const pid_t child = ::fork();
    if (child == 0) {
      int left = steps;
      auto store = *store::LocalFolder::open(folder.path(),
                                             [&](std::string_view, const fs::path&) -> Status {
                                               if (left-- == 0) {
                                                 ::_exit(9);
                                               }
                                               return Unit{};
                                             });
      TestRun run(options_in(store));
      bool good = run.resume().has_value();
      for (int i = 0; i < 4; ++i) {
        good = good && run.commit().ok;
        // The second checkpoint holds two commits at once.
        good = good && (i == 1 || run.checkpoint());
      }
      ::_exit(good ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    ASSERT_TRUE(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 9) << WEXITSTATUS(status);
    recovered.push_back(expect_a_commit(folder.path(), commits));
    if (WEXITSTATUS(status) == 0) {
      break;
    }
  }
  EXPECT_TRUE(std::is_sorted(recovered.begin(), recovered.end())) << "later deaths lose no more";
  EXPECT_EQ(recovered.front(), 0U);
  EXPECT_EQ(recovered.back(), 4U);
  EXPECT_GT(recovered.size(), 30U) << "there are that many operations to die at";
}

TEST(Checkpoint, AFullDiskAtAnyOperationLeavesTheOldCheckpointAndTheRunGoesOn) {
  const auto commits = commits_of(options_in(nullptr), 6);
  int failures = 0;
  for (int steps = 0;; ++steps) {
    SCOPED_TRACE(strf("full at operation {}", steps));
    ASSERT_LT(steps, 100);
    TemporaryFolder folder;
    int left = 1'000'000;
    auto store = *store::LocalFolder::open(
        folder.path(), [&](std::string_view step, const fs::path& path) -> Status {
          if (step != "remove" && left-- <= 0) {
            return fail(io_error(strf("cannot {}", step), path.string(), ENOSPC));
          }
          return Unit{};
        });
    TestRun run(options_in(store));
    ASSERT_TRUE(run.start(small_layout()));
    ASSERT_TRUE(run.checkpoint());
    ASSERT_TRUE(run.commit().ok);
    left = steps;
    const Status full = run.checkpoint();
    if (!full) {
      ++failures;
      EXPECT_EQ(full.error().code, ErrorCode::kIo);
      TestRun reader(options_in(*store::LocalFolder::open(folder.path())));
      ASSERT_TRUE(reader.resume());
      EXPECT_EQ(reader.digests(), commits.at(reader.state().global_step).digests);
    }
    left = 1'000'000;
    ASSERT_TRUE(run.commit().ok) << "training goes on";
    ASSERT_TRUE(run.checkpoint()) << "and the next checkpoint is whole";
    EXPECT_EQ(expect_a_commit(folder.path(), commits), 2U);
    if (full) {
      break;
    }
  }
  EXPECT_GE(failures, 10);
}

TEST(Checkpoint, ARealLimitOfTheSystemIsReportedAndTheOldCheckpointStands) {
  TemporaryFolder folder;
  const auto commits = commits_of(options_in(nullptr), 2);
  const pid_t child = ::fork();
  if (child == 0) {
    TestRun run(options_in(*store::LocalFolder::open(folder.path())));
    bool good = run.start(small_layout()) && run.checkpoint() && run.commit().ok;
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{700, 700};
    good = good && ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
    const Status full = run.checkpoint();
    good = good && !full && full.error().code == ErrorCode::kIo && run.commit().ok;
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  ASSERT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(expect_a_commit(folder.path(), commits), 0U);
}

TEST(Checkpoint, VersionsThatAreNotThoseOfTheValuesAreRefused) {
  auto store = std::make_shared<store::MemoryStore>();
  TestRun run(options_in(store));
  ASSERT_TRUE(run.start(small_layout()));
  run.state().versions[1] = 1;
  const Status refused = run.checkpoint();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInternal);
  EXPECT_TRUE(store->list()->empty());
  TestRun nowhere(options_in(nullptr));
  ASSERT_TRUE(nowhere.start(small_layout()));
  EXPECT_FALSE(nowhere.checkpoint());
}

TEST(Checkpoint, AChangedByteInAnyFileIsRefusedByName) {
  for (const CodecId codec : {CodecId::kF32, CodecId::kBf16, CodecId::kQ4}) {
    TemporaryFolder folder;
    JobsOptions options = options_in(*store::LocalFolder::open(folder.path()));
    options.push_codec = codec;
    options.broadcast_codec = codec;
    TestRun run(options);
    ASSERT_TRUE(run.start(small_layout()));
    ASSERT_TRUE(run.checkpoint());
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      files.push_back(entry.path());
    }
    ASSERT_EQ(files.size(), 5U);
    for (const fs::path& file : files) {
      SCOPED_TRACE(file.filename());
      const std::string whole = *read_text_file(file);
      const auto expect_refused = [&](const std::string& text) {
        ASSERT_TRUE(write_file_atomic(file, text));
        TestRun reader(options);
        const Status refused = reader.resume();
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code, ErrorCode::kDamaged);
        EXPECT_NE(refused.error().where.find(file.filename().string()), std::string::npos)
            << refused.error().text();
      };
      std::string changed = whole;
      changed[changed.size() / 2] = static_cast<char>(changed[changed.size() / 2] ^ 1);
      expect_refused(changed);
      expect_refused(whole.substr(0, whole.size() - 2));
      expect_refused("");
      if (file.filename() != checkpoint::kManifestName) {
        expect_refused(whole + "x");
        fs::remove(file);
        TestRun reader(options);
        EXPECT_EQ(reader.resume().error().code, ErrorCode::kDamaged) << "missing";
      }
      ASSERT_TRUE(write_file_atomic(file, whole));
    }
    TestRun reader(options);
    EXPECT_TRUE(reader.resume()) << "all whole again";
  }
}

TEST(Checkpoint, WhatDiffersFromTheRunIsRefusedByName) {
  auto store = std::make_shared<store::MemoryStore>();
  TestRun run(options_in(store));
  ASSERT_TRUE(run.start(small_layout()));
  ASSERT_TRUE(run.checkpoint());
  const auto expect_refused = [](const JobsOptions& options, std::string_view text) {
    const Status refused = TestRun(options).resume();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
    EXPECT_NE(refused.error().what.find(text), std::string::npos) << refused.error().text();
    EXPECT_FALSE(refused.error().hint.empty());
  };
  JobsOptions other = options_in(store);
  other.run_id = "run-2";
  expect_refused(other, "run run-1, not run-2");
  other = options_in(store);
  other.push_codec = CodecId::kBf16;
  expect_refused(other, "push codec f32, not bf16");
  other = options_in(store);
  other.broadcast_codec = CodecId::kQ4;
  expect_refused(other, "broadcast codec f32, not q4");
  other = options_in(store);
  other.outer = merge::OuterRule::of(merge::OuterKind::kSgd);
  expect_refused(other, "outer rule nesterov, not sgd");
  other = options_in(store);
  other.settings["seed"] = "8";
  expect_refused(other, "seed 7, not 8");
  other = options_in(store);
  other.outer.lr = 0.5F;
  other.correction = merge::Correction::kHeloco;
  other.weights = merge::WeightRule::kEqual;
  EXPECT_TRUE(TestRun(other).resume()) << "these may change";
  other = options_in(std::make_shared<store::MemoryStore>());
  EXPECT_EQ(TestRun(other).resume().error().code, ErrorCode::kNotFound) << "nothing there";
}

checkpoint::Manifest some_manifest();

// What version 0.1.0 wrote: one codec, no correction, records, data or merged bases.
TEST(Manifest, OneOfTheFirstVersionIsRead) {
  checkpoint::Manifest manifest = some_manifest();
  nlohmann::ordered_json json =
      nlohmann::ordered_json::parse(checkpoint::manifest_to_json(manifest));
  for (const char* key : {"codecs", "correction", "tape", "commits", "data", "xxh3_128"}) {
    json.erase(key);
  }
  for (auto& seat : json["seats"]) {
    seat.erase("merged_bases");
  }
  json["codec"] = "bf16";
  json["xxh3_128"] = hex(xxh3_128(as_bytes_view(json.dump())));
  const auto back = checkpoint::manifest_from_json(json.dump(2), "m");
  ASSERT_TRUE(back) << back.error().text();
  EXPECT_EQ(back->push_codec, CodecId::kBf16);
  EXPECT_EQ(back->broadcast_codec, CodecId::kBf16);
  EXPECT_EQ(back->state.versions, manifest.state.versions);
  EXPECT_TRUE(back->commits.empty());
  EXPECT_FALSE(back->tape);
}

checkpoint::Manifest some_manifest() {
  checkpoint::Manifest manifest;
  manifest.run_id = "run-\"1\"";
  manifest.state.versions = {4, 3};
  manifest.state.global_step = 7;
  dress(manifest.state);
  manifest.push_codec = CodecId::kBf16;
  manifest.broadcast_codec = CodecId::kQ4;
  manifest.correction = merge::Correction::kHeloco;
  manifest.tape = checkpoint::TapePosition{1ULL << 33, 4711};
  checkpoint::CommitRecord& commit = manifest.commits.emplace_back();
  commit = {7, 1, 3, 1000, 500, {1, 2, 3}, {}, {}};
  commit.pushes = {{0, 1, 24, 1000, 0.1}, {0, 2, 8, 400, 1e-30}, {5, 2, 24, 900, 12345.678}};
  commit.weights = {{0, 1.0 / 3}, {5, 2.0 / 3}};
  manifest.outer = {merge::OuterKind::kAuto, 0.7F, 0.9F};
  manifest.weights = merge::WeightRule::kEqual;
  manifest.fingerprint = sha256({});
  manifest.layout = {"layout.bin", 99, sha256({})};
  manifest.fragments = {{"fragment-0-v4.safetensors", 1ULL << 40, sha256({})},
                        {"fragment-1-v3.safetensors", 12, sha256({})}};
  manifest.settings = {{"a", "1"}, {"b", "ü"}};
  return manifest;
}

TEST(Manifest, ComesBackAndIsDeterministic) {
  const checkpoint::Manifest manifest = some_manifest();
  const std::string text = checkpoint::manifest_to_json(manifest);
  const auto back = checkpoint::manifest_from_json(text, "m");
  ASSERT_TRUE(back) << back.error().text();
  EXPECT_EQ(*back, manifest);
  EXPECT_EQ(checkpoint::manifest_to_json(*back), text);
  EXPECT_NE(text.find("\"schema\": \"yeto.checkpoint/1\""), std::string::npos);
}

TEST(Manifest, EveryTruncationAndBitFlipIsRefusedOrMeansTheSame) {
  const checkpoint::Manifest manifest = some_manifest();
  const std::string text = checkpoint::manifest_to_json(manifest);
  for (std::size_t size = 0; size + 1 < text.size(); ++size) {
    ASSERT_FALSE(checkpoint::manifest_from_json(text.substr(0, size), "m")) << size;
  }
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    const auto back = checkpoint::manifest_from_json(flipped, "m");
    if (back) {
      ASSERT_EQ(*back, manifest) << "only blanks may differ, bit " << bit;
    }
  }
}

TEST(Manifest, AnotherMajorIsNamedAsSuch) {
  std::string text = checkpoint::manifest_to_json(some_manifest());
  text.replace(text.find("yeto.checkpoint/1"), 17, "yeto.checkpoint/2");
  const auto newer = checkpoint::manifest_from_json(text, "m");
  ASSERT_FALSE(newer);
  EXPECT_EQ(newer.error().code, ErrorCode::kNotInBuild);
  text.replace(text.find("yeto.checkpoint/2"), 17, "some.checkpoint/1");
  EXPECT_EQ(checkpoint::manifest_from_json(text, "m").error().code, ErrorCode::kDamaged);
}

TEST(Manifest, NamesOutsideTheFolderAreRefused) {
  checkpoint::Manifest manifest = some_manifest();
  manifest.fragments[1].name = "../other";
  EXPECT_FALSE(checkpoint::manifest_from_json(checkpoint::manifest_to_json(manifest), "m"));
  manifest = some_manifest();
  manifest.layout.name = "fragment-0-v4.safetensors";
  EXPECT_FALSE(checkpoint::manifest_from_json(checkpoint::manifest_to_json(manifest), "m"));
  manifest = some_manifest();
  manifest.state.versions.push_back(1);
  EXPECT_FALSE(checkpoint::manifest_from_json(checkpoint::manifest_to_json(manifest), "m"));
}

TEST(Term, RisesWithEachLifeAndAboveTheManifest) {
  store::MemoryStore store;
  EXPECT_EQ(*checkpoint::raise_term(store), 1U);
  EXPECT_EQ(*checkpoint::raise_term(store), 2U);
  ASSERT_TRUE(store.remove("TERM"));
  checkpoint::Manifest manifest = some_manifest();
  manifest.state.term = 9;
  ASSERT_TRUE(checkpoint::write_manifest(store, manifest));
  EXPECT_EQ(*checkpoint::raise_term(store), 10U);
  EXPECT_EQ(*checkpoint::raise_term(store), 11U);
  for (const char* text : {"", "x", "1x", "-1", "99999999999999999999999"}) {
    ASSERT_TRUE(store.put("TERM", text, store::PutMode::kReplace));
    const auto damaged = checkpoint::raise_term(store);
    ASSERT_FALSE(damaged) << text;
    EXPECT_EQ(damaged.error().code, ErrorCode::kDamaged);
    EXPECT_NE(damaged.error().where.find("TERM"), std::string::npos);
  }
}

TEST(Term, ARaiseThatCannotBeStoredIsAnError) {
  TemporaryFolder folder;
  auto store = *store::LocalFolder::open(
      folder.path(), [](std::string_view step, const fs::path& path) -> Status {
        return fail(io_error(strf("cannot {}", step), path.string(), ENOSPC));
      });
  EXPECT_EQ(checkpoint::raise_term(*store).error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace yeto::sync
