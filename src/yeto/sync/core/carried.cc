// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/core/carried.h"

#include <algorithm>

namespace yeto::sync {

std::optional<Push> CarriedPushes::keep(const Push& push) {
  std::optional<Push> other;
  auto at = pushes_.find({push.offer.fragment, push.seat});
  if (at != pushes_.end()) {
    if (at->second.push.offer.base_version >= push.offer.base_version) {
      return push;
    }
    other = take(at);
  }
  pushes_[{push.offer.fragment, push.seat}] = {push, next_order_++};
  bytes_ += push.offer.bytes;
  tokens_ += push.offer.c_tokens;
  return other;
}

Push CarriedPushes::take(std::map<Key, Kept>::iterator& at) {
  const Push push = at->second.push;
  bytes_ -= push.offer.bytes;
  tokens_ -= push.offer.c_tokens;
  at = pushes_.erase(at);
  return push;
}

CarriedPushes::Taken CarriedPushes::take(std::uint32_t fragment, std::uint64_t base_version,
                                         std::uint32_t max_lag) {
  Taken out;
  auto at = pushes_.lower_bound({fragment, 0});
  while (at != pushes_.end() && at->first.first == fragment) {
    const Push push = take(at);
    const bool fresh =
        push.offer.base_version < base_version && base_version - push.offer.base_version <= max_lag;
    (fresh ? out.fresh : out.stale).push_back(push);
  }
  return out;
}

std::vector<Push> CarriedPushes::take_base(std::uint32_t fragment, std::uint64_t base_version) {
  std::vector<Push> out;
  auto at = pushes_.lower_bound({fragment, 0});
  while (at != pushes_.end() && at->first.first == fragment) {
    if (at->second.push.offer.base_version == base_version) {
      out.push_back(take(at));
    } else {
      ++at;
    }
  }
  return out;
}

std::vector<Push> CarriedPushes::take_all() {
  std::vector<Push> out;
  for (auto at = pushes_.begin(); at != pushes_.end();) {
    out.push_back(take(at));
  }
  return out;
}

std::optional<Push> CarriedPushes::take_oldest() {
  auto oldest = std::min_element(pushes_.begin(), pushes_.end(), [](const auto& a, const auto& b) {
    return a.second.order < b.second.order;
  });
  if (oldest == pushes_.end()) {
    return std::nullopt;
  }
  return take(oldest);
}

bool CarriedPushes::waits(std::uint32_t fragment) const {
  const auto at = pushes_.lower_bound({fragment, 0});
  return at != pushes_.end() && at->first.first == fragment;
}

}  // namespace yeto::sync
