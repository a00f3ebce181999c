// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/jobs/jobs.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/codec/codec.h"
#include "yeto/sync/jobs/parallel.h"

namespace yeto::sync {
namespace {

// Starting threads costs more than a merge of fewer values.
constexpr std::uint64_t kParallelFrom = std::uint64_t{1} << 18;
// Unused buffers kept for the next push or image: what two rounds of many learners need. The pool
// limits their bytes by itself.
constexpr std::size_t kKeptBuffers = 256;

bool all_finite(std::span<const float> values) {
  std::uint32_t bad = 0;
  for (const float value : values) {
    bad |= (std::bit_cast<std::uint32_t>(value) & 0x7f800000U) == 0x7f800000U ? 1U : 0U;
  }
  return bad == 0;
}

// Values live as bytes, so that they can be given out without a copy. Memory of the pool is aligned
// for any type.
std::span<const float> as_floats(const Bytes& bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}
std::span<float> as_floats(Bytes& bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

std::string in_words(const Error& error) {
  return error.where.empty() ? error.what : strf("{} ({})", error.what, error.where);
}

}  // namespace

// Memory that a merge writes to; it becomes the fragment's own if all of it is finite.
struct Jobs::Fresh {
  std::shared_ptr<Bytes> values;
  std::shared_ptr<Bytes> momentum;
  std::shared_ptr<Bytes> image;
  std::shared_ptr<Bytes> shown;  // only under q4; else it is the image
};

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

Jobs::Jobs(JobsOptions options)
    : options_(std::move(options)), pool_(kKeptBuffers), writer_(options_.checkpoint) {}
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
  const bool fresh = buffers_.emplace(id, Buffer{std::move(memory), 0.0, {}}).second;
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

Image Jobs::give_out(BufferId id, std::shared_ptr<Bytes> bytes, const wire::Digest16& digest) {
  const Image image{id, bytes->size(), digest};
  MutexLock lock(mutex_);
  buffer_bytes_ += bytes->size();
  const bool fresh = buffers_.emplace(id, Buffer{std::move(bytes), 0.0, {}}).second;
  YETO_CHECK(fresh, "a buffer id is used once");
  return image;
}

// ---- layout and first values
// -------------------------------------------------------------------------

std::optional<CodecId> Jobs::codec() const {
  return layout_ ? std::optional(codec_) : std::nullopt;
}

std::optional<CodecId> Jobs::push_codec() const {
  return layout_ ? std::optional(push_codec_) : std::nullopt;
}

void Jobs::use_layout(Layout layout) {
  codec_ = options_.broadcast_codec.value_or(codec::default_codec(layout.values()));
  push_codec_ = options_.push_codec.value_or(codec::default_codec(layout.values()));
  states_ = std::vector<State>(layout.fragments.size());
  layout_ = std::make_shared<const Layout>(std::move(layout));
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

// The public value of master values that nobody holds an older public value of.
Result<std::shared_ptr<Bytes>> Jobs::make_public(const std::shared_ptr<Bytes>& values) const {
  if (codec_ == CodecId::kF32) {
    return values;
  }
  const std::span<const float> master = as_floats(*values);
  auto shown = pool_.take(codec::encoded_bytes(CodecId::kBf16, master.size()));
  YETO_TRY(codec::encode(CodecId::kBf16, master, *shown));
  return shown;
}

Status Jobs::load_init(std::uint32_t fragment, BufferId id) {
  YETO_TRY(check_fragment(fragment));
  YETO_ASSIGN(const Buffer buffer, this->buffer(id));
  if (in_use_) {
    return fail(ErrorCode::kInternal, "first values for a state that has values", "sync/jobs");
  }
  auto values = pool_.take(layout_->fragments[fragment].values * sizeof(float));
  YETO_TRY(codec::decode(CodecId::kF32, *buffer.bytes, as_floats(*values)));
  if (!all_finite(as_floats(*values))) {
    return fail(ErrorCode::kData, "the initial values are not finite",
                strf("fragment {}", fragment), "check the model's weights");
  }
  State state;
  YETO_ASSIGN(state.shown, make_public(values));
  state.momentum = pool_.take(options_.outer.keeps_momentum() ? values->size() : 0);
  std::fill(state.momentum->begin(), state.momentum->end(), std::uint8_t{0});
  state.values = std::move(values);
  state.loaded = true;
  states_[fragment] = std::move(state);
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
    found->second.norm = measured.norm;
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

Result<std::vector<Jobs::Buffer>> Jobs::pushes_of(const Merge& job) const {
  std::vector<Buffer> buffers;  // keeps the pushes alive
  for (const PushInput& push : job.pushes) {
    YETO_ASSIGN(Buffer held, buffer(push.buffer));
    buffers.push_back(std::move(held));
  }
  return buffers;
}

Jobs::Fresh Jobs::take_fresh(const State& state) const {
  const std::uint64_t count = state.values->size() / sizeof(float);
  return {pool_.take(state.values->size()), pool_.take(state.momentum->size()),
          pool_.take(codec::encoded_bytes(codec_, count)),
          pool_.take(codec_ == CodecId::kQ4 ? state.shown->size() : 0)};
}

Result<MergeReport> Jobs::try_merge(const Merge& job) {
  YETO_TRY(check_fragment(job.fragment));
  const State& state = states_[job.fragment];
  if (!state.loaded || job.version != state.version + 1) {
    return fail(ErrorCode::kInternal,
                strf("a merge to version {} of values at version {}", job.version, state.version),
                strf("fragment {}", job.fragment));
  }
  YETO_ASSIGN(const std::vector<Buffer> buffers, pushes_of(job));
  Fresh fresh = take_fresh(state);
  MergeReport report;
  YETO_TRY(run_merge(job, buffers, fresh, report));
  if (report.ok) {
    install(job, buffers, std::move(fresh), report);
  }
  return report;
}

Status Jobs::run_merge(const Merge& job, const std::vector<Buffer>& buffers, const Fresh& fresh,
                       MergeReport& report) const {
  const State& state = states_[job.fragment];
  merge::Inputs in;
  in.layout = layout_.get();
  in.fragment = job.fragment;
  in.first_commit = job.version == 1;
  in.weights = options_.weights;
  in.outer = options_.outer;
  in.correction = options_.correction;
  in.values = as_floats(std::as_const(*state.values));
  in.momentum = as_floats(std::as_const(*state.momentum));
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const PushInput& push = job.pushes[i];
    in.pushes.push_back({push.seat, push.c_steps, push.c_tokens, push_codec_, *buffers[i].bytes,
                         buffers[i].square_norms, push.base_version, push.factor});
  }
  merge::Outputs out{as_floats(*fresh.values), as_floats(*fresh.momentum), codec_, *fresh.image};
  if (codec_ == CodecId::kQ4) {
    out.old_public = *state.shown;
    out.new_public = *fresh.shown;
  }
  const int threads = in.values.size() < kParallelFrom ? 1 : options_.threads;
  YETO_ASSIGN(const merge::FragmentMerge merge, merge::FragmentMerge::make(std::move(in), out));
  std::atomic<bool> finite{true};
  const auto note = [&finite](bool part_is_finite) {
    if (!part_is_finite) {
      finite = false;
    }
  };
  run_parallel(merge.parts(), threads, [&](std::size_t part) { note(merge.run_part(part)); });
  if (finite) {
    run_parallel(merge.encode_parts(), threads,
                 [&](std::size_t part) { note(merge.run_encode_part(part)); });
  }
  report.weights = merge.weights();
  report.ok = finite;
  if (!finite) {
    report.reason = "the merged value is not finite";
  }
  return Unit{};
}

// The fresh memory takes the place of the old, which lives until its last reader lets go of it.
void Jobs::install(const Merge& job, const std::vector<Buffer>& buffers, Fresh fresh,
                   MergeReport& report) {
  State& state = states_[job.fragment];
  state.values = std::move(fresh.values);
  state.momentum = std::move(fresh.momentum);
  const bool q4 = codec_ == CodecId::kQ4;
  state.shown = q4 ? std::move(fresh.shown) : codec_ == CodecId::kF32 ? state.values : fresh.image;
  state.version = job.version;
  const wire::Digest16 digest = codec::public_digest(*state.shown);
  report.image = give_out(job.image, q4 ? std::move(fresh.image) : state.shown, digest);
  if (q4 && job.full != 0) {
    report.full = give_out(job.full, state.shown, digest);
  }
  checkpoint::CommitRecord& record = state.commit.emplace();
  record.round = job.round;
  record.fragment = job.fragment;
  record.version = job.version;
  record.bytes_out = report.image.bytes;
  record.digest = digest;
  record.weights = report.weights;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const PushInput& push = job.pushes[i];
    record.bytes_in += buffers[i].bytes->size();
    record.pushes.push_back(
        {push.seat, push.base_version, push.c_steps, push.c_tokens, buffers[i].norm});
  }
}

Result<std::vector<Image>> Jobs::make_images(std::span<const BufferId> ids) {
  YETO_TRY(check_all_loaded(ids.size()));
  in_use_ = true;
  std::vector<Image> images;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::shared_ptr<Bytes>& shown = states_[i].shown;
    images.push_back(give_out(ids[i], shown, codec::public_digest(*shown)));
  }
  return images;
}

Result<Finals> Jobs::make_finals(std::span<const BufferId> ids) {
  YETO_TRY(check_all_loaded(ids.size()));
  Finals finals;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::shared_ptr<Bytes>& values = states_[i].values;
    finals.digests.push_back(sha256(*values));
    finals.images.push_back(give_out(ids[i], values, codec::public_digest(*values)));
  }
  return finals;
}

}  // namespace yeto::sync
