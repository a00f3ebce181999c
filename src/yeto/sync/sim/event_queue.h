// SPDX-License-Identifier: Apache-2.0
// EventQueue: virtual time. What is due runs in the order (time, order of scheduling), so that a
// seed always replays. An entry is a plain function and three numbers: nothing is allocated per
// event once the heap has grown.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "yeto/base/clock.h"

namespace yeto::sync::sim {

class World;

class EventQueue {
 public:
  using Run = void (*)(World& world, std::uint64_t a, std::uint64_t b, std::uint64_t c);

  struct Entry {
    Nanos at = 0;
    std::uint64_t order = 0;
    Run run = nullptr;
    std::uint64_t a = 0;
    std::uint64_t b = 0;
    std::uint64_t c = 0;
  };

  // Never before the entry that runs now.
  void at(Nanos when, Run run, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t c = 0) {
    heap_.push_back({std::max(when, now_), next_order_++, run, a, b, c});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  bool empty() const { return heap_.empty(); }
  Nanos now() const { return now_; }
  Nanos next_at() const { return heap_.front().at; }
  std::uint64_t count_run() const { return count_run_; }

  // Takes the next entry and moves the time to it.
  Entry take() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Entry entry = heap_.back();
    heap_.pop_back();
    now_ = entry.at;
    ++count_run_;
    return entry;
  }

 private:
  static bool later(const Entry& a, const Entry& b) {
    return a.at != b.at ? a.at > b.at : a.order > b.order;
  }

  std::vector<Entry> heap_;
  Nanos now_ = 0;
  std::uint64_t next_order_ = 0;
  std::uint64_t count_run_ = 0;
};

}  // namespace yeto::sync::sim
