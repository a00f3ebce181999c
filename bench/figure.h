// SPDX-License-Identifier: Apache-2.0
// What the benchmarks share: a stopwatch, the median of ratios, and the one form of a figure.
#pragma once

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "yeto/base/clock.h"
#include "yeto/base/format.h"

namespace yeto::bench {

// Seconds that `work` takes.
template <class Work>
double time_of(Work&& work) {
  const Nanos start = monotonic_now();
  work();
  return seconds(monotonic_now() - start);
}

inline double quantile(std::span<const double> values, double q) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}
inline double median(std::span<const double> values) { return quantile(values, 0.5); }

struct Figure {
  std::string name;  // "merge/mean_m8"
  std::string unit;  // "x triad"
  double goal = 0.0;
  double aim = 0.0;
};

// One JSON line: the median of `values` and the distance of the quartiles divided by it. More is
// better.
inline void print_figure(const Figure& figure, std::span<const double> values) {
  const double value = median(values);
  const double spread = (quantile(values, 0.75) - quantile(values, 0.25)) / value;
  std::puts(
      strf("{{\"figure\": \"{}\", \"value\": {:.3g}, \"unit\": \"{}\", \"goal\": {}, \"aim\": {}, "
           "\"pass\": {}, \"n\": {}, \"spread\": {:.2g}}}",
           figure.name, value, figure.unit, figure.goal, figure.aim,
           value >= figure.goal ? "true" : "false", values.size(), spread)
          .c_str());
  std::fflush(stdout);
}

}  // namespace yeto::bench
