// SPDX-License-Identifier: Apache-2.0
// Goal: jobs do to buffers exactly what merge and codec do to values, for every codec, outer rule
// and number of threads, and leave all unchanged when they refuse. Method: a small run from a seed.
#include "yeto/sync/jobs/jobs.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>
#include <utility>

#include "yeto/sync/jobs/testing.h"

namespace yeto::sync {
namespace {

using testing::options_in;
using testing::small_layout;
using testing::TestRun;

JobsOptions plain_options() { return options_in(nullptr); }

// Of pushes and of broadcasts.
constexpr std::pair<CodecId, CodecId> kCodecPairs[] = {{CodecId::kF32, CodecId::kF32},
                                                       {CodecId::kBf16, CodecId::kBf16},
                                                       {CodecId::kQ4, CodecId::kQ4},
                                                       {CodecId::kQ4, CodecId::kF32},
                                                       {CodecId::kF32, CodecId::kQ4}};

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
  for (const auto& [push, codec] : kCodecPairs) {
    for (const auto kind : {merge::OuterKind::kNesterov, merge::OuterKind::kSgd,
                            merge::OuterKind::kDirect, merge::OuterKind::kAuto}) {
      SCOPED_TRACE(strf("codecs {} {} outer {}", codec::codec_name(push), codec::codec_name(codec),
                        merge::outer_kind_name(kind)));
      JobsOptions options = plain_options();
      options.push_codec = push;
      options.broadcast_codec = codec;
      options.correction = merge::Correction::kHeloco;
      options.outer = merge::OuterRule::of(kind);
      TestRun run(options);
      const Layout layout = small_layout();
      ASSERT_TRUE(run.start(layout));
      const std::size_t count = layout.fragments[0].values;
      std::vector<float> values = TestRun::values(1000, count, 1.0);
      std::vector<float> momentum(options.outer.keeps_momentum() ? count : 0);
      Bytes shown(codec == CodecId::kF32 ? 4 * count : 2 * count);
      ASSERT_TRUE(codec::encode(codec == CodecId::kF32 ? codec : CodecId::kBf16, values, shown));
      EXPECT_EQ(*run.jobs().image(run.current_images()[0].buffer), shown);
      for (std::uint64_t version = 1; version <= 4; ++version) {
        std::vector<Bytes> images;
        merge::Inputs in{&layout,       0,      version == 1, options.weights,
                         options.outer, values, momentum,     {}};
        for (Seat seat = 0; seat < 2; ++seat) {
          images.push_back(run.push_image(0, version, seat));
        }
        for (Seat seat = 0; seat < 2; ++seat) {
          in.pushes.push_back({seat, 8, 1000 + seat, push, images[seat], {}, version - 1, 1.0});
        }
        in.correction = options.correction;
        std::vector<float> new_values(count);
        std::vector<float> new_momentum(momentum.size());
        Bytes image(codec::encoded_bytes(codec, count));
        Bytes new_shown(shown.size());
        merge::Outputs out{new_values, new_momentum, codec, image};
        if (codec == CodecId::kQ4) {
          out.old_public = shown;
          out.new_public = new_shown;
        }
        ASSERT_TRUE(*merge::merge_fragment(in, out));
        values = new_values;
        momentum = new_momentum;
        shown = codec == CodecId::kQ4 ? new_shown : image;
        while (run.state().versions[0] < version) {
          const MergeReport report = run.commit();
          ASSERT_TRUE(report.ok) << report.reason;
          const Image& whole = codec == CodecId::kQ4 ? report.full : report.image;
          EXPECT_EQ(report.image.digest, xxh3_128(*run.jobs().image(whole.buffer)));
          EXPECT_EQ(whole.digest, report.image.digest);
          EXPECT_EQ(report.weights.size(), 2U);
        }
        EXPECT_EQ(*run.jobs().image(run.current_images()[0].buffer), shown);
      }
      EXPECT_EQ(run.digests()[0], sha256(as_bytes_view(std::span<const float>(values))));
    }
  }
}

TEST(Jobs, AQ4ImageLeadsALearnerFromTheOldPublicValueToTheNew) {
  JobsOptions options = plain_options();
  options.push_codec = CodecId::kBf16;
  options.broadcast_codec = CodecId::kQ4;
  TestRun run(options);
  ASSERT_TRUE(run.start(small_layout()));
  Bytes held = *run.jobs().image(run.current_images()[0].buffer);
  ASSERT_EQ(held.size(), 2 * run.layout().fragments[0].values) << "first values travel as bf16";
  for (std::uint64_t version = 1; version <= 5; ++version) {
    Merge job;
    job.version = version;
    job.image = run.next_id();
    job.full = run.next_id();
    job.pushes = {{3, run.put(run.push_image(0, version, 3)), 8, 100, version - 1, 1.0}};
    const MergeReport report = run.jobs().merge(job);
    ASSERT_TRUE(report.ok) << report.reason;
    const Bytes image = *run.jobs().image(job.image);
    EXPECT_EQ(image.size(), report.image.bytes);
    EXPECT_LT(image.size() * 3, held.size()) << "about half a byte a value, and one more block";
    Bytes next(held.size());
    ASSERT_TRUE(codec::apply_q4(image, held, next));
    EXPECT_EQ(next, *run.jobs().image(job.full));
    EXPECT_EQ(report.image.digest, xxh3_128(next));
    EXPECT_NE(next, held);
    held = next;
  }
}

TEST(Jobs, ALatePushOfTheSameSeatIsMergedBesideTheOneOfTheRound) {
  TestRun run(plain_options());
  ASSERT_TRUE(run.start(small_layout()));
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(run.commit().ok);
  }
  Merge job;
  job.version = 3;
  job.round = 7;
  job.image = run.next_id();
  job.pushes = {{0, run.put(run.push_image(0, 2, 0)), 8, 400, 1, 0.5},
                {0, run.put(run.push_image(0, 3, 0)), 8, 1000, 2, 1.0},
                {4, run.put(run.push_image(0, 3, 4)), 8, 1000, 2, 1.0}};
  const MergeReport report = run.jobs().merge(job);
  ASSERT_TRUE(report.ok) << report.reason;
  ASSERT_EQ(report.weights.size(), 3U);
  EXPECT_DOUBLE_EQ(report.weights[0].weight / report.weights[1].weight, 0.5 * 0.4 * 0.4);
  job.version = 4;
  job.image = run.next_id();
  job.pushes[1].base_version = 1;
  EXPECT_FALSE(run.jobs().merge(job).ok) << "two pushes of one seat and base";
}

