// SPDX-License-Identifier: Apache-2.0
// MemoryPool: buffers that are used again. A fresh large buffer costs a page fault and a cleared
// page for every 4 KiB, about as much as receiving it; in steady state a run needs the same few
// sizes.
#pragma once

#include <cstdint>
#include <memory>

#include "yeto/base/bytes.h"

namespace yeto::sync {

// Thread-safe. Buffers may outlive the pool.
//
// A buffer is used again for a size that fills at least three quarters of it, so fragments of
// nearly equal size share their buffers. What is used and what is kept never add up to more than
// was in use at one moment before: the pool itself costs no memory.
class MemoryPool {
 public:
  // At most `kept_max` unused buffers are kept; further ones are freed, the oldest first.
  explicit MemoryPool(std::size_t kept_max);

  // A buffer of exactly that size; its content is whatever was there. It comes back when the last
  // reader lets go of it. Throws std::bad_alloc or std::length_error.
  std::shared_ptr<Bytes> take(std::uint64_t bytes) const;
  // Bytes made elsewhere, as if they had been taken.
  std::shared_ptr<Bytes> keep(Bytes bytes) const;
  std::size_t kept() const;
  // Bytes of the buffers in use and of the unused ones.
  std::uint64_t held_bytes() const;

 private:
  struct Shelf;
  std::shared_ptr<Bytes> share(std::unique_ptr<Bytes> bytes) const;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace yeto::sync
