// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/sim/job_host.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/codec/codec.h"
#include "yeto/sync/jobs/checkpoint.h"

namespace yeto::sync::sim {
namespace {

std::string in_words(const Error& error) {
  return error.where.empty() ? error.what : strf("{} ({})", error.what, error.where);
}

// ---- real jobs -------------------------------------------------------------------------------

class RealJobs final : public JobHost {
 public:
  RealJobs(const Plan& plan, std::uint32_t life, Durable& durable)
      : plan_(plan), life_(life), disk_(durable.disk) {}

  Result<Opened> open() override {
    JobsOptions options;
    options.run_id = plan_.core.run_id;
    options.push_codec = plan_.core.push_codec;
    options.broadcast_codec = plan_.core.broadcast_codec;
    options.correction = plan_.correction;
    options.outer = plan_.outer;
    if (plan_.breakage == Breakage::kOtherOuter && life_ > 1) {
      options.outer.momentum *= 0.5F;
    }
    options.weights = plan_.weights;
    // The world owns the disk; a shared pointer that owns nothing.
    options.checkpoint = std::shared_ptr<store::ObjectStore>(std::shared_ptr<void>(), &disk_);
    YETO_ASSIGN(jobs_, Jobs::make(std::move(options)));
    Opened out;
    YETO_ASSIGN(out.restored, jobs_->restore());
    YETO_ASSIGN(out.term, checkpoint::raise_term(disk_));
    disk_.sync();
    return out;
  }

  void allocate(BufferId buffer, std::uint64_t bytes) override {
    const auto memory = jobs_->allocate(buffer, bytes);
    YETO_CHECK(memory.has_value(), "a simulated buffer is small");
    memory_[buffer] = *memory;
  }
  void fill(BufferId buffer, const Body& body) override {
    const auto found = memory_.find(buffer);
    if (found != memory_.end() && body.bytes && body.size > 0) {
      std::memcpy(found->second.data(), body.bytes->data(), body.size);
    }
    memory_.erase(buffer);
  }
  void free(BufferId buffer) override {
    memory_.erase(buffer);
    jobs_->free(buffer);
  }
  std::optional<Body> body(BufferId buffer) const override {
    auto bytes = jobs_->image(buffer);
    if (bytes == nullptr) {
      return std::nullopt;
    }
    const std::uint64_t size = bytes->size();
    return Body{std::move(bytes), size};
  }
  std::uint64_t buffer_bytes() const override { return jobs_->buffer_bytes(); }
  Event carry_out(const JobOrder& order) override {
    return std::visit([this](const auto& job) { return run(job); }, order);
  }
  void make_durable() override { disk_.sync(); }
  std::uint64_t work_bytes(const JobOrder& order) const override {
    return std::holds_alternative<Checkpoint>(order) ? disk_.bytes_since_sync() : 0;
  }

 private:
  Event run(const LoadLayout& order) {
    Result<Layout> layout = jobs_->load_layout(order.buffer);
    if (!layout) {
      return LayoutLoaded{order.job, std::nullopt, in_words(layout.error())};
    }
    return LayoutLoaded{order.job, std::move(*layout), {}};
  }
  Event run(const LoadInit& order) {
    const auto bytes = jobs_->image(order.buffer);
    if (bytes == nullptr || xxh3_128(*bytes) != order.digest) {
      return InitLoaded{order.job, false, "the initial values have another digest"};
    }
    const Status loaded = jobs_->load_init(order.fragment, order.buffer);
    return InitLoaded{order.job, loaded.has_value(), loaded ? "" : in_words(loaded.error())};
  }
  Event run(const InspectPush& order) {
    const Result<PushReport> report = jobs_->inspect(order.fragment, order.buffer);
    if (!report) {
      return PushInspected{order.job, order.buffer, false, 0.0};
    }
    const bool lie = plan_.breakage == Breakage::kNanPasses;
    return PushInspected{order.job, order.buffer, report->finite || lie,
                         report->finite ? report->norm : 1.0};
  }
  Event run(const Merge& order) {
    const MergeReport report = jobs_->merge(order);
    return Merged{order.job, report.ok, report.image, report.full};
  }
  Event run(const MakeImages& order) {
    Result<std::vector<Image>> images = jobs_->make_images(order.images);
    YETO_CHECK(images.has_value(), "images of a loaded state");
    return ImagesMade{order.job, std::move(*images)};
  }
  Event run(const Checkpoint& order) {
    const Status written = jobs_->checkpoint(order.state);
    return Checkpointed{order.job, written.has_value(), written ? "" : in_words(written.error())};
  }
  Event run(const MakeFinals& order) {
    Result<Finals> finals = jobs_->make_finals(order.images);
    YETO_CHECK(finals.has_value(), "final values of a loaded state");
    return FinalsMade{order.job, std::move(finals->images), std::move(finals->digests)};
  }

