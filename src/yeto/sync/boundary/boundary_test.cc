// SPDX-License-Identifier: Apache-2.0
// Goal: Boundary over real loopback sockets: join, push, apply, losses, the end. Method: a scripted
// syncer on its own thread says what a syncer may say; waits are for conditions, with a limit.
#include "yeto/sync/boundary/boundary_testing.h"

#include <limits>

namespace yeto::sync {
namespace {

using namespace scripted;
using wire::TransferKind;

class BoundaryTest : public World {};

TEST_F(BoundaryTest, TheDonorGivesItsLayoutAndValuesAndGetsVersionZeroBack) {
  ScriptedSyncer syncer(key_, welcome({}));
  const auto boundary = join(syncer, options());
  const auto layout = syncer.body(TransferKind::kLayout, 1);
  ASSERT_TRUE(layout);
  EXPECT_EQ(*Layout::decode(layout->bytes), boundary->layout());
  const auto init = syncer.body(TransferKind::kInit, 1);
  ASSERT_TRUE(init);
  EXPECT_EQ(decoded(CodecId::kF32, init->bytes), a_);
  const wire::Hello hello = syncer.hellos().front();
  EXPECT_EQ(hello.seat, 2U);
  EXPECT_EQ(hello.run_id, "run-1");
  EXPECT_EQ(hello.values, 14U);
  EXPECT_EQ(hello.layout, boundary->layout().fingerprint());
  ASSERT_EQ(hello.contract.size(), 2U);
  EXPECT_EQ(hello.contract[0].name, "base-model");
}

TEST_F(BoundaryTest, AJoinerWaitsForEveryFragmentAndIsOverwritten) {
  ScriptedSyncer syncer(key_, welcome({3, 3}));
  point_at(syncer);
  const auto boundary = open(options());
  std::thread sender([&] {
    ASSERT_TRUE(syncer.wait_for_hellos(1));
    syncer.broadcast(0, 3, Floats(8, 7.0F));
    syncer.broadcast(1, 3, Floats(6, 8.0F));
  });
  const auto ready = boundary->wait_ready(ScriptedSyncer::kPatience);
  sender.join();
  ASSERT_TRUE(ready) << ready.error().text();
  EXPECT_EQ(ready->seat, 2U);
  EXPECT_EQ(ready->term, kTerm);
  EXPECT_EQ(ready->live, (std::vector<std::uint32_t>{2}));
  EXPECT_EQ(a_, Floats(8, 7.0F));
  EXPECT_EQ(b_, Floats(6, 8.0F));
}

TEST_F(BoundaryTest, APullGetsTheDeltaOfTheNextBoundary) {
  ScriptedSyncer syncer(key_, welcome({}));
  const auto boundary = join(syncer, options());
  syncer.pull(0, 1, 0);
  a_[3] = -1.5F;
  const StepReport report =
      step_until(*boundary, [](const StepReport& r) { return !r.pushed.empty(); });
  EXPECT_EQ(report.pushed[0].fragment, 0U);
  EXPECT_EQ(report.pushed[0].bytes, 32U);
  const auto push = syncer.push(1);
  ASSERT_TRUE(push);
  Floats expected(8, 0.0F);
  expected[3] = 2.5F;
  EXPECT_EQ(decoded(CodecId::kF32, push->bytes), expected);
  EXPECT_DOUBLE_EQ(push->offer.norm, 2.5);
  EXPECT_GE(push->offer.c_steps, 1U);
  EXPECT_EQ(push->offer.c_tokens, push->offer.c_steps);
  step_until(*boundary, [](const StepReport& r) { return r.bytes_pushed == 32; });
}

TEST_F(BoundaryTest, ABroadcastKeepsTheWorkSinceThePush) {
  ScriptedSyncer syncer(key_, welcome({}));
  const auto boundary = join(syncer, options());
  syncer.pull(0, 1, 0);
  a_.assign(8, 3.0F);
  step_until(*boundary, [](const StepReport& r) { return !r.pushed.empty(); });
  a_.assign(8, 3.25F);
  syncer.broadcast(0, 1, Floats(8, 2.0F));
  const StepReport report =
      step_until(*boundary, [](const StepReport& r) { return !r.applied.empty(); });
  EXPECT_EQ(report.applied[0].version, 1U);
  EXPECT_FALSE(report.applied[0].overwritten);
  EXPECT_EQ(report.versions, (std::vector<std::uint64_t>{1, 0}));
  EXPECT_EQ(a_, Floats(8, 2.25F));
  EXPECT_EQ(b_, Floats(6, 2.0F));
}

TEST_F(BoundaryTest, Bf16TravelsBothWaysAndTheAnchorIsWhatWasSent) {
  wire::Welcome bf16 = welcome({});
  bf16.broadcast_codec = CodecId::kBf16;
  bf16.push_codec = CodecId::kBf16;
  ScriptedSyncer syncer(key_, bf16);
  a_.assign(8, 1.0F + 0x1p-12F);  // not a bf16
  const auto boundary = join(syncer, options());
  EXPECT_EQ(a_, Floats(8, 1.0F));
  syncer.pull(0, 1, 0);
  a_.assign(8, 0.75F);
  step_until(*boundary, [](const StepReport& r) { return !r.pushed.empty(); });
  const auto push = syncer.push(1);
  ASSERT_TRUE(push);
  EXPECT_EQ(push->offer.codec, CodecId::kBf16);
  EXPECT_EQ(decoded(CodecId::kBf16, push->bytes), Floats(8, 0.25F));
}

TEST_F(BoundaryTest, ADamagedImageIsNeverApplied) {
  ScriptedSyncer syncer(key_, welcome({}));
  const auto boundary = join(syncer, options());
  ASSERT_TRUE(syncer.wait_for_sent(2));  // the two of version 0
  syncer.offer(TransferKind::kBroadcast, 0, 1, Floats(8, 9.0F), false);
  ASSERT_TRUE(syncer.wait_for_sent(3));
  EXPECT_FALSE(syncer.sent().back());
  const auto report = boundary->step(1);
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->applied.empty());
  EXPECT_EQ(a_, Floats(8, 1.0F));
}

TEST_F(BoundaryTest, TrainingGoesOnWhileTheSyncerIsAwayAndResumes) {
  ScriptedSyncer syncer(key_, welcome({}));
  const auto boundary = join(syncer, options());
  wire::Welcome resumed = welcome({0, 0});
  resumed.resumed = 1;
  syncer.set_welcome(resumed);
  syncer.drop();
  step_until(*boundary, [](const StepReport& r) { return !r.connected; });
  step_until(*boundary, [](const StepReport& r) { return r.connected; });
  ASSERT_EQ(syncer.hellos().size(), 2U);
  EXPECT_EQ(syncer.hellos()[1].session, welcome({}).session);
  EXPECT_EQ(syncer.hellos()[1].incarnation, syncer.hellos()[0].incarnation);
  EXPECT_EQ(syncer.hellos()[1].held, (std::vector<wire::Held>{{kTerm, 0}, {kTerm, 0}}));
  EXPECT_GT(syncer.hellos()[1].local_step, 0U);
  syncer.pull(1, 2, 0);
  b_.assign(6, 2.5F);
  step_until(*boundary, [](const StepReport& r) { return !r.pushed.empty(); });
  const auto push = syncer.push(1);
  ASSERT_TRUE(push);
  EXPECT_EQ(decoded(CodecId::kF32, push->bytes), Floats(6, -0.5F));
}

TEST_F(BoundaryTest, ANewSyncerIsFoundByTheEndpointFileAndOverwritesWhatIsNotCurrent) {
  auto first = std::make_unique<ScriptedSyncer>(key_, welcome({}));
  const auto boundary = join(*first, options());
  ScriptedSyncer second(key_, welcome({0, 4}, kTerm + 1));
  point_at(second);
  first.reset();
  ASSERT_TRUE(second.wait_for_hellos(1));
  a_.assign(8, 1.5F);
  b_.assign(6, 3.0F);
  second.broadcast(1, 4, Floats(6, 5.0F));
  const StepReport report =
      step_until(*boundary, [](const StepReport& r) { return !r.applied.empty(); });
  EXPECT_EQ(report.applied[0].fragment, 1U);
  EXPECT_TRUE(report.applied[0].overwritten);
  EXPECT_EQ(b_, Floats(6, 5.0F));
  // Fragment 0 kept its anchor and its unsent work.
  second.pull(0, 9, 0);
  step_until(*boundary, [](const StepReport& r) { return !r.pushed.empty(); });
  const auto push = second.push(1);
  ASSERT_TRUE(push);
  EXPECT_EQ(decoded(CodecId::kF32, push->bytes), Floats(8, -0.5F));
  EXPECT_EQ(push->offer.term, kTerm + 1);
}

TEST_F(BoundaryTest, ARefusalForGoodNamesTheFirstTensorThatDiffers) {
  ScriptedSyncer syncer(key_, welcome({}));
  point_at(syncer);
  const auto boundary = open(options());
  wire::Refused refused;
  refused.code = wire::RefuseCode::kLayout;
  refused.text = "another layout";
  refused.tensors = tensor_hashes(boundary->layout());
  refused.tensors[1][0] = static_cast<std::uint8_t>(refused.tensors[1][0] + 1);
  syncer.refuse(refused);
  syncer.drop();  // should it have been admitted before
  const auto ready = boundary->wait_ready(ScriptedSyncer::kPatience);
  ASSERT_FALSE(ready);
  EXPECT_EQ(ready.error().code, ErrorCode::kRefused);
  EXPECT_NE(ready.error().what.find("another layout"), std::string::npos);
  EXPECT_NE(ready.error().what.find("b.weight"), std::string::npos) << ready.error().what;
  const auto step = boundary->step(1);
  ASSERT_FALSE(step);
  EXPECT_EQ(step.error().code, ErrorCode::kRefused);
}

TEST_F(BoundaryTest, ARetryableRefusalIsTriedAgain) {
  ScriptedSyncer syncer(key_, welcome({}));
  wire::Refused busy;
  busy.code = wire::RefuseCode::kBusySeat;
  busy.retryable = 1;
  busy.text = "the seat is busy";
  syncer.refuse(busy);
  point_at(syncer);
  const auto boundary = open(options());
  ASSERT_TRUE(syncer.wait_for_hellos(3));
  const auto ready = boundary->wait_ready(from_millis(100));
  ASSERT_FALSE(ready);
  EXPECT_EQ(ready.error().code, ErrorCode::kTimeout);
  EXPECT_NE(ready.error().hint.find("the seat is busy"), std::string::npos) << ready.error().hint;
}

TEST_F(BoundaryTest, WithoutASyncerWaitingEndsAfterMaxAlone) {
  BoundaryOptions impatient = options();
  impatient.max_alone = from_millis(50);
  const auto boundary = open(impatient);  // no endpoint file
  const auto ready = boundary->wait_ready(0);
  ASSERT_FALSE(ready);
  EXPECT_EQ(ready.error().code, ErrorCode::kUnreachable);
  EXPECT_EQ(error_exit_code(ready.error().code), 69);
  EXPECT_NE(ready.error().what.find("endpoint.json"), std::string::npos) << ready.error().what;
}

TEST_F(BoundaryTest, StepPausesAfterMaxAloneUntilTheSyncerIsBack) {
  auto first = std::make_unique<ScriptedSyncer>(key_, welcome({}));
  BoundaryOptions impatient = options();
  impatient.max_alone = from_millis(300);
  bool armed = false;
  int asked = 0;
  std::unique_ptr<ScriptedSyncer> second;
  impatient.keep_waiting = [&] {
    // Only a call that waits asks. At its third time the syncer comes back.
    if (armed && ++asked == 3) {
      second = std::make_unique<ScriptedSyncer>(key_, welcome({0, 0}, kTerm + 1));
      point_at(*second);
    }
    return true;
  };
  const auto boundary = join(*first, impatient);
  armed = true;
  first.reset();
  step_until(*boundary, [](const StepReport& r) { return !r.connected; });
  const StepReport report = step_until(*boundary, [](const StepReport& r) { return r.connected; });
  EXPECT_TRUE(report.connected);
  EXPECT_GT(report.blocked_ms, 0.0);
  ASSERT_TRUE(second);
  EXPECT_TRUE(second->message<wire::Metric>([](const wire::Metric& m) {
    return m.json.find(R"("event":"paused")") != std::string::npos;
  }));
}

TEST_F(BoundaryTest, KeepWaitingEndsAWait) {
  BoundaryOptions interrupted = options();
  int asked = 0;
  interrupted.keep_waiting = [&] { return ++asked < 3; };
  const auto boundary = open(interrupted);
  const auto ready = boundary->wait_ready(0);
  ASSERT_FALSE(ready);
  EXPECT_EQ(ready.error().code, ErrorCode::kClosed);
}

TEST_F(BoundaryTest, CloseEndsAWaitOfAnotherThread) {
  const auto boundary = open(options());
  std::thread closer([&] { boundary->close(); });
  const auto ready = boundary->wait_ready(0);
  closer.join();
  ASSERT_FALSE(ready);
  EXPECT_EQ(ready.error().code, ErrorCode::kClosed);
  boundary->close();
  boundary->leave(wire::LeaveReason::kDone);
  EXPECT_TRUE(boundary->metric("{}"));
}

TEST_F(BoundaryTest, LeaveTellsTheSyncerWhyAndEndsTheUse) {
  ScriptedSyncer syncer(key_, welcome({}));
  const auto boundary = join(syncer, options());
  boundary->leave(wire::LeaveReason::kPreempted);
  const auto left = syncer.message<wire::Leave>();
  ASSERT_TRUE(left);
  EXPECT_EQ(left->reason, wire::LeaveReason::kPreempted);
  const auto step = boundary->step(1);
  ASSERT_FALSE(step);
  EXPECT_EQ(step.error().code, ErrorCode::kClosed);
}

TEST_F(BoundaryTest, MetricsAreKeptUntilThereIsASession) {
  ScriptedSyncer syncer(key_, welcome({}));
  const auto boundary = open(options());
  EXPECT_TRUE(boundary->metric(R"({"loss":1})"));
  const Status wrong = boundary->metric("no JSON");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::kData);
  point_at(syncer);
  const auto metric = syncer.message<wire::Metric>();
  ASSERT_TRUE(metric);
  EXPECT_EQ(metric->json, R"({"loss":1})");
}

