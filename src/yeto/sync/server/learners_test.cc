// SPDX-License-Identifier: Apache-2.0
// Goal: a run of real learners goes well whatever dies: it ends, all islands hold the same bits,
// the ledger balances, and training has got somewhere. Method: three learners on threads, each with
// a Boundary, pull a quadratic towards their own targets; the syncer is a real server, here or in a
// child process that is killed. Waits are on conditions.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
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
#include "yeto/sync/boundary/boundary.h"
#include "yeto/sync/server/server.h"

namespace yeto::sync {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::uint32_t kLearners = 3;
constexpr Nanos kPatience = 60 * kSecond;
constexpr char kRun[] = "quadratic";
// What one optimizer step of the toy takes.
constexpr auto kStepTime = std::chrono::milliseconds(2);

SessionKey test_token() {
  SessionKey token{};
  token.fill(0x33);
  return token;
}

// One process of an island. Its loss is the distance of all values to a target of its seat; the
// mean of the targets is 1.
class Island {
 public:
  Island(fs::path folder, std::uint32_t seat) : folder_(std::move(folder)), seat_(seat) {
    for (std::vector<float>& tensor : tensors_) {
      tensor.assign(24 * 16, 5.0F);
    }
    thread_ = JoiningThread([this] { outcome_ = train(); });
  }
  // The process dies: no word to the syncer, nothing is saved.
  void kill() {
    killed_ = true;
    thread_.join();
  }
  void join() { thread_.join(); }
  // "done", or what went wrong.
  const std::string& outcome() const { return outcome_; }
  const std::vector<std::vector<float>>& tensors() const { return tensors_; }
  std::uint64_t steps() const { return steps_; }

 private:
  std::string train() {
    BoundaryOptions options;
    options.syncer = "@" + (folder_ / "endpoint.json").string();
    options.run_id = kRun;
    options.seat = seat_;
    options.token_file = folder_ / strf("seat-{}.key", seat_);
    options.layout.fragments = 4;
    options.contract = {{"model", "quadratic"}};
    options.streams = 2;
    options.device = "cpu";
    options.retry_first = from_millis(20);
    options.retry_most = from_millis(100);
    options.keep_waiting = [this] { return !killed_; };
    std::vector<TensorView> views;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      views.push_back({strf("layers.{}.weight", i), {24, 16}, tensors_[i]});
    }
    auto boundary = Boundary::open(std::move(options), std::move(views));
    if (!boundary) {
      return boundary.error().text();
    }
    const auto ready = (*boundary)->wait_ready(kPatience);
    if (!ready) {
      return ready.error().text();
    }
    return steps_until_drained(**boundary);
  }
  std::string steps_until_drained(Boundary& boundary) {
    boundary.set_phase(wire::Phase::kTrain);
    for (bool draining = false; !draining;) {
      if (killed_) {
        return "killed";
      }
      optimizer_step();
      const auto report = boundary.step(10 + seat_);
      if (!report) {
        return report.error().text();
      }
      ++steps_;
      draining = report->draining;
    }
    const auto final = boundary.finalize(FinalizeReason::kDrain, kPatience);
    return final ? "done" : final.error().text();
  }
  void optimizer_step() {
    const float target = static_cast<float>(seat_);  // 0, 1, 2
    for (std::vector<float>& tensor : tensors_) {
      for (float& value : tensor) {
        value -= 0.05F * (value - target);
      }
    }
    std::this_thread::sleep_for(kStepTime);
  }

  const fs::path folder_;
  const std::uint32_t seat_;
  std::vector<std::vector<float>> tensors_ = std::vector<std::vector<float>>(5);
  std::atomic<bool> killed_{false};
  std::atomic<std::uint64_t> steps_{0};
  std::string outcome_;  // read after join()
  JoiningThread thread_;
};

class LearnersTest : public ::testing::Test {
 protected:
  LearnersTest()
      : folder_(fs::temp_directory_path() / strf("yeto-learners-{:016x}", random_u64())) {
    fs::create_directories(folder_);
    for (std::uint32_t seat = 0; seat < kLearners; ++seat) {
      const SessionKey key = session_key(test_token(), wire::Role::kLearner, seat);
      EXPECT_TRUE(write_file_atomic(folder_ / strf("seat-{}.key", seat), hex(key), 0600));
    }
  }
  ~LearnersTest() override {
    islands_.clear();
    if (server_) {
      server_->interrupt(99);
    }
    thread_.join();
    server_.reset();
    fs::remove_all(folder_);
  }

