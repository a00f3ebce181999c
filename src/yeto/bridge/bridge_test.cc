// SPDX-License-Identifier: Apache-2.0
// Goal: a call ends with the far side's answer or with an error that says what happened, whatever
// the child does. Method: children written in shell.
#include "yeto/bridge/bridge.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "yeto/bridge/rpc.h"

namespace yeto::bridge {
namespace {

constexpr Nanos kPlenty = 20 * kSecond;

BridgeOptions shell(const std::string& script) {
  BridgeOptions options;
  options.name = "test";
  options.command = {"/bin/sh", "-c", script};
  return options;
}

// Answers each call with its number.
constexpr const char* kCounting =
    R"(n=0; while read line; do n=$((n+1)); echo "{\"jsonrpc\":\"2.0\",\"id\":$n,\"result\":{\"n\":$n}}"; done)";

TEST(Bridge, CallsAreAnsweredByOneChildInTurn) {
  Bridge bridge(shell(kCounting));
  for (int i = 1; i <= 3; ++i) {
    const auto reply = bridge.call("count", "{}", kPlenty);
    ASSERT_TRUE(reply) << reply.error().text();
    EXPECT_EQ(*reply, "{\"n\":" + std::to_string(i) + "}");
  }
}

TEST(Bridge, ManyThreadsShareIt) {
  Bridge bridge(shell(kCounting));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) {
        EXPECT_TRUE(bridge.call("count", "{}", kPlenty));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(*bridge.call("count", "{}", kPlenty), R"({"n":101})");
}

TEST(Bridge, AnErrorOfTheFarSideKeepsItsCodePlaceAndHint) {
  Bridge bridge(shell(
      R"(read line; echo '{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no such bucket","data":{"error":"E_NOT_FOUND","where":"s3://b","hint":"make it"}}}'; read line)"));
  const auto reply = bridge.call("list", "{}", kPlenty);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(reply.error().what, "no such bucket");
  EXPECT_EQ(reply.error().where, "s3://b");
  EXPECT_EQ(reply.error().hint, "make it");
}

TEST(Bridge, AChildThatDiesIsNamedWithItsLastWordsAndStartedAgain) {
  Bridge bridge(shell("read line; echo 'the disk is on fire' >&2; exit 3"));
  for (int i = 0; i < 3; ++i) {
    const auto reply = bridge.call("put", "{}", kPlenty);
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().code, ErrorCode::kClosed);
    EXPECT_NE(reply.error().what.find("exit 3"), std::string::npos) << reply.error().text();
    EXPECT_NE(reply.error().where.find("the disk is on fire"), std::string::npos);
  }
  const auto enough = bridge.call("put", "{}", kPlenty);
  ASSERT_FALSE(enough);
  EXPECT_EQ(enough.error().code, ErrorCode::kSetup);
  EXPECT_NE(enough.error().what.find("3 times"), std::string::npos);
}

TEST(Bridge, AnAnswerMakesEarlierDeathsForgotten) {
  Bridge bridge(shell(
      R"(read line; id=$(echo "$line" | sed 's/.*"id":\([0-9]*\).*/\1/'); echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":{}}"; read line; exit 1)"));
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(bridge.call("one", "{}", kPlenty));
    EXPECT_FALSE(bridge.call("two", "{}", kPlenty));
  }
}

TEST(Bridge, AProgramThatDoesNotExistIsASetupError) {
  BridgeOptions options;
  options.name = "test";
  options.command = {"/no/such/program"};
  Bridge bridge(options);
  const auto reply = bridge.call("put", "{}", kPlenty);
  ASSERT_FALSE(reply);
  EXPECT_TRUE(reply.error().code == ErrorCode::kSetup || reply.error().code == ErrorCode::kClosed);
}

TEST(Bridge, ASilentChildIsEndedAtTheTimeout) {
  Bridge bridge(shell("trap '' TERM; while :; do sleep 100; done"));
  const auto reply = bridge.call("put", "{}", 50 * kMillisecond);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kTimeout);
}

TEST(Bridge, SomethingThatIsNoReplyIsAProtocolError) {
  for (const char* line :
       {"hello", "{}", R"({"jsonrpc":"2.0","id":7,"result":{}})", R"({"jsonrpc":"2.0","id":1})",
        R"({"jsonrpc":"2.0","id":1,"result":3})"}) {
    Bridge bridge(shell("read line; echo '" + std::string(line) + "'; read line"));
    const auto reply = bridge.call("put", "{}", kPlenty);
    ASSERT_FALSE(reply) << line;
    EXPECT_EQ(reply.error().code, ErrorCode::kProtocol) << line;
  }
}

TEST(Bridge, StopEndsACallInProgress) {
  Bridge bridge(shell("read line; while :; do sleep 100; done"));
  Result<std::string> reply;
  std::thread caller([&] { reply = bridge.call("put", "{}", kPlenty * 30); });
  // The child may not be there yet; stop() also refuses what begins later.
  bridge.stop();
  while (bridge.call("other", "{}", kPlenty)) {
  }
  caller.join();
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, ErrorCode::kClosed);
}

TEST(Rpc, ARequestIsOneLine) {
  EXPECT_EQ(*request_line(3, "get", R"({"path": "a\nb"})"),
            R"({"jsonrpc":"2.0","id":3,"method":"get","params":{"path":"a\nb"}})");
  EXPECT_EQ(request_line(3, "get", "[]").error().code, ErrorCode::kInternal);
}

}  // namespace
}  // namespace yeto::bridge
