// SPDX-License-Identifier: Apache-2.0
// Goal: the controller's decisions. Method: FleetCore under an injected clock; a small harness
// plays the processes: what is started comes up at once, what is terminated ends when the test says
// so.
#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/fleet/run/core.h"

namespace yeto::fleet {
namespace {

class Harness {
 public:
  explicit Harness(int islands = 2, CoreConfig config = {})
      : core([&] {
          config.islands = islands;
          return config;
        }()) {}

  void feed(const Event& event) {
    for (std::deque<Event> todo = {event}; !todo.empty(); todo.pop_front()) {
      for (const Action& action : core.on(todo.front(), now)) {
        if (const auto* start = std::get_if<action::Start>(&action)) {
          starts[start->who] += 1;
          attempt[start->who] = start->attempt;
          if (come_up) {
            todo.push_back(event::ProcessUp{start->who, start->attempt});
          }
        } else if (const auto* order = std::get_if<action::Terminate>(&action)) {
          (order->force ? kills : terms)[order->who] += 1;
        } else if (const auto* finish = std::get_if<action::SendFinish>(&action)) {
          finishes.push_back(finish->mode);
        } else if (const auto* deliver = std::get_if<action::Deliver>(&action)) {
          deliveries.push_back(deliver->seats);
        } else if (const auto* decision = std::get_if<action::Decide>(&action)) {
          EXPECT_FALSE(decision->reason.empty() && decision->what != "finish") << decision->what;
        } else {
          ended += 1;
        }
      }
    }
  }
  void tick(double by_seconds) {
    now += from_seconds(by_seconds);
    feed(event::Tick{});
  }
  // All processes run and the syncer reports training with these local steps.
  void report(const std::string& phase, std::int64_t global_step,
              const std::string& seat_phase = "train") {
    event::Report out;
    out.phase = phase;
    out.global_step = global_step;
    for (int seat = 0; seat < static_cast<int>(core.view().islands.size()); ++seat) {
      out.seats.push_back(SeatReport{.seat = seat,
                                     .joined = joined.count(seat) == 0 || joined[seat],
                                     .live = live.count(seat) == 0 || live[seat],
                                     .phase = seat_phase,
                                     .incarnation = strf("{}-{}", seat, attempt[seat]),
                                     .local_step = step[seat]});
    }
    feed(out);
  }
  void train(int steps = 1) {
    for (int i = 0; i < steps; ++i) {
      for (int seat = 0; seat < static_cast<int>(core.view().islands.size()); ++seat) {
        step[seat] += 1;
      }
      now += kSecond;
      report("training", ++global);
    }
  }
  void exit(int who, std::optional<int> code, int signal = 0, bool artifact = false) {
    feed(event::Exited{who, attempt[who], code, signal, artifact});
  }
  IslandState state(int seat) { return core.view().islands[static_cast<std::size_t>(seat)].state; }
  std::string phase() {
    const RunView view = core.view();
    return view.phase ? std::string(run_phase_name(*view.phase)) : "";
  }
  // The usual end: the syncer ends, both islands have saved, delivery works.
  void finish_well() {
    report("final", global);
    exit(kSyncerSeat, 0);
    for (int seat = 0; seat < static_cast<int>(core.view().islands.size()); ++seat) {
      exit(seat, 0, 0, true);
    }
  }

