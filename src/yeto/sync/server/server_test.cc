// SPDX-License-Identifier: Apache-2.0
// Goal: the syncer's process keeps its promises to strangers, learners, disks and signals.
// Method: a real server on its own threads and a free port of loopback; scripted learners and raw
// sockets on the test's loop; waits are bounded and on conditions.
#include "yeto/sync/server/server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/base/thread.h"
#include "yeto/sync/server/raw_peer_testing.h"
#include "yeto/sync/server/scripted_learner_testing.h"

namespace yeto::sync {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr Nanos kWait = 30 * kSecond;
constexpr char kRun[] = "test-run";

Layout small_layout(std::uint64_t rows = 64) {
  std::vector<TensorSpec> tensors;
  tensors.push_back({"layers.0.weight", {rows, 16}, DType::kF32, MergeMode::kRda});
  tensors.push_back({"layers.1.weight", {48, 16}, DType::kF32, MergeMode::kRda});
  LayoutOptions options;
  options.fragments = 2;
  return *make_layout(std::move(tensors), options);
}

SessionKey test_token() {
  SessionKey token{};
  token.fill(0x5a);
  return token;
}

// A connection whose first bytes are given, after the CHALLENGE has been read.
class BytesPeer {
 public:
  BytesPeer(net::Loop& loop, const net::Address& address, Bytes first) : first_(std::move(first)) {
    connecting_ = net::connect(loop, address, kWait, [this](auto connection) {
      ASSERT_TRUE(connection) << connection.error().text();
      connection_ = std::move(*connection);
      connection_->set_close_handler([this](const Error&) { lost_ = true; });
      const ByteView parts[] = {first_};
      connection_->write(parts, nullptr);
      read();
    });
  }
  bool lost() const { return lost_; }
  // REFUSED's text stands in its payload as plain bytes.
  bool heard(std::string_view text) const {
    return std::string_view(reinterpret_cast<const char*>(heard_.data()), heard_.size())
               .find(text) != std::string_view::npos;
  }

 private:
  void read() {
    connection_->read_some(buffer_, [this](std::size_t bytes) {
      heard_.insert(heard_.end(), buffer_.begin(), buffer_.begin() + static_cast<long>(bytes));
      read();
    });
  }

  Bytes first_;
  Bytes heard_;
  std::array<std::uint8_t, 4096> buffer_{};
  std::unique_ptr<net::Connecting> connecting_;
  std::unique_ptr<net::Connection> connection_;
  bool lost_ = false;
};

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() : folder_(fs::temp_directory_path() / strf("yeto-server-{:016x}", random_u64())) {
    fs::create_directories(folder_);
    options_.core.run_id = kRun;
    options_.core.learners = 2;
    options_.core.sync_interval_steps = 2;
    options_.core.total_steps = 6;
    options_.core.lease = 2 * kSecond;
    options_.core.heartbeat = 50 * kMillisecond;
    options_.core.final_timeout = 10 * kSecond;
    options_.outer = merge::OuterRule::of(merge::OuterKind::kNesterov);
    options_.run_token = test_token();
    options_.endpoint = folder_ / "endpoint.json";
    options_.status = folder_ / "status.json";
    options_.tape = folder_ / "tape.jsonl";
    options_.status_interval = 20 * kMillisecond;
    open_folder();
  }
  ~ServerTest() override {
    learners_.clear();
    stop();
    server_.reset();
    fs::remove_all(folder_);
  }

