// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/client/rows.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace yeto::sync::client {
namespace {

// So many steps' rows are asked for at once: a request is under way while they are trained.
constexpr std::uint64_t kStepsAhead = 4;
// And at least this share of what is not settled, so that the ranges that are out stay few however
// short the steps are and however long it takes until work is durable.
constexpr std::uint64_t kShareAhead = 8;

wire::Data message(wire::DataAction action, const RowRange& range) {
  wire::Data data;
  data.action = action;
  data.epoch = range.epoch;
  data.first = range.first;
  data.count = range.count;
  return data;
}

std::uint64_t total(const std::deque<RowRange>& ranges) {
  std::uint64_t sum = 0;
  for (const RowRange& range : ranges) {
    sum += range.count;
  }
  return sum;
}

}  // namespace

std::vector<RowRange> without(const RowRange& range, const std::vector<RowRange>& others) {
  std::vector<RowRange> left = {range};
  for (const RowRange& other : others) {
    std::vector<RowRange> next;
    for (const RowRange& part : left) {
      const std::uint64_t end = part.first + part.count;
      const std::uint64_t other_end = other.first + other.count;
      if (other.epoch != part.epoch || other.first >= end || other_end <= part.first) {
        next.push_back(part);
        continue;
      }
      if (other.first > part.first) {
        next.push_back({part.epoch, part.first, other.first - part.first, 1});
      }
      if (other_end < end) {
        next.push_back({part.epoch, other_end, end - other_end, 1});
      }
    }
    left = std::move(next);
  }
  return left;
}

void add_range(std::vector<RowRange>& ranges, const RowRange& range) {
  const auto before = [](const RowRange& a, const RowRange& b) {
    return std::tie(a.epoch, a.first) < std::tie(b.epoch, b.first);
  };
  ranges.insert(std::lower_bound(ranges.begin(), ranges.end(), range, before), range);
  std::vector<RowRange> joined;
  for (const RowRange& next : ranges) {
    if (!joined.empty() && joined.back().epoch == next.epoch &&
        joined.back().first + joined.back().count >= next.first) {
      RowRange& last = joined.back();
      last.count = std::max(last.first + last.count, next.first + next.count) - last.first;
    } else {
      joined.push_back(next);
    }
  }
  ranges = std::move(joined);
}

// ---- the trainer
// ---------------------------------------------------------------------------------

bool RowBook::want(std::uint64_t rows, std::uint64_t count) {
  rows_ = rows;
  if (asked_ != 0 || exhausted_ || total(waiting_) >= count) {
    return false;
  }
  asked_ = std::max(count * kStepsAhead, unsettled_ / kShareAhead);
  return true;
}

std::optional<wire::Data> RowBook::open_request() const {
  if (asked_ == 0) {
    return std::nullopt;
  }
  wire::Data data;
  data.action = wire::DataAction::kRequest;
  data.count = asked_;
  data.rows = rows_;
  return data;
}

std::optional<RowRange> RowBook::take(std::uint64_t most) {
  if (waiting_.empty()) {
    return std::nullopt;
  }
  RowRange& front = waiting_.front();
  RowRange taken = front;
  taken.count = std::min(front.count, most);
  front.first += taken.count;
  front.count -= taken.count;
  if (front.count == 0) {
    waiting_.pop_front();
  }
  handed_.push_back(taken);
  return taken;
}

void RowBook::step_ended() {
  if (handed_.empty()) {
    return;
  }
  Step step;
  step.rows = std::exchange(handed_, {});
  for (const RowRange& range : step.rows) {
    unsettled_ += range.count;
  }
  step.owner.assign(fragments_, kOpen);
  steps_.push_back(std::move(step));
}

std::vector<wire::Data> RowBook::give_up() {
  std::vector<wire::Data> out;
  asked_ = 0;
  for (const RowRange& range : std::exchange(handed_, {})) {
    out.push_back(message(wire::DataAction::kReturn, range));
  }
  for (const RowRange& range : std::exchange(waiting_, {})) {
    out.push_back(message(wire::DataAction::kReturn, range));
  }
  return out;
}

// ---- the deltas
// ----------------------------------------------------------------------------------

