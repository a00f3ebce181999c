// SPDX-License-Identifier: Apache-2.0
// Goal: nobody takes part, listens, or acts for another without being who he says he is, with
// certificates as with keys; two runs never mix; strangers cost little. Method: a real server on a
// free port of loopback; learners by Boundary on threads; peers that speak frames of their own;
// certificates made here; waits are bounded and on conditions.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>

#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/base/thread.h"
#include "yeto/net/certificates_testing.h"
#include "yeto/sync/boundary/boundary.h"
#include "yeto/sync/server/raw_peer_testing.h"
#include "yeto/sync/server/server.h"
#include "yeto/wire/codec.h"
#include "yeto/wire/identity.h"

namespace yeto::sync {
namespace {

namespace fs = std::filesystem;

constexpr Nanos kWait = 30 * kSecond;
constexpr char kRun[] = "run-a";

SessionKey test_token() {
  SessionKey token{};
  token.fill(0x42);
  return token;
}

// A learner on a thread of its own: takes steps until the run drains.
class Island {
 public:
  explicit Island(BoundaryOptions options) : options_(std::move(options)) {
    options_.keep_waiting = [this] { return !cancelled_; };
    options_.retry_first = from_millis(10);
    options_.retry_most = from_millis(50);
    thread_ = JoiningThread([this] {
      outcome_ = train();
      over_ = true;
    });
  }
  ~Island() {
    cancelled_ = true;
    thread_.join();
  }
  bool over() const { return over_; }
  // "done", or what went wrong; once it is over.
  const std::string& outcome() const { return outcome_; }
  const std::vector<float>& values() const { return values_; }

 private:
  std::string train() {
    std::vector<TensorView> tensors = {{"layers.0.weight", {8, 4}, values_}};
    auto boundary = Boundary::open(options_, std::move(tensors));
    if (!boundary) {
      return boundary.error().text();
    }
    if (const auto ready = (*boundary)->wait_ready(kWait); !ready) {
      return ready.error().text();
    }
    (*boundary)->set_phase(wire::Phase::kTrain);
    for (bool draining = false; !draining && !cancelled_;) {
      for (float& value : values_) {
        value -= 0.01F;
      }
      const auto report = (*boundary)->step(3);
      if (!report) {
        return report.error().text();
      }
      draining = report->draining;
    }
    const auto last = (*boundary)->finalize(FinalizeReason::kDrain, kWait);
    return last ? "done" : last.error().text();
  }

  BoundaryOptions options_;
  std::vector<float> values_ = std::vector<float>(32, 1.0F);
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> over_{false};
  std::string outcome_;
  JoiningThread thread_;
};

class SecurityTest : public ::testing::Test {
 protected:
  SecurityTest()
      : folder_(fs::temp_directory_path() / strf("yeto-security-{:016x}", random_u64())) {
    fs::create_directories(folder_);
    options_.core.run_id = kRun;
    options_.core.learners = 2;
    options_.core.sync_interval_steps = 1;
    options_.core.total_steps = 4;
    options_.core.lease = 2 * kSecond;
    options_.core.heartbeat = 50 * kMillisecond;
    options_.outer = merge::OuterRule::of(merge::OuterKind::kNesterov);
    options_.run_token = test_token();
    ca_ = std::make_unique<net::TestCa>(folder_);
  }
  ~SecurityTest() override {
    stop();
    fs::remove_all(folder_);
  }

  std::shared_ptr<const net::Tls> load(const net::TlsFiles& files) {
    auto tls = net::Tls::load(files);
    EXPECT_TRUE(tls) << tls.error().text();
    return *tls;
  }
  net::TlsFiles files_of(const std::string& uri) {
    return ca_->issue(strf("c{}", ++certificates_), {uri});
  }
  std::shared_ptr<const net::Tls> tls_of(const std::string& uri) { return load(files_of(uri)); }

