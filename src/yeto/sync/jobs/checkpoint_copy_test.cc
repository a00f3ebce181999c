// SPDX-License-Identifier: Apache-2.0
// Goal: what a shared store holds is always a whole checkpoint of the highest term, whatever fails
// on the way and whoever else still writes. Method: a store in memory that stops at any operation.
#include "yeto/sync/jobs/checkpoint_copy.h"

#include <gtest/gtest.h>

#include "yeto/sync/jobs/testing.h"

namespace yeto::sync {
namespace {

using testing::options_in;
using testing::SharedStore;
using testing::small_layout;
using testing::TestRun;

constexpr Nanos kPlenty = 60 * kSecond;

struct Syncer {
  Syncer(std::shared_ptr<SharedStore> target, std::uint64_t term, bool wait)
      : folder(std::make_shared<store::MemoryStore>()), run(options_in(folder)) {
    run.jobs().copy_checkpoints({folder, std::move(target), "run-1", term, false, wait});
  }
  std::shared_ptr<store::MemoryStore> folder;
  TestRun run;
};

// The global step of the newest copy after it was loaded into a fresh folder and restored.
Result<std::uint64_t> restored_step(const SharedStore& target, Syncer* like = nullptr) {
  YETO_ASSIGN(const checkpoint::CopyFound found, checkpoint::look_at_copy(target));
  auto folder = std::make_shared<store::MemoryStore>();
  YETO_TRY(checkpoint::fetch_copy(target, found, "run-1", *folder));
  TestRun again(options_in(folder));
  YETO_TRY(again.resume());
  if (like != nullptr && like->run.state().global_step == again.state().global_step) {
    EXPECT_EQ(again.digests(), like->run.digests());
  }
  return again.state().global_step;
}

TEST(CheckpointCopy, EachCheckpointComesBackFromTheCopy) {
  auto target = std::make_shared<SharedStore>();
  Syncer syncer(target, 1, true);
  ASSERT_TRUE(syncer.run.start(small_layout()));
  for (std::uint64_t step = 0; step < 6; ++step) {
    ASSERT_TRUE(syncer.run.checkpoint());
    EXPECT_EQ(*restored_step(*target, &syncer), step);
    EXPECT_EQ(syncer.run.jobs().copy_status()->global_step, step);
    ASSERT_TRUE(syncer.run.commit().ok);
  }
  EXPECT_EQ(target->list()->size(), 6U) << "claim, layout, manifest and three fragments";
}

TEST(CheckpointCopy, WithoutWaitingTheNewestWinsAndNothingIsMissing) {
  auto target = std::make_shared<SharedStore>();
  Syncer syncer(target, 1, false);
  ASSERT_TRUE(syncer.run.start(small_layout()));
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(syncer.run.checkpoint());
    ASSERT_TRUE(syncer.run.commit().ok);
  }
  ASSERT_TRUE(syncer.run.jobs().finish_copy(kPlenty)) << syncer.run.jobs().copy_status()->error;
  EXPECT_EQ(*restored_step(*target), 49U);
}

TEST(CheckpointCopy, BrokenOffAtAnyOperationTheOldCopyStandsAndTheNextOneIsWhole) {
  int failures = 0;
  for (int operations = 0; operations < 60; ++operations) {
    SCOPED_TRACE(strf("broken after {} operations", operations));
    auto target = std::make_shared<SharedStore>();
    Syncer syncer(target, 1, true);
    ASSERT_TRUE(syncer.run.start(small_layout()));
    ASSERT_TRUE(syncer.run.checkpoint());
    ASSERT_TRUE(syncer.run.commit().ok);
    target->break_after(operations);
    const Status copied = syncer.run.checkpoint();
    target->heal();
    const std::uint64_t step = *restored_step(*target, &syncer);
    EXPECT_EQ(step, copied ? 1U : step);
    if (!copied) {
      ++failures;
      EXPECT_EQ(copied.error().code, ErrorCode::kUnreachable);
      EXPECT_NE(syncer.run.jobs().copy_status()->error.find("does not answer"), std::string::npos);
    }
    ASSERT_TRUE(syncer.run.commit().ok) << "the run goes on";
    ASSERT_TRUE(syncer.run.checkpoint());
    EXPECT_EQ(*restored_step(*target, &syncer), 2U);
    EXPECT_TRUE(syncer.run.jobs().copy_status()->error.empty());
    if (copied && operations > 20) {
      break;
    }
  }
  EXPECT_EQ(failures, 3) << "listing, the fragment and the manifest";
}

TEST(CheckpointCopy, ALowerTermNeverHarmsAHigherOne) {
  auto target = std::make_shared<SharedStore>();
  Syncer old(target, 1, true);
  ASSERT_TRUE(old.run.start(small_layout()));
  ASSERT_TRUE(old.run.checkpoint());
  Syncer successor(target, 2, true);
  ASSERT_TRUE(successor.run.start(small_layout()));
  ASSERT_TRUE(successor.run.commit().ok);
  ASSERT_TRUE(successor.run.checkpoint());
  const auto keys = *target->list();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(old.run.commit().ok);
    const Status refused = old.run.checkpoint();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
    EXPECT_NE(refused.error().what.find("term 2"), std::string::npos);
    EXPECT_EQ(*target->list(), keys) << "nothing was written or removed";
  }
  EXPECT_EQ(*restored_step(*target, &successor), 1U);
}

