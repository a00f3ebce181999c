// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/jobs/jobs.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <new>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/codec/codec.h"
#include "yeto/sync/jobs/parallel.h"

namespace yeto::sync {
namespace {

// Starting threads costs more than a merge of fewer values.
constexpr std::uint64_t kParallelFrom = std::uint64_t{1} << 18;
// Unused buffers kept for the next push or image: what two rounds of a few learners need.
constexpr std::size_t kKeptBuffers = 16;

bool all_finite(std::span<const float> values) {
  std::uint32_t bad = 0;
  for (const float value : values) {
    bad |= (std::bit_cast<std::uint32_t>(value) & 0x7f800000U) == 0x7f800000U ? 1U : 0U;
  }
  return bad == 0;
}

// Gives the vector `count` values. Its room is used again unless that would waste a quarter of it.
void fit(std::vector<float>& spare, std::size_t count) {
  if (spare.capacity() < count || spare.capacity() > count + count / 4) {
    spare = std::vector<float>(count);
  } else {
    spare.resize(count);
  }
}

std::string in_words(const Error& error) {
  return error.where.empty() ? error.what : strf("{} ({})", error.what, error.where);
}

}  // namespace

Result<std::unique_ptr<Jobs>> Jobs::make(JobsOptions options) {
  YETO_TRY(options.outer.check());
  for (const auto& codec : {options.push_codec, options.broadcast_codec}) {
    if (codec) {
      YETO_TRY(codec::check_codec(*codec));
    }
  }
  if (options.threads < 1 || options.threads > 256) {
    return fail(ErrorCode::kRange, strf("{} threads: must be 1 to 256", options.threads),
                "--threads");
  }
  return std::unique_ptr<Jobs>(new Jobs(std::move(options)));
}

Jobs::Jobs(JobsOptions options) : options_(std::move(options)), pool_(kKeptBuffers) {}
Jobs::~Jobs() = default;

// ---- buffers
// ---------------------------------------------------------------------------------------

Result<MutableByteView> Jobs::allocate(BufferId id, std::uint64_t bytes) {
  std::shared_ptr<Bytes> memory;
  try {
    memory = pool_.take(bytes);
  } catch (const std::exception&) {  // bad_alloc, length_error
    return fail(ErrorCode::kIo, strf("no memory for a buffer of {}", human_bytes(double(bytes))),
                strf("buffer {}", id), "run the syncer on a machine with more memory");
  }
  const MutableByteView view(*memory);
  MutexLock lock(mutex_);
  const bool fresh = buffers_.emplace(id, Buffer{std::move(memory), {}}).second;
  YETO_CHECK(fresh, "a buffer id is used once");
  buffer_bytes_ += bytes;
  return view;
}

std::shared_ptr<const Bytes> Jobs::image(BufferId id) const {
  MutexLock lock(mutex_);
  const auto found = buffers_.find(id);
  return found == buffers_.end() ? nullptr : found->second.bytes;
}

void Jobs::free(BufferId id) {
  MutexLock lock(mutex_);
  const auto found = buffers_.find(id);
  if (found != buffers_.end()) {
    buffer_bytes_ -= found->second.bytes->size();
    buffers_.erase(found);
  }
}

std::uint64_t Jobs::buffer_bytes() const {
  MutexLock lock(mutex_);
  return buffer_bytes_;
}

Result<Jobs::Buffer> Jobs::buffer(BufferId id) const {
  MutexLock lock(mutex_);
  const auto found = buffers_.find(id);
  if (found == buffers_.end()) {
    return fail(ErrorCode::kClosed, "the buffer was freed", strf("buffer {}", id));
  }
  return found->second;
}

Image Jobs::give_out(BufferId id, std::shared_ptr<Bytes> bytes) {
  const Image image{id, bytes->size(), codec::public_digest(*bytes)};
  MutexLock lock(mutex_);
  buffer_bytes_ += bytes->size();
  const bool fresh = buffers_.emplace(id, Buffer{std::move(bytes), {}}).second;
  YETO_CHECK(fresh, "a buffer id is used once");
  return image;
}

// ---- layout and first values
// -------------------------------------------------------------------------

std::optional<CodecId> Jobs::codec() const {
  return layout_ ? std::optional(codec_) : std::nullopt;
}

void Jobs::use_layout(Layout layout) {
  codec_ = options_.broadcast_codec.value_or(codec::default_codec(layout.values()));
  push_codec_ = options_.push_codec.value_or(codec::default_codec(layout.values()));
  states_ = std::vector<State>(layout.fragments.size());
  layout_ = std::move(layout);
}

Result<Layout> Jobs::load_layout(BufferId id) {
  YETO_ASSIGN(const Buffer buffer, this->buffer(id));
  YETO_ASSIGN(Layout layout, Layout::decode(*buffer.bytes));
  if (layout_ && *layout_ == layout) {
    return layout;
  }
  if (in_use_) {
    return fail(ErrorCode::kConflict,
                strf("another layout is in use: {}", first_difference(*layout_, layout)), "layout");
  }
  use_layout(layout);
  return layout;
}

Status Jobs::check_fragment(std::uint32_t fragment) const {
  if (!layout_ || fragment >= states_.size()) {
    return fail(ErrorCode::kInternal, strf("a job for fragment {} of {}", fragment, states_.size()),
                "sync/jobs");
  }
  return Unit{};
}

Status Jobs::check_all_loaded(std::size_t ids) const {
  const bool loaded =
      std::all_of(states_.begin(), states_.end(), [](const State& state) { return state.loaded; });
  if (states_.empty() || !loaded || ids != states_.size()) {
    return fail(ErrorCode::kInternal, "not all fragments have values, or not one buffer each",
                "sync/jobs");
  }
  return Unit{};
}

Status Jobs::encode_public(State& state) const {
  auto image = pool_.take(codec::encoded_bytes(codec_, state.values.size()));
  YETO_TRY(codec::encode(codec_, state.values, *image));
  state.image = std::move(image);
  return Unit{};
}

Status Jobs::load_init(std::uint32_t fragment, BufferId id) {
  YETO_TRY(check_fragment(fragment));
  YETO_ASSIGN(const Buffer buffer, this->buffer(id));
  if (in_use_) {
    return fail(ErrorCode::kInternal, "first values for a state that has values", "sync/jobs");
  }
  std::vector<float> values(layout_->fragments[fragment].values);
  YETO_TRY(codec::decode(CodecId::kF32, *buffer.bytes, values));
  if (!all_finite(values)) {
    return fail(ErrorCode::kData, "the initial values are not finite",
                strf("fragment {}", fragment), "check the model's weights");
  }
  State& state = states_[fragment];
  state.momentum.assign(options_.outer.keeps_momentum() ? values.size() : 0, 0.0F);
  state.values = std::move(values);
  state.version = 0;
  YETO_TRY(encode_public(state));
  state.loaded = true;
  return Unit{};
}

// ---- rounds
// ------------------------------------------------------------------------------------------

Result<PushReport> Jobs::inspect(std::uint32_t fragment, BufferId id) {
  YETO_TRY(check_fragment(fragment));
  YETO_ASSIGN(const Buffer buffer, this->buffer(id));
  YETO_ASSIGN(merge::Measured measured,
              merge::measure(layout_->fragments[fragment], push_codec_, *buffer.bytes));
  MutexLock lock(mutex_);
  const auto found = buffers_.find(id);
  if (found != buffers_.end()) {
    found->second.square_norms = std::move(measured.square_norms);
  }
  return PushReport{measured.finite, measured.norm};
}

MergeReport Jobs::merge(const Merge& job) {
  Result<MergeReport> report = try_merge(job);
  if (!report) {
    MergeReport failed;
    failed.reason = in_words(report.error());
    return failed;
  }
  return std::move(*report);
}

Result<MergeReport> Jobs::try_merge(const Merge& job) {
  YETO_TRY(check_fragment(job.fragment));
  State& state = states_[job.fragment];
  if (!state.loaded || job.version != state.version + 1) {
    return fail(ErrorCode::kInternal,
                strf("a merge to version {} of values at version {}", job.version, state.version),
                strf("fragment {}", job.fragment));
  }
  std::vector<Buffer> buffers;  // keeps the pushes alive
  for (const PushInput& push : job.pushes) {
    YETO_ASSIGN(Buffer held, buffer(push.buffer));
    buffers.push_back(std::move(held));
  }
  merge::Inputs inputs{&*layout_,      job.fragment, job.version == 1, options_.weights,
                       options_.outer, state.values, state.momentum,   {}};
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const PushInput& push = job.pushes[i];
    inputs.pushes.push_back({push.seat, push.c_steps, push.c_tokens, push_codec_, *buffers[i].bytes,
                             buffers[i].square_norms, push.base_version, push.factor});
  }
  fit(spare_values_, state.values.size());
  fit(spare_momentum_, state.momentum.size());
  auto image = pool_.take(codec::encoded_bytes(codec_, state.values.size()));
  YETO_ASSIGN(const merge::FragmentMerge merge,
              merge::FragmentMerge::make(std::move(inputs),
                                         {spare_values_, spare_momentum_, codec_, *image}));
  std::atomic<bool> finite{true};
  run_parallel(merge.parts(), state.values.size() < kParallelFrom ? 1 : options_.threads,
               [&](std::size_t part) {
                 if (!merge.run_part(part)) {
                   finite = false;
                 }
               });
  MergeReport report;
  report.weights = merge.weights();
  if (!finite) {
    report.reason = "the merged value is not finite";
    return report;
  }
  state.values.swap(spare_values_);
  state.momentum.swap(spare_momentum_);
  state.image = image;
  state.version = job.version;
  report.ok = true;
  report.image = give_out(job.image, std::move(image));
  return report;
}