TEST_F(BoundaryTest, HeartbeatsTellStepsTokensAndPhase) {
  ScriptedSyncer syncer(key_, welcome({}));
  const auto boundary = join(syncer, options());
  ASSERT_TRUE(boundary->step(100));
  ASSERT_TRUE(boundary->step(23));
  EXPECT_TRUE(syncer.message<wire::LearnerBeat>([](const wire::LearnerBeat& beat) {
    return beat.local_step == 2 && beat.tokens == 123 && beat.phase == wire::Phase::kTrain &&
           beat.step_time_s > 0.0;
  }));
  boundary->set_phase(wire::Phase::kEval);
  EXPECT_TRUE(syncer.message<wire::LearnerBeat>(
      [](const wire::LearnerBeat& beat) { return beat.phase == wire::Phase::kEval; }));
}

TEST_F(BoundaryTest, TheSyncersHeartbeatReachesTheReport) {
  ScriptedSyncer syncer(key_, welcome({}));
  const auto boundary = join(syncer, options());
  syncer.send(wire::SyncerBeat{kTerm, 12, 11, 5000, {0, 2}});
  const StepReport report =
      step_until(*boundary, [](const StepReport& r) { return r.global_step == 12; });
  EXPECT_EQ(report.run_tokens, 5000U);
  EXPECT_EQ(report.live, (std::vector<std::uint32_t>{0, 2}));
}

