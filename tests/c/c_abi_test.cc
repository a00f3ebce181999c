// SPDX-License-Identifier: Apache-2.0
// Goal: yeto.h serves a trainer written in C. Method: checks.c, compiled as strict C99 and linked
// to libyeto, lives whole lives against the real server in this process; what C cannot check
// without pain (threads, equality of islands) is checked here.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checks.h"
#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/base/thread.h"
#include "yeto/store/object_store.h"
#include "yeto/sync/server/server.h"

namespace yeto::sync {
namespace {

namespace fs = std::filesystem;

constexpr char kRun[] = "c-run";

class CAbiTest : public testing::Test {
 protected:
  CAbiTest() : folder_(fs::temp_directory_path() / strf("yeto-c-{:016x}", random_u64())) {
    fs::create_directories(folder_);
    token_.fill(0x44);
    for (std::uint32_t seat = 0; seat < 2; ++seat) {
      const SessionKey key = session_key(token_, wire::Role::kLearner, seat);
      EXPECT_TRUE(write_file_atomic(key_file(seat), hex(key), 0600));
    }
  }
  ~CAbiTest() override {
    if (server_) {
      server_->interrupt(99);
    }
    thread_.join();
    server_.reset();
    fs::remove_all(folder_);
  }

  fs::path key_file(std::uint32_t seat) const { return folder_ / strf("seat-{}.key", seat); }

  void start_server(std::uint32_t learners, bool data_leases) {
    ServerOptions options;
    options.core.run_id = kRun;
    options.core.learners = learners;
    options.core.sync_interval_steps = 4;
    options.core.total_steps = 12;
    options.core.heartbeat = 50 * kMillisecond;
    options.core.lease = 60 * kSecond;
    options.core.final_timeout = 60 * kSecond;
    options.core.data_leases = data_leases;
    options.run_token = token_;
    options.endpoint = folder_ / "endpoint.json";
    options.tape = folder_ / "tape.jsonl";
    auto checkpoint = store::LocalFolder::open(folder_ / "checkpoint");
    ASSERT_TRUE(checkpoint);
    options.checkpoint = std::move(*checkpoint);
    Result<std::unique_ptr<Server>> server = Server::open(std::move(options));
    ASSERT_TRUE(server) << server.error().text();
    server_ = std::move(*server);
    thread_ = JoiningThread([this] { exit_code_ = server_->run(); });
  }

  std::unique_ptr<island> make(std::uint32_t seat, bool leased = false) {
    auto made = std::make_unique<island>();
    texts_.push_back("@" + (folder_ / "endpoint.json").string());
    made->syncer = texts_.back().c_str();
    made->run_id = kRun;
    texts_.push_back(key_file(seat).string());
    made->token_file = texts_.back().c_str();
    made->seat = seat;
    made->leased = leased ? 1 : 0;
    made->waiting = 1;
    std::fill(std::begin(made->device), std::end(made->device), 5.0F);
    std::fill(std::begin(made->mirror), std::end(made->mirror), 5.0F);
    return made;
  }
  static std::vector<float> values(const island& it) {
    return {std::begin(it.device), std::end(it.device)};
  }

  fs::path folder_;
  SessionKey token_{};
  std::deque<std::string> texts_;
  std::unique_ptr<Server> server_;
  int exit_code_ = -1;
  JoiningThread thread_;
};

TEST_F(CAbiTest, WhatCannotBeIsRefusedWithAStatusAndAText) {
  EXPECT_EQ(refusals(key_file(0).c_str()), 0);
}

TEST_F(CAbiTest, TwoIslandsInCTrainTogetherAndEndEqual) {
  start_server(2, false);
  const auto first = make(0);
  const auto second = make(1);
  {
    const JoiningThread a([&] { live(first.get()); });
    const JoiningThread b([&] { live(second.get()); });
  }
  for (const island* it : {first.get(), second.get()}) {
    EXPECT_STREQ(it->error, "");
    EXPECT_EQ(it->global_step, 14U);  // 12 rounds and the sweep of two fragments
    EXPECT_GT(it->reads, 0U);
    EXPECT_GT(it->writes, 0U);
    EXPECT_GT(it->applied, 0U);
    EXPECT_GT(it->pushed, 0U);
    EXPECT_GT(it->merged, 0U);
    EXPECT_EQ(it->fragments, 2U);
    EXPECT_GE(it->versions[0], 5U);
  }
  EXPECT_EQ(values(*first), values(*second));
  for (const float value : values(*first)) {
    EXPECT_LT(value, 5.0F);  // towards the targets 0 and 1
  }
  thread_.join();
  EXPECT_EQ(exit_code_, 0);
}

TEST_F(CAbiTest, RowsAreLeasedInC) {
  start_server(1, true);
  const auto only = make(0, true);
  live(only.get());
  EXPECT_STREQ(only->error, "");
  EXPECT_GE(only->rows, only->steps - 1);  // a range may end with fewer than four
}

TEST_F(CAbiTest, ACallbackThatFailsEndsTheCall) {
  start_server(1, false);
  const auto it = make(0);
  EXPECT_EQ(failing_callback(it.get()), 13);
  EXPECT_NE(std::string(it->error).find("after_write returned 7"), std::string::npos) << it->error;
}

TEST_F(CAbiTest, KeepWaitingEndsAWait) {
  const auto it = make(0);
  it->waiting = 0;
  EXPECT_EQ(interrupted_wait(it.get()), 8);
}

}  // namespace
}  // namespace yeto::sync
