// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/link/chunk_crcs.h"

#include "yeto/base/digest.h"

namespace yeto::sync {

std::uint32_t ChunkCrcs::of(const std::shared_ptr<const void>& owner, ByteView body,
                            const wire::ChunkPlan& plan, std::uint32_t index) {
  auto found = bodies_.find(owner);
  if (found == bodies_.end()) {
    std::erase_if(bodies_, [](const auto& entry) { return entry.first.expired(); });
    found = bodies_.emplace(owner, Body{}).first;
  }
  Body& known = found->second;
  if (known.data != body.data() || known.plan.bytes != plan.bytes ||
      known.plan.chunk_bytes != plan.chunk_bytes) {
    known = {body.data(), plan, {}};
    known.chunks.resize(plan.count());
  }
  std::optional<std::uint32_t>& crc = known.chunks[index];
  if (!crc) {
    const wire::ChunkRange range = plan.range(index);
    crc = crc32c(body.subspan(range.offset, range.bytes));
  }
  return *crc;
}

}  // namespace yeto::sync
