// SPDX-License-Identifier: Apache-2.0
// Goal: a blob is whole or not there, whatever kind of store holds it, and whenever the writer
// dies. Method: the same contract for both kinds; faults put in before each file operation;
// children that die there.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/store/object_store.h"

namespace yeto::store {
namespace {

namespace fs = std::filesystem;

std::string text(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(fs::temp_directory_path() / strf("yeto-store-{:x}", random_u64())) {}
  ~TemporaryFolder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }
  std::size_t files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  fs::path path_;
};

enum class Kind { kMemory, kFolder };

class AnyStore : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::kMemory) {
      store_ = std::make_shared<MemoryStore>();
    } else {
      auto opened = LocalFolder::open(folder_.path() / "made" / "here");
      ASSERT_TRUE(opened) << opened.error().text();
      store_ = *opened;
    }
  }
  TemporaryFolder folder_;
  std::shared_ptr<ObjectStore> store_;
};

TEST_P(AnyStore, PutsGetsListsAndRemoves) {
  const Bytes one{'o', 'n'};
  const Bytes two{'e', '!'};
  const ByteView parts[] = {one, {}, two};
  EXPECT_EQ(*store_->put("b.bin", parts, PutMode::kReplace), true);
  EXPECT_EQ(*store_->put("a", "first", PutMode::kReplace), true);
  EXPECT_EQ(text(*store_->get("b.bin", 100)), "one!");
  EXPECT_EQ(*store_->list(), (std::vector<std::string>{"a", "b.bin"}));
  EXPECT_EQ(*store_->put("a", "second", PutMode::kReplace), true);
  EXPECT_EQ(text(*store_->get("a", 100)), "second");
  EXPECT_TRUE(store_->remove("a"));
  EXPECT_TRUE(store_->remove("a")) << "nothing to remove is no error";
  EXPECT_EQ(store_->get("a", 100).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(*store_->list(), std::vector<std::string>{"b.bin"});
}

TEST_P(AnyStore, CreateNeverReplaces) {
  EXPECT_EQ(*store_->put("term", "1", PutMode::kCreate), true);
  EXPECT_EQ(*store_->put("term", "2", PutMode::kCreate), false);
  EXPECT_EQ(text(*store_->get("term", 100)), "1");
  EXPECT_EQ(store_->list()->size(), 1U);
}

TEST_P(AnyStore, LargerThanExpectedIsRefused) {
  ASSERT_TRUE(store_->put("a", "12345", PutMode::kReplace));
  EXPECT_EQ(store_->get("a", 4).error().code, ErrorCode::kData);
  EXPECT_TRUE(store_->get("a", 5));
}

TEST_P(AnyStore, KeysArePlainNames) {
  for (const std::string& key :
       {std::string(), std::string(".hidden"), std::string("a/b"), std::string(".."),
        std::string("a b"), std::string("a\0b", 3), std::string(201, 'a')}) {
    EXPECT_EQ(store_->put(key, "x", PutMode::kReplace).error().code, ErrorCode::kConfig) << key;
    EXPECT_EQ(store_->get(key, 1).error().code, ErrorCode::kConfig) << key;
    EXPECT_EQ(store_->remove(key).error().code, ErrorCode::kConfig) << key;
  }
  EXPECT_TRUE(store_->list()->empty());
}

INSTANTIATE_TEST_SUITE_P(Kinds, AnyStore, testing::Values(Kind::kMemory, Kind::kFolder),
                         [](const auto& kind) {
                           return kind.param == Kind::kMemory ? "Memory" : "Folder";
                         });

// Lets `left` operations pass, then answers as a full disk.
struct FullDisk {
  int left = 0;
  Status operator()(std::string_view step, const fs::path& path) {
    if (left-- > 0) {
      return Unit{};
    }
    return fail(io_error(strf("cannot {}", step), path.string(), ENOSPC));
  }
};

TEST(LocalFolder, AFullDiskAtAnyStepLeavesTheOldBlobOrTheNewAndNoLeftovers) {
  TemporaryFolder folder;
  ASSERT_TRUE((*LocalFolder::open(folder.path()))->put("a", "old", PutMode::kReplace));
  int failures = 0;
  for (int steps = 0;; ++steps) {
    ASSERT_LT(steps, 20);
    auto store = *LocalFolder::open(folder.path(), FullDisk{steps});
    const auto put = store->put("a", "new", PutMode::kReplace);
    const std::string now = text(*store->get("a", 100));
    EXPECT_TRUE(now == "old" || now == "new") << now;
    EXPECT_EQ(folder.files(), 1U) << "after " << steps << " steps";
    if (put) {
      EXPECT_EQ(now, "new");
      break;
    }
    EXPECT_EQ(put.error().code, ErrorCode::kIo);
    ++failures;
  }
  EXPECT_EQ(failures, 5) << "create, write, sync, publish, sync-directory";
}

TEST(LocalFolder, AWriterThatDiesAtAnyStepLeavesTheOldBlobOrTheNew) {
  TemporaryFolder folder;
  auto store = *LocalFolder::open(folder.path());
  ASSERT_TRUE(store->put("a", "old", PutMode::kReplace));
  bool survived = false;
  for (int steps = 0; !survived; ++steps) {
    ASSERT_LT(steps, 20);
    const pid_t child = ::fork();
    if (child == 0) {
      int left = steps;
      auto mortal = *LocalFolder::open(folder.path(), [&](std::string_view, const fs::path&) {
        if (left-- == 0) {
          ::_exit(9);
        }
        return Status(Unit{});
      });
      ::_exit(mortal->put("a", "new", PutMode::kReplace) ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    survived = WEXITSTATUS(status) == 0;
    ASSERT_TRUE(survived || WEXITSTATUS(status) == 9);
    const std::string now = text(*store->get("a", 100));
    EXPECT_TRUE(now == "old" || now == "new") << now;
    EXPECT_EQ(*store->list(), std::vector<std::string>{"a"});
    ASSERT_TRUE(store->remove_unfinished());
    EXPECT_EQ(folder.files(), 1U) << "leftovers of the dead writer are removed";
  }
  EXPECT_EQ(text(*store->get("a", 100)), "new");
}

TEST(LocalFolder, ListShowsOnlyBlobs) {
  TemporaryFolder folder;
  auto store = *LocalFolder::open(folder.path());
  fs::create_directories(folder.path() / "sub");
  std::ofstream(folder.path() / ".a.0000.tmp") << "half";
  std::ofstream(folder.path() / "strange name") << "x";
  ASSERT_TRUE(store->put("a", "x", PutMode::kReplace));
  EXPECT_EQ(*store->list(), std::vector<std::string>{"a"});
  EXPECT_TRUE(store->remove_unfinished());
  EXPECT_FALSE(fs::exists(folder.path() / ".a.0000.tmp"));
  EXPECT_TRUE(fs::exists(folder.path() / "strange name"));
}

TEST(LocalFolder, AFolderThatCannotBeMadeIsAnError) {
  TemporaryFolder folder;
  fs::create_directories(folder.path());
  std::ofstream(folder.path() / "file") << "x";
  const auto opened = LocalFolder::open(folder.path() / "file" / "sub");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace yeto::store
