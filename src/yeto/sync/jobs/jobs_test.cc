// SPDX-License-Identifier: Apache-2.0
// Goal: jobs do to buffers exactly what merge and codec do to values, for every codec, outer rule
// and number of threads, and leave all unchanged when they refuse. Method: a small run from a seed.
#include "yeto/sync/jobs/jobs.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "yeto/sync/jobs/testing.h"

namespace yeto::sync {
namespace {

using testing::options_in;
using testing::small_layout;
using testing::TestRun;

JobsOptions plain_options() { return options_in(nullptr); }

TEST(Jobs, BuffersLiveUntilTheLastReaderLetsGo) {
  TestRun run(plain_options());
  const BufferId id = run.put(Bytes{1, 2, 3});
  EXPECT_EQ(run.jobs().buffer_bytes(), 3U);
  const auto held = run.jobs().image(id);
  run.jobs().free(id);
  run.jobs().free(id);
  EXPECT_EQ(run.jobs().buffer_bytes(), 0U);
  EXPECT_EQ(run.jobs().image(id), nullptr);
  EXPECT_EQ(*held, (Bytes{1, 2, 3}));
  EXPECT_EQ(run.jobs().allocate(99, std::numeric_limits<std::uint64_t>::max()).error().code,
            ErrorCode::kIo);
}

TEST(Jobs, BuffersMayBeTakenAndFreedByAnyThread) {
  TestRun run(plain_options());
  ASSERT_TRUE(run.start(small_layout()));
  std::thread network([&] {
    for (BufferId id = 1'000'000; id < 1'002'000; ++id) {
      (*run.jobs().allocate(id, 100))[0] = 1;
      EXPECT_EQ(run.jobs().image(id)->size(), 100U);
      run.jobs().free(id);
    }
  });
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(run.commit().ok);
  }
  network.join();
}

TEST(Jobs, ACommitIsWhatTheMergeRoomMakesOfTheSamePushes) {
  for (const CodecId codec : {CodecId::kF32, CodecId::kBf16}) {
    for (const auto kind : {merge::OuterKind::kNesterov, merge::OuterKind::kSgd,
                            merge::OuterKind::kDirect, merge::OuterKind::kAuto}) {
      SCOPED_TRACE(
          strf("codec {} outer {}", codec::codec_name(codec), merge::outer_kind_name(kind)));
      JobsOptions options = plain_options();
      options.push_codec = codec;
      options.broadcast_codec = codec;
      options.outer = merge::OuterRule::of(kind);
      TestRun run(options);
      const Layout layout = small_layout();
      ASSERT_TRUE(run.start(layout));
      const std::size_t count = layout.fragments[0].values;
      std::vector<float> values = TestRun::values(1000, count, 1.0);
      std::vector<float> momentum(options.outer.keeps_momentum() ? count : 0);
      for (std::uint64_t version = 1; version <= 4; ++version) {
        std::vector<Bytes> images;
        merge::Inputs in{&layout,       0,      version == 1, options.weights,
                         options.outer, values, momentum,     {}};
        for (Seat seat = 0; seat < 2; ++seat) {
          images.push_back(run.push_image(0, version, seat));
        }
        for (Seat seat = 0; seat < 2; ++seat) {
          in.pushes.push_back({seat, 8, 1000 + seat, codec, images[seat], {}});
        }
        std::vector<float> new_values(count);
        std::vector<float> new_momentum(momentum.size());
        Bytes image(codec::encoded_bytes(codec, count));
        ASSERT_TRUE(*merge::merge_fragment(in, {new_values, new_momentum, codec, image}));
        values = new_values;
        momentum = new_momentum;
        while (run.state().versions[0] < version) {
          const MergeReport report = run.commit();
          ASSERT_TRUE(report.ok) << report.reason;
          EXPECT_EQ(report.image.digest, xxh3_128(*run.jobs().image(report.image.buffer)));
          EXPECT_EQ(report.weights.size(), 2U);
        }
        EXPECT_EQ(*run.jobs().image(run.current_images()[0].buffer), image);
      }
      EXPECT_EQ(run.digests()[0], sha256(as_bytes_view(std::span<const float>(values))));
    }
  }
}

TEST(Jobs, TheNumberOfThreadsDoesNotMatter) {
  std::vector<TensorSpec> tensors(3);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = strf("layers.{}.w", i);
    tensors[i].shape = {300'000 + i};
    tensors[i].merge = MergeMode::kRda;
  }
  tensors[0].name = "embed_tokens.weight";
  LayoutOptions layout_options;
  layout_options.fragments = 2;
  const Layout layout = *make_layout(tensors, layout_options);
  std::vector<std::vector<wire::Digest32>> digests;
  for (const int threads : {1, 2, 5}) {
    JobsOptions options = plain_options();
    options.threads = threads;
    TestRun run(options);
    ASSERT_TRUE(run.start(layout));
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(run.commit().ok);
    }
    digests.push_back(run.digests());
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_EQ(digests[0], digests[2]);
}

TEST(Jobs, AMergeThatIsNotFiniteChangesNothing) {
  JobsOptions options = plain_options();
  options.outer = merge::OuterRule::of(merge::OuterKind::kDirect);
  TestRun run(options);
  ASSERT_TRUE(run.start(small_layout()));
  const auto before = run.digests();
  const auto images = run.current_images();
  const std::size_t count = run.layout().fragments[0].values;
  const std::vector<float> huge(count, std::numeric_limits<float>::max());
  Merge job;
  job.fragment = 0;
  job.version = 1;
  job.image = run.next_id();
  for (Seat seat = 0; seat < 3; ++seat) {
    const BufferId id = run.put(as_bytes_view(std::span<const float>(huge)));
    EXPECT_TRUE(run.jobs().inspect(0, id)->finite);
    job.pushes.push_back({seat, id, 1, 1});
  }
  // Finite deltas whose mean length leaves f32 on the way.
  const MergeReport report = run.jobs().merge(job);
  EXPECT_FALSE(report.ok);
  EXPECT_EQ(report.reason, "the merged value is not finite");
  EXPECT_EQ(run.digests(), before);
  EXPECT_EQ(run.jobs().image(job.image), nullptr);
  EXPECT_EQ(run.current_images()[0].digest, images[0].digest);
  EXPECT_TRUE(run.commit().ok) << "the next one goes on from the old values";
}

TEST(Jobs, InspectMeasuresAndRefusesWrongSizes) {
  TestRun run(plain_options());
  ASSERT_TRUE(run.start(small_layout()));
  std::vector<float> delta(run.layout().fragments[1].values, 0.0F);
  delta[3] = -3.0F;
  delta[4] = 4.0F;
  const auto view = as_bytes_view(std::span<const float>(delta));
  const auto report = run.jobs().inspect(1, run.put(view));
  ASSERT_TRUE(report);
  EXPECT_TRUE(report->finite);
  EXPECT_EQ(report->norm, 5.0);
  delta[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(run.jobs().inspect(1, run.put(view))->finite);
  EXPECT_EQ(run.jobs().inspect(1, run.put(view.first(8))).error().code, ErrorCode::kData);
  EXPECT_EQ(run.jobs().inspect(9, run.put(view)).error().code, ErrorCode::kInternal);
  EXPECT_EQ(run.jobs().inspect(1, 12345).error().code, ErrorCode::kClosed);
}

TEST(Jobs, BadFirstValuesAndLayoutsAreRefused) {
  TestRun run(plain_options());
  EXPECT_EQ(run.jobs().load_layout(run.put(Bytes{1, 2, 3})).error().code, ErrorCode::kData);
  EXPECT_EQ(run.jobs().load_init(0, run.put(Bytes(4))).error().code, ErrorCode::kInternal);
  const Layout layout = small_layout();
  ASSERT_TRUE(run.jobs().load_layout(run.put(layout.encode())));
  EXPECT_EQ(*run.jobs().codec(), CodecId::kF32);
  EXPECT_EQ(run.jobs().load_init(0, run.put(Bytes(4))).error().code, ErrorCode::kData);
  std::vector<float> bad(layout.fragments[0].values, std::numeric_limits<float>::infinity());
  EXPECT_EQ(
      run.jobs().load_init(0, run.put(as_bytes_view(std::span<const float>(bad)))).error().code,
      ErrorCode::kData);
  const std::vector<BufferId> ids{101, 102, 103};
  EXPECT_FALSE(run.jobs().make_images(ids)) << "no values yet";
}

TEST(Jobs, AnotherDonorsLayoutIsTakenOnlyBeforeTheFirstImages) {
  TestRun run(plain_options());
  LayoutOptions two;
  two.fragments = 2;
  const Layout first = *make_layout(small_layout().tensors, two);
  ASSERT_TRUE(run.jobs().load_layout(run.put(first.encode())));
  ASSERT_TRUE(run.start(small_layout())) << "the first donor was lost";
  const auto conflict = run.jobs().load_layout(run.put(first.encode()));
  ASSERT_FALSE(conflict);
  EXPECT_EQ(conflict.error().code, ErrorCode::kConflict);
  EXPECT_NE(conflict.error().what.find("3 fragments here, 2 there"), std::string::npos);
  EXPECT_TRUE(run.jobs().load_layout(run.put(small_layout().encode()))) << "the same one again";
}

TEST(Jobs, VersionsMustFollow) {
  TestRun run(plain_options());
  ASSERT_TRUE(run.start(small_layout()));
  Merge job;
  job.version = 2;
  const MergeReport report = run.jobs().merge(job);
  EXPECT_FALSE(report.ok);
  EXPECT_NE(report.reason.find("a merge to version 2 of values at version 0"), std::string::npos);
  job.version = 1;
  job.pushes = {{0, 4711, 1, 1}};
  EXPECT_NE(run.jobs().merge(job).reason.find("the buffer was freed"), std::string::npos);
  job.pushes = {};
  EXPECT_FALSE(run.jobs().merge(job).ok);
}

TEST(Jobs, FinalsAreTheMasterValuesAlsoUnderBf16) {
  JobsOptions options = plain_options();
  options.push_codec = CodecId::kBf16;
  options.broadcast_codec = CodecId::kBf16;
  TestRun run(options);
  const Layout layout = small_layout();
  ASSERT_TRUE(run.start(layout));
  const std::vector<BufferId> ids{901, 902, 903};
  const auto finals = run.jobs().make_finals(ids);
  ASSERT_TRUE(finals);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto want = TestRun::values(1000 + i, layout.fragments[i].values, 1.0);
    const auto bytes = as_bytes_view(std::span<const float>(want));
    EXPECT_EQ(*run.jobs().image(ids[i]), Bytes(bytes.begin(), bytes.end()));
    EXPECT_EQ(finals->digests[i], sha256(bytes));
    EXPECT_EQ(finals->images[i].digest, xxh3_128(bytes));
    EXPECT_EQ(finals->images[i].bytes, bytes.size());
  }
}

TEST(Jobs, OptionsThatCannotWorkAreRefused) {
  JobsOptions options = plain_options();
  options.push_codec = CodecId::kQ4;
  options.broadcast_codec = CodecId::kQ4;
  EXPECT_EQ(Jobs::make(options).error().code, ErrorCode::kNotInBuild);
  options = plain_options();
  options.outer.lr = -1;
  EXPECT_EQ(Jobs::make(options).error().code, ErrorCode::kRange);
  options = plain_options();
  options.threads = 0;
  EXPECT_EQ(Jobs::make(options).error().code, ErrorCode::kRange);
}

}  // namespace
}  // namespace yeto::sync