TEST_F(BoundaryTest, CallbacksNameTheTensorsThatAreReadAndWritten) {
  ScriptedSyncer syncer(key_, welcome({}));
  std::vector<std::vector<std::uint32_t>> read;
  std::vector<std::vector<std::uint32_t>> written;
  BoundaryOptions mirrored = options();
  mirrored.before_read = [&](std::span<const std::uint32_t> list) -> Status {
    read.emplace_back(list.begin(), list.end());
    return Unit{};
  };
  mirrored.after_write = [&](std::span<const std::uint32_t> list) -> Status {
    written.emplace_back(list.begin(), list.end());
    return Unit{};
  };
  const auto boundary = join(syncer, mirrored);
  EXPECT_FALSE(read.empty());     // initial values
  EXPECT_FALSE(written.empty());  // version 0
  read.clear();
  written.clear();
  ASSERT_TRUE(boundary->step(1));
  EXPECT_TRUE(read.empty());
  EXPECT_TRUE(written.empty());
  syncer.pull(1, 1, 0);
  step_until(*boundary, [](const StepReport& r) { return !r.pushed.empty(); });
  EXPECT_EQ(read, (std::vector<std::vector<std::uint32_t>>{{1}}));
  EXPECT_TRUE(written.empty());
  syncer.broadcast(1, 1, Floats(6, 4.0F));
  step_until(*boundary, [](const StepReport& r) { return !r.applied.empty(); });
  EXPECT_EQ(written, (std::vector<std::vector<std::uint32_t>>{{1}}));
}

