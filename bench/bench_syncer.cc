// SPDX-License-Identifier: Apache-2.0
// What a whole syncer does for its learners. Each figure compares two things measured in this run;
// with words as arguments only the figures whose names contain one of them are measured.
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "bench/figure.h"
#include "bench/loopback.h"
#include "bench/syncer_world.h"
#include "yeto/base/log.h"

namespace yeto::bench {
namespace {

constexpr std::size_t kWarmUp = 3;  // commits
constexpr double kMiB = 1 << 20;

// Push → merge → broadcast against plain sockets with equally many streams: bytes of pushes and
// broadcasts over the same time.
void push_to_broadcast(const std::string& name) {
  constexpr std::size_t kCommits = 8;
  const WorldOptions options;
  const double bytes = 2.0 * options.learners * options.values * sizeof(float);
  const std::vector<std::uint8_t> from(options.learners * options.values * sizeof(float), 7);
  std::vector<std::uint8_t> to(from.size());
  std::vector<double> ratios;
  for (int i = 0; i < 5; ++i) {
    const double raw = raw_loopback(std::size_t{options.learners} * options.streams, from, to);
    World world(options);
    world.wait_for_commits(kWarmUp);
    const std::size_t first = world.commits();
    const Nanos start = monotonic_now();
    world.wait_for_commits(first + kCommits);
    const double syncer = bytes * kCommits / seconds(monotonic_now() - start);
    std::printf("raw loopback %s/s, push to broadcast %s/s\n", human_bytes(raw).c_str(),
                human_bytes(syncer).c_str());
    ratios.push_back(syncer / raw);
  }
  print_figure({name, "x raw loopback", 0.6, 0.85}, ratios);
}

double commit_p99(const WorldOptions& options, std::size_t commits,
                  const std::function<void(World&)>& disturb = {}) {
  World world(options);
  world.wait_for_commits(kWarmUp);
  if (disturb) {
    disturb(world);
  }
  const std::vector<double> times = world.intervals(commits);
  std::printf("%u learners: commit median %.1f ms, p99 %.1f ms\n", options.learners,
              1e3 * median(times), 1e3 * quantile(times, 0.99));
  return quantile(times, 0.99);
}

// Time from commit to commit with 64 learners against 8, at equal bytes of a round.
void commit_64(const std::string& name) {
  constexpr std::size_t kCommits = 60;
  WorldOptions few;
  few.learners = 8;
  few.streams = 1;
  few.fragments = 1;
  few.values = 512U << 10;
  few.step_time = 4 * kMillisecond;
  WorldOptions many = few;
  many.learners = 64;
  many.values = few.values / 8;
  std::vector<double> ratios;
  for (int i = 0; i < 3; ++i) {
    ratios.push_back(commit_p99(many, kCommits) / commit_p99(few, kCommits));
  }
  print_figure(less_is_better(name, "x p99 of 8 learners", 1.5, 1.2), ratios);
}

// Seven learners make the rounds; an eighth takes part in the same way but reads nothing: its data
// streams stand still. Against the seven alone.
void stalled_reader(const std::string& name) {
  constexpr std::size_t kCommits = 60;
  WorldOptions alone;
  alone.learners = alone.quorum = alone.watched = 7;
  alone.streams = 2;
  alone.fragments = 1;
  alone.values = 512U << 10;
  alone.step_time = 4 * kMillisecond;
  WorldOptions with = alone;
  with.learners = 8;
  with.behind_proxy = 7;
  const auto stall = [](World& world) {
    // Also those that come for the ones the syncer gives up.
    for (std::size_t connection = 1; connection < 1000; ++connection) {
      world.proxy().set(connection, {.stands_still = true});
    }
  };
  std::vector<double> ratios;
  for (int i = 0; i < 5; ++i) {
    ratios.push_back(commit_p99(with, kCommits, stall) / commit_p99(alone, kCommits));
  }
  print_figure(less_is_better(name, "x p99 without it", 1.1, 1.0), ratios);
}

// All bytes of one learner's connections per value and commit, q4 both ways.
void q4_bytes(const std::string& name) {
  constexpr std::size_t kCommits = 16;
  WorldOptions options;
  options.fragments = 1;
  options.values = 1U << 20;
  options.push_codec = options.broadcast_codec = CodecId::kQ4;
  World world(options);
  world.wait_for_commits(kWarmUp);
  const auto bytes = [&] {
    const sync::LinkCounters counters = world.learner(0).link()->counters();
    return static_cast<double>(counters.bytes_in + counters.bytes_out);
  };
  std::vector<double> values;
  for (int i = 0; i < 5; ++i) {
    const double before = bytes();
    const std::size_t first = world.commits();
    world.wait_for_commits(first + kCommits);
    values.push_back((bytes() - before) /
                     static_cast<double>((world.commits() - first) * options.values));
  }
  print_figure(less_is_better(name, "B/param", 1.05, 1.04), values);
}

// A file or folder of this process that nobody else uses.
std::filesystem::path own_path(std::string_view name) {
  return std::filesystem::temp_directory_path() /
         strf("yeto-bench-{}-{}", static_cast<int>(::getpid()), name);
}

WorldOptions small_world() {
  WorldOptions options;
  options.fragments = 1;
  options.values = 64U << 10;
  return options;
}

// A member's sockets close: until the status file, written each second, says that it is suspended.
void dead_on_close(const std::string& name) {
  WorldOptions options = small_world();
  options.status = own_path("status.json");
  std::vector<double> values;
  for (int i = 0; i < 5; ++i) {
    World world(options);
    world.wait_for_commits(kWarmUp);
    world.pass_time(i * 170 * kMillisecond);  // at different distances to the next one
    const Nanos start = monotonic_now();
    world.learner(1).disconnect();
    world.wait([&] {
      std::ifstream file(options.status);
      const std::string text((std::istreambuf_iterator<char>(file)), {});
      return text.find("suspended") != std::string::npos;
    });
    values.push_back(seconds(monotonic_now() - start));
    std::filesystem::remove(options.status);
  }
  print_figure(less_is_better(name, "s", 1.0, 0.5), values);
}

// Nothing comes from a member that the open round waits for: until the round commits without it.
void dead_on_silence(const std::string& name) {
  WorldOptions options = small_world();
  options.lease = 2 * kSecond;
  options.heartbeat = 400 * kMillisecond;
  options.watched = 1;
  options.behind_proxy = 1;
  std::vector<double> values;
  for (int i = 0; i < 3; ++i) {
    World world(options);
    world.wait_for_commits(kWarmUp);
    world.learner(1).hold_pushes(true);
    world.wait([&] { return world.learner(1).holds_a_pull(); });
    world.pass_time(100 * kMillisecond);  // the other one has answered
    const std::size_t before = world.commits();
    const Nanos start = monotonic_now();
    world.proxy().set({.stands_still = true});
    world.wait_for_commits(before + 1);
    values.push_back(seconds(monotonic_now() - start) / seconds(options.lease));
  }
  // The lease, and the commit that waited for its end.
  print_figure(less_is_better(name, "x lease", 1.05, 1.0), values);
}

// The most memory process `pid` has held, in bytes.
double peak_memory(pid_t pid) {
  std::ifstream status(strf("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) {
      return std::strtod(line.c_str() + 6, nullptr) * 1024;
    }
  }
  give_up("the peak memory of the syncer is not known on this system");
}

// A syncer in a process of its own, with 24 fragments of 1 Mi values and 8 learners: what its
// memory has grown to, less 64 MiB, per value. Every fragment is merged twice.
void memory(const std::string& name) {
  WorldOptions options;
  options.learners = 8;
  options.streams = 1;
  options.fragments = 24;
  options.values = 1U << 20;
  options.push_codec = options.broadcast_codec = CodecId::kBf16;
  const std::filesystem::path path = own_path("checkpoint");
  int pipe[2];
  die_if(::pipe(pipe) != 0, "pipe");
  const pid_t child = ::fork();
  die_if(child < 0, "fork");
  if (child == 0) {
    ::close(pipe[0]);
#ifdef __linux__
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a benchmark that gives up leaves no syncer behind
#endif
    const auto folder = store::LocalFolder::open(path);
    die_if(!folder, "the checkpoint folder cannot be made");
    const auto server = open_server(options, *folder);
    const std::uint16_t port = server->address().port;
    die_if(::write(pipe[1], &port, sizeof port) != sizeof port, "write");
    std::_Exit(server->run());
  }
  ::close(pipe[1]);
  std::uint16_t port = 0;
  die_if(::read(pipe[0], &port, sizeof port) != sizeof port, "the syncer did not start");
  ::close(pipe[0]);
  double peak = 0.0;
  {
    World world(options, net::Address{"127.0.0.1", port});
    world.wait_for_commits(std::size_t{2} * options.fragments);
    peak = peak_memory(child);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  std::filesystem::remove_all(path);
  const double values = static_cast<double>(options.values) * options.fragments;
  std::printf("peak memory of the syncer: %s\n", human_bytes(peak).c_str());
  print_figure(less_is_better(name, "B/param", 12.0, 10.0),
               std::vector<double>{(peak - 64 * kMiB) / values});
}

struct Row {
  const char* name;
  void (*measure)(const std::string& name);
};
// Memory first: its child must be forked before there are threads.
constexpr Row kRows[] = {
    {"syncer/memory_f24_bf16_m8", memory},
    {"syncer/push_to_broadcast", push_to_broadcast},
    {"syncer/commit_p99_m64", commit_64},
    {"syncer/stalled_reader", stalled_reader},
    {"syncer/q4_bytes", q4_bytes},
    {"syncer/dead_seen_close", dead_on_close},
    {"syncer/dead_seen_silence", dead_on_silence},
};

void run(const std::vector<std::string_view>& wanted) {
  set_log_level(LogLevel::kError);
  for (const Row& row : kRows) {
    const auto is_wanted = [&](std::string_view word) {
      return std::string_view(row.name).find(word) != std::string_view::npos;
    };
    if (wanted.empty() || std::any_of(wanted.begin(), wanted.end(), is_wanted)) {
      row.measure(row.name);
    }
  }
}

}  // namespace
}  // namespace yeto::bench

int main(int count, char** words) {
  yeto::bench::run(std::vector<std::string_view>(words + 1, words + count));
}