  void open_folder(store::LocalFolder::BeforeStep before_step = {}) {
    auto folder = store::LocalFolder::open(folder_ / "checkpoint", std::move(before_step));
    ASSERT_TRUE(folder) << folder.error().text();
    options_.checkpoint = *folder;
  }
  void start() {
    Result<std::unique_ptr<Server>> server = Server::open(options_);
    ASSERT_TRUE(server) << server.error().text();
    server_ = std::move(*server);
    ended_ = false;
    thread_ = JoiningThread([this] {
      exit_code_ = server_->run();
      ended_ = true;
    });
  }
  // Ends a server that a test left running.
  void stop() {
    if (server_ && !ended_) {
      server_->interrupt(99);
    }
    thread_.join();
  }
  bool until(const std::function<bool()>& done) {
    net::TimerId timer = 0;
    const std::function<void()> tick = [&] { timer = loop_.after(2 * kMillisecond, tick); };
    tick();
    const bool value = loop_.run_until(done, kWait);
    loop_.cancel(timer);
    return value;
  }
  bool until_ended() {
    const bool value = until([&] { return ended_.load(); });
    thread_.join();
    return value;
  }
  ScriptedOptions learner_options(std::uint32_t seat) const {
    ScriptedOptions options;
    options.syncer = server_->address();
    options.run_id = kRun;
    options.run_token = test_token();
    options.seat = seat;
    options.layout = small_layout();
    options.contract = {{"model", {1, 2, 3}}, {"tokenizer", {4}}};
    options.step_time = 2 * kMillisecond;
    return options;
  }
  ScriptedLearner& add_learner(ScriptedOptions options) {
    learners_.push_back(std::make_unique<ScriptedLearner>(loop_, std::move(options)));
    learners_.back()->connect();
    return *learners_.back();
  }
  ScriptedLearner& add_learner(std::uint32_t seat) { return add_learner(learner_options(seat)); }
  // The text a learner with these options is refused with.
  std::string refusal(ScriptedOptions options) {
    ScriptedLearner& learner = add_learner(std::move(options));
    EXPECT_TRUE(until([&] { return learner.refused() || learner.closed() || learner.welcomed(); }));
    return learner.refused() ? learner.refused()->text : "not refused";
  }
  // Connects with these first bytes; true if the answer holds the text and the connection then
  // ends.
  testing::AssertionResult turned_away(Bytes first, std::string_view text) {
    BytesPeer peer(loop_, server_->address(), std::move(first));
    if (!until([&] { return peer.lost(); })) {
      return testing::AssertionFailure() << "the connection stays open";
    }
    if (!peer.heard(text)) {
      return testing::AssertionFailure() << "the answer does not hold '" << text << "'";
    }
    return testing::AssertionSuccess();
  }
  Json status() const {
    const Result<std::string> text = read_text_file(options_.status);
    return text ? Json::parse(*text) : Json(nullptr);
  }
  std::vector<Json> tape(const std::string& event = {}) const {
    std::vector<Json> out;
    std::ifstream in(options_.tape);
    for (std::string line; std::getline(in, line);) {
      Json json = Json::parse(line);
      if (event.empty() || json["event"] == event) {
        out.push_back(std::move(json));
      }
    }
    return out;
  }
  std::uint64_t global_step() const {
    const Json now = status();
    return now.is_object() ? now["global_step"].get<std::uint64_t>() : 0;
  }
  void expect_ledger_balances() const {
    const Json ledger = status()["ledger"];
    EXPECT_EQ(ledger["pushed"].get<std::uint64_t>(), ledger["merged"].get<std::uint64_t>() +
                                                         ledger["dropped"].get<std::uint64_t>() +
                                                         ledger["waiting"].get<std::uint64_t>())
        << ledger;
    EXPECT_EQ(ledger["waiting"], 0) << ledger;
    EXPECT_GT(ledger["merged"], 0) << ledger;
  }
  // Every image a learner holds has the digest the tape gives for that version.
  void expect_digests_as_on_tape() const {
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::string> on_tape;
    for (const Json& round : tape("round")) {
      if (round["committed"] == true) {
        on_tape[{round["fragment"], round["version"]}] = round["digest"];
      }
    }
    std::size_t compared = 0;
    for (const auto& learner : learners_) {
      EXPECT_EQ(learner->bad_digests(), 0U);
      for (const auto& [key, digest] : learner->digests()) {
        if (on_tape.count(key) != 0) {
          EXPECT_EQ(on_tape[key], hex(digest));
          ++compared;
        }
      }
    }
    EXPECT_GT(compared, 0U);
  }