  void use_tls() {
    options_.tls = tls_of(wire::syncer_identity(options_.core.run_id));
    options_.run_token = {};
  }
  void start() {
    auto folder = store::LocalFolder::open(folder_ / strf("checkpoint-{}", ++folders_));
    ASSERT_TRUE(folder) << folder.error().text();
    options_.checkpoint = *folder;
    auto server = Server::open(options_);
    ASSERT_TRUE(server) << server.error().text();
    server_ = std::move(*server);
    thread_ = JoiningThread([this] { server_->run(); });
  }
  void stop() {
    if (server_) {
      server_->interrupt(99);
      thread_.join();
      server_.reset();
    }
  }
  bool until(const std::function<bool()>& done) {
    net::TimerId timer = 0;
    const std::function<void()> tick = [&] { timer = loop_.after(2 * kMillisecond, tick); };
    tick();
    const bool value = loop_.run_until(done, kWait);
    loop_.cancel(timer);
    return value;
  }
  BoundaryOptions learner(std::uint32_t seat) {
    BoundaryOptions options;
    options.syncer = server_->address().text();
    options.run_id = kRun;
    options.seat = seat;
    options.streams = 2;
    options.layout.fragments = 1;
    if (options_.tls) {
      options.tls = files_of(wire::identity_of(kRun, wire::Role::kLearner, seat));
    } else {
      options.token_file = folder_ / strf("seat-{}.key", seat);
      const SessionKey key = session_key(test_token(), wire::Role::kLearner, seat);
      EXPECT_TRUE(write_file_atomic(options.token_file, hex(key), 0600));
    }
    return options;
  }
  void expect_a_whole_run() {
    Island first(learner(0));
    Island second(learner(1));
    ASSERT_TRUE(until([&] { return first.over() && second.over(); }));
    EXPECT_EQ(first.outcome(), "done");
    EXPECT_EQ(second.outcome(), "done");
    EXPECT_EQ(first.values(), second.values());
    EXPECT_LT(first.values().front(), 1.0F);
  }
  // What the server answers to this HELLO.
  std::string refusal_of(wire::Hello hello, const std::shared_ptr<const net::Tls>& tls) {
    RawPeer peer(loop_, server_->address(), tls);
    EXPECT_TRUE(until([&] { return peer.got<wire::Challenge>() != nullptr || peer.lost(); }));
    if (peer.lost()) {
      return "no connection";
    }
    peer.stream().send(hello);
    EXPECT_TRUE(until([&] { return peer.lost() || peer.got<wire::Welcome>() != nullptr; }));
    return peer.refusal();
  }
  static wire::Hello hello_of(std::uint32_t seat, const std::string& run = kRun) {
    wire::Hello hello;
    hello.run_id = run;
    hello.seat = seat;
    hello.incarnation = random_u64();
    hello.streams = 1;
    return hello;
  }
  static void prove(wire::Hello& hello, const RawPeer& peer) {
    hello.proof = wire::make_proof(session_key(test_token(), hello.role, hello.seat),
                                   peer.got<wire::Challenge>()->nonce, hello);
  }

