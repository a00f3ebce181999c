// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/jobs/memory_pool.h"

#include <algorithm>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "yeto/base/thread.h"

namespace yeto::sync {
namespace {

// Below this the allocator reuses memory by itself.
constexpr std::uint64_t kPooledFrom = 128 << 10;

// A merge reads a dozen buffers at once; with small pages it waits for address translations a third
// of its time. From this size on there are large pages to be had (2 MiB on x86-64).
constexpr std::uint64_t kLargePagesFrom = 4 << 20;

// Asks for large pages, before the memory is touched. Only a hint: nothing depends on the answer.
void ask_for_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::uint64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(memory) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(memory) + bytes) / page * page;
  static_cast<void>(::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE));
#endif
}

Bytes fresh(std::uint64_t bytes) {
  Bytes memory;
  memory.reserve(bytes);
  if (bytes >= kLargePagesFrom) {
    ask_for_large_pages(memory.data(), bytes);
  }
  memory.resize(bytes);
  return memory;
}

bool fits(std::uint64_t capacity, std::uint64_t bytes) {
  return capacity >= bytes && capacity - bytes <= capacity / 4;
}

}  // namespace

struct MemoryPool::Shelf {
  using Buffers = std::vector<std::unique_ptr<Bytes>>;

  // The unused buffer that fits best, of equal ones the newest, which is the warmest; nothing if
  // none fits.
  std::unique_ptr<Bytes> find(std::uint64_t bytes) {
    MutexLock lock(mutex);
    auto best = unused.end();
    for (auto it = unused.begin(); it != unused.end(); ++it) {
      if (fits((*it)->capacity(), bytes) &&
          (best == unused.end() || (*it)->capacity() <= (*best)->capacity())) {
        best = it;
      }
    }
    if (best == unused.end()) {
      return nullptr;
    }
    std::unique_ptr<Bytes> out = std::move(*best);
    unused.erase(best);
    unused_bytes -= out->capacity();
    in_use += out->capacity();
    return out;
  }
  void count_fresh(std::uint64_t capacity) {
    Buffers gone;  // freed after the lock
    MutexLock lock(mutex);
    in_use += capacity;
    peak = std::max(peak, in_use);
    shed(gone);
  }
  void put_back(std::unique_ptr<Bytes> bytes) {
    Buffers gone;  // freed after the lock
    MutexLock lock(mutex);
    in_use -= bytes->capacity();
    unused_bytes += bytes->capacity();
    unused.push_back(std::move(bytes));
    shed(gone);
  }
  void shed(Buffers& gone) YETO_REQUIRES(mutex) {
    while (!unused.empty() && (unused.size() > kept_max || in_use + unused_bytes > peak)) {
      unused_bytes -= unused.front()->capacity();
      gone.push_back(std::move(unused.front()));
      unused.erase(unused.begin());
    }
  }

  std::size_t kept_max = 0;
  Mutex mutex;
  Buffers unused YETO_GUARDED_BY(mutex);  // oldest first
  std::uint64_t unused_bytes YETO_GUARDED_BY(mutex) = 0;
  std::uint64_t in_use YETO_GUARDED_BY(mutex) = 0;
  std::uint64_t peak YETO_GUARDED_BY(mutex) = 0;  // of in_use
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
    return keep(fresh(bytes));
  }
  memory->resize(bytes);  // within its capacity
  return share(std::move(memory));
}

std::shared_ptr<Bytes> MemoryPool::keep(Bytes bytes) const {
  if (bytes.size() < kPooledFrom) {
    return std::make_shared<Bytes>(std::move(bytes));
  }
  auto memory = std::make_unique<Bytes>(std::move(bytes));
  shelf_->count_fresh(memory->capacity());
  return share(std::move(memory));
}

std::shared_ptr<Bytes> MemoryPool::share(std::unique_ptr<Bytes> bytes) const {
  return {bytes.release(), [shelf = std::weak_ptr<Shelf>(shelf_)](Bytes* used) {
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

std::uint64_t MemoryPool::held_bytes() const {
  MutexLock lock(shelf_->mutex);
  return shelf_->in_use + shelf_->unused_bytes;
}

}  // namespace yeto::sync
