// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/session/data_leases.h"

#include <algorithm>
#include <utility>

#include "yeto/base/format.h"

namespace yeto::sync {
namespace {

bool before(const DataRange& a, const DataRange& b) {
  return a.epoch != b.epoch ? a.epoch < b.epoch : a.first < b.first;
}

std::uint64_t end_of(const DataRange& range) { return range.first + range.count; }

DataRange common_part(const DataRange& a, const DataRange& b) {
  if (a.epoch != b.epoch) {
    return {};
  }
  const std::uint64_t first = std::max(a.first, b.first);
  const std::uint64_t end = std::min(end_of(a), end_of(b));
  return {a.epoch, first, end > first ? end - first : 0};
}

// What is left of `whole` around `part`, which lies in it.
void append_rest(std::vector<DataRange>& out, const DataRange& whole, const DataRange& part) {
  if (part.first > whole.first) {
    out.push_back({whole.epoch, whole.first, part.first - whole.first});
  }
  if (end_of(whole) > end_of(part)) {
    out.push_back({whole.epoch, end_of(part), end_of(whole) - end_of(part)});
  }
}

// Puts `range` in its place and joins it with neighbours that touch it.
void insert_joined(std::vector<DataRange>& ranges, DataRange range) {
  auto at = std::lower_bound(ranges.begin(), ranges.end(), range, before);
  if (at != ranges.end() && at->epoch == range.epoch && end_of(range) == at->first) {
    range.count += at->count;
    at = ranges.erase(at);
  }
  if (at != ranges.begin()) {
    DataRange& previous = *std::prev(at);
    if (previous.epoch == range.epoch && end_of(previous) == range.first) {
      previous.count += range.count;
      return;
    }
  }
  ranges.insert(at, range);
}

// Takes the parts of `range` out of `ranges`.
std::vector<DataRange> cut_out(std::vector<DataRange>& ranges, const DataRange& range) {
  std::vector<DataRange> taken;
  std::vector<DataRange> left;
  for (const DataRange& it : ranges) {
    const DataRange part = common_part(it, range);
    if (part.count == 0) {
      left.push_back(it);
      continue;
    }
    taken.push_back(part);
    append_rest(left, it, part);
  }
  ranges = std::move(left);
  return taken;
}

}  // namespace

void DataLeases::restore(DataState state) {
  state_ = std::move(state);
  restored_ = true;
  for (const SeatRange& it : std::exchange(state_.out, {})) {
    insert_joined(state_.returned, it.range);
  }
}

std::string DataLeases::objection(std::uint32_t seat, std::uint64_t count,
                                  std::uint64_t rows) const {
  if (rows == 0 || rows > kMaxRows || count == 0) {
    return strf("a request for {} of {} positions", count, rows);
  }
  if (state_.rows != 0 && rows != state_.rows) {
    return strf(
        "its data has {} positions an epoch, the run's {}: all islands must use the same "
        "rows, sequence length and seed",
        rows, state_.rows);
  }
  const auto open = std::count_if(state_.out.begin(), state_.out.end(),
                                  [&](const SeatRange& it) { return it.seat == seat; });
  if (static_cast<std::size_t>(open) >= kMaxOpenRanges) {
    return strf("{} ranges are given out to it and not settled", open);
  }
  return {};
}

DataRange DataLeases::grant(std::uint32_t seat, std::uint64_t count, std::uint64_t rows) {
  state_.rows = rows;
  auto range = take_returned(count);
  if (range) {
    state_.repeated += range->count;
  } else {
    range = take_new(count);
  }
  if (!range) {
    return {state_.next.epoch, state_.next.first, 0};
  }
  state_.out.push_back({seat, *range});
  return *range;
}

std::optional<DataRange> DataLeases::take_returned(std::uint64_t count) {
  if (state_.returned.empty()) {
    return std::nullopt;
  }
  DataRange& oldest = state_.returned.front();
  const DataRange out{oldest.epoch, oldest.first, std::min(count, oldest.count)};
  oldest.first += out.count;
  oldest.count -= out.count;
  if (oldest.count == 0) {
    state_.returned.erase(state_.returned.begin());
  }
  return out;
}

// The next positions that nobody had. After a restart some of them may be settled already: they
// were given out after the last checkpoint, and their process lived on.
std::optional<DataRange> DataLeases::take_new(std::uint64_t count) {
  for (;;) {
    if (state_.next.first == state_.rows) {
      state_.next = {state_.next.epoch + 1, 0, 0};
    }
    if (epochs_ != 0 && state_.next.epoch >= epochs_) {
      return std::nullopt;
    }
    DataRange out{state_.next.epoch, state_.next.first,
                  std::min(count, state_.rows - state_.next.first)};
    const auto done = std::find_if(
        state_.settled.begin(), state_.settled.end(),
        [&](const DataRange& it) { return it.epoch == out.epoch && end_of(it) > out.first; });
    if (done != state_.settled.end() && done->first <= out.first) {
      state_.next.first = end_of(*done);
      continue;
    }
    if (done != state_.settled.end()) {
      out.count = std::min(out.count, done->first - out.first);
    }
    state_.next.first = end_of(out);
    return out;
  }
}

std::vector<DataRange> DataLeases::take_out(std::uint32_t seat, const DataRange& range) {
  std::vector<DataRange> taken;
  std::vector<SeatRange> left;
  for (const SeatRange& it : state_.out) {
    const DataRange part = it.seat == seat ? common_part(it.range, range) : DataRange{};
    if (part.count == 0) {
      left.push_back(it);
      continue;
    }
    taken.push_back(part);
    std::vector<DataRange> rest;
    append_rest(rest, it.range, part);
    for (const DataRange& piece : rest) {
      left.push_back({seat, piece});
    }
  }
  state_.out = std::move(left);
  return taken;
}

std::vector<DataRange> DataLeases::complete(std::uint32_t seat, const DataRange& range) {
  if (state_.rows == 0 || range.first > state_.rows || range.count > state_.rows - range.first ||
      (epochs_ != 0 && range.epoch >= epochs_)) {
    return {};
  }
  std::vector<DataRange> done = take_out(seat, range);
  for (const DataRange& part : cut_out(state_.returned, range)) {
    done.push_back(part);
  }
  const DataRange never{state_.next.epoch, state_.next.first, state_.rows - state_.next.first};
  const DataRange beyond = range.epoch > never.epoch ? range : common_part(range, never);
  if (restored_ && beyond.count > 0) {
    // Given out after the checkpoint that this life of the syncer began with.
    std::vector<DataRange> open{beyond};
    for (const DataRange& settled : state_.settled) {
      cut_out(open, settled);
    }
    done.insert(done.end(), open.begin(), open.end());
  }
  for (const DataRange& part : done) {
    insert_joined(state_.settled, part);
  }
  return done;
}

std::vector<DataRange> DataLeases::give_back(std::uint32_t seat, const DataRange& range) {
  std::vector<DataRange> back = take_out(seat, range);
  for (const DataRange& part : back) {
    insert_joined(state_.returned, part);
  }
  return back;
}

std::vector<DataRange> DataLeases::lose(std::uint32_t seat) {
  std::vector<DataRange> back;
  std::vector<SeatRange> left;
  for (const SeatRange& it : state_.out) {
    if (it.seat == seat) {
      back.push_back(it.range);
      insert_joined(state_.returned, it.range);
    } else {
      left.push_back(it);
    }
  }
  state_.out = std::move(left);
  return back;
}

std::vector<DataRange> DataLeases::held_by(std::uint32_t seat) const {
  std::vector<DataRange> out;
  for (const SeatRange& it : state_.out) {
    if (it.seat == seat) {
      out.push_back(it.range);
    }
  }
  return out;
}

}  // namespace yeto::sync