TEST_F(BoundaryTest, AFailingCallbackEndsTheUse) {
  ScriptedSyncer syncer(key_, welcome({}));
  bool broken = false;
  BoundaryOptions mirrored = options();
  mirrored.before_read = [&](std::span<const std::uint32_t>) -> Status {
    return broken ? Status(fail(ErrorCode::kIo, "the device is gone")) : Status(Unit{});
  };
  const auto boundary = join(syncer, mirrored);
  broken = true;
  syncer.pull(0, 1, 0);
  const Nanos deadline = monotonic_now() + ScriptedSyncer::kPatience;
  auto report = boundary->step(1);
  while (report && monotonic_now() < deadline) {
    report = boundary->step(1);
  }
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().what, "the device is gone");
  EXPECT_EQ(boundary->step(1).error().what, "the device is gone");
}

TEST_F(BoundaryTest, NonFiniteValuesAreAnsweredByAnEmptyPushAndGoBackToTheAnchor) {
  ScriptedSyncer syncer(key_, welcome({}));
  std::vector<std::uint32_t> written;
  BoundaryOptions mirrored = options();
  mirrored.after_write = [&](std::span<const std::uint32_t> list) -> Status {
    written.insert(written.end(), list.begin(), list.end());
    return Unit{};
  };
  const auto boundary = join(syncer, mirrored);
  const Floats anchor = a_;
  written.clear();
  a_[0] = std::numeric_limits<float>::quiet_NaN();
  a_[1] = 7.0F;
  syncer.pull(0, 1, 0);
  step_until(*boundary, [](const StepReport& r) { return !r.pushed.empty(); });
  const auto push = syncer.push(1);
  ASSERT_TRUE(push);
  EXPECT_EQ(push->offer.bytes, 0U);
  const StepReport report = step_until(*boundary, [](const StepReport& r) { return r.resets > 0; });
  EXPECT_EQ(report.nonfinite_pushes, 1U);
  EXPECT_EQ(report.resets, 1U);
  EXPECT_EQ(a_, anchor);
  EXPECT_EQ(written, (std::vector<std::uint32_t>{0}));  // the device gets them too
  // The same round goes on without a newer version: its next attempt gets the work since.
  a_[2] += 0.5F;
  syncer.pull(0, 1, 0, false, 2);
  step_until(*boundary, [](const StepReport& r) { return !r.pushed.empty(); });
  const auto next = syncer.push(2);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->offer.attempt, 2U);
  EXPECT_EQ(decoded(CodecId::kF32, next->bytes), (Floats{0, 0, -0.5F, 0, 0, 0, 0, 0}));
}

