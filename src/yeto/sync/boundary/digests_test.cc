// SPDX-License-Identifier: Apache-2.0
// Goal: whatever the codec and whatever happens to a learner, each applied public value has the
// digest that the tape names for that commit, and all islands end with the same bits. Method: real
// server, four learners on threads over loopback: two steady ones, one that joins late, and one
// behind a slow link, which gets chains and whole values instead of each image.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/base/thread.h"
#include "yeto/store/object_store.h"
#include "yeto/sync/boundary/boundary.h"
#include "yeto/sync/server/server.h"

namespace yeto::sync {
namespace {

namespace fs = std::filesystem;

constexpr Nanos kPatience = 120 * kSecond;
constexpr std::uint32_t kLearners = 4;
constexpr std::uint64_t kRounds = 240;
constexpr std::size_t kTensors = 6;
constexpr std::size_t kTensorValues = 10'000;

// Forwards connections to a port of this machine; what flows to the client is limited.
class SlowLink {
 public:
  SlowLink(std::uint16_t to, std::size_t bytes_per_second)
      : to_(to), bytes_per_second_(bytes_per_second) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = local(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    accepting_ = JoiningThread([this] { accept_all(); });
  }
  ~SlowLink() {
    ::shutdown(listener_, SHUT_RDWR);
    accepting_.join();
    ::close(listener_);
    for (const int socket : sockets_) {
      ::shutdown(socket, SHUT_RDWR);
    }
    pumps_.clear();  // joins
    for (const int socket : sockets_) {
      ::close(socket);
    }
  }
  std::uint16_t port() const { return port_; }

