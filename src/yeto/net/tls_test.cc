// SPDX-License-Identifier: Apache-2.0
// Goal: a connection with TLS keeps the rules of a plain one, nobody without a certificate of the
// CA gets through, and every file that cannot be used is named with its reason. Method: both ends
// in one loop on loopback; certificates made here; waits are bounded and on conditions.
#include "yeto/net/tls.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/net/certificates_testing.h"
#include "yeto/net/connection.h"
#include "yeto/net/loop.h"

namespace yeto::net {
namespace {

namespace fs = std::filesystem;

constexpr Nanos kLimit = 20 * kSecond;

class TlsTest : public ::testing::Test {
 protected:
  TlsTest() : folder_(fs::temp_directory_path() / strf("yeto-tls-{:016x}", random_u64())) {
    fs::create_directories(folder_);
    ca_ = std::make_unique<TestCa>(folder_);
  }
  ~TlsTest() override { fs::remove_all(folder_); }

  std::shared_ptr<const Tls> load(const TlsFiles& files) {
    Result<std::shared_ptr<const Tls>> tls = Tls::load(files);
    EXPECT_TRUE(tls) << tls.error().text();
    return tls ? *tls : nullptr;
  }
  // Empty when the files can be used.
  static std::string refusal(const TlsFiles& files) {
    const auto tls = Tls::load(files);
    return tls ? "" : tls.error().text();
  }
  void put(const fs::path& path, const std::string& text, unsigned mode = 0600) {
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
  }
  bool wait(const std::function<bool()>& done) { return loop_.run_until(done, kLimit); }

  // Connects; `here` is the connecting end.
  void meet(const std::shared_ptr<const Tls>& server, const std::shared_ptr<const Tls>& client) {
    auto listener = Listener::open(
        loop_, {"127.0.0.1", 0},
        [&](std::unique_ptr<Connection> c) {
          there_ = std::move(c);
          there_->set_close_handler([&](const Error& error) { there_loss_ = error; });
          there_->read_some(there_in_, [&](std::size_t bytes) { there_read_ = bytes; });
        },
        server);
    ASSERT_TRUE(listener) << listener.error().text();
    listener_ = std::move(*listener);
    connecting_ = connect(
        loop_, listener_->address(), kLimit,
        [&](Result<std::unique_ptr<Connection>> c) {
          if (!c) {
            here_loss_ = c.error();
            return;
          }
          here_ = std::move(*c);
          here_->set_close_handler([&](const Error& error) { here_loss_ = error; });
          here_->read_some(here_in_, [&](std::size_t bytes) { here_read_ = bytes; });
        },
        client);
  }
  // The reasons both ends see, once both have seen one.
  std::string losses() {
    EXPECT_TRUE(wait([&] { return here_loss_ && there_loss_; }));
    return here_loss_->what + " | " + there_loss_->what;
  }

  const fs::path folder_;
  std::unique_ptr<TestCa> ca_;
  Loop loop_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Connecting> connecting_;
  std::unique_ptr<Connection> here_;
  std::unique_ptr<Connection> there_;
  std::optional<Error> here_loss_;
  std::optional<Error> there_loss_;
  std::array<std::uint8_t, 64> here_in_{};
  std::array<std::uint8_t, 64> there_in_{};
  std::size_t here_read_ = 0;
  std::size_t there_read_ = 0;
};

void say(Connection& connection, std::string_view text) {
  auto owner = std::make_shared<const std::string>(text);
  const ByteView part = as_bytes_view(*owner);
  connection.write({&part, 1}, owner);
}

// Reads until `count` bytes have come, in pieces of at most `piece`.
class Collector {
 public:
  Collector(Connection& connection, std::size_t piece) : connection_(connection), piece_(piece) {
    next();
  }
  Bytes bytes;