  Nanos now = 1'000 * kSecond;
  std::map<int, int> starts, terms, kills, attempt;
  std::map<int, bool> joined, live;
  std::map<int, std::int64_t> step;
  std::vector<StopMode> finishes;
  std::vector<std::vector<int>> deliveries;
  int ended = 0;
  std::int64_t global = 0;
  bool come_up = true;
  FleetCore core;
};

TEST(FleetCore, AGoodRunGoesThroughItsPhases) {
  Harness h;
  EXPECT_EQ(h.phase(), "SUBMITTED");
  EXPECT_EQ(h.core.view().state, RunState::kPending);
  h.feed(event::Begin{});
  EXPECT_EQ(h.phase(), "PROVISIONING");
  EXPECT_EQ(h.starts[kSyncerSeat] + h.starts[0] + h.starts[1], 3);
  h.train();
  EXPECT_EQ(h.phase(), "TRAINING");
  EXPECT_EQ(h.core.view().state, RunState::kRunning);
  h.finish_well();
  EXPECT_EQ(h.phase(), "DELIVERING");
  ASSERT_EQ(h.deliveries.size(), 1u);
  EXPECT_EQ(h.deliveries[0], (std::vector<int>{0, 1}));
  h.feed(event::Delivered{true, "out"});
  EXPECT_TRUE(h.core.over());
  EXPECT_EQ(h.ended, 1);
  EXPECT_EQ(h.core.view().state, RunState::kSucceeded);
  EXPECT_EQ(h.core.view().exit, 0);
  EXPECT_EQ(h.core.view().artifact, "out");
}

TEST(FleetCore, AKilledIslandIsStartedAgainAndRejoins) {
  Harness h;
  h.feed(event::Begin{});
  h.train(3);
  h.exit(1, std::nullopt, 9);
  EXPECT_EQ(h.state(1), IslandState::kWaiting);
  EXPECT_EQ(h.phase(), "DEGRADED");
  h.tick(0.2);
  EXPECT_EQ(h.starts[1], 1) << "a pause comes before the next start";
  h.tick(1.0);
  EXPECT_EQ(h.starts[1], 2);
  EXPECT_EQ(h.state(1), IslandState::kSetup);
  h.train();
  EXPECT_EQ(h.state(1), IslandState::kRunning);
  EXPECT_EQ(h.phase(), "TRAINING");
  EXPECT_EQ(h.core.view().islands[1].restarts, 1);
}

TEST(FleetCore, AReportOfTheDeadIncarnationDoesNotCount) {
  Harness h;
  h.feed(event::Begin{});
  h.train();
  h.exit(1, std::nullopt, 9);
  h.tick(2);
  ASSERT_EQ(h.state(1), IslandState::kSetup);
  h.attempt[1] = 0;  // the syncer still lists the process that died
  h.report("training", h.global);
  EXPECT_EQ(h.state(1), IslandState::kSetup);
  h.attempt[1] = 1;
  h.report("training", h.global);
  EXPECT_EQ(h.state(1), IslandState::kRunning);
}

class FinalCode : public ::testing::TestWithParam<int> {};

TEST_P(FinalCode, IsNotWorthAnotherStart) {
  Harness h;
  h.feed(event::Begin{});
  h.train();
  h.exit(0, GetParam());
  h.tick(100);
  EXPECT_EQ(h.starts[0], 1);
  EXPECT_EQ(h.state(0), IslandState::kFailed);
  EXPECT_EQ(h.starts[1], 1);
  h.exit(1, GetParam());
  EXPECT_EQ(h.terms[kSyncerSeat], 1) << "a syncer without islands is ended";
  h.exit(kSyncerSeat, 130);
  EXPECT_EQ(h.core.view().state, RunState::kFailed);
  EXPECT_EQ(h.core.view().exit, GetParam());
  EXPECT_TRUE(h.deliveries.empty());
}
INSTANTIATE_TEST_SUITE_P(Codes, FinalCode, ::testing::Values(64, 65, 80, 82));

TEST(FleetCore, MaxRecoveriesInAnHour) {
  CoreConfig config;
  config.max_recoveries = 3;
  Harness h(2, config);
  h.feed(event::Begin{});
  h.train();
  for (int i = 0; i < 3; ++i) {
    h.exit(1, 1);
    ASSERT_EQ(h.state(1), IslandState::kWaiting) << i;
    h.tick(60);
    h.train();
  }
  h.exit(1, 1);
  EXPECT_EQ(h.state(1), IslandState::kAbandoned);
  EXPECT_EQ(h.starts[1], 4);
  EXPECT_EQ(h.phase(), "DEGRADED");
}

TEST(FleetCore, RecoveriesOlderThanAnHourDoNotCount) {
  CoreConfig config;
  config.max_recoveries = 2;
  Harness h(2, config);
  h.feed(event::Begin{});
  h.train();
  for (int i = 0; i < 5; ++i) {
    h.exit(1, 1);
    ASSERT_EQ(h.state(1), IslandState::kWaiting) << i;
    h.tick(60);
    h.train();
    h.now += 1900 * kSecond;
    h.train();
  }
}

TEST(FleetCore, RecoveryBudgetInSeconds) {
  CoreConfig config;
  config.recover_timeout = 100 * kSecond;
  Harness h(2, config);
  h.feed(event::Begin{});
  h.train();
  h.exit(1, std::nullopt, 9);
  h.joined[1] = false;
  h.tick(2);
  ASSERT_EQ(h.starts[1], 2);
  h.tick(50);
  EXPECT_EQ(h.state(1), IslandState::kSetup);
  h.tick(60);
  EXPECT_EQ(h.state(1), IslandState::kAbandoned);
  EXPECT_EQ(h.terms[1], 1);
  h.exit(1, 81);
  h.tick(100);
  EXPECT_EQ(h.state(1), IslandState::kAbandoned);
  EXPECT_EQ(h.starts[1], 2);
}

TEST(FleetCore, TenHealthyMinutesRestoreTheBudget) {
  CoreConfig config;
  config.recover_timeout = 100 * kSecond;
  Harness h(2, config);
  h.feed(event::Begin{});
  h.train();
  for (int i = 0; i < 4; ++i) {
    h.exit(1, std::nullopt, 9);
    h.tick(60);
    h.train();
    ASSERT_EQ(h.state(1), IslandState::kRunning) << i;
    h.now += 601 * kSecond;
    h.train();
  }
}

TEST(FleetCore, NoRelaunchByFlag) {
  CoreConfig config;
  config.relaunch = false;
  Harness h(2, config);
  h.feed(event::Begin{});
  h.train();
  h.exit(1, 1);
  EXPECT_EQ(h.state(1), IslandState::kAbandoned);
  CoreConfig zero;
  zero.recover_timeout = 0;
  Harness z(2, zero);
  z.feed(event::Begin{});
  z.train();
  z.exit(1, 1);
  EXPECT_EQ(z.state(1), IslandState::kAbandoned);
}

TEST(FleetCore, AnIslandThatNeverStartsIsASetupFailure) {
  Harness h;
  h.feed(event::Begin{});
  h.joined[0] = h.joined[1] = false;
  for (const int seat : {0, 1}) {
    h.exit(seat, 1);
    h.tick(5);
    h.exit(seat, 1);
    EXPECT_EQ(h.state(seat), IslandState::kSetupFailed);
    EXPECT_EQ(h.starts[seat], 2);
  }
  h.exit(kSyncerSeat, 0);
  EXPECT_EQ(h.core.view().state, RunState::kFailed);
  EXPECT_EQ(h.core.view().exit, 11);
}

TEST(FleetCore, ASignalOrALostSyncerIsNoSetupFailure) {
  Harness h;
  h.feed(event::Begin{});
  h.joined[0] = h.joined[1] = false;
  for (int i = 0; i < 4; ++i) {
    h.exit(1, i % 2 == 0 ? std::optional<int>(69) : std::nullopt, i % 2 == 0 ? 0 : 9);
    ASSERT_EQ(h.state(1), IslandState::kWaiting) << i;
    h.tick(40);
  }
}

TEST(FleetCore, AStalledIslandIsKilledAndStartedAgain) {
  CoreConfig config;
  config.stall_timeout = 60 * kSecond;
  Harness h(2, config);
  h.feed(event::Begin{});
  h.train(2);
  for (int i = 0; i < 59; ++i) {
    h.now += kSecond;
    h.step[0] += 1;  // only seat 0 goes on
    h.report("training", h.global);
  }
  EXPECT_EQ(h.terms[1], 0);
  h.now += 2 * kSecond;
  h.step[0] += 1;
  h.report("training", h.global);
  EXPECT_EQ(h.terms[1], 1);
  EXPECT_EQ(h.state(1), IslandState::kRecovering);
  EXPECT_EQ(h.terms[0], 0);
  h.tick(9);
  EXPECT_EQ(h.kills[1], 0);
  h.tick(1.5);
  EXPECT_EQ(h.kills[1], 1) << "TERM has no effect on a stopped process";
  h.exit(1, std::nullopt, 9);
  h.tick(2);
  EXPECT_EQ(h.starts[1], 2);
}

TEST(FleetCore, EvaluationAndASilentSyncerAreNoStall) {
  CoreConfig config;
  config.stall_timeout = 60 * kSecond;
  Harness h(2, config);
  h.feed(event::Begin{});
  h.train(2);
  for (int i = 0; i < 100; ++i) {
    h.now += kSecond;
    h.report("training", h.global, "eval");
  }
  EXPECT_EQ(h.terms[0] + h.terms[1], 0);
  h.train();
  h.tick(500);  // no reports at all
  h.report("training", h.global);
  EXPECT_EQ(h.terms[0] + h.terms[1], 0);
}

TEST(FleetCore, ADeadSyncerIsRestartedWithoutLimit) {
  Harness h;
  h.feed(event::Begin{});
  h.train();
  for (int i = 1; i <= 50; ++i) {
    h.exit(kSyncerSeat, std::nullopt, 9);
    EXPECT_EQ(h.starts[kSyncerSeat], i);
    h.tick(31);
    ASSERT_EQ(h.starts[kSyncerSeat], i + 1) << "the pause has an upper limit";
  }
  EXPECT_EQ(h.starts[0] + h.starts[1], 2) << "islands go on";
  EXPECT_EQ(h.core.view().syncer_restarts, 50);
}

TEST(FleetCore, ASyncerThatRefusesIsNotRestarted) {
  Harness h;
  h.feed(event::Begin{});
  h.exit(kSyncerSeat, 82);
  EXPECT_EQ(h.terms[0] + h.terms[1], 2);
  h.exit(0, 81);
  h.exit(1, 81);
  EXPECT_EQ(h.core.view().state, RunState::kFailed);
  EXPECT_EQ(h.core.view().exit, 82);
  EXPECT_EQ(h.starts[kSyncerSeat], 1);
}

TEST(FleetCore, IslandsGetTimeToSaveAndNobodyIsRecovered) {
  CoreConfig config;
  config.save_timeout = 50 * kSecond;
  Harness h(3, config);
  h.feed(event::Begin{});
  h.train();
  h.exit(2, 1);  // waits for its next start
  h.exit(kSyncerSeat, 0);
  EXPECT_EQ(h.phase(), "FINISHING");
  EXPECT_EQ(h.state(2), IslandState::kAbandoned);
  h.tick(20);
  EXPECT_EQ(h.starts[2], 1);
  EXPECT_EQ(h.terms[0], 0);
  h.exit(0, 1, 0, true);  // saved, then ended badly: done all the same
  EXPECT_EQ(h.state(0), IslandState::kDone);
  h.tick(40);
  EXPECT_EQ(h.terms[1], 1);
  h.exit(1, 81);
  ASSERT_EQ(h.deliveries.size(), 1u);
  EXPECT_EQ(h.deliveries[0], std::vector<int>{0});
  h.feed(event::Delivered{true, "out"});
  EXPECT_EQ(h.core.view().state, RunState::kSucceeded);
}

TEST(FleetCore, AnIslandNotYetJoinedIsEndedWithTheRun) {
  Harness h;
  h.feed(event::Begin{});
  h.train();
  h.exit(1, std::nullopt, 9);
  h.joined[1] = false;
  h.tick(2);
  h.exit(kSyncerSeat, 0);
  EXPECT_EQ(h.terms[1], 1);
  EXPECT_EQ(h.terms[0], 0);
}

TEST(FleetCore, ALostFinalAcknowledgementFailsButDelivers) {
  Harness h;
  h.feed(event::Begin{});
  h.train();
  h.exit(kSyncerSeat, 4);
  h.exit(0, 0, 0, true);
  h.exit(1, std::nullopt, 9);
  ASSERT_EQ(h.deliveries.size(), 1u);
  h.feed(event::Delivered{true, "out"});
  EXPECT_EQ(h.core.view().state, RunState::kFailed);
  EXPECT_EQ(h.core.view().exit, 4);
  EXPECT_EQ(h.core.view().artifact, "out");
}

TEST(FleetCore, AllIslandsBeyondBudgetFailTheRun) {
  CoreConfig config;
  config.max_recoveries = 0;
  Harness h(2, config);
  h.feed(event::Begin{});
  h.train();
  h.exit(0, 1);
  EXPECT_EQ(h.terms[kSyncerSeat], 0);
  h.exit(1, std::nullopt, 9);
  EXPECT_EQ(h.terms[kSyncerSeat], 1);
  h.exit(kSyncerSeat, std::nullopt, 15);
  EXPECT_EQ(h.core.view().state, RunState::kFailed);
  EXPECT_EQ(h.core.view().exit, 4);
  EXPECT_FALSE(h.core.view().error.empty());
}

TEST(FleetCore, ASyncerThatHangsAfterTheIslandsIsEnded) {
  CoreConfig config;
  config.final_timeout = 10 * kSecond;
  Harness h(1, config);
  h.feed(event::Begin{});
  h.train();
  h.exit(0, 0, 0, true);
  h.tick(39);
  EXPECT_EQ(h.terms[kSyncerSeat], 0);
  h.tick(2);
  EXPECT_EQ(h.terms[kSyncerSeat], 1);
  h.exit(kSyncerSeat, std::nullopt, 9);
  h.feed(event::Delivered{true, "out"});
  EXPECT_EQ(h.core.view().state, RunState::kSucceeded);
}

TEST(FleetCore, ASyncerThatDiesAfterTheIslandsIsNotRestarted) {
  Harness h(1);
  h.feed(event::Begin{});
  h.train();
  h.exit(0, 0, 0, true);
  h.exit(kSyncerSeat, std::nullopt, 9);
  h.tick(60);
  EXPECT_EQ(h.starts[kSyncerSeat], 1);
  EXPECT_EQ(h.deliveries.size(), 1u);
}

TEST(FleetCore, StopRunFinishesCleanly) {
  Harness h;
  h.feed(event::Begin{});
  h.train();
  h.feed(event::Stop{StopMode::kFinish});
  EXPECT_EQ(h.phase(), "FINISHING");
  ASSERT_EQ(h.finishes.size(), 1u);
  h.tick(1);
  EXPECT_EQ(h.finishes.size(), 1u) << "one request at a time";
  h.feed(event::FinishSent{false});
  h.tick(3);
  EXPECT_EQ(h.finishes.size(), 2u) << "asked again until the syncer took it";
  h.feed(event::FinishSent{true});
  h.tick(3);
  EXPECT_EQ(h.finishes.size(), 2u);
  h.exit(kSyncerSeat, std::nullopt, 9);
  h.tick(2);
  EXPECT_EQ(h.finishes.size(), 3u) << "a new syncer has not heard of it";
  h.feed(event::FinishSent{true});
  h.finish_well();
  h.feed(event::Delivered{true, "out"});
  EXPECT_EQ(h.core.view().state, RunState::kStopped);
  EXPECT_EQ(h.core.view().exit, 0);
}

TEST(FleetCore, AStoppingRunReplacesNobody) {
  Harness h;
  h.feed(event::Begin{});
  h.train();
  h.feed(event::Stop{StopMode::kFinish});
  h.exit(1, std::nullopt, 9);
  h.tick(60);
  EXPECT_EQ(h.starts[1], 1);
  EXPECT_EQ(h.state(1), IslandState::kAbandoned);
}

TEST(FleetCore, StopNowEndsWithinItsTime) {
  Harness h;
  h.feed(event::Begin{});
  h.train();
  h.feed(event::Stop{StopMode::kFinish});
  h.feed(event::FinishSent{true});
  h.feed(event::Stop{StopMode::kNow});
  ASSERT_EQ(h.finishes.size(), 2u);
  EXPECT_EQ(h.finishes[1], StopMode::kNow);
  h.tick(31);
  EXPECT_EQ(h.terms[0] + h.terms[1] + h.terms[kSyncerSeat], 3);
  h.exit(0, 81);
  h.exit(1, 81);
  h.exit(kSyncerSeat, 130);
  EXPECT_EQ(h.core.view().state, RunState::kStopped);
  EXPECT_EQ(h.core.view().exit, 0);
}

TEST(FleetCore, AFinishWithoutProgressIsCutOff) {
  CoreConfig config;
  config.stall_timeout = 60 * kSecond;
  Harness h(2, config);
  h.feed(event::Begin{});
  h.feed(event::Stop{StopMode::kFinish});
  h.feed(event::FinishSent{true});
  h.tick(59);
  EXPECT_EQ(h.terms[0], 0);
  h.tick(2);
  EXPECT_EQ(h.terms[0] + h.terms[1] + h.terms[kSyncerSeat], 3);
  h.exit(0, 81);
  h.exit(1, 81);
  h.exit(kSyncerSeat, 130);
  EXPECT_EQ(h.core.view().state, RunState::kStopped);
  EXPECT_EQ(h.core.view().exit, 0) << "nothing was trained, so nothing is missing";
}

TEST(FleetCore, StoppedWithoutAnAdapterSaysSo) {
  Harness h;
  h.feed(event::Begin{});
  h.train(5);
  h.feed(event::Stop{StopMode::kFinish});
  h.exit(kSyncerSeat, 0);
  h.exit(0, 1);
  h.exit(1, 1);
  EXPECT_EQ(h.core.view().state, RunState::kStopped);
  EXPECT_EQ(h.core.view().exit, 2);
}

TEST(FleetCore, DownEndsEverythingAndDeliversNothing) {
  Harness h;
  h.feed(event::Begin{});
  h.train();
  h.feed(event::Down{});
  EXPECT_EQ(h.phase(), "TEARDOWN");
  EXPECT_EQ(h.terms[0] + h.terms[1] + h.terms[kSyncerSeat], 3);
  h.feed(event::Down{});
  EXPECT_EQ(h.terms[0], 1);
  h.exit(0, 81);
  h.exit(1, 0, 0, true);
  h.tick(11);
  EXPECT_EQ(h.kills[kSyncerSeat], 1);
  h.exit(kSyncerSeat, std::nullopt, 9);
  EXPECT_TRUE(h.core.over());
  EXPECT_TRUE(h.deliveries.empty());
  EXPECT_EQ(h.core.view().state, RunState::kDown);
  EXPECT_FALSE(h.core.view().exit.has_value());
}

TEST(FleetCore, DownWhileAStartIsUnderWayWaitsForIt) {
  Harness h;
  h.come_up = false;
  h.feed(event::Begin{});
  h.feed(event::Down{});
  EXPECT_FALSE(h.core.over());
  for (const int who : {kSyncerSeat, 0, 1}) {
    h.feed(event::ProcessUp{who, 0});
  }
  EXPECT_EQ(h.terms[0] + h.terms[1] + h.terms[kSyncerSeat], 3);
}

TEST(FleetCore, DeliveryIsTriedThreeTimes) {
  Harness h;
  h.feed(event::Begin{});
  h.train();
  h.finish_well();
  for (int i = 1; i <= 3; ++i) {
    ASSERT_EQ(h.deliveries.size(), static_cast<std::size_t>(i));
    h.feed(event::Delivered{false, "disk full"});
    h.tick(3);
  }
  EXPECT_EQ(h.deliveries.size(), 3u);
  EXPECT_EQ(h.core.view().state, RunState::kFailed);
  EXPECT_EQ(h.core.view().exit, 2);
  EXPECT_EQ(h.core.view().error, "disk full");
}

TEST(FleetCore, AnEndWithoutAnAdapterIsAFailure) {
  Harness h;
  h.feed(event::Begin{});
  h.train();
  h.exit(kSyncerSeat, 0);
  h.exit(0, 1);
  h.exit(1, 1);
  EXPECT_EQ(h.core.view().state, RunState::kFailed);
  EXPECT_EQ(h.core.view().exit, 2);
}

TEST(FleetCore, AProgramThatCannotBeExecutedIsNotTriedAgain) {
  Harness h;
  h.come_up = false;
  h.feed(event::Begin{});
  h.feed(event::ProcessUp{kSyncerSeat, 0});
  h.feed(event::SpawnFailed{0, 0, "no such file"});
  h.feed(event::SpawnFailed{1, 0, "no such file"});
  EXPECT_EQ(h.state(0), IslandState::kSetupFailed);
  h.exit(kSyncerSeat, 130);
  EXPECT_EQ(h.core.view().exit, 11);
  EXPECT_NE(h.core.view().error.find("no such file"), std::string::npos);
}

TEST(FleetCore, ANewControllerTakesOver) {
  Harness h;
  h.feed(event::Restored{{{kSyncerSeat, 2, 2}, {0, 0, 0}, {1, 3, 3}}});
  EXPECT_EQ(h.starts.size(), 0u) << "nothing is started that was started before";
  h.attempt = {{kSyncerSeat, 2}, {0, 0}, {1, 3}};
  h.feed(event::ProcessUp{kSyncerSeat, 2});
  h.feed(event::ProcessUp{0, 0});
  h.exit(1, std::nullopt);  // died while no controller looked
  EXPECT_EQ(h.state(1), IslandState::kWaiting);
  h.tick(2);
  EXPECT_EQ(h.attempt[1], 4) << "attempts are never used twice";
  h.train();
  EXPECT_EQ(h.phase(), "TRAINING");
  EXPECT_EQ(h.core.view().islands[1].restarts, 4);
}

TEST(FleetCore, ANewControllerStartsWhatWasNotStarted) {
  Harness h;
  h.feed(event::Restored{{{kSyncerSeat, 0, 0}}});
  EXPECT_EQ(h.starts[kSyncerSeat], 0);
  EXPECT_EQ(h.starts[0] + h.starts[1], 2);
}

TEST(FleetCore, AnEndSeenOnlyByTheNewControllerIsDelivered) {
  Harness h;
  h.feed(event::Restored{{{kSyncerSeat, 0, 0}, {0, 0, 0}, {1, 0, 0}}});
  h.attempt = {{kSyncerSeat, 0}, {0, 0}, {1, 0}};
  h.exit(kSyncerSeat, 0);
  h.exit(0, std::nullopt, 0, true);
  h.exit(1, std::nullopt, 0, true);
  ASSERT_EQ(h.deliveries.size(), 1u);
  h.feed(event::Delivered{true, "out"});
  EXPECT_EQ(h.core.view().state, RunState::kSucceeded);
}

// Processes under random faults from a seed.
class RandomRun {
 public:
  explicit RandomRun(std::uint64_t seed)
      : rng_(seed), islands_(static_cast<int>(1 + rng_.below(4))), core_([&] {
          CoreConfig config;
          config.islands = islands_;
          config.stall_timeout = 30 * kSecond;
          config.save_timeout = 20 * kSecond;
          return config;
        }()) {
    feed(event::Begin{});
  }
  void fault() {
    now_ += static_cast<Nanos>(rng_.below(3 * kSecond));
    const int who = static_cast<int>(rng_.below(static_cast<std::uint64_t>(islands_) + 1)) - 1;
    switch (rng_.below(24)) {
      case 0:
        return die(who, std::nullopt, 9, false);
      case 1:
        return die(who, 1, 0, false);
      case 2:
        return feed(event::Stop{rng_.below(2) == 0 ? StopMode::kFinish : StopMode::kNow});
      default:
        return report();
    }
  }
  void heal_and_end() {
    die(kSyncerSeat, 0, 0, false);
    for (int seat = 0; seat < islands_; ++seat) {
      die(seat, 0, 0, true);
    }
    for (int i = 0; i < 200 && !core_.over(); ++i) {
      now_ += 5 * kSecond;
      die(kSyncerSeat, 0, 0, false);
      feed(event::Tick{});
    }
  }
  const FleetCore& core() const { return core_; }
  bool nothing_alive() const { return alive_.empty(); }