  fs::path folder_;
  ServerOptions options_;
  net::Loop loop_;
  std::unique_ptr<Server> server_;
  JoiningThread thread_;
  std::atomic<bool> ended_{false};
  std::atomic<int> exit_code_{-1};
  std::vector<std::unique_ptr<ScriptedLearner>> learners_;
};

// ---- strangers
// -------------------------------------------------------------------------------------------

TEST_F(ServerTest, WrongMagicIsRefusedByName) {
  start();
  Bytes frame = wire::encode_frame(wire::Type::kHello, 0, wire::encode_message(wire::Hello{}));
  frame[0] = 'H';
  EXPECT_TRUE(turned_away(frame, "magic"));
}

TEST_F(ServerTest, WrongMajorIsRefusedByName) {
  start();
  Bytes frame = wire::encode_frame(wire::Type::kHello, 0, wire::encode_message(wire::Hello{}));
  frame[4] = 9;
  EXPECT_TRUE(turned_away(frame, "major"));
}

TEST_F(ServerTest, FirstFrameOver16KiBIsRefusedBeforeItIsRead) {
  start();
  Bytes header(wire::kHeaderBytes);
  wire::encode_header({wire::Type::kHello, wire::kMaxUnadmittedBytes + 1, 0, 0},
                      std::span<std::uint8_t, wire::kHeaderBytes>(header));
  EXPECT_TRUE(turned_away(header, "HELLO"));
}

TEST_F(ServerTest, DamagedFirstFrameIsRefused) {
  start();
  Bytes frame = wire::encode_frame(wire::Type::kHello, 0, wire::encode_message(wire::Hello{}));
  frame.back() ^= 1;
  EXPECT_TRUE(turned_away(frame, "CRC"));
}

TEST_F(ServerTest, FirstFrameMustBeHelloOrAttach) {
  start();
  RawPeer peer(loop_, server_->address());
  ASSERT_TRUE(until([&] { return peer.got<wire::Challenge>() != nullptr; }));
  EXPECT_EQ(peer.got<wire::Challenge>()->term, 1U);
  peer.stream().send(wire::LearnerBeat{});
  ASSERT_TRUE(until([&] { return peer.lost(); }));
  ASSERT_NE(peer.got<wire::Refused>(), nullptr);
  EXPECT_NE(peer.got<wire::Refused>()->text.find("HELLO or ATTACH, not HEARTBEAT"),
            std::string::npos)
      << peer.got<wire::Refused>()->text;
}

TEST_F(ServerTest, SilentPeerIsTurnedAwayInTime) {
  options_.first_frame_timeout = 50 * kMillisecond;
  start();
  RawPeer peer(loop_, server_->address());
  ASSERT_TRUE(until([&] { return peer.lost(); }));
  ASSERT_NE(peer.got<wire::Refused>(), nullptr);
  EXPECT_EQ(peer.got<wire::Refused>()->retryable, 1);
}

TEST_F(ServerTest, AcceptingWaitsAtTheLimitOfUnadmitted) {
  options_.max_unadmitted = 4;
  start();
  std::vector<std::unique_ptr<RawPeer>> peers;
  const auto challenged = [&] {
    return std::count_if(peers.begin(), peers.end(), [](const auto& peer) {
      return peer->template got<wire::Challenge>() != nullptr;
    });
  };
  for (int i = 0; i < 4; ++i) {
    peers.push_back(std::make_unique<RawPeer>(loop_, server_->address()));
  }
  ASSERT_TRUE(until([&] { return challenged() == 4; }));
  for (int i = 0; i < 3; ++i) {
    peers.push_back(std::make_unique<RawPeer>(loop_, server_->address()));
  }
  ASSERT_TRUE(until([&] { return peers[6]->connected(); }));
  // At most the one that was being accepted when accepting was paused gets through.
  EXPECT_FALSE(loop_.run_until([&] { return challenged() > 5; }, 200 * kMillisecond));
  peers.erase(peers.begin(), peers.begin() + 4);
  EXPECT_TRUE(until([&] { return challenged() == 3; }));
}