Result<std::vector<Image>> Jobs::make_images(std::span<const BufferId> ids) {
  YETO_TRY(check_all_loaded(ids.size()));
  in_use_ = true;
  std::vector<Image> images;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    images.push_back(give_out(ids[i], states_[i].image));
  }
  return images;
}

Result<Finals> Jobs::make_finals(std::span<const BufferId> ids) {
  YETO_TRY(check_all_loaded(ids.size()));
  Finals finals;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const ByteView view = as_bytes_view(std::span<const float>(states_[i].values));
    finals.digests.push_back(sha256(view));
    finals.images.push_back(give_out(ids[i], std::make_shared<Bytes>(view.begin(), view.end())));
  }
  return finals;
}

// ---- checkpoint
// --------------------------------------------------------------------------------------

Status Jobs::check_checkpoint(const CoreState& state) const {
  if (!options_.checkpoint) {
    return fail(ErrorCode::kInternal, "a checkpoint without a place for it", "sync/jobs");
  }
  YETO_TRY(check_all_loaded(state.versions.size()));
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].version != state.versions[i]) {
      return fail(ErrorCode::kInternal,
                  strf("a checkpoint of version {} of values at version {}", state.versions[i],
                       states_[i].version),
                  strf("fragment {}", i));
    }
  }
  return Unit{};
}

