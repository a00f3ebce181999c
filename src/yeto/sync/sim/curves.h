// SPDX-License-Identifier: Apache-2.0
// The curves of a timeline, for the page and for the image.
#pragma once

#include <algorithm>

#include "yeto/sync/sim/planning.h"

namespace yeto::sync::sim {

struct Curve {
  const char* name;
  const char* unit;
  double (*value)(const TimelinePoint& point);  // in the unit
  bool percent;
};

inline constexpr Curve kCurves[] = {
    {"islands that train", "%", [](const TimelinePoint& p) { return 100.0 * p.training; }, true},
    {"participation", "%", [](const TimelinePoint& p) { return 100.0 * p.participation; }, true},
    {"goodput", "%", [](const TimelinePoint& p) { return 100.0 * p.goodput; }, true},
    {"round", "s", [](const TimelinePoint& p) { return p.round_s; }, false},
};

// The value at the upper edge of a curve's panel.
inline double top_of(const Curve& curve, const PlanningReport& report) {
  double top = 0.0;
  for (const TimelinePoint& point : report.timeline) {
    top = std::max(top, curve.value(point));
  }
  return curve.percent ? std::max(100.0, top) : std::max(1.1 * top, 1e-3);
}

}  // namespace yeto::sync::sim