TEST_F(ServerTest, WrongProofWrongRunAndForeignSeatAreRefused) {
  start();
  ScriptedOptions proof = learner_options(0);
  proof.bend_proof = [](wire::Hello& hello) { hello.proof[3] ^= 1; };
  EXPECT_NE(refusal(proof).find("proof"), std::string::npos);
  ScriptedOptions run = learner_options(0);
  run.run_id = "another-run";
  EXPECT_NE(refusal(run).find("serves run test-run, not another-run"), std::string::npos);
  // The key of seat 0 does not open seat 1.
  ScriptedOptions seat = learner_options(0);
  seat.bend_hello = [](wire::Hello& hello) { hello.seat = 1; };
  EXPECT_NE(refusal(seat).find("proof"), std::string::npos);
  ScriptedOptions token = learner_options(0);
  token.run_token.fill(1);
  EXPECT_NE(refusal(token).find("proof"), std::string::npos);
}

TEST_F(ServerTest, TooManyDataStreamsAreRefused) {
  start();
  ScriptedOptions options = learner_options(0);
  options.bend_hello = [](wire::Hello& hello) { hello.streams = 65; };
  EXPECT_NE(refusal(options).find("65 data streams"), std::string::npos);
}

TEST_F(ServerTest, AttachNeedsSessionKeyAndAnIndexOfTheSession) {
  options_.core.learners = 1;
  options_.core.total_steps = 0;
  start();
  ScriptedLearner& learner = add_learner(0);
  ASSERT_TRUE(until([&] { return learner.ready(); }));
  const auto attach_refusal = [&](const std::function<void(wire::Attach&)>& bend,
                                  std::uint32_t key_seat) {
    RawPeer peer(loop_, server_->address());
    EXPECT_TRUE(until([&] { return peer.got<wire::Challenge>() != nullptr; }));
    wire::Attach attach;
    attach.session = learner.welcome().session;
    bend(attach);
    attach.proof = wire::make_proof(session_key(test_token(), wire::Role::kLearner, key_seat),
                                    peer.got<wire::Challenge>()->nonce, attach);
    peer.stream().send(attach);
    EXPECT_TRUE(until([&] { return peer.lost(); }));
    return peer.got<wire::Refused>() != nullptr ? peer.got<wire::Refused>()->text : "not refused";
  };
  EXPECT_NE(attach_refusal([](wire::Attach& a) { a.session[0] ^= 1; }, 0).find("no session"),
            std::string::npos);
  EXPECT_NE(attach_refusal([](wire::Attach&) {}, 1).find("proof of ATTACH"), std::string::npos);
  EXPECT_NE(attach_refusal([](wire::Attach& a) { a.stream = 2; }, 0).find("HELLO announced 2"),
            std::string::npos);
}

TEST_F(ServerTest, DifferencesBetweenIslandsAreRefusedByName) {
  options_.core.learners = 1;
  options_.core.total_steps = 0;
  start();
  ScriptedLearner& first = add_learner(0);
  ASSERT_TRUE(until([&] { return first.ready(); }));
  ScriptedOptions layout = learner_options(1);
  layout.layout = small_layout(65);
  ScriptedLearner& other = add_learner(layout);
  ASSERT_TRUE(until([&] { return other.refused().has_value(); }));
  EXPECT_EQ(other.refused()->code, wire::RefuseCode::kLayout);
  EXPECT_EQ(other.refused()->tensors, tensor_hashes(small_layout()));
  ScriptedOptions contract = learner_options(1);
  contract.contract[1].hash[0] ^= 1;
  EXPECT_NE(refusal(contract).find("tokenizer"), std::string::npos);
}

