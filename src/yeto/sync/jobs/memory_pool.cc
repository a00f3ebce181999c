// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/jobs/memory_pool.h"

#include <algorithm>
#include <vector>

#include "yeto/base/thread.h"

namespace yeto::sync {
namespace {

// Below this the allocator reuses memory by itself.
constexpr std::uint64_t kPooledFrom = 128 << 10;

}  // namespace

struct MemoryPool::Shelf {
  std::unique_ptr<Bytes> find(std::uint64_t bytes) {
    MutexLock lock(mutex);
    const auto found = std::find_if(unused.rbegin(), unused.rend(),
                                    [&](const auto& it) { return it->size() == bytes; });
    if (found == unused.rend()) {
      return nullptr;
    }
    std::unique_ptr<Bytes> out = std::move(*found);
    unused.erase(std::next(found).base());
    return out;
  }
  void put_back(std::unique_ptr<Bytes> bytes) {
    std::unique_ptr<Bytes> oldest;  // freed after the lock
    MutexLock lock(mutex);
    if (unused.size() >= kept_max) {
      oldest = std::move(unused.front());
      unused.erase(unused.begin());
    }
    unused.push_back(std::move(bytes));
  }

  std::size_t kept_max = 0;
  Mutex mutex;
  std::vector<std::unique_ptr<Bytes>> unused YETO_GUARDED_BY(mutex);  // oldest first
};

MemoryPool::MemoryPool(std::size_t kept_max) : shelf_(std::make_shared<Shelf>()) {
  shelf_->kept_max = std::max<std::size_t>(kept_max, 1);
}

std::shared_ptr<Bytes> MemoryPool::take(std::uint64_t bytes) const {
  if (bytes < kPooledFrom) {
    return std::make_shared<Bytes>(bytes);
  }
  std::unique_ptr<Bytes> memory = shelf_->find(bytes);
  if (memory == nullptr) {
    memory = std::make_unique<Bytes>(bytes);
  }
  return {memory.release(), [shelf = std::weak_ptr<Shelf>(shelf_)](Bytes* used) {
            std::unique_ptr<Bytes> back(used);
            if (const std::shared_ptr<Shelf> still = shelf.lock()) {
              still->put_back(std::move(back));
            }
          }};
}

std::size_t MemoryPool::kept() const {
  MutexLock lock(shelf_->mutex);
  return shelf_->unused.size();
}

}  // namespace yeto::sync