 private:
  static sockaddr_in local(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  void accept_all() {
    for (;;) {
      const int client = ::accept(listener_, nullptr, nullptr);
      if (client < 0) {
        return;
      }
      const int server = ::socket(AF_INET, SOCK_STREAM, 0);
      const sockaddr_in address = local(to_);
      if (::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        ::close(client);
        ::close(server);
        continue;
      }
      sockets_.push_back(client);
      sockets_.push_back(server);
      pumps_.emplace_back([this, client, server] { pump(client, server, 0); });
      pumps_.emplace_back([this, client, server] { pump(server, client, bytes_per_second_); });
    }
  }
  // The rate is the link's nature here, not a way to wait for something.
  static void pump(int from, int to, std::size_t bytes_per_second) {
    std::vector<char> buffer(4096);
    for (;;) {
      const ssize_t got = ::recv(from, buffer.data(), buffer.size(), 0);
      if (got <= 0 ||
          ::send(to, buffer.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL) != got) {
        ::shutdown(from, SHUT_RDWR);
        ::shutdown(to, SHUT_RDWR);
        return;
      }
      if (bytes_per_second != 0) {
        std::this_thread::sleep_for(std::chrono::nanoseconds(static_cast<std::uint64_t>(got) *
                                                             1'000'000'000 / bytes_per_second));
      }
    }
  }

  const std::uint16_t to_;
  const std::size_t bytes_per_second_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  std::vector<int> sockets_;  // of the accepting thread, then of the destructor
  std::vector<JoiningThread> pumps_;
  JoiningThread accepting_;
};

// One learner with its own values; remembers the digest of each version it applied.
struct Learner {
  std::vector<std::vector<float>> tensors =
      std::vector<std::vector<float>>(kTensors, std::vector<float>(kTensorValues, 1.0F));
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::string> digests;
  std::uint64_t overwritten = 0;
  StepReport last;
  std::string error;
};

class DigestsTest : public testing::TestWithParam<CodecId> {
 protected:
  DigestsTest() : folder_(fs::temp_directory_path() / strf("yeto-digests-{:016x}", random_u64())) {
    fs::create_directories(folder_);
    token_.fill(0x21);
  }
  ~DigestsTest() override { fs::remove_all(folder_); }

  ServerOptions server_options() const {
    ServerOptions options;
    options.core.run_id = "digests";
    options.core.learners = 3;
    options.core.quorum = 2;
    options.core.grace_cap = 0;
    options.core.sync_interval_steps = 4;
    options.core.total_steps = kRounds;
    options.core.push_codec = GetParam();
    options.core.broadcast_codec = GetParam();
    options.core.heartbeat = 50 * kMillisecond;
    options.core.lease = kPatience;
    options.core.final_timeout = kPatience;
    options.run_token = token_;
    options.tape = folder_ / "tape.jsonl";
    options.checkpoint = std::make_shared<store::MemoryStore>();
    return options;
  }

  void learn(std::uint32_t seat, std::uint16_t port, Learner& it) const {
    BoundaryOptions options;
    options.syncer = strf("127.0.0.1:{}", port);
    options.run_id = "digests";
    options.seat = seat;
    options.token_file = folder_ / strf("seat-{}.key", seat);
    EXPECT_TRUE(write_file_atomic(options.token_file,
                                  hex(session_key(token_, wire::Role::kLearner, seat)), 0600));
    options.layout.fragments = 3;
    options.streams = 1;
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < kTensors; ++i) {
      views.push_back({strf("layers.{}.weight", i), {kTensorValues}, it.tensors[i]});
    }
    auto boundary = Boundary::open(options, std::move(views));
    ASSERT_TRUE(boundary) << boundary.error().text();
    const auto ready = (*boundary)->wait_ready(kPatience);
    ASSERT_TRUE(ready) << ready.error().text();
    (*boundary)->set_phase(wire::Phase::kTrain);
    Rng rng(seat + 1);
    while (!it.last.draining) {
      optimizer_step(seat, rng, it);
      auto report = (*boundary)->step(10 + seat);
      if (!report) {
        it.error = report.error().text();
        return;
      }
      for (const AppliedFragment& applied : report->applied) {
        it.digests[{applied.fragment, applied.version}] = hex(applied.digest);
        it.overwritten += applied.overwritten ? 1 : 0;
      }
      it.last = std::move(*report);
    }
    const auto final = (*boundary)->finalize(FinalizeReason::kDrain, kPatience);
    it.error = final ? "" : final.error().text();
  }
  static void optimizer_step(std::uint32_t seat, Rng& rng, Learner& it) {
    const auto target = static_cast<float>(seat) * 0.5F;
    for (std::vector<float>& tensor : it.tensors) {
      const auto noise = static_cast<float>(rng.uniform()) * 0.01F;
      for (float& value : tensor) {
        value -= 0.02F * (value - target) + noise * value;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // what a step takes
  }

  std::map<std::pair<std::uint32_t, std::uint64_t>, std::string> tape_digests() const {
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::string> out;
    std::ifstream in(folder_ / "tape.jsonl");
    for (std::string line; std::getline(in, line);) {
      // The last line may be half written at this moment.
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (json.is_object() && json["event"] == "round" && json["committed"] == true) {
        out[{json["fragment"], json["version"]}] = json["digest"];
      }
    }
    return out;
  }

  const fs::path folder_;
  SessionKey token_{};
};

TEST_P(DigestsTest, EveryIslandHoldsThePublicValuesOfTheTape) {
  auto server = Server::open(server_options());
  ASSERT_TRUE(server) << server.error().text();
  const std::uint16_t port = (*server)->address().port;
  int exit_code = -1;
  std::vector<Learner> learners(kLearners);
  {
    const JoiningThread serving([&] { exit_code = (*server)->run(); });
    SlowLink slow(port, 300'000);
    std::vector<JoiningThread> threads;
    threads.emplace_back([&] { learn(0, port, learners[0]); });
    threads.emplace_back([&] { learn(1, slow.port(), learners[1]); });
    std::atomic<bool> joined{false};
    threads.emplace_back([&] {
      learn(2, port, learners[2]);
      joined = true;
    });
    // The fourth joins when training is under way.
    threads.emplace_back([&] {
      const Nanos limit = monotonic_now() + kPatience;
      while (tape_digests().size() < 6 && !joined && monotonic_now() < limit) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      learn(3, port, learners[3]);
    });
    threads.clear();
    if (HasFailure()) {
      (*server)->interrupt(1);
    }
  }
  EXPECT_EQ(exit_code, 0);
  const auto tape = tape_digests();
  EXPECT_GE(tape.size(), kRounds);
  for (const Learner& it : learners) {
    EXPECT_EQ(it.error, "");
    EXPECT_FALSE(it.digests.empty());
    for (const auto& [which, digest] : it.digests) {
      if (which.second > 0) {
        ASSERT_TRUE(tape.contains(which)) << which.first << " version " << which.second;
        EXPECT_EQ(digest, tape.at(which)) << which.first << " version " << which.second;
      }
    }
    EXPECT_EQ(it.overwritten, 0U);  // nothing after the join
    EXPECT_EQ(it.tensors, learners[0].tensors);
  }
  EXPECT_GT(learners[0].digests.size(), learners[1].digests.size());  // the slow one skips versions
  EXPECT_EQ(learners[0].last.residual_norm > 0.0, GetParam() == CodecId::kQ4);
}

INSTANTIATE_TEST_SUITE_P(Codecs, DigestsTest,
                         testing::Values(CodecId::kF32, CodecId::kBf16, CodecId::kQ4),
                         [](const auto& which) {
                           return which.param == CodecId::kF32    ? "F32"
                                  : which.param == CodecId::kBf16 ? "Bf16"
                                                                  : "Q4";
                         });

}  // namespace
}  // namespace yeto::sync