  const fs::path folder_;
  int certificates_ = 0;
  int folders_ = 0;
  std::unique_ptr<net::TestCa> ca_;
  ServerOptions options_;
  net::Loop loop_;
  std::unique_ptr<Server> server_;
  JoiningThread thread_;
};

void expect_part(const std::string& text, const char* part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

// ---- with certificates

TEST_F(SecurityTest, ARunGoesWellOverTls) {
  use_tls();
  start();
  expect_a_whole_run();
}

TEST_F(SecurityTest, ACertificateSpeaksForItsOwnSeatRunAndRoleOnly) {
  use_tls();
  start();
  const auto seat1 = tls_of("yeto://run-a/seat/1");
  const std::string other_seat = refusal_of(hello_of(0), seat1);
  expect_part(other_seat, "HELLO says yeto://run-a/seat/0");
  expect_part(other_seat, "the certificate is of yeto://run-a/seat/1");
  expect_part(refusal_of(hello_of(wire::kNoSeat), seat1), "HELLO says yeto://run-a/seat/any");
  wire::Hello controller = hello_of(wire::kNoSeat);
  controller.role = wire::Role::kController;
  expect_part(refusal_of(controller, seat1), "HELLO says yeto://run-a/controller");
  expect_part(refusal_of(hello_of(1), tls_of("yeto://run-a/controller")), "HELLO says");
  expect_part(refusal_of(hello_of(1), tls_of("yeto://run-b/seat/1")), "of yeto://run-b/seat/1");
  expect_part(refusal_of(hello_of(1), tls_of("https://run-a/seat/1")), "HELLO says");
  expect_part(refusal_of(hello_of(1), load(ca_->issue("nobody", {}))), "names no URI");
  // A learner of another run whose certificate is of the same CA.
  expect_part(refusal_of(hello_of(1, "run-b"), tls_of("yeto://run-b/seat/1")), "serves run run-a");
  EXPECT_EQ(refusal_of(hello_of(1), seat1), "not refused");
}

TEST_F(SecurityTest, AStolenSessionTokenIsOfNoUse) {
  use_tls();
  start();
  RawPeer owner(loop_, server_->address(), tls_of("yeto://run-a/seat/0"));
  ASSERT_TRUE(until([&] { return owner.got<wire::Challenge>() != nullptr; }));
  const wire::Hello first = hello_of(0);
  owner.stream().send(first);
  ASSERT_TRUE(until([&] { return owner.got<wire::Welcome>() != nullptr; }));
  const wire::SessionToken token = owner.got<wire::Welcome>()->session;

  const auto thief = tls_of("yeto://run-a/seat/1");
  RawPeer attaching(loop_, server_->address(), thief);
  ASSERT_TRUE(until([&] { return attaching.got<wire::Challenge>() != nullptr; }));
  wire::Attach attach;
  attach.session = token;
  attaching.stream().send(attach);
  ASSERT_TRUE(until([&] { return attaching.lost(); }));
  expect_part(attaching.refusal(), "belongs to another certificate");

  // As its own seat the thief gets a session of its own, not the stolen one.
  RawPeer resuming(loop_, server_->address(), thief);
  ASSERT_TRUE(until([&] { return resuming.got<wire::Challenge>() != nullptr; }));
  wire::Hello hello = hello_of(1);
  hello.incarnation = first.incarnation;
  hello.session = token;
  resuming.stream().send(hello);
  ASSERT_TRUE(until([&] { return resuming.got<wire::Welcome>() != nullptr; }));
  EXPECT_EQ(resuming.got<wire::Welcome>()->resumed, 0);
  EXPECT_NE(resuming.got<wire::Welcome>()->session, token);
  EXPECT_FALSE(owner.lost());

  RawPeer own(loop_, server_->address(), tls_of("yeto://run-a/seat/0"));
  ASSERT_TRUE(until([&] { return own.got<wire::Challenge>() != nullptr; }));
  own.stream().send(attach);
  EXPECT_TRUE(until([&] { return own.got<wire::Attached>() != nullptr; }));
}

TEST_F(SecurityTest, ALearnerDoesNotTalkToAnImpostor) {
  use_tls();
  start();
  // A learner's certificate is good enough for TLS, not to play the syncer.
  const auto seat1 = tls_of("yeto://run-a/seat/1");
  std::vector<std::unique_ptr<net::Connection>> taken;
  auto impostor = net::Listener::open(
      loop_, {"127.0.0.1", 0}, [&](auto connection) { taken.push_back(std::move(connection)); },
      seat1);
  ASSERT_TRUE(impostor);
  BoundaryOptions options = learner(0);
  options.syncer = (*impostor)->address().text();
  options.max_alone = 300 * kMillisecond;
  Island island(options);
  ASSERT_TRUE(until([&] { return island.over(); }));
  expect_part(island.outcome(), "of yeto://run-a/seat/1, not of yeto://run-a/syncer");
}

TEST_F(SecurityTest, TrustFailuresAreNamedToTheLearner) {
  use_tls();
  start();
  const net::TestCa other(folder_, "other");
  BoundaryOptions stranger = learner(0);
  stranger.tls = other.issue("seat", {"yeto://run-a/seat/0"});
  stranger.max_alone = 300 * kMillisecond;
  Island island(stranger);
  ASSERT_TRUE(until([&] { return island.over(); }));
  expect_part(island.outcome(), "not signed by our CA");

  BoundaryOptions expired = learner(0);
  expired.tls = ca_->issue("old", {"yeto://run-a/seat/0"}, {-7200, -3600});
  Island late(expired);
  ASSERT_TRUE(until([&] { return late.over(); }));
  expect_part(late.outcome(), "the certificate expired on");

  BoundaryOptions wrong_seat = learner(0);
  wrong_seat.tls = files_of("yeto://run-a/seat/1");
  Island wrong(wrong_seat);
  ASSERT_TRUE(until([&] { return wrong.over(); }));
  expect_part(wrong.outcome(), "the certificate does not name yeto://run-a/seat/0");
}

TEST_F(SecurityTest, ASyncerNeedsItsOwnCertificate) {
  options_.tls = tls_of("yeto://run-b/syncer");
  options_.checkpoint = *store::LocalFolder::open(folder_ / "c");
  const auto server = Server::open(options_);
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().code, ErrorCode::kPermission);
  expect_part(server.error().text(), "does not name yeto://run-a/syncer");
}

// ---- addresses

TEST_F(SecurityTest, PlainTcpOffLoopbackNeedsTheUsersWord) {
  options_.checkpoint = *store::LocalFolder::open(folder_ / "c");
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1"}) {
    options_.bind = {host, 0};
    const auto server = Server::open(options_);
    ASSERT_FALSE(server) << host;
    EXPECT_EQ(server.error().code, ErrorCode::kPermission);
    expect_part(server.error().text(), "--insecure");
  }
  options_.bind = {"0.0.0.0", 0};
  options_.insecure = true;
  start();
  BoundaryOptions options = learner(0);
  options.syncer = "192.0.2.1:4000";
  Island refused(options);
  ASSERT_TRUE(until([&] { return refused.over(); }));
  expect_part(refused.outcome(), "is on another machine, and there is no TLS");
  options.insecure = true;
  options.max_alone = 100 * kMillisecond;
  Island tries(options);
  ASSERT_TRUE(until([&] { return tries.over(); }));
  EXPECT_EQ(tries.outcome().find("is on another machine"), std::string::npos) << tries.outcome();
}

TEST_F(SecurityTest, KeysAndCertificatesExcludeEachOther) {
  start();
  BoundaryOptions both = learner(0);
  both.tls = files_of("yeto://run-a/seat/0");
  BoundaryOptions half = learner(0);
  half.token_file.clear();
  half.tls.cert = "cert.pem";
  BoundaryOptions none = learner(0);
  none.token_file.clear();
  for (const auto& [options, part] :
       {std::pair(both, "exclude each other"), std::pair(half, "TLS needs three files"),
        std::pair(none, "no token file and no certificate")}) {
    Island island(options);
    ASSERT_TRUE(until([&] { return island.over(); }));
    expect_part(island.outcome(), part);
  }
}

TEST_F(SecurityTest, ARunGoesWellOverIpv6) {
  net::Loop probe;
  if (!net::Listener::open(probe, {"::1", 0}, [](auto) {})) {
    return;  // this machine has no IPv6
  }
  options_.bind = {"::1", 0};
  start();
  EXPECT_TRUE(server_->address().text().starts_with("[::1]:"));
  expect_a_whole_run();
}

TEST_F(SecurityTest, AllAddressesOfBothFamiliesAreServedAtOnce) {
  net::Loop probe;
  if (!net::Listener::open(probe, {"::1", 0}, [](auto) {})) {
    return;  // this machine has no IPv6
  }
  use_tls();
  options_.bind = {"::", 0};
  start();
  BoundaryOptions four = learner(0);
  four.syncer = strf("127.0.0.1:{}", server_->address().port);
  BoundaryOptions six = learner(1);
  six.syncer = strf("[::1]:{}", server_->address().port);
  Island first(four);
  Island second(six);
  ASSERT_TRUE(until([&] { return first.over() && second.over(); }));
  EXPECT_EQ(first.outcome(), "done");
  EXPECT_EQ(second.outcome(), "done");
}

// ---- with keys

TEST_F(SecurityTest, AReplayedHelloIsRefused) {
  start();
  RawPeer first(loop_, server_->address());
  ASSERT_TRUE(until([&] { return first.got<wire::Challenge>() != nullptr; }));
  wire::Hello hello = hello_of(0);
  prove(hello, first);
  first.stream().send(hello);
  ASSERT_TRUE(until([&] { return first.got<wire::Welcome>() != nullptr; }));
  RawPeer replay(loop_, server_->address());
  ASSERT_TRUE(until([&] { return replay.got<wire::Challenge>() != nullptr; }));
  EXPECT_NE(replay.got<wire::Challenge>()->nonce, first.got<wire::Challenge>()->nonce);
  replay.stream().send(hello);
  ASSERT_TRUE(until([&] { return replay.lost(); }));
  expect_part(replay.refusal(), "proof");
}

TEST_F(SecurityTest, TwoRunsOnOnePortNeverMix) {
  start();
  const net::Address address = server_->address();
  Island ours(learner(0));
  BoundaryOptions orphan = learner(1);
  stop();
  // The other run's syncer takes the port; both have the same secret.
  options_.core.run_id = "run-b";
  options_.bind = address;
  start();
  ASSERT_EQ(server_->address(), address);
  Island lost(orphan);
  ASSERT_TRUE(until([&] { return ours.over() && lost.over(); }));
  expect_part(ours.outcome(), "serves run run-b, not run-a");
  expect_part(lost.outcome(), "serves run run-b, not run-a");
}

// ---- strangers

TEST_F(SecurityTest, AFloodOfStrangersDoesNotKeepLearnersOut) {
  options_.first_frame_timeout = 100 * kMillisecond;
  options_.max_unadmitted = 8;
  for (const bool tls : {false, true}) {
    if (tls) {
      use_tls();
    }
    start();
    // Silent ones, ones that send rubbish, and ones that hang up half way.
    std::vector<std::unique_ptr<net::Connecting>> connecting;
    std::vector<std::unique_ptr<net::Connection>> flood;
    const auto rubbish = std::make_shared<const std::string>(20000, '\x16');
    for (int i = 0; i < 36; ++i) {
      connecting.push_back(net::connect(loop_, server_->address(), kWait, [&, i](auto made) {
        if (made && i % 3 != 2) {
          if (i % 3 == 1) {
            const ByteView part = as_bytes_view(*rubbish);
            (*made)->write({&part, 1}, rubbish);
          }
          flood.push_back(std::move(*made));
        }
      }));
    }
    expect_a_whole_run();
    flood.clear();
    stop();
  }
}

}  // namespace
}  // namespace yeto::sync
