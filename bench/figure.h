// SPDX-License-Identifier: Apache-2.0
// What the benchmarks share: a stopwatch, the median of ratios, and the one form of a figure.
#pragma once

#include <algorithm>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <utility>
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

// `goal` is the least that the build has to reach. Where less is better, `limit` is the most it may
// take, and there is no goal. `aim` is what we would like.
struct Figure {
  std::string name;  // "merge/mean_m8"
  std::string unit;  // "x triad"
  std::optional<double> goal = std::nullopt;
  double aim = 0.0;
  std::optional<double> limit = std::nullopt;
};

inline Figure less_is_better(std::string name, std::string unit, double limit, double aim) {
  return {std::move(name), std::move(unit), std::nullopt, aim, limit};
}

inline bool meets(const Figure& figure, double value) {
  return (!figure.goal || value >= *figure.goal) && (!figure.limit || value <= *figure.limit);
}

// One JSON line: the median of `values` and the distance of the quartiles divided by it.
inline void print_figure(const Figure& figure, std::span<const double> values) {
  const double value = median(values);
  const double width = quantile(values, 0.75) - quantile(values, 0.25);
  const double spread = value != 0.0 ? width / value : 0.0;
  const auto or_null = [](const std::optional<double>& number) {
    return number ? strf("{}", *number) : std::string("null");
  };
  std::puts(
      strf(
          "{{\"figure\": \"{}\", \"value\": {:.3g}, \"unit\": \"{}\", \"limit\": {}, \"goal\": {}, "
          "\"aim\": {}, \"pass\": {}, \"n\": {}, \"spread\": {:.2g}}}",
          figure.name, value, figure.unit, or_null(figure.limit), or_null(figure.goal), figure.aim,
          meets(figure, value) ? "true" : "false", values.size(), spread)
          .c_str());
  std::fflush(stdout);
}

}  // namespace yeto::bench
