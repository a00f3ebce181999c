// SPDX-License-Identifier: Apache-2.0
// Goal: Controller with real processes: the ends of a run, recovery, takeover, delivery.
// Method: syncer, learner, finish and plot are small shell scripts that keep the files' contract.
// They wait for files that the test writes, so no test depends on how long something takes.
#include "yeto/fleet/run/controller.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>

#include "yeto/base/clock.h"
#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/base/thread.h"
#include "yeto/fleet/providers/local.h"
#include "yeto/fleet/providers/process.h"
#include "yeto/fleet/run/delivery.h"
#include "yeto/fleet/run/ulid.h"

namespace yeto::fleet {
namespace {

namespace fs = std::filesystem;

// Each script finds its run folder from its arguments. `status` writes status.json with the given
// phase; its time stamp only has to grow.
constexpr const char* kSyncer = R"sh(
for arg in "$@"; do case "$arg" in --status=*) dir=$(dirname "${arg#--status=}");; esac; done
echo "$@" >> "$dir/syncer.args"
n=0
status() {
  n=$((n + 1))
  seats=""
  for seat in 0 1; do
    pid=$(cat "$dir/up.$seat" 2>/dev/null) || continue
    seats="$seats${seats:+,}{\"seat\":$seat,\"state\":\"live\",\"incarnation\":$pid,\"phase\":\"train\",\"local_step\":$n}"
  done
  printf '{"phase":"%s","global_step":%s,"total_steps":6,"run_tokens":10,"pid":%s,"exit":%s,"updated_at":%s,"seats":[%s]}' \
    "$1" "$n" "$$" "${2:-null}" "$(date +%s.%N)" "$seats" > "$dir/status.tmp"
  mv "$dir/status.tmp" "$dir/status.json"
}
while [ ! -e "$dir/end" ]; do status training; sleep 0.05; done
code=$(cat "$dir/end")
touch "$dir/final"
status ended "${code:-0}"
exit "${code:-0}"
)sh";

constexpr const char* kLearner = R"sh(
for arg in "$@"; do case "$arg" in --run-dir=*) dir=${arg#--run-dir=};; --seat=*) seat=${arg#--seat=};; --out-dir=*) out=${arg#--out-dir=};; esac; done
[ -e "$dir/fail.$seat" ] && exit "$(cat "$dir/fail.$seat")"
trap 'exit 81' TERM
echo $$ > "$dir/up.$seat.tmp"; mv "$dir/up.$seat.tmp" "$dir/up.$seat"
while [ ! -e "$dir/final" ]; do sleep 0.05; done
mkdir -p "$out/adapter.tmp"
printf weights > "$out/adapter.tmp/adapter_model.safetensors"
printf '{"files":{"adapter_model.safetensors":{"bytes":7,"sha256":"%s"}}}' "$(printf weights | sha256sum | cut -c1-64)" \
  > "$out/adapter.tmp/yeto_manifest.json"
mv "$out/adapter.tmp" "$out/adapter"
)sh";

constexpr const char* kFinish = R"sh(
for arg in "$@"; do case "$arg" in --endpoint=*) dir=$(dirname "${arg#--endpoint=}");; esac; done
echo "$@" >> "$dir/finish.args"
echo 0 > "$dir/end.tmp"; mv "$dir/end.tmp" "$dir/end"
)sh";

constexpr const char* kPlot = R"sh(
while [ $# -gt 1 ]; do shift; done
echo plot > "$1/loss.html"
)sh";

// A controller on a thread of its own, with a provider of its own, as a process would have it.
class Running {
 public:
  Running(const RunPaths& paths, const RunRecord& record)
      : controller_(paths, record, provider_, hooks()) {
    thread_ = JoiningThread([this] {
      const Result<int> code = controller_.run();
      code_ = code ? *code : -1;
    });
  }
  ~Running() { thread_.join(); }
  void down() { down_ = true; }
  int code() {
    thread_.join();
    return code_;
  }

 private:
  ControllerHooks hooks() {
    return {own_handle(), [this] { return down_.load(); },
            [this](Nanos limit) {
              ::poll(nullptr, 0,
                     static_cast<int>(std::min<Nanos>(limit, 20 * kMillisecond) / kMillisecond));
            }};
  }
  std::atomic<bool> down_ = false;
  std::atomic<int> code_ = -2;
  LocalProvider provider_;
  Controller controller_;
  JoiningThread thread_;
};

class ControllerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "yeto-controller-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    dir_ = name;
    record_.name = "demo";
    record_.run_id = make_ulid();
    record_.islands = parse_fleet("local:1xcpu,local:1xcpu").fleet.slots;
    record_.flags = parse_line(kLaunch, std::vector<std::string>{"--gpu=2*local:1xcpu", "--model=m",
                                                                 "--data=d"})
                        .values;
    record_.programs = {script("syncer", kSyncer), script("learner", kLearner),
                        script("finish", kFinish), script("plot", kPlot)};
    record_.output = (dir_ / "out").string();
    const Registry registry(dir_ / "runs");
    ASSERT_TRUE(registry.lock_claims());
    ASSERT_TRUE(registry.claim("demo", {record_.run_id, "", {}, 0}));
    paths_ = registry.create("demo", record_.run_id).value_or(RunPaths{});
    ASSERT_TRUE(write_run_record(paths_, record_));
    ASSERT_TRUE(registry.link_newest("demo", paths_));
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::vector<std::string> script(const std::string& name, const char* text) {
    const fs::path path = dir_ / name;
    EXPECT_TRUE(write_file_atomic(path, text, 0755));
    return {"/bin/sh", path.string()};
  }
  void put(const std::string& name, const std::string& text) {
    EXPECT_TRUE(write_file_atomic(paths_.root / name, text));
  }
  StoredState state() { return read_state(paths_).value_or(StoredState{}); }
  std::int64_t up(int seat) {
    return std::strtoll(read_text_file(paths_.root / strf("up.{}", seat)).value_or("0").c_str(),
                        nullptr, 10);
  }
  template <class Condition>
  ::testing::AssertionResult until(Condition condition, double limit_s = 30) {
    const Nanos end = monotonic_now() + from_seconds(limit_s);
    while (!condition()) {
      if (monotonic_now() > end) {
        return ::testing::AssertionFailure()
               << "not reached; state " << run_state_name(state().state) << " phase "
               << state().phase;
      }
      ::poll(nullptr, 0, 20);
    }
    return ::testing::AssertionSuccess();
  }
  bool training() { return state().phase == "TRAINING"; }
  bool claimed() { return Registry(dir_ / "runs").read_claim("demo").has_value(); }
  // No process of this run may be left, whatever the test did.
  bool nothing_left() {
    for (const Recorded& one :
         recorded_processes(read_journal(paths_.journal()).value_or(std::vector<JournalEntry>{}))) {
      if (is_alive(one.handle)) {
        return false;
      }
    }
    return true;
  }

  fs::path dir_;
  RunPaths paths_;
  RunRecord record_;
};

TEST_F(ControllerTest, AGoodRunIsDelivered) {
  Running running(paths_, record_);
  ASSERT_TRUE(until([&] { return training(); }));
  EXPECT_EQ(state().islands.size(), 2u);
  EXPECT_TRUE(state().syncer.handle.has_value());
  EXPECT_TRUE(claimed());
  put("end", "0");
  EXPECT_EQ(running.code(), 0);
  EXPECT_EQ(state().state, RunState::kSucceeded);
  EXPECT_EQ(state().artifact, record_.output);
  EXPECT_TRUE(verify_artifact(record_.output));
  EXPECT_TRUE(fs::exists(fs::path(record_.output) / "loss.html"));
  EXPECT_TRUE(fs::exists(fs::path(record_.output) / "summary.json"));
  EXPECT_FALSE(claimed()) << "the name is free again";
  EXPECT_TRUE(nothing_left());
}

TEST_F(ControllerTest, AKilledIslandComesBack) {
  Running running(paths_, record_);
  ASSERT_TRUE(until([&] { return training(); }));
  const std::int64_t before = up(1);
  ASSERT_EQ(::kill(static_cast<pid_t>(before), SIGKILL), 0);
  ASSERT_TRUE(until([&] { return up(1) != before && up(1) != 0 && training(); }));
  EXPECT_EQ(state().islands[1].attempt, 1);
  EXPECT_EQ(state().islands[1].restarts, 1);
  EXPECT_TRUE(fs::exists(paths_.learner_log(1, 1)));
  put("end", "0");
  EXPECT_EQ(running.code(), 0);
}

TEST_F(ControllerTest, AKilledSyncerResumes) {
  Running running(paths_, record_);
  ASSERT_TRUE(until([&] { return training(); }));
  const Handle before = *state().syncer.handle;
  ASSERT_EQ(::kill(static_cast<pid_t>(before.pid), SIGKILL), 0);
  ASSERT_TRUE(until([&] {
    return state().syncer.restarts == 1 && state().syncer.handle.has_value() && training();
  }));
  put("end", "0");
  EXPECT_EQ(running.code(), 0);
  const std::string args = read_text_file(paths_.root / "syncer.args").value_or("");
  EXPECT_EQ(args.find("--resume"), args.rfind("--resume")) << args;
  EXPECT_NE(args.find("--resume"), std::string::npos) << args;
}

TEST_F(ControllerTest, RefusedDataEndsTheRun) {
  put("fail.0", "65");
  put("fail.1", "65");
  Running running(paths_, record_);
  EXPECT_EQ(running.code(), 65);
  EXPECT_EQ(state().state, RunState::kFailed);
  EXPECT_EQ(state().islands[0].state, "FAILED");
  EXPECT_TRUE(nothing_left());
  EXPECT_FALSE(claimed());
}

TEST_F(ControllerTest, ALostQuorumStillDelivers) {
  Running running(paths_, record_);
  ASSERT_TRUE(until([&] { return training(); }));
  put("end", "4");
  EXPECT_EQ(running.code(), 4);
  EXPECT_EQ(state().state, RunState::kFailed);
  EXPECT_TRUE(verify_artifact(record_.output));
}

