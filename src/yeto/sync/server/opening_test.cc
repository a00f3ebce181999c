// SPDX-License-Identifier: Apache-2.0
// Goal: whatever the folder and the copy of a checkpoint hold, a syncer goes on from the right one
// or says why not. Method: lives of a small run on a folder and a store in memory.
#include "yeto/sync/server/opening.h"

#include <gtest/gtest.h>

#include "yeto/base/files.h"
#include "yeto/sync/jobs/testing.h"
#include "yeto/sync/server/records.h"

namespace yeto::sync {
namespace {

using testing::SharedStore;
using testing::small_layout;
using testing::TestRun;

constexpr Nanos kPlenty = 60 * kSecond;

ServerOptions options_of(std::shared_ptr<store::ObjectStore> checkpoint, bool resume) {
  ServerOptions options;
  options.core.run_id = "run-1";
  options.checkpoint = std::move(checkpoint);
  options.resume = resume;
  return options;
}

// A life: opens, commits `commits` times, checkpoints, and ends. The step it ended with.
std::uint64_t live(const ServerOptions& options, int commits, std::uint64_t* term = nullptr) {
  Result<Opening> opening = open_checkpoint(options);
  EXPECT_TRUE(opening) << opening.error().text();
  if (!opening) {
    return 0;
  }
  if (term != nullptr) {
    *term = opening->term;
  }
  TestRun run(std::move(opening->jobs));
  const Status begun =
      opening->restored ? run.go_on(*opening->restored) : run.start(small_layout());
  EXPECT_TRUE(begun);
  run.state().term = opening->term;
  for (int i = 0; i < commits; ++i) {
    EXPECT_TRUE(run.commit().ok);
  }
  EXPECT_TRUE(run.checkpoint());
  EXPECT_TRUE(run.jobs().finish_copy(kPlenty));
  return run.state().global_step;
}

TEST(Opening, AnEmptyFolderIsFilledFromTheCopy) {
  auto copy = std::make_shared<SharedStore>();
  ServerOptions options = options_of(std::make_shared<store::MemoryStore>(), false);
  options.checkpoint_copy = copy;
  EXPECT_EQ(live(options, 4), 4U);
  ServerOptions elsewhere = options_of(std::make_shared<store::MemoryStore>(), true);
  elsewhere.checkpoint_copy = copy;
  std::uint64_t term = 0;
  EXPECT_EQ(live(elsewhere, 2, &term), 6U);
  EXPECT_EQ(term, 2U);
}

TEST(Opening, ACopyWithoutResumeIsNeitherUsedNorHarmed) {
  auto copy = std::make_shared<SharedStore>();
  ServerOptions options = options_of(std::make_shared<store::MemoryStore>(), false);
  options.checkpoint_copy = copy;
  live(options, 1);
  const auto keys = *copy->list();
  ServerOptions again = options_of(std::make_shared<store::MemoryStore>(), false);
  again.checkpoint_copy = copy;
  const auto refused = open_checkpoint(again);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_NE(refused.error().hint.find("--resume"), std::string::npos);
  EXPECT_EQ(*copy->list(), keys);
}

TEST(Opening, AFolderThatAnotherSyncerOvertookIsRefused) {
  auto copy = std::make_shared<SharedStore>();
  auto folder = std::make_shared<store::MemoryStore>();
  ServerOptions options = options_of(folder, false);
  options.checkpoint_copy = copy;
  live(options, 3);
  ServerOptions successor = options_of(std::make_shared<store::MemoryStore>(), true);
  successor.checkpoint_copy = copy;
  live(successor, 1);
  options.resume = true;
  const auto refused = open_checkpoint(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_NE(refused.error().what.find("of term 2, the folder of term 1"), std::string::npos);
}

TEST(Opening, ACopyThatCannotBeReachedStopsOnlyWhoHasNothingElse) {
  auto copy = std::make_shared<SharedStore>();
  auto folder = std::make_shared<store::MemoryStore>();
  ServerOptions options = options_of(folder, false);
  options.checkpoint_copy = copy;
  live(options, 2);
  copy->break_after(0);
  ServerOptions empty = options_of(std::make_shared<store::MemoryStore>(), true);
  empty.checkpoint_copy = copy;
  EXPECT_EQ(open_checkpoint(empty).error().code, ErrorCode::kUnreachable);
  options.resume = true;
  Result<Opening> opening = open_checkpoint(options);
  ASSERT_TRUE(opening) << opening.error().text();
  EXPECT_EQ(opening->term, 2U);
  copy->heal();
  TestRun run(std::move(opening->jobs));
  ASSERT_TRUE(run.go_on(*opening->restored));
  ASSERT_TRUE(run.commit().ok);
  ASSERT_TRUE(run.checkpoint());
  EXPECT_TRUE(run.jobs().finish_copy(kPlenty)) << "the term is claimed later";
}

TEST(Opening, ASharedStoreAloneIsAPlaceForCheckpoints) {
  auto place = std::make_shared<SharedStore>();
  EXPECT_EQ(live(options_of(place, false), 5), 5U);
  EXPECT_EQ(live(options_of(place, true), 2), 7U);
  place->break_after(0);
  EXPECT_EQ(open_checkpoint(options_of(place, true)).error().code, ErrorCode::kUnreachable);
  place->heal();
  ServerOptions other = options_of(place, true);
  other.core.run_id = "run-2";
  const auto refused = open_checkpoint(other);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("run run-1, not to run-2"), std::string::npos);
  ServerOptions twice = options_of(place, true);
  twice.checkpoint_copy = std::make_shared<SharedStore>();
  EXPECT_EQ(open_checkpoint(twice).error().code, ErrorCode::kConflict);
}

TEST(Opening, ACommitThatTheTapeLacksIsWrittenAgain) {
  testing::TemporaryFolder folder;
  auto place = std::make_shared<store::MemoryStore>();
  ServerOptions options = options_of(place, false);
  live(options, 3);
  const auto manifest = *checkpoint::read_manifest(*place);
  ASSERT_EQ(manifest->commits.size(), 3U);
  std::string text;
  for (std::uint64_t i = 0; i < 2; ++i) {
    TapeRound round;
    round.committed = true;
    round.round = manifest->commits[i].round;
    round.fragment = manifest->commits[i].fragment;
    round.version = manifest->commits[i].version;
    round.digest = manifest->commits[i].digest;
    text += tape_line({1.0, i, 1}, round) + "\n";
  }
  options.tape = folder.path() / "tape.jsonl";
  options.resume = true;
  ASSERT_TRUE(write_file_atomic(options.tape, text + "{\"torn"));
  Result<Opening> opening = open_checkpoint(options);
  ASSERT_TRUE(opening) << opening.error().text();
  EXPECT_EQ(opening->tape->next_seq(), 3U);
  const std::string after = *read_text_file(options.tape);
  ASSERT_TRUE(after.starts_with(text));
  const auto added = committed_round_of(after.substr(text.size()));
  ASSERT_TRUE(added) << after;
  EXPECT_EQ(added->digest, manifest->commits[2].digest);
}

TEST(Opening, TermsRiseOverEveryPlace) {
  auto copy = std::make_shared<SharedStore>();
  std::uint64_t term = 0;
  for (std::uint64_t life = 1; life <= 4; ++life) {
    ServerOptions options = options_of(std::make_shared<store::MemoryStore>(), life > 1);
    options.checkpoint_copy = copy;
    live(options, 1, &term);
    EXPECT_EQ(term, life);
  }
  EXPECT_TRUE(*checkpoint::claim_term(*copy, 5, "run-1"));
  ServerOptions options = options_of(std::make_shared<store::MemoryStore>(), true);
  options.checkpoint_copy = copy;
  live(options, 1, &term);
  EXPECT_EQ(term, 6U) << "somebody took 5";
}

}  // namespace
}  // namespace yeto::sync
