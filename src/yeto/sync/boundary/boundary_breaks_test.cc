// SPDX-License-Identifier: Apache-2.0
// Goal: what a learner does around a break and with data leases: late offers, lockstep of a fixed
// roster, rows. Method: as in boundary_test.cc.
#include "yeto/sync/boundary/boundary_testing.h"
#include "yeto/sync/boundary/row_source.h"

namespace yeto::sync {
namespace {

using namespace scripted;
using wire::DataAction;

class BoundaryBreaksTest : public World {
 protected:
  static wire::Welcome lockstep_welcome(bool fixed_roster) {
    wire::Welcome out = welcome({});
    out.settings.lockstep = 1;
    out.settings.sync_interval_steps = 2;
    out.settings.fixed_roster = fixed_roster ? 1 : 0;
    return out;
  }
};

TEST_F(BoundaryBreaksTest, WorkOfASurvivingAnchorIsOfferedLateAndThenOverwritten) {
  auto first = std::make_unique<ScriptedSyncer>(key_, welcome({}));
  const auto boundary = join(*first, options());
  ASSERT_TRUE(boundary->step(10));
  ScriptedSyncer second(key_, welcome({1, 0}, kTerm + 1));
  point_at(second);
  first.reset();
  ASSERT_TRUE(second.wait_for_hellos(1));
  a_.assign(8, 1.5F);
  second.broadcast(0, 1, Floats(8, 4.0F));
  const StepReport report =
      step_until(*boundary, [](const StepReport& r) { return !r.applied.empty(); });
  EXPECT_TRUE(report.applied[0].overwritten);
  EXPECT_EQ(a_, Floats(8, 4.0F));
  EXPECT_EQ(report.late_offers, 1U);
  const auto late = second.push(1);
  ASSERT_TRUE(late);
  EXPECT_EQ(late->offer.round, 0U);
  EXPECT_EQ(late->offer.term, kTerm);
  EXPECT_EQ(late->offer.base_version, 0U);
  EXPECT_EQ(decoded(CodecId::kF32, late->bytes), Floats(8, -0.5F));
}

TEST_F(BoundaryBreaksTest, ALostLockstepSessionEndsTheStep) {
  ScriptedSyncer syncer(key_, lockstep_welcome(false));
  const auto boundary = join(syncer, options());
  std::thread script([&] {
    EXPECT_TRUE(syncer.message<wire::LearnerBeat>(
        [](const wire::LearnerBeat& beat) { return beat.local_step == 1; }));
    syncer.drop();
  });
  const auto step = boundary->step(1);
  script.join();
  ASSERT_FALSE(step);
  EXPECT_EQ(step.error().code, ErrorCode::kClosed);
}

TEST_F(BoundaryBreaksTest, WithAFixedRosterTheStepWaitsForItsSession) {
  ScriptedSyncer syncer(key_, lockstep_welcome(true));
  const auto boundary = join(syncer, options());
  wire::Welcome resumed = lockstep_welcome(true);
  resumed.versions = resumed.valid = {0, 0};
  resumed.resumed = 1;
  syncer.set_welcome(resumed);
  std::thread script([&] {
    syncer.pull(0, 1, 0);
    EXPECT_TRUE(syncer.push(1));
    syncer.drop();  // before its broadcast
    EXPECT_TRUE(syncer.wait_for_hellos(2));
    syncer.broadcast(0, 1, Floats(8, 3.0F));
  });
  const auto step = boundary->step(1);
  script.join();
  ASSERT_TRUE(step) << step.error().text();
  EXPECT_EQ(a_, Floats(8, 3.0F));
}

TEST_F(BoundaryBreaksTest, AFixedRosterIsAwaitedNoLongerThanMaxAlone) {
  auto syncer = std::make_unique<ScriptedSyncer>(key_, lockstep_welcome(true));
  BoundaryOptions impatient = options();
  impatient.max_alone = from_millis(100);
  const auto boundary = join(*syncer, impatient);
  syncer.reset();
  const auto step = boundary->step(1);
  ASSERT_FALSE(step);
  EXPECT_EQ(step.error().code, ErrorCode::kUnreachable);
}

// ---- rows
// ----------------------------------------------------------------------------------------

class BoundaryRowsTest : public World {
 protected:
  static wire::Welcome leased_welcome() {
    wire::Welcome out = welcome({});
    out.settings.data_leases = 1;
    return out;
  }
  static wire::Data grant(std::uint64_t first, std::uint64_t count) {
    wire::Data data;
    data.action = DataAction::kGrant;
    data.first = first;
    data.count = count;
    return data;
  }
  static auto what(DataAction action) {
    return [action](const wire::Data& data) { return data.action == action; };
  }
};

TEST_F(BoundaryRowsTest, RowsAreAwaitedTrainedAndToldToBeComplete) {
  ScriptedSyncer syncer(key_, leased_welcome());
  const auto boundary = join(syncer, options());
  std::thread script([&] {
    const auto request = syncer.message<wire::Data>(what(DataAction::kRequest));
    ASSERT_TRUE(request);
    EXPECT_EQ(request->rows, 1000U);
    EXPECT_GE(request->count, 4U);
    syncer.send(grant(40, 4));
  });
  LeasedRows rows(boundary.get(), 1000);
  const auto given = rows.next(4);
  script.join();
  ASSERT_TRUE(given) << given.error().text();
  EXPECT_EQ(*given, (RowRange{0, 40, 4, 1}));
  syncer.pull(0, 1, 0);
  syncer.pull(1, 2, 0);
  std::size_t pushed = 0;
  step_until(*boundary, [&](const StepReport& r) { return (pushed += r.pushed.size()) == 2; });
  for (std::uint32_t fragment = 0; fragment < 2; ++fragment) {
    ASSERT_TRUE(syncer.push(fragment + 1));
    wire::Verdict merged;
    merged.term = kTerm;
    merged.fragment = fragment;
    merged.round = fragment + 1;
    merged.attempt = 1;
    syncer.send(merged);
  }
  wire::SyncerBeat beat;
  beat.term = kTerm;
  beat.global_step = 2;
  beat.durable_step = 2;
  syncer.send(beat);
  const auto complete = syncer.message<wire::Data>(what(DataAction::kComplete));
  ASSERT_TRUE(complete);
  EXPECT_EQ(complete->first, 40U);
  EXPECT_EQ(complete->count, 4U);
}

TEST_F(BoundaryRowsTest, LeavingGivesBackWhatWasNotTrained) {
  ScriptedSyncer syncer(key_, leased_welcome());
  const auto boundary = join(syncer, options());
  syncer.send(grant(0, 8));
  ASSERT_TRUE(boundary->request_rows(1000, 4));
  boundary->leave(wire::LeaveReason::kDone);
  const auto back = syncer.message<wire::Data>(what(DataAction::kReturn));
  ASSERT_TRUE(back);
  EXPECT_TRUE(syncer.message<wire::Leave>());
}

TEST_F(BoundaryRowsTest, NothingLeftAndWrongCallsAreTold) {
  ScriptedSyncer syncer(key_, leased_welcome());
  const auto boundary = join(syncer, options());
  syncer.send(grant(0, 0));
  EXPECT_EQ(boundary->request_rows(1000, 4)->count, 0U);
  EXPECT_EQ(boundary->request_rows(999, 4).error().code, ErrorCode::kUsage);
  EXPECT_EQ(boundary->request_rows(1000, 0).error().code, ErrorCode::kRange);
}

TEST_F(BoundaryRowsTest, ARunWithoutLeasesSaysSo) {
  ScriptedSyncer syncer(key_, welcome({}));
  const auto boundary = join(syncer, options());
  EXPECT_EQ(boundary->request_rows(1000, 4).error().code, ErrorCode::kConflict);
}

}  // namespace
}  // namespace yeto::sync
