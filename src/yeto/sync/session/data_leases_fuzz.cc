// SPDX-License-Identifier: Apache-2.0
// Requests, completions, returns and losses with any ranges: no position is ever in two states, and
// positions given out, waiting and settled are together those that were granted.
#include <map>
#include <vector>

#include "yeto/base/fuzz_testing.h"
#include "yeto/sync/session/data_leases.h"

namespace {

using namespace yeto;
using namespace yeto::sync;

constexpr std::uint64_t kRows = 24;
constexpr std::uint32_t kSeats = 3;
constexpr std::uint64_t kEpochs = 3;

// What a state says of each position of the first epochs: at most one thing.
std::map<std::pair<std::uint64_t, std::uint64_t>, char> positions_of(const DataState& state) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, char> out;
  const auto add = [&](const DataRange& range, char what) {
    YETO_CHECK(range.count > 0 && range.first + range.count <= state.rows && range.count <= kRows,
               "a range that crosses an epoch");
    for (std::uint64_t i = 0; i < range.count; ++i) {
      YETO_CHECK(out.emplace(std::pair(range.epoch, range.first + i), what).second,
                 "a position in two states");
    }
  };
  for (const DataRange& range : state.returned) {
    add(range, 'r');
  }
  for (const SeatRange& lease : state.out) {
    add(lease.range, 'o');
  }
  for (const DataRange& range : state.settled) {
    add(range, 's');
  }
  return out;
}

DataRange any_range(fuzz::Input& in) {
  if (in.below(8) == 0) {
    return {in.number<std::uint64_t>(), in.number<std::uint64_t>() >> 1U,
            in.number<std::uint64_t>() >> 1U};
  }
  return {in.below(kEpochs), in.below(kRows), in.below(kRows)};
}

void step(fuzz::Input& in, DataLeases& leases) {
  const auto seat = static_cast<std::uint32_t>(in.below(kSeats));
  switch (in.below(6)) {
    case 0:
    case 1: {
      const std::uint64_t count = in.below(16) == 0 ? in.number<std::uint64_t>() : in.below(9);
      const std::uint64_t rows = in.below(16) == 0 ? in.number<std::uint64_t>() : kRows;
      if (leases.objection(seat, count, rows).empty() && rows == kRows) {
        const DataRange range = leases.grant(seat, count, rows);
        YETO_CHECK(range.count <= count, "more than was asked for");
      }
      return;
    }
    case 2:
      leases.complete(seat, any_range(in));
      return;
    case 3:
      leases.give_back(seat, any_range(in));
      return;
    case 4:
      leases.lose(seat);
      YETO_CHECK(leases.held_by(seat).empty(), "a lost seat holds data");
      return;
    default: {
      const auto held = leases.held_by(seat);
      if (!held.empty()) {
        leases.complete(seat, held[in.below(held.size())]);
      }
    }
  }
}

}  // namespace

YETO_FUZZ_EXAMPLES(fuzz::any_script)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  DataLeases leases(in.below(kEpochs + 1));
  std::size_t known = 0;
  while (!in.empty()) {
    if (in.below(32) == 0) {
      leases.restore(DataState(leases.state()));
    }
    step(in, leases);
    const auto positions = positions_of(leases.state());
    YETO_CHECK(positions.size() >= known, "a position that was given out and is nowhere now");
    known = positions.size();
  }
  return 0;
}