// ---- a run
// -----------------------------------------------------------------------------------------------

TEST_F(ServerTest, TwoLearnersTrainToTheEnd) {
  start();
  add_learner(0);
  ScriptedLearner& second = add_learner(1);
  ASSERT_TRUE(until_ended());
  EXPECT_EQ(exit_code_, 0);
  EXPECT_TRUE(learners_[0]->final().has_value());
  EXPECT_TRUE(second.final().has_value());
  EXPECT_EQ(learners_[0]->final()->digests, second.final()->digests);

  const Json end = status();
  EXPECT_EQ(end["phase"], "ended");
  EXPECT_EQ(end["exit"], 0);
  EXPECT_EQ(end["run_id"], kRun);
  EXPECT_EQ(end["total_steps"], 8);
  EXPECT_EQ(end["seats"].size(), 2U);
  EXPECT_EQ(end["seats"][0]["state"], "done");
  EXPECT_GT(end["seats"][0]["bytes_pushed"], 0);
  EXPECT_GT(end["seats"][1]["bytes_received"], 0);
  EXPECT_EQ(end["fragments"].size(), 2U);
  EXPECT_TRUE(end["error"].is_null()) << end["error"];
  expect_ledger_balances();
  expect_digests_as_on_tape();

  const std::vector<Json> lines = tape();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["seq"], i);
    EXPECT_EQ(lines[i]["term"], 1);
  }
  EXPECT_EQ(lines.front()["event"], "run");
  EXPECT_EQ(tape("join").size(), 2U);
  EXPECT_EQ(tape("final").size(), 1U);
  const std::vector<Json> rounds = tape("round");
  ASSERT_EQ(rounds.size(), 8U) << "six planned rounds and a sweep of two";
  std::size_t commits[2] = {0, 0};
  std::size_t last = 0;
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    EXPECT_EQ(rounds[i]["round"], i + 1);
    EXPECT_EQ(rounds[i]["fragment"], i % 2);
    if (i >= 6 && !rounds[i]["committed"].get<bool>()) {
      continue;  // nobody made a step since its last push: nothing to sweep in
    }
    ++commits[i % 2];
    last = i + 1;
    double weights = 0;
    for (const Json& weight : rounds[i]["weights"]) {
      weights += weight["weight"].get<double>();
    }
    EXPECT_NEAR(weights, 1.0, 1e-9) << rounds[i];
    EXPECT_GE(rounds[i]["commit"].get<double>(), rounds[i]["launch"].get<double>());
  }
  EXPECT_EQ(end["global_step"], last);
  EXPECT_EQ(end["durable_step"], last);
  EXPECT_EQ(end["fragments"][0]["version"], commits[0]);
  EXPECT_EQ(end["fragments"][1]["version"], commits[1]);
}

TEST_F(ServerTest, EndpointFileLeadsToTheListener) {
  start();
  const Result<std::string> text = read_text_file(options_.endpoint);
  ASSERT_TRUE(text) << text.error().text();
  const Result<EndpointRecord> endpoint = parse_endpoint(*text, "endpoint.json");
  ASSERT_TRUE(endpoint) << endpoint.error().text();
  EXPECT_EQ(endpoint->port, server_->address().port);
  EXPECT_EQ(endpoint->term, 1U);
  EXPECT_EQ(endpoint->run_id, kRun);
}

TEST_F(ServerTest, MetricsOfLearnersStandOnTheTape) {
  start();
  ScriptedLearner& learner = add_learner(0);
  ASSERT_TRUE(until([&] { return learner.welcomed(); }));
  learner.send(wire::Metric{R"({"loss": 1.5})"});
  ASSERT_TRUE(until([&] { return !tape("metric").empty(); }));
  EXPECT_EQ(tape("metric")[0]["data"]["loss"], 1.5);
  EXPECT_EQ(tape("metric")[0]["seat"], 0);
}