TEST_F(ControllerTest, AStopRequestFinishesTheRun) {
  Running running(paths_, record_);
  ASSERT_TRUE(until([&] { return training(); }));
  ASSERT_TRUE(write_stop(paths_, {"stop-1", StopMode::kFinish, "me", "enough"}));
  EXPECT_EQ(running.code(), 0);
  EXPECT_EQ(state().state, RunState::kStopped);
  EXPECT_TRUE(verify_artifact(record_.output));
  const std::string args = read_text_file(paths_.root / "finish.args").value_or("");
  EXPECT_NE(args.find("--mode=finish"), std::string::npos) << args;
  bool acknowledged = false;
  for (const JournalEntry& entry :
       read_journal(paths_.journal()).value_or(std::vector<JournalEntry>{})) {
    acknowledged = acknowledged || (entry.kind == "stop" && entry.what == "stop-1");
  }
  EXPECT_TRUE(acknowledged);
}

TEST_F(ControllerTest, DownEndsAllProcesses) {
  Running running(paths_, record_);
  ASSERT_TRUE(until([&] { return training(); }));
  running.down();
  running.code();
  EXPECT_EQ(state().state, RunState::kDown);
  EXPECT_TRUE(nothing_left());
  EXPECT_FALSE(fs::exists(record_.output));
  EXPECT_FALSE(claimed());
}

TEST_F(ControllerTest, ASecondControllerIsFenced) {
  Running running(paths_, record_);
  ASSERT_TRUE(until([&] { return training(); }));
  {
    Running second(paths_, record_);
    EXPECT_EQ(second.code(), kExitFenced);
  }
  EXPECT_TRUE(training());
  put("end", "0");
  EXPECT_EQ(running.code(), 0);
}

TEST_F(ControllerTest, AFinishedRunIsLeftAlone) {
  {
    Running running(paths_, record_);
    ASSERT_TRUE(until([&] { return training(); }));
    put("end", "0");
    EXPECT_EQ(running.code(), 0);
  }
  const std::uint64_t seq = state().seq;
  Running again(paths_, record_);
  EXPECT_EQ(again.code(), 0);
  EXPECT_EQ(state().seq, seq);
}

// The journal of a controller that died: its processes live, one intent has no outcome. The test
// makes them itself, because a thread cannot die as a process does.
TEST_F(ControllerTest, ANewControllerAdoptsByPidAndStartTime) {
  LocalProvider first;
  Result<Journal> journal = Journal::open(paths_.journal());
  ASSERT_TRUE(journal);
  const auto launch = [&](int who, std::vector<std::string> argv, bool record_outcome) {
    JournalEntry entry{
        .kind = "intent", .who = who, .attempt = 0, .token = strf("{}-{}", record_.run_id, who)};
    EXPECT_TRUE(journal->append(entry));
    first.create(Intent{entry.token, std::move(argv), {}, paths_.logs() / strf("first{}.log", who)},
                 [&](Result<Handle> made) {
                   EXPECT_TRUE(made);
                   entry.kind = "spawned";
                   entry.handle = made.value_or(Handle{});
                   if (record_outcome) {
                     EXPECT_TRUE(journal->append(entry));
                   }
                 });
    return entry.handle;
  };
  const auto argv_of = [&](std::vector<std::string> program, std::vector<std::string> more) {
    program.insert(program.end(), more.begin(), more.end());
    return program;
  };
  const Handle syncer =
      launch(kSyncerSeat,
             argv_of(record_.programs.syncer, {"--status=" + paths_.status_json().string()}), true);
  const auto island = [&](int seat) {
    return argv_of(record_.programs.learner,
                   {"--run-dir=" + paths_.root.string(), strf("--seat={}", seat),
                    "--out-dir=" + paths_.island(seat).string()});
  };
  launch(0, island(0), true);
  const Handle orphan = launch(1, island(1), false);
  ASSERT_TRUE(until([&] { return up(0) != 0 && up(1) != 0; }));

  Running running(paths_, record_);
  ASSERT_TRUE(until([&] { return training(); }));
  EXPECT_EQ(state().syncer.handle, syncer);
  EXPECT_EQ(state().islands[1].handle, orphan) << "found by its token";
  EXPECT_EQ(state().islands[0].attempt, 0) << "nothing was started a second time";
  put("end", "0");
  // The processes are this test's children: someone has to reap them as init would.
  ASSERT_TRUE(until([&] {
    bool all = true;
    for (const Handle& handle : {syncer, orphan}) {
      first.observe(handle, [&](Result<NodeReport> report) {
        all = all && report->state == NodeState::kGone;
      });
    }
    return all;
  }));
  EXPECT_EQ(running.code(), 0);
  EXPECT_EQ(state().state, RunState::kSucceeded);
  EXPECT_TRUE(verify_artifact(record_.output));
}

}  // namespace
}  // namespace yeto::fleet
