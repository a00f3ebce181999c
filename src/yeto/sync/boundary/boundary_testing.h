// SPDX-License-Identifier: Apache-2.0
// The fixture of the boundary's tests: a trainer with two tensors against a scripted syncer.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/sync/boundary/boundary.h"
#include "yeto/sync/boundary/scripted_syncer_testing.h"

namespace yeto::sync::scripted {

using Floats = std::vector<float>;

inline constexpr std::uint64_t kTerm = 5;

inline Floats decoded(CodecId codec, const Bytes& bytes) {
  Floats values(bytes.size() / (codec == CodecId::kF32 ? 4 : 2));
  EXPECT_TRUE(codec::decode(codec, bytes, values));
  return values;
}

class World : public testing::Test {
 protected:
  World() {
    random_bytes(key_);
    std::string name = hex(ByteView(key_).first(8));
    folder_ = std::filesystem::path(testing::TempDir()) / ("yeto-boundary-" + name);
    std::filesystem::create_directories(folder_);
    EXPECT_TRUE(write_file_atomic(folder_ / "seat.key", hex(key_), 0600));
  }
  ~World() override { std::filesystem::remove_all(folder_); }

  static wire::Welcome welcome(std::vector<std::uint64_t> versions, std::uint64_t term = kTerm) {
    wire::Welcome welcome;
    welcome.seat = 2;
    welcome.session.fill(static_cast<std::uint8_t>(term));
    welcome.term = term;
    welcome.heartbeat_ms = 50;
    welcome.valid = versions;
    welcome.versions = std::move(versions);
    return welcome;
  }

  BoundaryOptions options() const {
    BoundaryOptions options;
    options.syncer = "@" + (folder_ / "endpoint.json").string();
    options.run_id = "run-1";
    options.seat = 2;
    options.token_file = folder_ / "seat.key";
    options.layout.fragments = 2;
    options.contract = {{"seq-len", "256"}, {"base-model", "tiny"}};
    options.streams = 2;
    options.retry_first = from_millis(5);
    options.retry_most = from_millis(20);
    return options;
  }

  void point_at(const ScriptedSyncer& syncer) {
    const std::string text =
        strf(R"({{"schema":"yeto.endpoint/1","host":"127.0.0.1","port":{},"run_id":"run-1"}})",
             syncer.address().port);
    ASSERT_TRUE(write_file_atomic(folder_ / "endpoint.json", text));
  }

  std::vector<TensorView> tensors() { return {{"a.weight", {2, 4}, a_}, {"b.weight", {6}, b_}}; }

  std::unique_ptr<Boundary> open(BoundaryOptions options) {
    auto boundary = Boundary::open(std::move(options), tensors());
    EXPECT_TRUE(boundary) << (boundary ? "" : boundary.error().text());
    return boundary ? std::move(*boundary) : nullptr;
  }

  // A boundary of a new run whose values are those the tensors had.
  std::unique_ptr<Boundary> join(ScriptedSyncer& syncer, BoundaryOptions with) {
    point_at(syncer);
    syncer.act_as_new_run();
    auto boundary = open(std::move(with));
    const auto ready = boundary->wait_ready(ScriptedSyncer::kPatience);
    EXPECT_TRUE(ready) << (ready ? "" : ready.error().text());
    return boundary;
  }

  // Fragment 0 holds a.weight (8 values), fragment 1 b.weight (6).
  Floats a_ = Floats(8, 1.0F);
  Floats b_ = Floats(6, 2.0F);
  Sha256 key_{};
  std::filesystem::path folder_;
};

// Steps until the report says what is wanted; the syncer's answer takes its time.
template <class Until>
StepReport step_until(Boundary& boundary, Until until) {
  const Nanos deadline = monotonic_now() + ScriptedSyncer::kPatience;
  for (;;) {
    const auto report = boundary.step(1);
    if (!report) {
      ADD_FAILURE() << report.error().text();
      return {};
    }
    if (until(*report)) {
      return *report;
    }
    if (monotonic_now() > deadline) {
      ADD_FAILURE() << "it did not come to that";
      return *report;
    }
    std::this_thread::yield();
  }
}

}  // namespace yeto::sync::scripted