TEST_F(ServerTest, ControllerFinishesTheRunWithALastSweep) {
  options_.core.total_steps = 0;
  start();
  add_learner(0);
  add_learner(1);
  ASSERT_TRUE(until([&] { return global_step() >= 4; }));
  RawPeer controller(loop_, server_->address());
  ASSERT_TRUE(until([&] { return controller.got<wire::Challenge>() != nullptr; }));
  wire::Hello hello;
  hello.run_id = kRun;
  hello.role = wire::Role::kController;
  hello.proof = wire::make_proof(session_key(test_token(), wire::Role::kController, wire::kNoSeat),
                                 controller.got<wire::Challenge>()->nonce, hello);
  controller.stream().send(hello);
  ASSERT_TRUE(until([&] { return controller.got<wire::Welcome>() != nullptr; }));
  controller.stream().send(wire::Finish{wire::FinishMode::kFinish, "enough"});
  ASSERT_TRUE(until([&] { return controller.got<wire::Goodbye>() != nullptr; }));
  ASSERT_TRUE(until_ended());
  EXPECT_EQ(exit_code_, 0);
  ASSERT_EQ(tape("finish").size(), 1U);
  EXPECT_NE(tape("finish")[0]["reason"].get<std::string>().find("enough"), std::string::npos);
  EXPECT_EQ(tape("round").back()["sweep"], true);
  expect_ledger_balances();
}

TEST_F(ServerTest, LearnerKeyDoesNotOpenTheControllersRole) {
  start();
  RawPeer peer(loop_, server_->address());
  ASSERT_TRUE(until([&] { return peer.got<wire::Challenge>() != nullptr; }));
  wire::Hello hello;
  hello.run_id = kRun;
  hello.role = wire::Role::kController;
  hello.proof = wire::make_proof(session_key(test_token(), wire::Role::kLearner, 0),
                                 peer.got<wire::Challenge>()->nonce, hello);
  peer.stream().send(hello);
  ASSERT_TRUE(until([&] { return peer.lost(); }));
  ASSERT_NE(peer.got<wire::Refused>(), nullptr);
  EXPECT_EQ(peer.got<wire::Refused>()->code, wire::RefuseCode::kProof);
}

TEST_F(ServerTest, LearnerThatDiesIsLostAndItsSeatComesBack) {
  options_.core.total_steps = 0;
  options_.core.lease = 300 * kMillisecond;
  start();
  add_learner(0);
  ScriptedLearner& second = add_learner(1);
  ASSERT_TRUE(until([&] { return global_step() >= 4; }));
  second.forget();
  ASSERT_TRUE(until([&] { return !tape("lost").empty(); }));
  const std::uint64_t alone_from = global_step();
  ASSERT_TRUE(until([&] { return global_step() >= alone_from + 4; })) << status();
  second.connect();
  ASSERT_TRUE(until([&] { return second.ready(); }));
  const std::uint64_t pushes_before = second.pushes();
  ASSERT_TRUE(until([&] { return second.pushes() >= pushes_before + 2; })) << status();
  server_->request_finish(wire::FinishMode::kFinish, "test");
  ASSERT_TRUE(until_ended());
  EXPECT_EQ(exit_code_, 0);
  expect_ledger_balances();
  expect_digests_as_on_tape();
  EXPECT_EQ(learners_[0]->final()->digests, second.final()->digests);
}

TEST_F(ServerTest, SessionThatReconnectsIsResumed) {
  options_.core.total_steps = 0;
  start();
  add_learner(0);
  ScriptedLearner& second = add_learner(1);
  ASSERT_TRUE(until([&] { return global_step() >= 4; }));
  const wire::SessionToken before = second.welcome().session;
  second.disconnect();
  second.connect();
  const std::uint64_t pushes_before = second.pushes();
  ASSERT_TRUE(until([&] { return second.pushes() >= pushes_before + 2; })) << status();
  EXPECT_EQ(second.welcome().session, before);
  EXPECT_EQ(second.welcome().resumed, 1);
  EXPECT_TRUE(tape("lost").empty());
  server_->request_finish(wire::FinishMode::kFinish, "test");
  ASSERT_TRUE(until_ended());
  EXPECT_EQ(exit_code_, 0);
  expect_ledger_balances();
}