TEST_F(BoundaryTest, AResetClearsTheErrorFeedback) {
  wire::Welcome quantised = welcome({});
  quantised.push_codec = CodecId::kQ4;
  ScriptedSyncer syncer(key_, quantised);
  const auto boundary = join(syncer, options());
  a_[0] += 0.5F;
  a_[1] += 0.3F;  // between two levels of q4
  syncer.pull(0, 1, 0);
  step_until(*boundary, [](const StepReport& r) { return !r.pushed.empty(); });
  const StepReport rounded =
      step_until(*boundary, [](const StepReport& r) { return r.residual_norm > 0.0; });
  EXPECT_EQ(rounded.resets, 0U);
  a_[0] = std::numeric_limits<float>::infinity();
  syncer.pull(0, 1, 0, false, 2);
  const StepReport report = step_until(*boundary, [](const StepReport& r) { return r.resets > 0; });
  EXPECT_EQ(report.residual_norm, 0.0);
}

// ---- the end of a run
// ----------------------------------------------------------------------------

class BoundaryEndTest : public BoundaryTest {
 protected:
  static wire::Final final_of(const Floats& a, const Floats& b) {
    wire::Final final;
    final.global_step = 6;
    final.versions = {3, 3};
    final.digests = {sha256(as_bytes_view(std::span<const float>(a))),
                     sha256(as_bytes_view(std::span<const float>(b)))};
    return final;
  }
  void send_final(ScriptedSyncer& syncer, const wire::Final& final) const {
    syncer.send(final);
    syncer.offer(TransferKind::kFinal, 0, 3, final_a_);
    syncer.offer(TransferKind::kFinal, 1, 3, final_b_);
  }
  const Floats final_a_ = Floats(8, 0.5F);
  const Floats final_b_ = Floats(6, 0.25F);
};

