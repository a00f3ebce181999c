// SPDX-License-Identifier: Apache-2.0
// ChunkCrcs: CRC-32C of the chunks of bodies that several links send, so that each is computed
// once. For one thread: the links of one loop share it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/wire/transfer.h"

namespace yeto::sync {

class ChunkCrcs {
 public:
  // Of chunk `index` of `body`, which never changes while `owner` lives; what is kept for it goes
  // when it does.
  std::uint32_t of(const std::shared_ptr<const void>& owner, ByteView body,
                   const wire::ChunkPlan& plan, std::uint32_t index);
  std::size_t bodies() const { return bodies_.size(); }

 private:
  using Owner = std::weak_ptr<const void>;
  struct Body {
    const std::uint8_t* data = nullptr;
    wire::ChunkPlan plan;
    std::vector<std::optional<std::uint32_t>> chunks;
  };
  std::map<Owner, Body, std::owner_less<Owner>> bodies_;
};

}  // namespace yeto::sync
