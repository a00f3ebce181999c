// SPDX-License-Identifier: Apache-2.0
// Goal: the pages are served to this machine and to nobody else, and no request can make the server
// wait, grow or fall over. Method: raw bytes over real sockets; waits are bounded and on
// conditions.
#include "yeto/net/http_server.h"

#include <gtest/gtest.h>

#include <optional>

#include "yeto/base/rng.h"
#include "yeto/net/connection.h"
#include "yeto/net/loop.h"

namespace yeto::net {
namespace {

constexpr Nanos kLimit = 20 * kSecond;

class HttpTest : public ::testing::Test {
 protected:
  // Sends the bytes and collects what comes until the server closes.
  class Client {
   public:
    Client(Loop& loop, const Address& address, std::string request) : request_(std::move(request)) {
      connecting_ = connect(loop, address, kLimit, [this](auto connection) {
        ASSERT_TRUE(connection) << connection.error().text();
        connection_ = std::move(*connection);
        connection_->set_close_handler([this](const Error&) { closed = true; });
        const ByteView part = as_bytes_view(request_);
        connection_->write({&part, 1}, nullptr);
        read();
      });
    }
    bool connected() const { return connection_ != nullptr; }
    void say(std::string_view more) {
      const auto owner = std::make_shared<const std::string>(more);
      const ByteView part = as_bytes_view(*owner);
      connection_->write({&part, 1}, owner);
    }
    std::string text;
    bool closed = false;

   private:
    void read() {
      connection_->read_some(buffer_, [this](std::size_t bytes) {
        text.append(buffer_.begin(), buffer_.begin() + static_cast<long>(bytes));
        read();
      });
    }
    const std::string request_;
    std::array<std::uint8_t, 4096> buffer_{};
    std::unique_ptr<Connecting> connecting_;
    std::unique_ptr<Connection> connection_;
  };

  void serve(Nanos head_timeout = kLimit) {
    auto server = HttpServer::open(
        {"127.0.0.1", 0},
        [](const HttpRequest& request) {
          return request.path == "/page" ? HttpResponse{200, "application/json", "{}\n"}
                                         : HttpResponse{404, "text/plain", "no\n"};
        },
        head_timeout);
    ASSERT_TRUE(server) << server.error().text();
    server_ = std::move(*server);
  }
  std::string ask(std::string request) {
    Client client(loop_, server_->address(), std::move(request));
    EXPECT_TRUE(loop_.run_until([&] { return client.closed; }, kLimit));
    return client.text;
  }
  static int status_of(const std::string& head) { return parse_http_head(head).refusal.status; }

  Loop loop_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTest, APageIsServedWithItsTypeAndLength) {
  serve();
  const std::string text = ask("GET /page?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(text.starts_with("HTTP/1.1 200 OK\r\n")) << text;
  EXPECT_NE(text.find("Content-Type: application/json\r\n"), text.npos);
  EXPECT_NE(text.find("Content-Length: 3\r\n"), text.npos);
  EXPECT_TRUE(text.ends_with("\r\n\r\n{}\n"));
  EXPECT_TRUE(ask("GET /other HTTP/1.1\r\nHost: [::1]:80\r\n\r\n").starts_with("HTTP/1.1 404 "));
}

TEST_F(HttpTest, HeadHasTheLengthWithoutTheBody) {
  serve();
  const std::string text = ask("HEAD /page HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
  EXPECT_NE(text.find("Content-Length: 3\r\n"), text.npos);
  EXPECT_TRUE(text.ends_with("\r\n\r\n"));
}

TEST_F(HttpTest, ARequestMayComeInPieces) {
  serve();
  Client client(loop_, server_->address(), "GET /page HT");
  ASSERT_TRUE(loop_.run_until([&] { return client.connected(); }, kLimit));
  client.say("TP/1.0\r\n\r");
  client.say("\n");
  ASSERT_TRUE(loop_.run_until([&] { return client.closed; }, kLimit));
  EXPECT_TRUE(client.text.starts_with("HTTP/1.1 200 ")) << client.text;
}

TEST_F(HttpTest, OnlyLoopbackIsServed) {
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1", "example.org"}) {
    const auto server =
        HttpServer::open({host, 0}, [](const HttpRequest&) { return HttpResponse{}; });
    ASSERT_FALSE(server) << host;
    EXPECT_EQ(server.error().code, ErrorCode::kPermission);
  }
}

TEST_F(HttpTest, WhatIsWrongWithARequestIsSaid) {
  const std::string host = "Host: localhost\r\n\r\n";
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n" + host), 200);
  EXPECT_EQ(status_of("GET / HTTP/1.0\r\n\r\n"), 200);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nhOsT:127.0.0.1:9\r\n\r\n"), 200);
  EXPECT_EQ(status_of("POST / HTTP/1.1\r\n" + host), 405);
  EXPECT_EQ(status_of("GET / HTTP/2.0\r\n" + host), 505);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n"), 400);
  // A page of the web that was led here by its name server.
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: evil.example:127\r\n\r\n"), 403);
  for (const char* bad : {"\r\n\r\n", "GET\r\n\r\n", "GET /\r\n\r\n", "GET  / HTTP/1.1\r\n\r\n",
                          "GET x HTTP/1.1\r\n\r\n", "GET / FTP/1.1\r\n\r\n", "YETO\r\n\r\n"}) {
    EXPECT_EQ(status_of(bad), 400) << bad;
  }
  EXPECT_EQ(status_of("GET /\x01 HTTP/1.1\r\n" + host), 400);
}

TEST_F(HttpTest, AHeadThatNeverEndsIsCutOff) {
  serve();
  EXPECT_TRUE(ask("GET /" + std::string(2 * kMaxHttpHeadBytes, 'a')).starts_with("HTTP/1.1 431 "));
}

TEST_F(HttpTest, SilentClientsGiveTheirPlacesBack) {
  serve(200 * kMillisecond);
  std::vector<std::unique_ptr<Client>> silent;
  for (std::size_t i = 0; i < 3 * kMaxHttpConnections; ++i) {
    silent.push_back(std::make_unique<Client>(loop_, server_->address(), "GET"));
  }
  EXPECT_TRUE(ask("GET /page HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
  for (const auto& client : silent) {
    EXPECT_TRUE(loop_.run_until([&] { return client->closed; }, kLimit));
    EXPECT_TRUE(client->text.starts_with("HTTP/1.1 408 ")) << client->text;
  }
}

TEST_F(HttpTest, AnyBytesAreParsed) {
  const std::uint64_t seed = random_u64();
  Rng rng(seed);
  const std::string alphabet = "GET / HTP1.0:\r\nhost\x80\x00?";
  for (int turn = 0; turn < 20000; ++turn) {
    std::string head = "GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (int change = 0; change < 4; ++change) {
      head[rng.below(head.size() - 4)] = alphabet[rng.below(alphabet.size())];
    }
    const HttpParse parse = parse_http_head(head);
    EXPECT_TRUE(parse.refusal.status != 200 || parse.request.path.starts_with('/'))
        << "seed " << seed << ": " << head;
  }
}

}  // namespace
}  // namespace yeto::net