TEST_F(BoundaryEndTest, SweepFinalAcknowledgementGoodbye) {
  ScriptedSyncer syncer(key_, welcome({}));
  const auto boundary = join(syncer, options());
  ASSERT_TRUE(boundary->step(1));
  a_.assign(8, 4.0F);
  syncer.pull(0, 5, 0, true);
  step_until(*boundary, [](const StepReport& r) { return r.draining; });
  std::thread script([&] {
    EXPECT_TRUE(syncer.push(1));
    syncer.pull(0, 5, 0, true);  // asked once more: nothing new
    const auto empty = syncer.push(2);
    ASSERT_TRUE(empty);
    EXPECT_EQ(empty->offer.bytes, 0U);
    send_final(syncer, final_of(final_a_, final_b_));
    const auto ack = syncer.message<wire::FinalAck>();
    ASSERT_TRUE(ack);
    EXPECT_EQ(ack->digests, final_of(final_a_, final_b_).digests);
    EXPECT_EQ(ack->versions, (std::vector<std::uint64_t>{3, 3}));
    syncer.send(wire::SyncerBeat{kTerm, 6, 6, 1, {1, 2}});
    syncer.send(wire::Goodbye{"done"});
  });
  const auto report = boundary->finalize(FinalizeReason::kDrain, ScriptedSyncer::kPatience);
  script.join();
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_EQ(report->global_step, 6U);
  EXPECT_EQ(report->versions, (std::vector<std::uint64_t>{3, 3}));
  EXPECT_EQ(report->live, (std::vector<std::uint32_t>{1, 2}));
  EXPECT_FALSE(report->lowest);
  EXPECT_EQ(a_, final_a_);
  EXPECT_EQ(b_, final_b_);
}

TEST_F(BoundaryEndTest, LimitIsToldAndTheSyncerMayVanishAfterTheAcknowledgement) {
  auto syncer = std::make_unique<ScriptedSyncer>(key_, welcome({}));
  const auto boundary = join(*syncer, options());
  ASSERT_TRUE(boundary->step(40));
  std::thread script([&] {
    const auto limit = syncer->message<wire::Limit>();
    ASSERT_TRUE(limit);
    EXPECT_EQ(limit->local_step, 1U);
    EXPECT_EQ(limit->tokens, 40U);
    send_final(*syncer, final_of(final_a_, final_b_));
    EXPECT_TRUE(syncer->message<wire::FinalAck>());
    syncer.reset();
  });
  const auto report = boundary->finalize(FinalizeReason::kLimit, ScriptedSyncer::kPatience);
  script.join();
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_TRUE(report->lowest);
  EXPECT_EQ(a_, final_a_);
}

TEST_F(BoundaryEndTest, AFinalInterruptedByALossIsTakenFromTheNextSession) {
  ScriptedSyncer syncer(key_, welcome({}));
  const auto boundary = join(syncer, options());
  wire::Welcome resumed = welcome({3, 3});
  resumed.resumed = 1;
  syncer.set_welcome(resumed);
  std::thread script([&] {
    syncer.offer(TransferKind::kFinal, 0, 3, final_a_);
    ASSERT_TRUE(syncer.wait_for_sent(3));
    syncer.drop();
    ASSERT_TRUE(syncer.wait_for_hellos(2));
    send_final(syncer, final_of(final_a_, final_b_));
    EXPECT_TRUE(syncer.message<wire::FinalAck>());
    syncer.send(wire::Goodbye{"done"});
  });
  const auto report = boundary->finalize(FinalizeReason::kDrain, ScriptedSyncer::kPatience);
  script.join();
  ASSERT_TRUE(report) << report.error().text();
  EXPECT_EQ(b_, final_b_);
}

