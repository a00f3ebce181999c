// SPDX-License-Identifier: Apache-2.0
// A small run for the tests of this room: one layout, values and pushes from a seed.
#pragma once

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/codec/codec.h"
#include "yeto/sync/jobs/jobs.h"

namespace yeto::sync::testing {

class TemporaryFolder {
 public:
  TemporaryFolder()
      : path_(std::filesystem::temp_directory_path() / strf("yeto-jobs-{:x}", random_u64())) {
    std::filesystem::create_directories(path_);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline Layout small_layout() {
  std::vector<TensorSpec> tensors(5);
  const std::vector<std::uint64_t> rows{3, 40, 7, 100, 1};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = strf("layers.{}.w", i);
    tensors[i].shape = {rows[i], 5};
  }
  LayoutOptions options;
  options.fragments = 3;
  return *make_layout(std::move(tensors), options);
}

// One syncer life over `jobs`: numbers buffers and versions as the core does.
class TestRun {
 public:
  explicit TestRun(JobsOptions options) : jobs_(*Jobs::make(std::move(options))) {}
  explicit TestRun(std::unique_ptr<Jobs> jobs) : jobs_(std::move(jobs)) {}

  Jobs& jobs() { return *jobs_; }
  const Layout& layout() const { return layout_; }
  BufferId next_id() { return next_id_++; }

  BufferId put(ByteView bytes) {
    const BufferId id = next_id();
    const MutableByteView view = *jobs_->allocate(id, bytes.size());
    if (!bytes.empty()) {
      std::memcpy(view.data(), bytes.data(), bytes.size());
    }
    return id;
  }
  static std::vector<float> values(std::uint64_t seed, std::size_t count, double scale) {
    Rng rng(seed);
    std::vector<float> out(count);
    for (float& value : out) {
      value = static_cast<float>(scale * (rng.uniform() - 0.5));
    }
    return out;
  }
  // Layout, first values of all fragments, images.
  Status start(const Layout& layout) {
    layout_ = layout;
    state_.term = 1;
    state_.versions.assign(layout.fragments.size(), 0);
    YETO_TRY(jobs_->load_layout(put(layout.encode())));
    for (std::uint32_t i = 0; i < layout.fragments.size(); ++i) {
      const auto init = values(1000 + i, layout.fragments[i].values, 1.0);
      const BufferId id = put(as_bytes_view(std::span<const float>(init)));
      YETO_TRY(jobs_->load_init(i, id));
      jobs_->free(id);
    }
    return images();
  }
  Status resume() {
    YETO_ASSIGN(const std::optional<Restored> restored, jobs_->restore());
    if (!restored) {
      return fail(ErrorCode::kNotFound, "no checkpoint");
    }
    return go_on(*restored);
  }
  Status go_on(const Restored& restored) {
    layout_ = restored.layout;
    state_ = restored.state;
    return images();
  }
  Status images() {
    std::vector<BufferId> ids;
    for (std::size_t i = 0; i < layout_.fragments.size(); ++i) {
      ids.push_back(next_id());
    }
    YETO_ASSIGN(images_, jobs_->make_images(ids));
    return Unit{};
  }
  // The push of a seat for a version of a fragment; always the same.
  Bytes push_image(std::uint32_t fragment, std::uint64_t version, Seat seat) const {
    const std::size_t count = layout_.fragments[fragment].values;
    const auto delta = values(version * 100 + fragment * 10 + seat, count, 0.1);
    const CodecId codec = *jobs_->push_codec();
    Bytes image(codec::encoded_bytes(codec, count));
    YETO_CHECK(codec::encode(codec, delta, image), "a push of the test");
    return image;
  }
  // The next commit of the run: fragments in turn, two pushes.
  MergeReport commit() {
    const auto fragment = static_cast<std::uint32_t>(state_.global_step % layout_.fragments.size());
    Merge job;
    job.fragment = fragment;
    job.version = state_.versions[fragment] + 1;
    job.image = next_id();
    job.full = jobs_->codec() == CodecId::kQ4 ? next_id() : 0;
    job.round = state_.global_step + 1;
    for (Seat seat = 0; seat < 2; ++seat) {
      const BufferId id = put(push_image(fragment, job.version, seat));
      YETO_CHECK(jobs_->inspect(fragment, id)->finite, "a push of the test");
      job.pushes.push_back({seat, id, 8, 1000 + seat, job.version - 1, 1.0});
    }
    MergeReport report = jobs_->merge(job);
    for (const PushInput& push : job.pushes) {
      jobs_->free(push.buffer);
    }
    if (report.ok) {
      ++state_.versions[fragment];
      ++state_.global_step;
      jobs_->free(images_[fragment].buffer);
      images_[fragment] = report.image;
      if (report.full.buffer != 0) {
        jobs_->free(report.image.buffer);
        images_[fragment] = report.full;
      }
    }
    return report;
  }
  const CoreState& state() const { return state_; }
  CoreState& state() { return state_; }
  Status checkpoint() { return jobs_->checkpoint(state_); }
  Result<Snapshot> snapshot() { return jobs_->snapshot(state_); }
  // SHA-256 of the values of each fragment.
  std::vector<wire::Digest32> digests() {
    std::vector<BufferId> ids;
    for (std::size_t i = 0; i < layout_.fragments.size(); ++i) {
      ids.push_back(next_id());
    }
    std::vector<wire::Digest32> out = jobs_->make_finals(ids)->digests;
    for (const BufferId id : ids) {
      jobs_->free(id);
    }
    return out;
  }
  const std::vector<Image>& current_images() const { return images_; }

 private:
  std::unique_ptr<Jobs> jobs_;
  Layout layout_;
  CoreState state_;
  std::vector<Image> images_;
  BufferId next_id_ = 1;
};

// A store that other machines may write to, as far as its users can tell; it can be switched off.
class SharedStore final : public store::ObjectStore {
 public:
  using ObjectStore::put;
  Result<bool> put(std::string_view key, std::span<const ByteView> parts,
                   store::PutMode mode) override {
    YETO_TRY(check());
    return blobs_.put(key, parts, mode);
  }
  Result<Bytes> get(std::string_view key, std::uint64_t max_bytes) const override {
    YETO_TRY(check());
    return blobs_.get(key, max_bytes);
  }
  Result<std::vector<std::string>> list() const override {
    YETO_TRY(check());
    return blobs_.list();
  }
  Status remove(std::string_view key) override {
    YETO_TRY(check());
    return blobs_.remove(key);
  }
  Status remove_unfinished() override { return Unit{}; }
  std::string place() const override { return "shared store"; }
  bool is_shared() const override { return true; }

  // Operations that still work; afterwards all fail.
  void break_after(int operations) { left_ = operations; }
  void heal() { left_ = 1'000'000'000; }

 private:
  Status check() const {
    if (left_-- <= 0) {
      return fail(ErrorCode::kUnreachable, "the store does not answer", place());
    }
    return Unit{};
  }
  store::MemoryStore blobs_;
  mutable std::atomic<int> left_{1'000'000'000};
};

inline JobsOptions options_in(std::shared_ptr<store::ObjectStore> store) {
  JobsOptions options;
  options.run_id = "run-1";
  options.checkpoint = std::move(store);
  options.settings = {{"sync-interval-steps", "24"}, {"model", "tiny"}, {"seed", "7"}};
  return options;
}

}  // namespace yeto::sync::testing