 private:
  void next() {
    connection_.read_some(piece_, [this](std::size_t count) {
      bytes.insert(bytes.end(), piece_.begin(), piece_.begin() + static_cast<long>(count));
      next();
    });
  }
  Connection& connection_;
  Bytes piece_;
};

TEST_F(TlsTest, BothEndsLearnWhomTheySpeakTo) {
  const auto server = load(ca_->issue("syncer", {"yeto://r/syncer"}));
  const auto client = load(ca_->issue("seat", {"yeto://r/seat/3", "yeto://r/controller"}));
  EXPECT_EQ(client->own_uris(),
            (std::vector<std::string>{"yeto://r/seat/3", "yeto://r/controller"}));
  meet(server, client);
  ASSERT_TRUE(wait([&] { return here_ && there_; }));
  EXPECT_EQ(here_->peer_uris(), std::vector<std::string>{"yeto://r/syncer"});
  say(*here_, "hello");
  ASSERT_TRUE(wait([&] { return there_read_ == 5; }));
  EXPECT_EQ(there_->peer_uris(), client->own_uris());
  EXPECT_TRUE(there_->is_secure());
  say(*there_, "good day");
  ASSERT_TRUE(wait([&] { return here_read_ == 8; }));
  EXPECT_EQ(std::string(here_in_.begin(), here_in_.begin() + 8), "good day");
}

TEST_F(TlsTest, BulkArrivesWholeBothWaysAtOnceInPiecesOfAnySize) {
  const auto tls = load(ca_->issue("any", {"yeto://r/any"}));
  meet(tls, tls);
  ASSERT_TRUE(wait([&] { return here_ && there_; }));
  say(*here_, "a");
  say(*there_, "b");
  ASSERT_TRUE(wait([&] { return here_read_ == 1 && there_read_ == 1; }));
  // Parts of odd sizes, more of them than one batch, both directions together.
  const auto body = std::make_shared<Bytes>((std::size_t{5} << 20) + 12345);
  random_bytes(*body);
  std::size_t sent_parts = 0;
  std::size_t parts = 0;
  for (Connection* end : {here_.get(), there_.get()}) {
    std::size_t size = 1;
    for (std::size_t from = 0; from < body->size(); from += size) {
      size = std::min(size * 3 + 1, std::size_t{300001});
      const std::size_t count = std::min(size, body->size() - from);
      const ByteView whole = ByteView(*body).subspan(from, count);
      const ByteView two[] = {whole.first(count / 2), whole.subspan(count / 2)};
      ++parts;
      end->write(two, body, [&] { ++sent_parts; });
    }
  }
  Collector small(*here_, 1777);
  Collector large(*there_, std::size_t{128} << 10);
  ASSERT_TRUE(wait(
      [&] { return small.bytes.size() == body->size() && large.bytes.size() == body->size(); }));
  EXPECT_TRUE(small.bytes == *body);
  EXPECT_TRUE(large.bytes == *body);
  ASSERT_TRUE(wait([&] { return sent_parts == parts; }));
  EXPECT_EQ(here_->queued_bytes(), 0u);
  EXPECT_GT(here_->bytes_out(), body->size());
}

TEST_F(TlsTest, AGracefulEndDeliversWhatIsQueued) {
  const auto tls = load(ca_->issue("any", {}));
  meet(tls, tls);
  ASSERT_TRUE(wait([&] { return here_ && there_; }));
  say(*here_, "x");
  ASSERT_TRUE(wait([&] { return there_read_ == 1; }));
  Collector reader(*there_, 4096);
  const auto body = std::make_shared<Bytes>(std::size_t{3} << 20, std::uint8_t{7});
  const ByteView part = *body;
  here_->write({&part, 1}, body);
  bool ended = false;
  here_->close_gracefully(kLimit, [&] { ended = true; });
  here_.reset();
  ASSERT_TRUE(wait([&] { return there_loss_.has_value(); }));
  EXPECT_EQ(reader.bytes.size(), body->size());
  EXPECT_EQ(there_loss_->code, ErrorCode::kClosed);
  there_.reset();
  EXPECT_TRUE(wait([&] { return ended; }));
}

TEST_F(TlsTest, AConnectionClosedInItsOwnCallbackStaysClosed) {
  const auto tls = load(ca_->issue("any", {}));
  meet(tls, tls);
  ASSERT_TRUE(wait([&] { return here_ && there_; }));
  say(*here_, "x");
  ASSERT_TRUE(wait([&] { return there_read_ == 1; }));
  int calls = 0;
  there_->read_some(there_in_, [&](std::size_t) {
    ++calls;
    there_.reset();
  });
  say(*here_, "y");
  ASSERT_TRUE(wait([&] { return here_loss_.has_value(); }));
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(there_loss_);
}

TEST_F(TlsTest, ACertificateOfAnotherCaIsRefusedByBothEnds) {
  const TestCa other(folder_, "other");
  const auto ours = load(ca_->issue("syncer", {}));
  meet(ours, load(other.issue("seat", {})));
  // The connecting end looks first and tells the other.
  EXPECT_EQ(losses(),
            "the peer's certificate is not signed by our CA | the peer does not trust our "
            "certificate: another CA signed it");
  EXPECT_EQ(here_loss_->code, ErrorCode::kPermission);
  EXPECT_EQ(here_loss_->where, listener_->address().text());
}

TEST_F(TlsTest, AClientOfAnotherCaThatTrustsUsIsRefused) {
  const TestCa other(folder_, "other");
  TlsFiles files = other.issue("seat", {});
  // It knows our CA too, so it accepts us; we do not accept it.
  std::ifstream theirs(other.ca_file());
  std::ifstream ours(ca_->ca_file());
  std::string both{std::istreambuf_iterator<char>(theirs), {}};
  both += std::string{std::istreambuf_iterator<char>(ours), {}};
  files.ca = folder_ / "both.pem";
  put(files.ca, both);
  meet(load(ca_->issue("syncer", {})), load(files));
  EXPECT_EQ(losses(),
            "the peer does not trust our certificate: another CA signed it | the peer's "
            "certificate is not signed by our CA");
}

TEST_F(TlsTest, APlainClientGetsNothingFromATlsServer) {
  meet(load(ca_->issue("syncer", {})), nullptr);
  ASSERT_TRUE(wait([&] { return here_ != nullptr; }));
  say(*here_, "YETO and more than a record's header");
  EXPECT_TRUE(wait([&] { return there_loss_.has_value(); }));
  EXPECT_EQ(there_loss_->what, "the peer does not speak TLS");
  EXPECT_EQ(there_loss_->code, ErrorCode::kProtocol);
}

TEST_F(TlsTest, ATlsClientNamesAPlainServer) {
  meet(nullptr, load(ca_->issue("seat", {})));
  ASSERT_TRUE(wait([&] { return there_ != nullptr; }));
  say(*there_, "YETO: a frame of a syncer without TLS");
  ASSERT_TRUE(wait([&] { return here_loss_.has_value(); }));
  EXPECT_EQ(here_loss_->what, "the peer does not speak TLS");
}

TEST_F(TlsTest, AStrangersHandshakeIsBounded) {
  meet(load(ca_->issue("syncer", {})), nullptr);
  ASSERT_TRUE(wait([&] { return here_ && there_; }));
  // A ClientHello that says it is 16 KiB long, in fragments, so that it never ends.
  Bytes hello;
  for (int record = 0; record < 8; ++record) {
    const std::uint16_t size = 4096;
    for (const int byte : {22, 3, 1, size >> 8, size & 255}) {
      hello.push_back(static_cast<std::uint8_t>(byte));
    }
    const std::size_t body = hello.size();
    hello.resize(body + size, 0);
    if (record == 0) {
      hello[body] = 1;
      hello[body + 1] = 1;  // 64 KiB and more
    }
  }
  const auto owner = std::make_shared<Bytes>(std::move(hello));
  const ByteView part = *owner;
  here_->write({&part, 1}, owner);
  ASSERT_TRUE(wait([&] { return there_loss_.has_value(); }));
  EXPECT_EQ(there_loss_->code, ErrorCode::kProtocol);
  EXPECT_LE(there_->bytes_in(), (std::size_t{16} << 10) + 4096);
}

TEST_F(TlsTest, OlderTlsIsRefused) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_method()),
                                                                  SSL_CTX_free);
  SSL_CTX_set_max_proto_version(context.get(), TLS1_2_VERSION);
  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
  BIO* out = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), BIO_new(BIO_s_mem()), out);
  SSL_set_connect_state(ssl.get());
  SSL_do_handshake(ssl.get());
  Bytes hello(BIO_ctrl_pending(out));
  ASSERT_EQ(BIO_read(out, hello.data(), static_cast<int>(hello.size())),
            static_cast<int>(hello.size()));
  meet(load(ca_->issue("syncer", {})), nullptr);
  ASSERT_TRUE(wait([&] { return here_ != nullptr; }));
  const ByteView part = hello;
  here_->write({&part, 1}, nullptr);
  ASSERT_TRUE(wait([&] { return there_loss_.has_value(); }));
  EXPECT_EQ(there_loss_->what, "the peer does not speak TLS 1.3");
}

