// SPDX-License-Identifier: Apache-2.0
// BoundedQueue: the one hand-over between threads. push() waits at the limit, try_push() refuses
// there; close() ends all waits. Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "yeto/base/thread.h"

namespace yeto {

template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t limit) : limit_(limit) {}

  // False if the queue is closed; the value is then lost.
  bool push(T value) {
    MutexLock lock(mutex_);
    while (items_.size() >= limit_ && !closed_) {
      changed_.wait(mutex_);
    }
    return push_locked(std::move(value));
  }
  // False if the queue is full or closed.
  bool try_push(T value) {
    MutexLock lock(mutex_);
    return items_.size() < limit_ && push_locked(std::move(value));
  }
  // Waits for a value; nothing once the queue is closed and empty.
  std::optional<T> pop() {
    MutexLock lock(mutex_);
    while (items_.empty() && !closed_) {
      changed_.wait(mutex_);
    }
    return pop_locked();
  }
  std::optional<T> try_pop() {
    MutexLock lock(mutex_);
    return pop_locked();
  }
  void close() {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  bool push_locked(T&& value) YETO_REQUIRES(mutex_) {
    if (closed_) {
      return false;
    }
    items_.push_back(std::move(value));
    changed_.notify_all();
    return true;
  }
  std::optional<T> pop_locked() YETO_REQUIRES(mutex_) {
    if (items_.empty()) {
      return std::nullopt;
    }
    std::optional<T> value(std::move(items_.front()));
    items_.pop_front();
    changed_.notify_all();
    return value;
  }

  const std::size_t limit_;
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<T> items_ YETO_GUARDED_BY(mutex_);
  bool closed_ YETO_GUARDED_BY(mutex_) = false;
};

}  // namespace yeto