  const Plan& plan_;
  const std::uint32_t life_;
  Disk& disk_;
  std::unique_ptr<Jobs> jobs_;
  std::unordered_map<BufferId, MutableByteView> memory_;  // being received into
};

// ---- phantoms --------------------------------------------------------------------------------

wire::Digest16 made_up_digest(std::uint32_t fragment, std::uint64_t version, std::uint64_t salt) {
  wire::Digest16 out{};
  const std::uint64_t parts[2] = {mix64(salt ^ (std::uint64_t{fragment} << 40) ^ version),
                                  version * 1024 + fragment};
  std::memcpy(out.data(), parts, sizeof parts);
  return out;
}

class PhantomJobs final : public JobHost {
 public:
  PhantomJobs(const Plan& plan, Durable& durable) : plan_(plan), durable_(durable) {
    push_codec_ = plan.core.push_codec.value_or(codec::default_codec(plan.layout.values()));
    codec_ = plan.core.broadcast_codec.value_or(codec::default_codec(plan.layout.values()));
  }

  Result<Opened> open() override {
    Opened out;
    out.term = ++durable_.term;
    durable_.writing.reset();
    if (durable_.state) {
      out.restored = Restored{plan_.layout, *durable_.state};
      versions_ = durable_.state->versions;
    }
    return out;
  }
  void allocate(BufferId buffer, std::uint64_t bytes) override {
    sizes_[buffer] = bytes;
    total_ += bytes;
  }
  void fill(BufferId, const Body&) override {}
  void free(BufferId buffer) override {
    const auto found = sizes_.find(buffer);
    if (found != sizes_.end()) {
      total_ -= found->second;
      sizes_.erase(found);
    }
  }
  std::optional<Body> body(BufferId buffer) const override {
    const auto found = sizes_.find(buffer);
    if (found == sizes_.end()) {
      return std::nullopt;
    }
    return Body{nullptr, found->second};
  }
  std::uint64_t buffer_bytes() const override { return total_; }
  Event carry_out(const JobOrder& order) override {
    return std::visit([this](const auto& job) { return run(job); }, order);
  }
  void make_durable() override {
    if (durable_.writing) {
      durable_.state = std::move(durable_.writing);
      durable_.writing.reset();
    }
  }
  std::uint64_t work_bytes(const JobOrder& order) const override {
    if (const auto* merge = std::get_if<Merge>(&order)) {
      return merge->pushes.size() *
             codec::encoded_bytes(push_codec_, plan_.layout.fragments[merge->fragment].values);
    }
    return std::holds_alternative<Checkpoint>(order) ? 12 * plan_.layout.largest_fragment() : 0;
  }

 private:
  Image image(BufferId id, std::uint32_t fragment, CodecId codec) {
    const std::uint64_t bytes =
        codec::encoded_bytes(codec, plan_.layout.fragments[fragment].values);
    allocate(id, bytes);
    return Image{id, bytes, made_up_digest(fragment, versions_[fragment], durable_.term)};
  }
  CodecId anchor() const {
    return codec::anchor_dtype(codec_) == DType::kF32 ? CodecId::kF32 : CodecId::kBf16;
  }

  Event run(const LoadLayout& order) {
    versions_.assign(plan_.layout.fragments.size(), 0);
    return LayoutLoaded{order.job, plan_.layout, {}};
  }
  Event run(const LoadInit& order) { return InitLoaded{order.job, true, {}}; }
  Event run(const InspectPush& order) { return PushInspected{order.job, order.buffer, true, 1.0}; }
  Event run(const Merge& order) {
    versions_[order.fragment] = order.version;
    Merged out{order.job, true, image(order.image, order.fragment, codec_), {}};
    if (order.full != 0) {
      out.full = image(order.full, order.fragment, anchor());
    }
    return out;
  }
  Event run(const MakeImages& order) {
    ImagesMade out{order.job, {}};
    for (std::uint32_t i = 0; i < order.images.size(); ++i) {
      out.images.push_back(image(order.images[i], i, anchor()));
    }
    return out;
  }
  Event run(const Checkpoint& order) {
    if (durable_.disk.fails()) {
      return Checkpointed{order.job, false, "no space left on device"};
    }
    durable_.writing = order.state;
    return Checkpointed{order.job, true, {}};
  }
  Event run(const MakeFinals& order) {
    FinalsMade out{order.job, {}, {}};
    for (std::uint32_t i = 0; i < order.images.size(); ++i) {
      out.images.push_back(image(order.images[i], i, CodecId::kF32));
      wire::Digest32 digest{};
      std::memcpy(digest.data(), out.images.back().digest.data(), 16);
      out.digests.push_back(digest);
    }
    return out;
  }

  const Plan& plan_;
  Durable& durable_;
  CodecId push_codec_ = CodecId::kF32;
  CodecId codec_ = CodecId::kF32;
  std::vector<std::uint64_t> versions_;
  std::unordered_map<BufferId, std::uint64_t> sizes_;
  std::uint64_t total_ = 0;
};

}  // namespace

std::unique_ptr<JobHost> make_jobs(const Plan& plan, std::uint32_t life, Durable& durable) {
  if (plan.values == ValueKind::kReal) {
    return std::make_unique<RealJobs>(plan, life, durable);
  }
  return std::make_unique<PhantomJobs>(plan, durable);
}

}  // namespace yeto::sync::sim