 private:
  void feed(const Event& event) {
    queue_.push_back(event);
    while (!queue_.empty()) {
      for (const Action& action : core_.on(queue_.front(), now_)) {
        play(action);
      }
      queue_.pop_front();
    }
  }
  void play(const Action& action) {
    if (const auto* start = std::get_if<action::Start>(&action)) {
      EXPECT_EQ(alive_.count(start->who), 0u) << "two live attempts of " << start->who;
      alive_[start->who] = start->attempt;
      queue_.push_back(event::ProcessUp{start->who, start->attempt});
    } else if (const auto* order = std::get_if<action::Terminate>(&action)) {
      if ((order->force || rng_.below(2) == 0) && alive_.count(order->who) != 0) {
        const std::optional<int> code = order->force ? std::optional<int>() : 81;
        queue_.push_back(
            event::Exited{order->who, alive_[order->who], code, order->force ? 9 : 0, false});
        alive_.erase(order->who);
      }
    } else if (std::get_if<action::SendFinish>(&action) != nullptr) {
      queue_.push_back(event::FinishSent{rng_.below(2) == 0});
    } else if (std::get_if<action::Deliver>(&action) != nullptr) {
      EXPECT_TRUE(alive_.empty()) << "delivered while something lives";
      queue_.push_back(event::Delivered{rng_.below(2) == 0, "x"});
    }
  }
  void die(int who, std::optional<int> code, int signal, bool artifact) {
    if (alive_.count(who) != 0) {
      const int attempt = alive_[who];
      alive_.erase(who);
      feed(event::Exited{who, attempt, code, signal, artifact});
    }
  }
  void report() {
    event::Report out{"training", ++steps_[kSyncerSeat], {}};
    for (int seat = 0; seat < islands_; ++seat) {
      steps_[seat] += rng_.below(3) == 0 ? 0 : 1;
      const std::string incarnation = strf("{}", alive_.count(seat) != 0 ? alive_[seat] : 0);
      out.seats.push_back({seat, true, rng_.below(9) != 0, "train", incarnation, steps_[seat]});
    }
    feed(out);
  }

  Rng rng_;
  const int islands_;
  FleetCore core_;
  Nanos now_ = 0;
  std::map<int, int> alive_;  // who → attempt
  std::map<int, std::int64_t> steps_;
  std::deque<Event> queue_;
};

// Whatever happens, a process is never started while an older attempt of it lives, and when the
// faults stop and the syncer ends, the run ends with nothing alive.
TEST(FleetCore, RandomFaultsNeverDoubleAProcessAndAlwaysEnd) {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(seed);
    RandomRun run(seed);
    for (int step = 0; step < 400 && !run.core().over(); ++step) {
      run.fault();
    }
    run.heal_and_end();
    ASSERT_TRUE(run.core().over());
    ASSERT_TRUE(run.nothing_alive());
    ASSERT_TRUE(is_terminal(run.core().view().state));
    ASSERT_FALSE(HasFailure());
  }
}

}  // namespace
}  // namespace yeto::fleet
