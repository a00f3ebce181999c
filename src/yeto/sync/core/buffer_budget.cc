// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/core/buffer_budget.h"

#include <algorithm>

#include "yeto/base/format.h"
#include "yeto/sync/broadcast/broadcast.h"

namespace yeto::sync {
namespace {

constexpr std::uint64_t kImagesOfSlowReaders = 4;

}  // namespace

BufferSizes buffer_sizes(const Layout& layout, CodecId push_codec, CodecId broadcast_codec,
                         std::uint32_t pipeline) {
  BufferSizes out;
  const CodecId whole = whole_codec(broadcast_codec);
  for (const Fragment& fragment : layout.fragments) {
    out.largest_push = std::max(out.largest_push, transfer_bytes(push_codec, fragment.values));
    out.largest_image = std::max(out.largest_image, transfer_bytes(whole, fragment.values));
  }
  out.rounds = std::min(pipeline, static_cast<std::uint32_t>(layout.fragments.size()));
  return out;
}

std::uint64_t automatic_buffer(const BufferSizes& sizes, std::uint32_t learners) {
  return sizes.rounds * learners * sizes.largest_push + kImagesOfSlowReaders * sizes.largest_image;
}

std::string buffer_objection(std::uint64_t max_buffer, const BufferSizes& sizes,
                             std::uint32_t learners) {
  const std::uint64_t needed = learners * sizes.largest_push;
  if (max_buffer == 0 || max_buffer >= needed) {
    return {};
  }
  return strf(
      "--max-buffer {} is too small: one round of {} learners needs {} bytes for its pushes ({} "
      "each); give at least that, or auto ({} bytes)",
      max_buffer, learners, needed, sizes.largest_push, automatic_buffer(sizes, learners));
}

}  // namespace yeto::sync