TEST_F(ServerTest, NonFinitePushIsDroppedAndTheSessionStays) {
  start();
  add_learner(0);
  ScriptedLearner& second = add_learner(1);
  second.make_pushes(std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(until([&] { return !second.verdicts().empty(); }));
  EXPECT_EQ(second.verdicts()[0].outcome, wire::Outcome::kDropped);
  EXPECT_EQ(second.verdicts()[0].reason, "non-finite");
  second.make_pushes(0.01F);
  ASSERT_TRUE(until_ended());
  EXPECT_EQ(exit_code_, 0);
  EXPECT_FALSE(second.closed() && !second.said_goodbye());
  expect_ledger_balances();
}

// ---- disks and restarts
// ----------------------------------------------------------------------------------

TEST_F(ServerTest, FullDiskKeepsTrainingAndShowsInStatus) {
  std::atomic<bool> full{false};
  open_folder([&](std::string_view step, const fs::path& path) -> Status {
    if (full && step == "write") {
      return fail(io_error("cannot write file", path.string(), ENOSPC));
    }
    return Unit{};
  });
  options_.core.total_steps = 0;
  options_.core.durability = Durability::kInterval;
  options_.core.checkpoint_every = 20 * kMillisecond;
  start();
  add_learner(0);
  add_learner(1);
  ASSERT_TRUE(until([&] { return global_step() >= 2; }));
  full = true;
  ASSERT_TRUE(until([&] { return status()["error"].is_string(); })) << status();
  const std::uint64_t step = global_step();
  const std::uint64_t durable = status()["durable_step"];
  ASSERT_TRUE(until([&] { return global_step() >= step + 4; })) << status();
  EXPECT_LE(status()["durable_step"].get<std::uint64_t>(), durable + 2);
  const std::vector<Json> saves = tape("checkpoint");
  EXPECT_TRUE(std::any_of(saves.begin(), saves.end(), [](const Json& save) {
    return save["ok"] == false &&
           save["error"].get<std::string>().find("No space") != std::string::npos;
  }));
  full = false;
  ASSERT_TRUE(until([&] { return status()["durable_step"].get<std::uint64_t>() > step; }));
  server_->request_finish(wire::FinishMode::kFinish, "test");
  ASSERT_TRUE(until_ended());
  EXPECT_EQ(exit_code_, 0);
}

TEST_F(ServerTest, InterruptedRunGoesOnWithANewTermAndTheSameTape) {
  options_.core.total_steps = 0;
  options_.core.durability = Durability::kInterval;
  options_.core.checkpoint_every = 3600 * kSecond;
  start();
  add_learner(0);
  add_learner(1);
  ASSERT_TRUE(until([&] { return global_step() >= 5; }));
  server_->interrupt(143);
  ASSERT_TRUE(until_ended());
  EXPECT_EQ(exit_code_, 143);
  EXPECT_FALSE(server_->work_left());
  const Json before = status();
  EXPECT_EQ(before["exit"], 143);
  const std::size_t lines = tape().size();
  server_.reset();
  learners_.clear();

  Result<std::unique_ptr<Server>> refused = Server::open(options_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_NE(refused.error().hint.find("--resume"), std::string::npos);

  options_.resume = true;
  start();
  EXPECT_EQ(server_->term(), 2U);
  EXPECT_TRUE(server_->resumed());
  ScriptedLearner& first = add_learner(0);
  add_learner(1);
  ASSERT_TRUE(until([&] { return first.welcomed(); }));
  EXPECT_EQ(first.welcome().term, 2U);
  EXPECT_EQ(first.welcome().global_step, before["global_step"].get<std::uint64_t>());
  ASSERT_TRUE(
      until([&] { return global_step() >= before["global_step"].get<std::uint64_t>() + 3; }));
  server_->request_finish(wire::FinishMode::kFinish, "test");
  ASSERT_TRUE(until_ended());
  EXPECT_EQ(exit_code_, 0);
  expect_ledger_balances();
  const std::vector<Json> all = tape();
  ASSERT_GT(all.size(), lines);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]["seq"], i);
    EXPECT_EQ(all[i]["term"], i < lines ? 1 : 2);
  }
  EXPECT_EQ(all[lines]["event"], "run");
  EXPECT_EQ(all[lines]["resumed"], true);
}