Result<checkpoint::FileEntry> Jobs::save_fragment(std::uint32_t fragment) {
  const State& state = states_[fragment];
  if (durable_ && durable_->state.versions[fragment] == state.version) {
    return durable_->fragments[fragment];
  }
  return checkpoint::write_fragment(
      *options_.checkpoint, options_.run_id,
      {&*layout_, fragment, state.version, state.values, state.momentum, codec_, *state.image});
}

Status Jobs::checkpoint(const CoreState& state) {
  YETO_TRY(check_checkpoint(state));
  store::ObjectStore& store = *options_.checkpoint;
  checkpoint::Manifest manifest;
  manifest.run_id = options_.run_id;
  manifest.state = state;
  manifest.codec = codec_;
  manifest.outer = options_.outer;
  manifest.weights = options_.weights;
  manifest.fingerprint = layout_->fingerprint();
  manifest.settings = options_.settings;
  if (durable_) {
    manifest.layout = durable_->layout;
  } else {
    YETO_ASSIGN(manifest.layout, checkpoint::write_layout(store, *layout_));
  }
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    YETO_ASSIGN(checkpoint::FileEntry entry, save_fragment(i));
    manifest.fragments.push_back(std::move(entry));
  }
  YETO_TRY(checkpoint::write_manifest(store, manifest));
  durable_ = std::move(manifest);
  // The checkpoint is whole; what cannot be removed now is tried again next time.
  const Status removed = checkpoint::remove_unreferenced(store, *durable_);
  if (!removed) {
    log(LogLevel::kWarn, "checkpoint", "old files stay: {}", in_words(removed.error()));
  }
  return Unit{};
}

Status Jobs::check_restored(const checkpoint::Manifest& manifest) const {
  const std::string where = options_.checkpoint->place();
  if (manifest.run_id != options_.run_id) {
    return fail(ErrorCode::kConflict,
                strf("the checkpoint is of run {}, not {}", manifest.run_id, options_.run_id),
                where, "give --checkpoint the folder of this run");
  }
  if (options_.broadcast_codec && *options_.broadcast_codec != manifest.codec) {
    return fail(
        ErrorCode::kConflict,
        strf("the checkpoint was made with the codec {}, not {}", codec::codec_name(manifest.codec),
             codec::codec_name(*options_.broadcast_codec)),
        where, "leave --wire-dtype as it was");
  }
  if (manifest.outer.kind != options_.outer.kind) {
    return fail(ErrorCode::kConflict,
                strf("the checkpoint was made with the outer rule {}, not {}",
                     merge::outer_kind_name(manifest.outer.kind),
                     merge::outer_kind_name(options_.outer.kind)),
                where, "leave --outer as it was");
  }
  return Unit{};
}

Result<std::optional<Restored>> Jobs::restore() {
  if (!options_.checkpoint) {
    return std::optional<Restored>();
  }
  const store::ObjectStore& store = *options_.checkpoint;
  YETO_ASSIGN(std::optional<checkpoint::Manifest> manifest, checkpoint::read_manifest(store));
  if (!manifest) {
    return std::optional<Restored>();
  }
  YETO_TRY(check_restored(*manifest));
  YETO_ASSIGN(Layout layout, checkpoint::read_layout(store, *manifest));
  std::vector<State> states;
  for (std::uint32_t i = 0; i < layout.fragments.size(); ++i) {
    YETO_ASSIGN(checkpoint::FragmentValues values,
                checkpoint::read_fragment(store, *manifest, layout, i));
    states.push_back({std::move(values.values), std::move(values.momentum),
                      std::make_shared<Bytes>(std::move(values.image)), manifest->state.versions[i],
                      true});
  }
  use_layout(layout);
  codec_ = manifest->codec;
  push_codec_ = options_.push_codec.value_or(codec_);
  states_ = std::move(states);
  durable_ = std::move(*manifest);
  in_use_ = true;
  return std::optional<Restored>(Restored{std::move(layout), durable_->state});
}

}  // namespace yeto::sync
