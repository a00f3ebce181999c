// SPDX-License-Identifier: Apache-2.0
// Broadcast: which image goes to whom next. An image is encoded once and shared; a newer version
// replaces one not yet sent; one broadcast transfer at a time per learner, so that a slow reader
// delays only itself. Not thread-safe; owned by sync/core.
//
// A fragment has one whole image of its newest version (in the anchor dtype), which anybody can
// take, and under q4 the last deltas beside it: a delta turns the public value of the version
// before into its own. A reader that lags by k versions gets the last k deltas, one after the
// other, while they are fewer bytes than the whole image; otherwise the whole.
//
// Buffers: publish, sent, join, pause, leave and abort_slowest name the buffers that became free:
// no image of a fragment is in them and no transfer reads them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "yeto/tensor/dtype.h"
#include "yeto/wire/messages.h"

namespace yeto::sync {

struct BroadcastImage {
  std::uint64_t version = 0;
  std::uint64_t buffer = 0;  // id
  std::uint64_t bytes = 0;
  wire::Digest16 digest{};  // of the public value
};

struct BroadcastOrder {
  std::uint32_t seat = 0;
  std::uint32_t fragment = 0;
  BroadcastImage image;
  bool delta = false;  // on version image.version − 1
};

// Bytes of `values` values under a codec (f32 4, bf16 2 per value).
std::uint64_t transfer_bytes(CodecId codec, std::uint64_t values);
// The codec of a run that names none.
CodecId automatic_codec(std::uint64_t values);
// How whole public values travel: f32 under f32, bf16 under bf16 and q4.
CodecId whole_codec(CodecId broadcast_codec);

class Broadcasts {
 public:
  using Buffers = std::vector<std::uint64_t>;
  static constexpr std::size_t kMaxDeltas = 3;

  explicit Broadcasts(std::uint32_t fragments) : fragments_(fragments) {}

  // The whole image of a fragment's newest version.
  Buffers publish(std::uint32_t fragment, const BroadcastImage& whole);
  // The same beside the delta from the version before.
  Buffers publish(std::uint32_t fragment, const BroadcastImage& whole, const BroadcastImage& delta);
  bool published(std::uint32_t fragment) const { return fragments_[fragment].whole.has_value(); }
  const std::optional<BroadcastImage>& whole(std::uint32_t fragment) const {
    return fragments_[fragment].whole;
  }
  const std::deque<BroadcastImage>& deltas(std::uint32_t fragment) const {
    return fragments_[fragment].deltas;
  }

  // The seat holds these versions (nothing: the fragment has to come). Ends what was under way.
  Buffers join(std::uint32_t seat, std::vector<std::optional<std::uint64_t>> held);
  // The socket closed; what it holds is remembered for a resumed session.
  Buffers pause(std::uint32_t seat);
  Buffers leave(std::uint32_t seat);

  // The next transfer for an idle seat: the fragment it lags most in, ties to the lowest.
  std::optional<BroadcastOrder> next(std::uint32_t seat);
  // The transfer under way ended. A delta that was not taken is followed by the whole image.
  Buffers sent(std::uint32_t seat, bool ok);

  // Bytes of images that only transfers under way keep.
  std::uint64_t retired_bytes() const { return retired_bytes_; }
  // Ends the transfer that is furthest behind among those that keep such an image; nothing if there
  // is none.
  struct Aborted {
    std::uint32_t seat = 0;
    Buffers free;
  };
  std::optional<Aborted> abort_slowest();

  // The seat holds exactly this version.
  bool holds(std::uint32_t seat, std::uint32_t fragment, std::uint64_t version) const;
  // It has had every fragment since its join.
  bool complete(std::uint32_t seat) const;
  // Largest difference between the newest version and what the seat holds; nothing while it lacks a
  // fragment.
  std::optional<std::uint64_t> lag(std::uint32_t seat) const;

 private:
  struct FragmentImages {
    std::optional<BroadcastImage> whole;
    std::deque<BroadcastImage> deltas;  // versions up to the newest, without a gap
  };
  struct Reader {
    std::vector<std::optional<std::uint64_t>> held;
    std::vector<bool> refused_delta;  // by fragment: only the whole image helps
    std::optional<BroadcastOrder> under_way;
    std::uint64_t began = 0;  // order of the transfers
  };
  // Who needs a buffer.
  struct Use {
    std::uint64_t bytes = 0;
    std::uint32_t transfers = 0;
    bool current = false;  // a fragment's image
  };
  BroadcastOrder order_for(const Reader& reader, std::uint32_t fragment) const;
  void begin(const BroadcastImage& image);
  void retire(const BroadcastImage& image, Buffers& free);
  void end_transfer(Reader& reader, Buffers& free);
  void release_if_unused(std::uint64_t buffer, Buffers& free);

  std::vector<FragmentImages> fragments_;
  std::map<std::uint32_t, Reader> readers_;
  std::map<std::uint64_t, Use> uses_;
  std::uint64_t retired_bytes_ = 0;
  std::uint64_t transfers_begun_ = 0;
};

}  // namespace yeto::sync