TEST(CheckpointCopy, OneTermHasOneSyncer) {
  auto target = std::make_shared<SharedStore>();
  EXPECT_TRUE(*checkpoint::claim_term(*target, 3, "run-1"));
  EXPECT_FALSE(*checkpoint::claim_term(*target, 3, "run-1"));
  EXPECT_EQ(checkpoint::look_at_copy(*target)->highest_term, 3U);
  Syncer late(target, 3, true);
  ASSERT_TRUE(late.run.start(small_layout()));
  const Status refused = late.run.checkpoint();
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("taken"), std::string::npos);
  EXPECT_EQ(target->list()->size(), 1U);
}

TEST(CheckpointCopy, TheHighestTermIsTakenEvenIfALowerOneHasMoreSteps) {
  auto target = std::make_shared<SharedStore>();
  Syncer old(target, 9, true);
  ASSERT_TRUE(old.run.start(small_layout()));
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(old.run.commit().ok);
  }
  ASSERT_TRUE(old.run.checkpoint());
  EXPECT_EQ(*restored_step(*target), 5U);
  Syncer successor(target, 10, true);
  ASSERT_TRUE(successor.run.start(small_layout()));
  ASSERT_TRUE(successor.run.checkpoint());
  EXPECT_EQ(*restored_step(*target), 0U);
  const std::vector<std::string> keys = *target->list();
  for (const std::string& key : keys) {
    EXPECT_TRUE(key.starts_with("term-00000000000000000010.")) << key << ": the old term is gone";
  }
}

TEST(CheckpointCopy, AnotherRunOrADamagedObjectIsRefusedByName) {
  auto target = std::make_shared<SharedStore>();
  Syncer syncer(target, 1, true);
  ASSERT_TRUE(syncer.run.start(small_layout()));
  ASSERT_TRUE(syncer.run.checkpoint());
  const auto found = *checkpoint::look_at_copy(*target);
  store::MemoryStore folder;
  const Status other = checkpoint::fetch_copy(*target, found, "run-2", folder);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::kConflict);
  EXPECT_NE(other.error().what.find("run-1, not to run-2"), std::string::npos);
  const std::string key = "term-00000000000000000001.fragment-1-v0.safetensors";
  Bytes bytes = *target->get(key, 1 << 20);
  bytes[bytes.size() / 2] ^= 1;
  const ByteView part = bytes;
  ASSERT_TRUE(target->put(key, {&part, 1}, store::PutMode::kReplace));
  for (int i = 0; i < 2; ++i) {
    const Status damaged = checkpoint::fetch_copy(*target, found, "run-1", folder);
    ASSERT_FALSE(damaged);
    EXPECT_EQ(damaged.error().code, ErrorCode::kDamaged);
    EXPECT_NE(damaged.error().where.find(key), std::string::npos);
    EXPECT_FALSE(folder.get(checkpoint::kManifestName, 1 << 20)) << "the manifest comes last";
    ASSERT_TRUE(target->remove(key));
  }
}

TEST(CheckpointCopy, FilesStayUntilTheyAreCopied) {
  auto target = std::make_shared<SharedStore>();
  auto folder = std::make_shared<store::MemoryStore>();
  CheckpointCopy copy({folder, target, "run-1", 1, false, false});
  TestRun run(options_in(folder));
  ASSERT_TRUE(run.start(small_layout()));
  ASSERT_TRUE(run.checkpoint());
  const checkpoint::Manifest manifest = *run.jobs().durable();
  target->break_after(0);
  ASSERT_TRUE(copy.offer(manifest));
  EXPECT_FALSE(copy.finish(kPlenty)) << "it failed";
  EXPECT_TRUE(copy.files_in_use().empty()) << "and a failed one waits for the next checkpoint";
  EXPECT_FALSE(copy.status().error.empty());
  target->heal();
  ASSERT_TRUE(copy.offer(manifest));
  EXPECT_TRUE(copy.finish(kPlenty));
  EXPECT_TRUE(copy.files_in_use().empty());
}

}  // namespace
}  // namespace yeto::sync
