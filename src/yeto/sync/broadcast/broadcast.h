// SPDX-License-Identifier: Apache-2.0
// Broadcast: which image goes to whom next. An image is encoded once and shared; a newer version
// replaces one not yet sent; one broadcast transfer at a time per learner, so that a slow reader
// delays only itself. Not thread-safe; owned by sync/core.
#pragma once

#include <cstdint>
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
  wire::Digest16 digest{};
};

struct BroadcastOrder {
  std::uint32_t seat = 0;
  std::uint32_t fragment = 0;
  BroadcastImage image;
};

// Bytes of `values` values under a codec (f32 4, bf16 2 per value).
std::uint64_t transfer_bytes(CodecId codec, std::uint64_t values);
// The codec of a run that names none.
CodecId automatic_codec(std::uint64_t values);

class Broadcasts {
 public:
  explicit Broadcasts(std::uint32_t fragments) : images_(fragments) {}

  // The image of a fragment's newest version. Returns the buffer that nobody needs any more, if
  // any.
  std::optional<std::uint64_t> publish(std::uint32_t fragment, const BroadcastImage& image);
  const std::vector<std::optional<BroadcastImage>>& images() const { return images_; }

  // The seat holds these versions (nothing: the fragment has to come). Ends what was under way.
  void join(std::uint32_t seat, std::vector<std::optional<std::uint64_t>> held);
  // The socket closed; what it holds is remembered for a resumed session.
  void pause(std::uint32_t seat);
  void leave(std::uint32_t seat) { readers_.erase(seat); }

  // The next transfer for an idle seat: the fragment it lags most in, ties to the lowest.
  std::optional<BroadcastOrder> next(std::uint32_t seat);
  // The transfer under way ended.
  void sent(std::uint32_t seat, bool ok);

  // The seat holds exactly this version.
  bool holds(std::uint32_t seat, std::uint32_t fragment, std::uint64_t version) const;
  // It has had every fragment since its join.
  bool complete(std::uint32_t seat) const;
  // Largest difference between the newest version and what the seat holds; nothing while it lacks a
  // fragment.
  std::optional<std::uint64_t> lag(std::uint32_t seat) const;

 private:
  struct Reader {
    std::vector<std::optional<std::uint64_t>> held;
    std::optional<BroadcastOrder> under_way;
  };
  std::vector<std::optional<BroadcastImage>> images_;
  std::map<std::uint32_t, Reader> readers_;
};

}  // namespace yeto::sync
