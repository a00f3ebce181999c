// SPDX-License-Identifier: Apache-2.0
// Goal: sessions outlive their data streams, and connections that come and go leave nothing behind.
// Method: a real server, scripted learners, and a proxy between them that cuts connections.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/base/thread.h"
#include "yeto/store/object_store.h"
#include "yeto/sync/link/proxy_testing.h"
#include "yeto/sync/server/scripted_learner_testing.h"
#include "yeto/sync/server/server.h"

namespace yeto::sync {
namespace {

constexpr Nanos kWait = 60 * kSecond;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kReconnects = 1'000;
#else
constexpr std::uint64_t kReconnects = 10'000;
#endif

Layout two_fragments(std::uint64_t rows) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 2; ++i) {
    tensors.push_back({strf("layers.{}.weight", i), {rows, 64}, DType::kF32, MergeMode::kAvg});
  }
  LayoutOptions options;
  options.fragments = 2;
  options.matrix_merge = MergeMode::kAvg;
  return *make_layout(std::move(tensors), options);
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

class StreamsTest : public ::testing::Test {
 protected:
  StreamsTest() { set_log_level(LogLevel::kError); }
  ~StreamsTest() override {
    learners.clear();
    if (server) {
      server->interrupt(0);
      thread_.join();
    }
  }
  void serve(std::uint32_t count) {
    ServerOptions options;
    options.core.run_id = "run";
    options.core.learners = count;
    options.core.quorum_all = true;
    options.core.sync_interval_steps = 2;
    options.core.durability = Durability::kInterval;
    options.core.push_codec = CodecId::kF32;
    options.core.broadcast_codec = CodecId::kF32;
    options.outer = merge::OuterRule::of(merge::OuterKind::kNesterov);
    options.checkpoint = std::make_shared<store::MemoryStore>();
    auto opened = Server::open(std::move(options));
    ASSERT_TRUE(opened) << opened.error().text();
    server = std::move(*opened);
    thread_ = JoiningThread([this] { server->run(); });
  }
  ScriptedLearner& add(std::uint32_t seat, const net::Address& syncer, const Layout& layout) {
    ScriptedOptions options;
    options.syncer = syncer;
    options.seat = seat;
    options.streams = 3;
    options.layout = layout;
    options.step_time = 2 * kMillisecond;
    learners.push_back(std::make_unique<ScriptedLearner>(loop, std::move(options)));
    learners.back()->connect();
    return *learners.back();
  }
  bool wait(const std::function<bool()>& done) { return loop.run_until(done, kWait); }

  net::Loop loop;
  std::unique_ptr<Server> server;
  std::vector<std::unique_ptr<ScriptedLearner>> learners;

 private:
  JoiningThread thread_;
};

TEST_F(StreamsTest, CutDataStreamsCostNoSessionAndNoRound) {
  serve(2);
  Proxy proxy(server->address());
  const Layout layout = two_fragments(8192);  // 2 MiB each
  ScriptedLearner& first = add(0, proxy.address(), layout);
  ScriptedLearner& second = add(1, server->address(), layout);
  EXPECT_TRUE(wait([&] { return first.digests().size() >= 4; }));
  std::vector<std::size_t> streams = {1, 2, 3};  // connections of the proxy; 0 is control
  for (std::size_t cut = 0; cut < 12; ++cut) {
    std::size_t& lost = streams[cut % 3];
    const std::size_t next = proxy.counters().accepted;
    const std::size_t seen = first.digests().size();
    proxy.cut(lost);
    EXPECT_TRUE(wait([&] { return proxy.counters().accepted > next; })) << cut;
    EXPECT_TRUE(wait([&] { return first.digests().size() >= seen + 2; })) << cut;
    lost = next;
  }
  EXPECT_TRUE(wait([&] { return second.digests().size() >= first.digests().size(); }));
  EXPECT_EQ(first.sessions(), 1u);
  EXPECT_EQ(second.sessions(), 1u);
  EXPECT_EQ(first.bad_digests() + second.bad_digests(), 0u);
  EXPECT_FALSE(first.closed()) << *first.closed();
  for (const auto& [version, digest] : first.digests()) {
    const auto other = second.digests().find(version);
    EXPECT_TRUE(other == second.digests().end() || other->second == digest);
  }
}

TEST_F(StreamsTest, ReconnectsLeaveNoDescriptorBehind) {
  serve(1);
  ScriptedLearner& learner = add(0, server->address(), two_fragments(1));
  EXPECT_TRUE(wait([&] { return learner.ready(); }));
  const auto reconnect = [&] {
    const std::uint64_t sessions = learner.sessions();
    learner.disconnect();
    learner.connect();
    return wait([&] { return learner.sessions() > sessions; });
  };
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(reconnect());
  }
  const std::size_t before = open_descriptors();
  for (std::uint64_t i = 0; i < kReconnects; ++i) {
    ASSERT_TRUE(reconnect()) << i;
  }
  // The syncer may not have seen the last ones end yet: a session has four connections, and each
  // has two ends in this process.
  EXPECT_TRUE(wait([&] { return open_descriptors() <= before + 16; }));
  EXPECT_FALSE(learner.refused()) << learner.refused()->text;
}

}  // namespace
}  // namespace yeto::sync