TEST_F(BoundaryEndTest, FinalValuesThatAreNotTheAnnouncedOnesAreRefused) {
  ScriptedSyncer syncer(key_, welcome({}));
  const auto boundary = join(syncer, options());
  wire::Final wrong = final_of(final_a_, final_b_);
  wrong.digests[1][0] = static_cast<std::uint8_t>(wrong.digests[1][0] + 1);
  send_final(syncer, wrong);
  const auto report = boundary->finalize(FinalizeReason::kDrain, ScriptedSyncer::kPatience);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kDamaged);
  EXPECT_NE(report.error().what.find("fragment 1"), std::string::npos);
}

TEST_F(BoundaryEndTest, AGoodbyeBeforeTheFinalValuesEndsTheRunWithItsReason) {
  ScriptedSyncer syncer(key_, welcome({}));
  const auto boundary = join(syncer, options());
  syncer.send(wire::Goodbye{"stopped by hand"});
  const auto report = boundary->finalize(FinalizeReason::kDrain, ScriptedSyncer::kPatience);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kClosed);
  EXPECT_NE(report.error().what.find("stopped by hand"), std::string::npos);
}

// ---- lockstep
// ------------------------------------------------------------------------------------

class BoundaryLockstepTest : public BoundaryTest {
 protected:
  static wire::Welcome lockstep_welcome() {
    wire::Welcome lockstep = welcome({});
    lockstep.settings.lockstep = 1;
    lockstep.settings.sync_interval_steps = 2;
    return lockstep;
  }
};

TEST_F(BoundaryLockstepTest, AStepEndsWithItsBroadcastInTheTensors) {
  ScriptedSyncer syncer(key_, lockstep_welcome());
  const auto boundary = join(syncer, options());
  std::thread script([&] {
    syncer.pull(0, 1, 0);
    EXPECT_TRUE(syncer.push(1));
    syncer.broadcast(0, 1, Floats(8, 6.0F));
    syncer.pull(1, 2, 0);
    EXPECT_TRUE(syncer.push(2));
    syncer.broadcast(1, 1, Floats(6, 7.0F));
  });
  a_.assign(8, 5.0F);
  const auto first = boundary->step(1);
  ASSERT_TRUE(first) << first.error().text();
  EXPECT_EQ(a_, Floats(8, 6.0F));
  ASSERT_EQ(first->applied.size(), 1U);
  EXPECT_EQ(first->versions, (std::vector<std::uint64_t>{1, 0}));
  const auto second = boundary->step(1);
  script.join();
  ASSERT_TRUE(second) << second.error().text();
  EXPECT_EQ(b_, Floats(6, 7.0F));
  EXPECT_EQ(second->versions, (std::vector<std::uint64_t>{1, 1}));
}

TEST_F(BoundaryLockstepTest, ALostSessionEndsTheWaitWithAnError) {
  ScriptedSyncer syncer(key_, lockstep_welcome());
  const auto boundary = join(syncer, options());
  std::thread script([&] {
    syncer.pull(0, 1, 0);
    EXPECT_TRUE(syncer.push(1));
    syncer.drop();
  });
  const auto report = boundary->step(1);
  script.join();
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kClosed);
}

// ---- options
// -------------------------------------------------------------------------------------

TEST_F(BoundaryTest, OptionsThatCannotBeUsedAreRefusedAtTheDoor) {
  const auto code = [&](const BoundaryOptions& wrong) {
    const auto boundary = Boundary::open(wrong, tensors());
    EXPECT_FALSE(boundary);
    return boundary ? ErrorCode::kInternal : boundary.error().code;
  };
  BoundaryOptions wrong = options();
  wrong.token_file.clear();
  EXPECT_EQ(code(wrong), ErrorCode::kUsage);
  wrong = options();
  wrong.token_file = folder_ / "none.key";
  EXPECT_EQ(code(wrong), ErrorCode::kNotFound);
  wrong = options();
  wrong.run_id.clear();
  EXPECT_EQ(code(wrong), ErrorCode::kRange);
  wrong = options();
  wrong.streams = 65;
  EXPECT_EQ(code(wrong), ErrorCode::kRange);
  wrong = options();
  wrong.max_alone = 0;
  EXPECT_EQ(code(wrong), ErrorCode::kRange);
  wrong = options();
  wrong.syncer = "192.0.2.1:4000";
  EXPECT_EQ(code(wrong), ErrorCode::kPermission);
  wrong = options();
  wrong.contract = {{"seq-len", "1"}, {"seq-len", "2"}};
  EXPECT_EQ(code(wrong), ErrorCode::kUsage);
}

}  // namespace
}  // namespace yeto::sync
