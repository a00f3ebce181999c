// SPDX-License-Identifier: Apache-2.0
// Goal: LocalProvider starts, watches, ends and finds real processes. Waits are bounded and on a
// condition.
#include "yeto/fleet/providers/local.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>

#include "yeto/base/clock.h"
#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/fleet/providers/process.h"

namespace yeto::fleet {
namespace {

namespace fs = std::filesystem;

class LocalProviderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "yeto-local-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    dir_ = name;
  }
  void TearDown() override {
    for (const Handle& handle : made_) {
      provider_.terminate(handle, Force::kKill, [](const Result<Unit>&) {});
      EXPECT_TRUE(until([&] { return gone(handle); }));
    }
    fs::remove_all(dir_);
  }
  Result<Handle> run(const std::string& script, const std::string& token = "t") {
    Result<Handle> out = fail(ErrorCode::kInternal, "no answer");
    provider_.create(Intent{token, {"/bin/sh", "-c", script}, {"COLOUR=blue"}, dir_ / "log"},
                     [&](Result<Handle> made) { out = std::move(made); });
    if (out) {
      made_.push_back(*out);
    }
    return out;
  }
  NodeReport observe(const Handle& handle) {
    NodeReport out;
    provider_.observe(handle,
                      [&](Result<NodeReport> report) { out = report.value_or(NodeReport{}); });
    return out;
  }
  bool gone(const Handle& handle) {
    bool out = false;
    provider_.verify_gone(
        handle, [&](Result<GoneVerdict> verdict) { out = verdict == GoneVerdict::kGone; });
    return out;
  }
  template <class Condition>
  static bool until(Condition condition, double limit_s = 20) {
    const Nanos end = monotonic_now() + from_seconds(limit_s);
    while (!condition()) {
      if (monotonic_now() > end) {
        return false;
      }
      ::poll(nullptr, 0, 10);
    }
    return true;
  }
  std::string log() { return read_text_file(dir_ / "log").value_or(""); }

  fs::path dir_;
  LocalProvider provider_;
  std::vector<Handle> made_;
};

TEST_F(LocalProviderTest, ExitCodeSignalAndOutputAreKept) {
  const Result<Handle> good = run("echo out; echo err >&2; echo $COLOUR $YETO_PROCESS; exit 7");
  ASSERT_TRUE(good) << good.error().text();
  ASSERT_TRUE(until([&] { return observe(*good).state == NodeState::kGone; }));
  EXPECT_EQ(observe(*good).exit, 7);
  EXPECT_EQ(log(), "out\nerr\nblue t\n");
  const Result<Handle> killed = run("kill -9 $$", "k");
  ASSERT_TRUE(killed);
  ASSERT_TRUE(until([&] { return observe(*killed).state == NodeState::kGone; }));
  EXPECT_EQ(observe(*killed).signal, SIGKILL);
  EXPECT_FALSE(observe(*killed).exit.has_value());
}

TEST_F(LocalProviderTest, AMissingProgramIsNamed) {
  Result<Handle> out = Handle{};
  provider_.create(Intent{"t", {"/no/such/program"}, {}, dir_ / "log"},
                   [&](Result<Handle> made) { out = std::move(made); });
  ASSERT_FALSE(out);
  EXPECT_NE(out.error().what.find("/no/such/program"), std::string::npos);
}

TEST_F(LocalProviderTest, ASecondCreateOfALiveTokenReturnsIt) {
  const Result<Handle> first = run("exec sleep 600");
  const Result<Handle> second = run("exec sleep 600");
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*first, *second);
}

TEST_F(LocalProviderTest, TheWholeGroupIsEnded) {
  const Result<Handle> handle = run("sleep 600 & echo $!; wait");
  ASSERT_TRUE(handle);
  ASSERT_TRUE(until([&] { return group_members(handle->pid).size() == 2; }));
  EXPECT_FALSE(gone(*handle));
  provider_.terminate(*handle, Force::kAsk, [](const Result<Unit>& done) { EXPECT_TRUE(done); });
  EXPECT_TRUE(until([&] { return gone(*handle); }));
  EXPECT_TRUE(group_members(handle->pid).empty());
  EXPECT_EQ(observe(*handle).signal, SIGTERM);
}

TEST_F(LocalProviderTest, WorkersOfADeadLeaderAreEndedToo) {
  const Result<Handle> handle = run("sleep 600 & exit 3");
  ASSERT_TRUE(handle);
  ASSERT_TRUE(until([&] { return observe(*handle).state == NodeState::kGone; }));
  EXPECT_FALSE(gone(*handle)) << "its worker lives";
  provider_.terminate(*handle, Force::kKill, [](const Result<Unit>&) {});
  EXPECT_TRUE(until([&] { return gone(*handle); }));
}

TEST_F(LocalProviderTest, AReusedPidIsNotSignalled) {
  const Result<Handle> handle = run("exec sleep 600");
  ASSERT_TRUE(handle);
  Handle other = *handle;
  other.start_time += 1;  // what a stale record would say
  EXPECT_FALSE(is_alive(other));
  provider_.terminate(other, Force::kKill, [](const Result<Unit>& done) { EXPECT_TRUE(done); });
  EXPECT_TRUE(gone(other));
  EXPECT_TRUE(is_alive(*handle));
}

TEST_F(LocalProviderTest, AProcessIsFoundByItsToken) {
  const std::string token = strf("find-{}", own_handle().pid);
  const Result<Handle> handle = run("exec sleep 600", token);
  ASSERT_TRUE(handle);
  std::vector<Handle> found;
  // Between fork and exec the environment is still the parent's.
  ASSERT_TRUE(until([&] {
    provider_.find(token, [&](Result<std::vector<Handle>> list) {
      found = list.value_or(std::vector<Handle>{});
    });
    return !found.empty();
  }));
  EXPECT_EQ(found, std::vector<Handle>{*handle});
  provider_.find(token + "x",
                 [&](Result<std::vector<Handle>> list) { EXPECT_TRUE(list && list->empty()); });
}

TEST_F(LocalProviderTest, AStoppedProcessNeedsTheKill) {
  const Result<Handle> handle = run("exec sleep 600");
  ASSERT_TRUE(handle);
  ASSERT_EQ(::kill(static_cast<pid_t>(handle->pid), SIGSTOP), 0);
  EXPECT_EQ(observe(*handle).state, NodeState::kUp);
  provider_.terminate(*handle, Force::kKill, [](const Result<Unit>&) {});
  EXPECT_TRUE(until([&] { return gone(*handle); }));
}

}  // namespace
}  // namespace yeto::fleet
