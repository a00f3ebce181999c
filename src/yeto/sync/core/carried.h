// SPDX-License-Identifier: Apache-2.0
// CarriedPushes: late work that waits for the next merge of its fragment. A push is late when its
// round has closed without it. Per fragment and seat one is kept, the one with the newest base.
// Not thread-safe; owned by Core. It holds buffer ids, never values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "yeto/sync/core/events.h"

namespace yeto::sync {

// A push whose bytes are here and were found good.
struct Push {
  Seat seat = 0;
  std::uint64_t incarnation = 0;
  wire::Offer offer;  // round 0: it was not asked for
  BufferId buffer = 0;
  double norm = 0.0;
};

class CarriedPushes {
 public:
  // Keeps a push. Returns the one that is not kept: the seat's older one of this fragment, or
  // `push` itself if the seat has a newer one here already.
  std::optional<Push> keep(const Push& push);

  // Takes out what waits for a merge of `fragment` on `base_version`: `fresh` lags by 1 to max_lag
  // versions, ascending by seat; the rest is `stale`.
  struct Taken {
    std::vector<Push> fresh;
    std::vector<Push> stale;
  };
  Taken take(std::uint32_t fragment, std::uint64_t base_version, std::uint32_t max_lag);
  // Takes out those of `fragment` with exactly this base.
  std::vector<Push> take_base(std::uint32_t fragment, std::uint64_t base_version);
  std::vector<Push> take_all();
  // Takes out the one that has waited longest.
  std::optional<Push> take_oldest();

  bool waits(std::uint32_t fragment) const;
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t tokens() const { return tokens_; }  // c_tokens of all
  std::size_t size() const { return pushes_.size(); }

 private:
  struct Kept {
    Push push;
    std::uint64_t order = 0;
  };
  using Key = std::pair<std::uint32_t, Seat>;  // fragment, seat
  Push take(std::map<Key, Kept>::iterator& at);

  std::map<Key, Kept> pushes_;
  std::uint64_t next_order_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t tokens_ = 0;
};

}  // namespace yeto::sync