TEST(Jobs, MemoryDoesNotGrowOverTenThousandMerges) {
  for (const CodecId codec : {CodecId::kF32, CodecId::kQ4}) {
    JobsOptions options = options_in(std::make_shared<store::MemoryStore>());
    options.push_codec = codec;
    options.broadcast_codec = codec;
    TestRun run(options);
    ASSERT_TRUE(run.start(small_layout()));
    std::uint64_t after_first = 0;
    for (int i = 0; i < 10'000; ++i) {
      ASSERT_TRUE(run.commit().ok);
      if (i % 500 == 499) {
        ASSERT_TRUE(run.checkpoint());
      }
      if (i == 10) {
        after_first = run.jobs().buffer_bytes();
      }
    }
    EXPECT_EQ(run.jobs().buffer_bytes(), after_first);
  }
}

// Fragments large enough for the pool, one of them larger than the others.
TEST(Jobs, ThePoolReachesItsSizeWithTheFirstRoundAndStaysThere) {
  std::vector<TensorSpec> tensors(4);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = strf("layers.{}.w", i);
    tensors[i].shape = {100'000 + 100 * i + (i == 2 ? 60'000 : 0)};
  }
  LayoutOptions layout_options;
  layout_options.fragments = 4;
  const Layout layout = *make_layout(tensors, layout_options);
  auto store = std::make_shared<store::MemoryStore>();
  JobsOptions options = options_in(store);
  options.push_codec = CodecId::kBf16;
  options.broadcast_codec = CodecId::kBf16;
  TestRun run(options);
  ASSERT_TRUE(run.start(layout));
  std::uint64_t held = 0;
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(run.commit().ok);
    if (i % 8 == 7) {
      ASSERT_TRUE(run.checkpoint());
    }
    if (i == 8) {
      held = run.jobs().held_bytes();
    }
  }
  EXPECT_LE(run.jobs().held_bytes(), held);
  // Master values, momentum and public values; two pushes, and what a merge writes to; and what is
  // lost because a buffer serves sizes that do not fill it.
  const std::uint64_t values = layout.values();
  EXPECT_LE(held, 10 * values + (2 * 2 + 10 + 1) * 160'200);
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
  TestRun run(plain_options());
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
  // Finite deltas, but the step adds nine tenths of the momentum, which is the delta again.
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
  options.outer.lr = -1;
  EXPECT_EQ(Jobs::make(options).error().code, ErrorCode::kRange);
  options = plain_options();
  options.threads = 0;
  EXPECT_EQ(Jobs::make(options).error().code, ErrorCode::kRange);
}

}  // namespace
}  // namespace yeto::sync