  ServerOptions server_options(std::uint64_t total_steps) const {
    ServerOptions options;
    options.core.run_id = kRun;
    options.core.learners = kLearners;
    options.core.sync_interval_steps = 8;
    options.core.total_steps = total_steps;
    options.core.lease = 500 * kMillisecond;
    options.core.heartbeat = 50 * kMillisecond;
    options.core.final_timeout = 30 * kSecond;
    options.outer = merge::OuterRule::of(merge::OuterKind::kNesterov);
    options.run_token = test_token();
    options.endpoint = folder_ / "endpoint.json";
    options.status = folder_ / "status.json";
    options.tape = folder_ / "tape.jsonl";
    options.status_interval = 20 * kMillisecond;
    return options;
  }
  static Result<std::unique_ptr<Server>> open(ServerOptions options, const fs::path& folder) {
    YETO_ASSIGN(options.checkpoint, store::LocalFolder::open(folder / "checkpoint"));
    return Server::open(std::move(options));
  }
  void start_server(const ServerOptions& options) {
    Result<std::unique_ptr<Server>> server = open(options, folder_);
    ASSERT_TRUE(server) << server.error().text();
    server_ = std::move(*server);
    thread_ = JoiningThread([this] { exit_code_ = server_->run(); });
  }
  void start_islands() {
    for (std::uint32_t seat = 0; seat < kLearners; ++seat) {
      islands_.push_back(std::make_unique<Island>(folder_, seat));
    }
  }
  // A seat whose process was replaced gives something to the run before that ends; how fast rounds
  // go must not matter, so the run has no number of rounds.
  void finish_when_merged(std::uint32_t seat) {
    const std::size_t joins = kLearners + 1;
    ASSERT_TRUE(until([&] { return tape("join").size() == joins; })) << status();
    const auto merged = [&] { return status()["seats"][seat].value("merged", std::uint64_t{0}); };
    const std::uint64_t before = merged();
    ASSERT_TRUE(until([&] { return merged() > before; })) << status();
    server_->request_finish(wire::FinishMode::kFinish, "seen enough");
  }
  void expect_all_done() {
    for (const auto& island : islands_) {
      island->join();
      EXPECT_EQ(island->outcome(), "done");
    }
  }
  // Polls what other processes and threads write to files.
  static bool until(const std::function<bool()>& done) {
    const Nanos limit = monotonic_now() + kPatience;
    while (!done()) {
      if (monotonic_now() > limit) {
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }
  Json status() const {
    const Result<std::string> text = read_text_file(folder_ / "status.json");
    return text ? Json::parse(*text) : Json::object();
  }
  std::uint64_t global_step() const { return status().value("global_step", std::uint64_t{0}); }
  std::vector<Json> tape(const std::string& event) const {
    std::vector<Json> out;
    std::ifstream in(folder_ / "tape.jsonl");
    for (std::string line; std::getline(in, line);) {
      // The last line may be half written at this moment.
      Json json = Json::parse(line, nullptr, false);
      if (json.is_object() && json["event"] == event) {
        out.push_back(std::move(json));
      }
    }
    return out;
  }

  void expect_a_good_end() {
    const Json end = status();
    const Json& ledger = end["ledger"];
    EXPECT_EQ(ledger["pushed"].get<std::uint64_t>(), ledger["merged"].get<std::uint64_t>() +
                                                         ledger["dropped"].get<std::uint64_t>() +
                                                         ledger["waiting"].get<std::uint64_t>())
        << ledger;
    EXPECT_EQ(ledger["waiting"], 0) << ledger;
    if (!end["total_steps"].is_null()) {
      EXPECT_EQ(end["global_step"], end["total_steps"]) << end;
    }
    EXPECT_EQ(end["durable_step"], end["global_step"]) << end;
    std::uint64_t tokens = 0;
    for (const Json& seat : end["seats"]) {
      tokens += seat["tokens"].get<std::uint64_t>();
      EXPECT_EQ(seat["state"], "done") << seat;
    }
    EXPECT_EQ(end["run_tokens"], tokens);
    for (const auto& island : islands_) {
      EXPECT_EQ(island->tensors(), islands_[0]->tensors()) << "values differ between islands";
    }
    // All began at 5, the mean of the targets is 1; momentum may carry a short run past it.
    for (const float value : islands_[0]->tensors()[0]) {
      ASSERT_LT(std::abs(value - 1.0F), 3.5F);
    }
    expect_commits_on_tape();
  }
  // A syncer that dies between a durable commit and its tape line leaves that one line out.
  void expect_commits_on_tape() const {
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::string> digests;
    for (const Json& round : tape("round")) {
      if (round["committed"] != true) {
        continue;
      }
      const auto key = std::make_pair(round["fragment"].get<std::uint32_t>(),
                                      round["version"].get<std::uint64_t>());
      // A later term may commit a version again that died with the one before it.
      digests[key] = round["digest"];
      EXPECT_GE(round["responded"].size(), 1U) << round;
    }
    const Json end = status();
    std::size_t missing = 0;
    for (std::uint32_t fragment = 0; fragment < end["fragments"].size(); ++fragment) {
      const std::uint64_t version = end["fragments"][fragment]["version"];
      for (std::uint64_t v = 1; v <= version; ++v) {
        missing += 1 - digests.count({fragment, v});
      }
    }
    EXPECT_LE(missing, tape("run").size() - 1);
  }

  fs::path folder_;
  std::unique_ptr<Server> server_;
  std::atomic<int> exit_code_{-1};
  JoiningThread thread_;
  std::vector<std::unique_ptr<Island>> islands_;
};

TEST_F(LearnersTest, ThreeLearnersReachTheEndWithEqualBits) {
  start_server(server_options(24));
  start_islands();
  expect_all_done();
  thread_.join();
  EXPECT_EQ(exit_code_, 0);
  expect_a_good_end();
  EXPECT_TRUE(tape("lost").empty());
}

TEST_F(LearnersTest, KilledLearnerIsLostAndRejoins) {
  start_server(server_options(0));
  start_islands();
  ASSERT_TRUE(until([&] { return global_step() >= 8; })) << status();
  islands_[1]->kill();
  EXPECT_EQ(islands_[1]->outcome(), "killed");
  ASSERT_TRUE(until([&] { return !tape("lost").empty(); })) << status();
  const std::uint64_t step = global_step();
  ASSERT_TRUE(until([&] { return global_step() > step + 4; })) << status();
  islands_[1] = std::make_unique<Island>(folder_, 1);
  finish_when_merged(1);
  expect_all_done();
  thread_.join();
  EXPECT_EQ(exit_code_, 0);
  EXPECT_GT(islands_[1]->steps(), 0U);
  EXPECT_EQ(tape("join").size(), 4U);
  expect_a_good_end();
}

TEST_F(LearnersTest, LearnerThatIsStartedAgainAtOnceTakesItsSeatBack) {
  start_server(server_options(0));
  start_islands();
  ASSERT_TRUE(until([&] { return global_step() >= 8; })) << status();
  islands_[2]->kill();
  islands_[2] = std::make_unique<Island>(folder_, 2);
  finish_when_merged(2);
  expect_all_done();
  thread_.join();
  EXPECT_EQ(exit_code_, 0);
  expect_a_good_end();
}

// The lives of a syncer as child processes. They are forked before this process has threads; the
// second one waits for a byte.
class SyncerLives {
 public:
  explicit SyncerLives(const std::function<int(bool resume)>& life) {
    for (int i = 0; i < 2; ++i) {
      int ends[2];
      YETO_CHECK(::pipe(ends) == 0, "pipe");
      pids_[i] = ::fork();
      YETO_CHECK(pids_[i] >= 0, "fork");
      if (pids_[i] == 0) {
        char byte = 0;
        ::close(ends[1]);
        ::_exit(::read(ends[0], &byte, 1) == 1 ? life(i == 1) : 0);
      }
      ::close(ends[0]);
      go_[i] = FileHandle(ends[1]);
    }
  }
  ~SyncerLives() {
    for (const pid_t pid : pids_) {
      if (pid > 0) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
      }
    }
  }
  SyncerLives(const SyncerLives&) = delete;
  SyncerLives& operator=(const SyncerLives&) = delete;
  void begin(int life) { YETO_CHECK(::write(go_[life].get(), "x", 1) == 1, "write"); }
  void kill(int life) {
    ::kill(pids_[life], SIGKILL);
    ::waitpid(pids_[life], nullptr, 0);
    pids_[life] = 0;
  }
  // The exit code.
  int wait(int life) {
    int status = 0;
    ::waitpid(pids_[life], &status, 0);
    pids_[life] = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256;
  }

 private:
  pid_t pids_[2] = {};
  FileHandle go_[2];
};

TEST_F(LearnersTest, KilledSyncerIsResumedFromItsCheckpoint) {
  ServerOptions options = server_options(100);
  SyncerLives lives([&](bool resume) {
    options.resume = resume;
    Result<std::unique_ptr<Server>> server = open(options, folder_);
    if (!server) {
      std::fputs(server.error().text().c_str(), stderr);
      return 1;
    }
    return (*server)->run();
  });
  lives.begin(0);
  start_islands();
  ASSERT_TRUE(until([&] { return global_step() >= 20; })) << status();
  lives.kill(0);
  const std::uint64_t durable = status()["durable_step"];
  std::vector<std::uint64_t> steps;
  for (const auto& island : islands_) {
    steps.push_back(island->steps());
  }
  // A lost syncer never stops training.
  ASSERT_TRUE(until([&] {
    for (std::size_t i = 0; i < islands_.size(); ++i) {
      if (islands_[i]->steps() < steps[i] + 20) {
        return false;
      }
    }
    return true;
  }));
  lives.begin(1);
  ASSERT_TRUE(until([&] { return status().value("term", 0) == 2; }));
  EXPECT_GE(global_step(), durable);
  expect_all_done();
  EXPECT_EQ(lives.wait(1), 0);
  expect_a_good_end();
  const std::vector<Json> runs = tape("run");
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[1]["resumed"], true);
}

}  // namespace
}  // namespace yeto::sync
