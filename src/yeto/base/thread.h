// SPDX-License-Identifier: Apache-2.0
// Thread-safety annotations (checked by clang's -Wthread-safety), an annotated mutex, and a thread
// that joins at its end (std::jthread is missing in Apple's older libc++).
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#if defined(__clang__)
#define YETO_ANNOTATE(x) __attribute__((x))
#else
#define YETO_ANNOTATE(x)
#endif
#define YETO_CAPABILITY(x) YETO_ANNOTATE(capability(x))
#define YETO_SCOPED_CAPABILITY YETO_ANNOTATE(scoped_lockable)
#define YETO_GUARDED_BY(x) YETO_ANNOTATE(guarded_by(x))
#define YETO_REQUIRES(...) YETO_ANNOTATE(requires_capability(__VA_ARGS__))
#define YETO_ACQUIRE(...) YETO_ANNOTATE(acquire_capability(__VA_ARGS__))
#define YETO_RELEASE(...) YETO_ANNOTATE(release_capability(__VA_ARGS__))
#define YETO_EXCLUDES(...) YETO_ANNOTATE(locks_excluded(__VA_ARGS__))
#define YETO_NO_THREAD_SAFETY_ANALYSIS YETO_ANNOTATE(no_thread_safety_analysis)

namespace yeto {

class YETO_CAPABILITY("mutex") Mutex {
 public:
  void lock() YETO_ACQUIRE() { mutex_.lock(); }
  void unlock() YETO_RELEASE() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class YETO_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) YETO_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() YETO_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits on a Mutex that the caller holds: while (!ready) { changed.wait(mutex); }
using ConditionVariable = std::condition_variable_any;

class JoiningThread {
 public:
  JoiningThread() = default;
  template <class F>
  explicit JoiningThread(F&& body) : thread_(std::forward<F>(body)) {}
  JoiningThread(JoiningThread&&) = default;
  JoiningThread& operator=(JoiningThread&& other) {
    join();
    thread_ = std::move(other.thread_);
    return *this;
  }
  ~JoiningThread() { join(); }
  void join() {
    if (thread_.joinable()) {
      thread_.join();
    }
  }

 private:
  std::thread thread_;
};

}  // namespace yeto