TEST_F(ServerTest, ResumeWithoutACheckpointStartsFreshAndRaisesTheTerm) {
  options_.resume = true;
  start();
  EXPECT_FALSE(server_->resumed());
  EXPECT_EQ(server_->term(), 1U);
  stop();
  server_.reset();
  start();
  EXPECT_FALSE(server_->resumed());
  EXPECT_EQ(server_->term(), 2U);
}

TEST_F(ServerTest, FolderWithOtherFilesOrAnotherRunIsRefused) {
  std::ofstream(folder_ / "checkpoint" / "thesis.txt") << "mine";
  Result<std::unique_ptr<Server>> refused = Server::open(options_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_NE(refused.error().what.find("thesis.txt"), std::string::npos);
  fs::remove(folder_ / "checkpoint" / "thesis.txt");

  start();
  add_learner(0);
  add_learner(1);
  ASSERT_TRUE(until_ended());
  server_.reset();
  options_.resume = true;
  options_.core.run_id = "another";
  refused = Server::open(options_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_NE(refused.error().what.find(kRun), std::string::npos);
}

TEST_F(ServerTest, DamagedCheckpointIsRefusedNamingTheFile) {
  start();
  add_learner(0);
  add_learner(1);
  ASSERT_TRUE(until_ended());
  server_.reset();
  std::string damaged;
  for (const auto& entry : fs::directory_iterator(folder_ / "checkpoint")) {
    if (entry.path().extension() == ".safetensors") {
      damaged = entry.path().filename().string();
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-1, std::ios::end);
      file.put('\x7f');
      break;
    }
  }
  ASSERT_FALSE(damaged.empty());
  options_.resume = true;
  const Result<std::unique_ptr<Server>> refused = Server::open(options_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kDamaged);
  EXPECT_NE(refused.error().text().find(damaged), std::string::npos) << refused.error().text();
}

TEST_F(ServerTest, TakenPortIsRefusedByName) {
  start();
  options_.bind = server_->address();
  auto folder = store::LocalFolder::open(folder_ / "second");
  ASSERT_TRUE(folder);
  options_.checkpoint = *folder;
  options_.tape = folder_ / "second.jsonl";
  const Result<std::unique_ptr<Server>> refused = Server::open(options_);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().text().find(strf("{}", options_.bind.port)), std::string::npos)
      << refused.error().text();
}

// ---- the token file
// --------------------------------------------------------------------------------------

TEST_F(ServerTest, TokenFileMustBePrivateAndWhole) {
  const fs::path path = folder_ / "run.token";
  const auto write = [&](const std::string& text, unsigned mode) {
    ASSERT_TRUE(write_file_atomic(path, text, mode));
  };
  EXPECT_EQ(read_token_file(path).error().code, ErrorCode::kNotFound);
  write(std::string(64, '5') + "\n", 0600);
  const Result<SessionKey> token = read_token_file(path);
  ASSERT_TRUE(token) << token.error().text();
  EXPECT_EQ((*token)[31], 0x55);
  write(std::string(64, '5'), 0644);
  EXPECT_EQ(read_token_file(path).error().code, ErrorCode::kPermission);
  for (const char* bad : {"", "55", "zz"}) {
    write(bad, 0600);
    EXPECT_EQ(read_token_file(path).error().code, ErrorCode::kData) << bad;
  }
}

}  // namespace
}  // namespace yeto::sync