TEST_F(TlsTest, FilesThatCannotBeUsedAreNamedWithTheReason) {
  const TlsFiles good = ca_->issue("good", {"yeto://r/syncer"});
  EXPECT_EQ(refusal(good), "");
  const auto with = [&](auto change) {
    TlsFiles files = good;
    change(files);
    return refusal(files);
  };
  const auto expect = [](const std::string& text, std::initializer_list<const char*> parts) {
    for (const char* part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  };
  expect(with([&](TlsFiles& f) { f.cert = folder_ / "nowhere"; }),
         {"E_NOT_FOUND", "--tls-cert", "nowhere"});
  put(folder_ / "text", "hello");
  expect(with([&](TlsFiles& f) { f.cert = folder_ / "text"; }),
         {"--tls-cert", "no certificate in the file"});
  expect(with([&](TlsFiles& f) { f.key = folder_ / "text"; }), {"--tls-key", "no private key"});
  expect(with([&](TlsFiles& f) { f.ca = folder_ / "text"; }),
         {"--tls-ca", "no certificate in the file"});
  expect(with([&](TlsFiles& f) { f.key = ca_->issue("other", {}).key; }),
         {"--tls-key", "does not belong to", "good.pem"});
  const TestCa stranger(folder_, "stranger");
  expect(with([&](TlsFiles& f) { f.ca = stranger.ca_file(); }),
         {"--tls-cert", "does not follow from", "stranger.pem"});
  expect(refusal(ca_->issue("old", {}, {-7200, -3600})), {"the certificate expired on", "old.pem"});
  expect(refusal(ca_->issue("young", {}, {3600, 7200})), {"not valid before", "clock"});
  const TlsFiles open = ca_->issue("open", {});
  ::chmod(open.key.c_str(), 0644);
  expect(refusal(open), {"E_CREDENTIALS", "can be read by others", "chmod 600"});
}

}  // namespace
}  // namespace yeto::net
