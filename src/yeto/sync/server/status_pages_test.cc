// SPDX-License-Identifier: Apache-2.0
// Goal: monitors see what the status file says, a stalled loop shows, and the metrics page keeps
// the rules of its format. Method: pages over a watchdog that the test beats or leaves alone; a
// reader of the format that knows nothing of the writer.
#include "yeto/sync/server/status_pages.h"

#include <gtest/gtest.h>
#include <regex.h>

#include <array>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "yeto/net/connection.h"
#include "yeto/net/loop.h"

namespace yeto::sync {
namespace {

constexpr Nanos kWait = 20 * kSecond;

MetricsRecord sample_record() {
  MetricsRecord record;
  record.status.run_id = "r\"1\\";
  record.status.fragment_values = {10, 20};
  CoreStatus& core = record.status.core;
  core.phase = RunPhase::kTraining;
  core.term = 3;
  core.global_step = 7;
  core.total_steps = 12;
  core.durable_step = 6;
  core.run_tokens = 9007199254740993;  // not a number of f64
  core.versions = {4, 3};
  core.ledger = {100, 60, 30, 10};
  SeatStatus seat;
  seat.seat = 2;
  seat.state = "live";
  seat.tokens = 55;
  seat.step_time_s = 0.25;
  core.seats.push_back(seat);
  seat.seat = 5;
  seat.state = "lost";
  seat.step_time_s.reset();
  core.seats.push_back(seat);
  record.door = {9, 4, 1};
  record.memory_bytes = 4096;
  return record;
}

// An extended regular expression of POSIX that has to match the whole text.
class Pattern {
 public:
  explicit Pattern(const std::string& text) {
    EXPECT_EQ(regcomp(&compiled_, ("^" + text + "$").c_str(), REG_EXTENDED), 0) << text;
  }
  ~Pattern() { regfree(&compiled_); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  // The groups, the whole first; nothing: it does not match.
  std::vector<std::string> groups(const std::string& text) const {
    std::array<regmatch_t, 8> found{};
    if (regexec(&compiled_, text.c_str(), found.size(), found.data(), 0) != 0) {
      return {};
    }
    std::vector<std::string> out;
    for (const regmatch_t& group : found) {
      const bool there = group.rm_so >= 0;
      out.push_back(there ? text.substr(static_cast<std::size_t>(group.rm_so),
                                        static_cast<std::size_t>(group.rm_eo - group.rm_so))
                          : std::string());
    }
    return out;
  }

 private:
  regex_t compiled_{};
};

// name{labels} → value, after checking the rules of the format.
std::map<std::string, std::string> read_page(const std::string& page) {
  std::map<std::string, std::string> samples;
  std::set<std::string> helped;
  std::map<std::string, std::string> typed;
  std::istringstream lines(page);
  const Pattern sample(R"re(([a-z_:][a-z0-9_:]*)(\{([a-z_]+="([^"\]|\\["\n])*",?)+\})? ([^ ]+))re");
  EXPECT_TRUE(page.empty() || page.back() == '\n');
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> match = sample.groups(line);
    if (line.starts_with("# HELP ")) {
      const std::string name = line.substr(7, line.find(' ', 7) - 7);
      EXPECT_TRUE(helped.insert(name).second) << line;
      EXPECT_GT(line.size(), 7 + name.size() + 10) << line;
    } else if (line.starts_with("# TYPE ")) {
      const std::size_t end = line.find(' ', 7);
      const std::string name = line.substr(7, end - 7);
      EXPECT_TRUE(helped.contains(name)) << line;
      EXPECT_TRUE(typed.emplace(name, line.substr(end + 1)).second) << line;
    } else if (!match.empty()) {
      EXPECT_TRUE(typed.contains(match[1])) << line;
      EXPECT_TRUE(samples.emplace(match[1] + match[2], match[5]).second) << line;
    } else {
      ADD_FAILURE() << "not a line of the format: " << line;
    }
  }
  // The unit stands in the name.
  const Pattern unit(
      ".*_(total|info|rounds|tokens|bytes|seconds|ratio|versions|values|seats|pushes|connections|"
      "count)");
  for (const auto& [name, type] : typed) {
    EXPECT_FALSE(unit.groups(name).empty()) << name;
    EXPECT_TRUE(name.starts_with("yeto_")) << name;
    EXPECT_EQ(type == "counter", name.ends_with("_total")) << name << " " << type;
    EXPECT_TRUE(type == "counter" || type == "gauge") << name << " " << type;
  }
  return samples;
}

TEST(Metrics, ThePageKeepsTheFormatAndTheValues) {
  const auto samples = read_page(metrics_text(sample_record()));
  EXPECT_EQ(samples.at(R"(yeto_run_info{run_id="r\"1\\",phase="training"})"), "1");
  EXPECT_EQ(samples.at("yeto_run_rounds_total"), "7");
  EXPECT_EQ(samples.at("yeto_run_durable_rounds_total"), "6");
  EXPECT_EQ(samples.at("yeto_run_planned_rounds"), "12");
  EXPECT_EQ(samples.at("yeto_run_tokens_total"), "9007199254740993");
  EXPECT_EQ(samples.at("yeto_ledger_waiting_fragment_tokens"), "10");
  EXPECT_EQ(samples.at("yeto_fragment_commits_total{fragment=\"0\"}"), "4");
  EXPECT_EQ(samples.at("yeto_fragment_size_values{fragment=\"1\"}"), "20");
  EXPECT_EQ(samples.at("yeto_seat_tokens_total{seat=\"2\"}"), "55");
  EXPECT_EQ(samples.at("yeto_seat_step_time_seconds{seat=\"2\"}"), "0.25");
  EXPECT_EQ(samples.at("yeto_run_seats{state=\"lost\"}"), "1");
  EXPECT_EQ(samples.at("yeto_door_refused_connections_total"), "4");
  EXPECT_EQ(samples.at("yeto_syncer_buffer_bytes"), "4096");
}

TEST(Metrics, WhatIsNotKnownIsLeftOut) {
  const auto samples = read_page(metrics_text(sample_record()));
  EXPECT_FALSE(samples.contains("yeto_seat_step_time_seconds{seat=\"5\"}"));
  const auto empty = read_page(metrics_text({}));
  EXPECT_FALSE(empty.contains("yeto_run_planned_rounds"));
  EXPECT_EQ(empty.at("yeto_run_rounds_total"), "0");
}

class StatusPagesTest : public ::testing::Test {
 protected:
  std::string get(const std::string& path) {
    net::Loop loop;
    std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    std::string answer;
    bool closed = false;
    std::array<std::uint8_t, 4096> buffer{};
    std::unique_ptr<net::Connection> connection;
    std::function<void()> read = [&] {
      connection->read_some(buffer, [&](std::size_t bytes) {
        answer.append(buffer.begin(), buffer.begin() + static_cast<long>(bytes));
        read();
      });
    };
    const auto connecting = net::connect(loop, pages_->address(), kWait, [&](auto made) {
      ASSERT_TRUE(made) << made.error().text();
      connection = std::move(*made);
      connection->set_close_handler([&](const Error&) { closed = true; });
      const ByteView part = as_bytes_view(request);
      connection->write({&part, 1}, nullptr);
      read();
    });
    EXPECT_TRUE(loop.run_until([&] { return closed; }, kWait));
    return answer;
  }
  void open(Nanos limit) {
    pages_.reset();
    watchdog_ = std::make_unique<Watchdog>(limit, [](Nanos, bool) {});
    auto pages = StatusPages::open({"127.0.0.1", 0}, *watchdog_);
    ASSERT_TRUE(pages) << pages.error().text();
    pages_ = std::move(*pages);
  }
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<StatusPages> pages_;
};

TEST_F(StatusPagesTest, HealthFollowsTheLoop) {
  open(3600 * kSecond);
  const std::string good = get("/healthz");
  EXPECT_TRUE(good.starts_with("HTTP/1.1 200 ")) << good;
  EXPECT_NE(good.find("{\"ok\":true,"), good.npos) << good;
  // A limit that any silence is beyond.
  open(1);
  const std::string bad = get("/healthz");
  EXPECT_TRUE(bad.starts_with("HTTP/1.1 503 ")) << bad;
  EXPECT_NE(bad.find("{\"ok\":false,"), bad.npos) << bad;
}

TEST_F(StatusPagesTest, PagesShowTheNewestSnapshot) {
  open(3600 * kSecond);
  EXPECT_TRUE(get("/status").starts_with("HTTP/1.1 503 "));
  EXPECT_TRUE(get("/").starts_with("HTTP/1.1 404 "));
  pages_->update("{\"old\":1}", {});
  pages_->update("{\"new\":2}", sample_record());
  const std::string status = get("/status");
  EXPECT_NE(status.find("Content-Type: application/json\r\n"), status.npos);
  EXPECT_TRUE(status.ends_with("\r\n\r\n{\"new\":2}\n")) << status;
  const std::string metrics = get("/metrics");
  EXPECT_NE(metrics.find("Content-Type: text/plain; version=0.0.4"), metrics.npos);
  EXPECT_NE(metrics.find("\nyeto_run_rounds_total 7\n"), metrics.npos);
}

}  // namespace
}  // namespace yeto::sync
