// SPDX-License-Identifier: Apache-2.0
// Goal: a remote store is a store like the others, and what the far side reports arrives. Method: a
// far side of 30 lines on a folder; the real one is tested beside it, in Python.
#include "yeto/store/remote_store.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"

namespace yeto::store {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFarSide = R"(
import json, os, shutil, sys
root = sys.argv[1]
def answer(method, p):
    path = os.path.join(root, p.get("key", ""))
    if method == "check":
        return {}
    if method == "list":
        return {"keys": sorted(os.listdir(root))}
    if method == "delete":
        if os.path.exists(path): os.remove(path)
        return {}
    if method == "put":
        if p["create"] and os.path.exists(path): return {"created": False}
        shutil.copyfile(p["path"], path)
        return {"created": True}
    if p["key"] == "odd":
        return {}
    if not os.path.exists(path):
        return {"error": "E_NOT_FOUND", "what": "there is no such object"}
    size = os.path.getsize(path)
    if size > p["max_bytes"]:
        return {"error": "E_DATA", "what": "too large"}
    shutil.copyfile(path, p["path"])
    return {"bytes": size}
for line in sys.stdin:
    r = json.loads(line)
    a = answer(r["method"], r["params"])
    reply = {"jsonrpc": "2.0", "id": r["id"], "result": a}
    if "error" in a:
        reply = {"jsonrpc": "2.0", "id": r["id"], "error": {
            "code": -32000, "message": a["what"], "data": {"error": a["error"]}}}
    print(json.dumps(reply), flush=True)
)";

class RemoteStoreTest : public testing::Test {
 protected:
  RemoteStoreTest() : folder_(fs::temp_directory_path() / strf("yeto-remote-{:x}", random_u64())) {
    fs::create_directories(folder_ / "objects");
    fs::create_directories(folder_ / "scratch");
    RemoteOptions options;
    options.scratch = folder_ / "scratch";
    options.bridge.command = {"python3", "-c", kFarSide, (folder_ / "objects").string()};
    options.timeout = 60 * kSecond;
    auto opened = RemoteStore::open("test://here/", options);
    if (opened) {
      store_ = *opened;
    }
  }
  ~RemoteStoreTest() override {
    store_.reset();
    fs::remove_all(folder_);
  }
  fs::path folder_;
  std::shared_ptr<RemoteStore> store_;
};

TEST_F(RemoteStoreTest, PutsGetsListsRemovesAndLeavesNoScratch) {
  ASSERT_NE(store_, nullptr);
  EXPECT_EQ(store_->place(), "test://here");
  EXPECT_TRUE(store_->is_shared());
  const Bytes one(100'000, 7);
  const Bytes two{1, 2};
  const ByteView parts[] = {one, {}, two};
  EXPECT_TRUE(*store_->put("b", parts, PutMode::kCreate));
  EXPECT_FALSE(*store_->put("b", "other", PutMode::kCreate));
  Bytes want = one;
  want.insert(want.end(), two.begin(), two.end());
  EXPECT_EQ(*store_->get("b", want.size()), want);
  EXPECT_TRUE(*store_->put("b", "new", PutMode::kReplace));
  EXPECT_TRUE(*store_->put("a", "", PutMode::kCreate));
  EXPECT_TRUE(store_->get("a", 0)->empty());
  EXPECT_EQ(*store_->list(), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(store_->remove("a"));
  EXPECT_TRUE(store_->remove("a"));
  EXPECT_EQ(store_->list()->size(), 1U);
  EXPECT_TRUE(store_->remove_unfinished());
  EXPECT_TRUE(fs::is_empty(folder_ / "scratch"));
}

TEST_F(RemoteStoreTest, ErrorsOfTheFarSideArriveAndKeysAreCheckedHere) {
  ASSERT_NE(store_, nullptr);
  EXPECT_EQ(store_->get("none", 10).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(store_->put("big", "0123456789", PutMode::kCreate));
  EXPECT_EQ(store_->get("big", 9).error().code, ErrorCode::kData);
  EXPECT_EQ(store_->get("odd", 9).error().code, ErrorCode::kProtocol);
  EXPECT_EQ(store_->put("../x", "y", PutMode::kReplace).error().code, ErrorCode::kConfig);
  EXPECT_EQ(store_->remove("").error().code, ErrorCode::kConfig);
  EXPECT_TRUE(fs::is_empty(folder_ / "scratch"));
}

TEST_F(RemoteStoreTest, FilesOfAFolderAreCopiedAsTheyAre) {
  ASSERT_NE(store_, nullptr);
  auto source = *LocalFolder::open(folder_ / "source");
  ASSERT_TRUE(source->put("x", "content", PutMode::kCreate));
  EXPECT_TRUE(*store_->copy_in(*source, "x", "y", 7));
  EXPECT_FALSE(*store_->copy_in(*source, "x", "y", 7)) << "created if absent";
  EXPECT_EQ(store_->copy_in(*source, "x", "z", 6).error().code, ErrorCode::kData);
  EXPECT_EQ(store_->copy_in(*source, "none", "z", 6).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(store_->get("y", 7)->size(), 7U);
  MemoryStore memory;
  ASSERT_TRUE(memory.put("m", "mem", PutMode::kCreate));
  EXPECT_TRUE(*store_->copy_in(memory, "m", "m", 3)) << "a source without files";
  EXPECT_EQ(store_->get("m", 3)->size(), 3U);
}

TEST_F(RemoteStoreTest, StoppedItRefuses) {
  ASSERT_NE(store_, nullptr);
  store_->stop();
  EXPECT_EQ(store_->list().error().code, ErrorCode::kClosed);
}

TEST(CheckpointStore, AFolderOrAUrl) {
  EXPECT_TRUE(is_store_url("s3://bucket/x"));
  EXPECT_TRUE(is_store_url("file:///x"));
  EXPECT_FALSE(is_store_url("runs/a"));
  EXPECT_FALSE(is_store_url("://x"));
  EXPECT_FALSE(is_store_url("C:/x"));
  const fs::path path = fs::temp_directory_path() / strf("yeto-open-{:x}", random_u64());
  const auto folder = open_checkpoint_store(path.string());
  ASSERT_TRUE(folder);
  EXPECT_FALSE((*folder)->is_shared());
  fs::remove_all(path);
  EXPECT_EQ(open_checkpoint_store("s3://user:secret@bucket").error().code, ErrorCode::kConfig);
}

}  // namespace
}  // namespace yeto::store