template <class Change>
void RowBook::change(std::uint32_t fragment, Ticket from, Change&& change) {
  for (Step& step : steps_) {
    if (step.owner[fragment] == from) {
      change(step, step.owner[fragment]);
      changed_ = true;
    }
  }
}

void RowBook::taken(std::uint32_t fragment, Ticket ticket, bool only_returned) {
  const auto take = [&](Step& /*step*/, Ticket& owner) { owner = ticket; };
  change(fragment, kReturned, take);
  if (!only_returned) {
    change(fragment, kOpen, take);
  }
}

void RowBook::returned(std::uint32_t fragment, Ticket ticket) {
  change(fragment, ticket, [](Step& /*step*/, Ticket& owner) { owner = kReturned; });
}

void RowBook::lost(std::uint32_t fragment, Ticket ticket) {
  change(fragment, ticket, [](Step& /*step*/, Ticket& owner) { owner = kLost; });
}

void RowBook::applied(std::uint32_t fragment, bool all) {
  lost(fragment, kReturned);
  if (all) {
    lost(fragment, kOpen);
  }
}

void RowBook::kept(std::uint32_t fragment, Ticket ticket, std::uint64_t round) {
  change(fragment, ticket, [&](Step& step, Ticket& owner) {
    owner = kKept;
    step.durable = std::max(step.durable, round);
    step.next_beat = step.next_beat || round == 0;
  });
}

// ---- the syncer
// ----------------------------------------------------------------------------------

std::vector<wire::Data> RowBook::granted(const wire::Data& grant) {
  std::vector<wire::Data> out;
  if (grant.count == 0) {
    exhausted_ = true;
    asked_ = 0;
    return out;
  }
  const RowRange range{grant.epoch, grant.first, grant.count, 1};
  std::vector<RowRange> here(waiting_.begin(), waiting_.end());
  here.insert(here.end(), handed_.begin(), handed_.end());
  for (const Step& step : steps_) {
    here.insert(here.end(), step.rows.begin(), step.rows.end());
  }
  for (const RowRange& absent : without(range, here)) {
    const std::vector<RowRange> fresh = without(absent, done_);
    for (const RowRange& told : without(absent, fresh)) {
      out.push_back(message(wire::DataAction::kComplete, told));
    }
    waiting_.insert(waiting_.end(), fresh.begin(), fresh.end());
    if (!fresh.empty()) {
      asked_ = 0;
      exhausted_ = false;
    }
  }
  return out;
}

void RowBook::beat(std::uint64_t global_step) {
  for (Step& step : steps_) {
    if (step.next_beat) {
      step.durable = std::max(step.durable, global_step);
      step.next_beat = false;
      changed_ = true;
    }
  }
}

std::vector<wire::Data> RowBook::settle(std::uint64_t durable_step) {
  if (!std::exchange(changed_, false) && durable_step == looked_at_) {
    return {};
  }
  looked_at_ = durable_step;
  std::vector<RowRange> complete;
  std::vector<RowRange> back;
  for (auto step = steps_.begin(); step != steps_.end();) {
    const auto has = [&](Ticket what) {
      return std::find(step->owner.begin(), step->owner.end(), what) != step->owner.end();
    };
    const bool is_lost = has(kLost);
    const bool is_kept = std::all_of(step->owner.begin(), step->owner.end(),
                                     [](Ticket owner) { return owner == kKept; });
    if (!is_lost && (!is_kept || step->next_beat || step->durable > durable_step)) {
      ++step;
      continue;
    }
    for (const RowRange& range : step->rows) {
      unsettled_ -= range.count;
      add_range(is_lost ? back : complete, range);
      if (!is_lost) {
        add_range(done_, range);
      }
    }
    step = steps_.erase(step);
  }
  std::vector<wire::Data> out;
  for (const RowRange& range : complete) {
    out.push_back(message(wire::DataAction::kComplete, range));
  }
  for (const RowRange& range : back) {
    out.push_back(message(wire::DataAction::kReturn, range));
  }
  return out;
}

void RowBook::forget() {
  waiting_.clear();
  handed_.clear();
  steps_.clear();
  unsettled_ = 0;
  done_.clear();
  exhausted_ = false;
}

}  // namespace yeto::sync::client
