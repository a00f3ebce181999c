// SPDX-License-Identifier: Apache-2.0
// The budget of buffers: how many bytes of pushes and images the syncer may hold. Pure arithmetic;
// who uses what is told by Core.
//
// Counted: the pushes that open rounds have asked for (reserved at launch, whether they have come
// or not), late pushes (on the way or carried), and images that only slow readers keep alive. Not
// counted, because they are the state of the run like the master values: the newest image of each
// fragment with its deltas, the donor's initial values, the final values.
#pragma once

#include <cstdint>
#include <string>

#include "yeto/sync/core/events.h"

namespace yeto::sync {

// Sizes of a run, in bytes.
struct BufferSizes {
  std::uint64_t largest_push = 0;
  std::uint64_t largest_image = 0;
  std::uint32_t rounds = 0;  // in flight at most
};
BufferSizes buffer_sizes(const Layout& layout, CodecId push_codec, CodecId broadcast_codec,
                         std::uint32_t pipeline);

// D·N·largest push + 4 images.
std::uint64_t automatic_buffer(const BufferSizes& sizes, std::uint32_t learners);

// Why `max_buffer` bytes are too few for one round of this many learners, with the bytes needed;
// empty if they are enough. 0 (auto) always is.
std::string buffer_objection(std::uint64_t max_buffer, const BufferSizes& sizes,
                             std::uint32_t learners);

struct BufferUse {
  std::uint64_t reserved = 0;  // for pushes of open rounds
  std::uint64_t late = 0;
  std::uint64_t images = 0;  // kept only by transfers under way
  std::uint64_t total() const { return reserved + late + images; }
};

}  // namespace yeto::sync
