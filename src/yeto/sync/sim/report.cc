// SPDX-License-Identifier: Apache-2.0
// The report of a plan as text and as a page with drawn curves.
#include "yeto/base/format.h"
#include "yeto/codec/codec.h"
#include "yeto/sync/sim/curves.h"
#include "yeto/sync/sim/planning.h"

namespace yeto::sync::sim {
namespace {

std::string percent(double share) { return strf("{:.2f} %", 100.0 * share); }

using Row = std::pair<std::string, std::string>;

std::vector<Row> rows_of(const PlanningReport& report) {
  const PlanningOptions& o = report.options;
  std::vector<Row> rows = {
      {"fleet", strf("{} learners, {:.4g} values in {} fragments, {} both ways, H {}", o.learners,
                     static_cast<double>(o.params), o.fragments, codec::codec_name(o.codec),
                     o.sync_interval_steps)},
      {"link", strf("{}/s, {:.0f} ms round trip; syncer {}", human_bytes(o.bytes_per_s),
                    seconds(o.round_trip) * 1e3,
                    o.syncer_bytes_per_s > 0.0 ? human_bytes(o.syncer_bytes_per_s) + "/s"
                                               : std::string("without limit"))},
      {"failures", o.mtbf == 0 ? std::string("none")
                               : strf("each learner every {} on average, back after {}; {} in all",
                                      human_seconds(seconds(o.mtbf)),
                                      human_seconds(seconds(o.restart)), report.faults)},
      {"simulated", strf("{} of {} asked for; measured over {} after the first commit",
                         human_seconds(report.simulated_s), human_seconds(o.hours * 3600.0),
                         human_seconds(report.measured_s))},
      {"lease", strf("{:.0f} s", report.lease_s)},
  };
  if (report.commits < 2) {
    rows.emplace_back("result", "fewer than two commits: simulate longer");
    return rows;
  }
  rows.emplace_back(
      "goodput", percent(report.goodput) + " of the tokens of a fleet that never waits or fails");
  rows.emplace_back("trained", percent(report.trained) + " of them were trained on");
  rows.emplace_back("participation",
                    strf("{} of the members asked, {} of all learners",
                         percent(report.participation), percent(report.answered_of_all)));
  rows.emplace_back("staleness", strf("{:.2f} versions on average", report.staleness_mean));
  rows.emplace_back("round", strf("p50 {:.2f} s, p99 {:.2f} s; {:.0f} global steps per hour",
                                  report.round_p50_s, report.round_p99_s, report.steps_per_hour));
  rows.emplace_back("bytes", strf("{} per learner and hour; the syncer moves {}/s",
                                  human_bytes(report.bytes_per_learner_hour),
                                  human_bytes(report.syncer_bytes_per_s)));
  rows.emplace_back("start",
                    strf("first commit after {}; a process trains {} after its start",
                         human_seconds(report.first_commit_s), human_seconds(report.ready_p50_s)));
  rows.emplace_back("syncer", strf("at most {} of buffers", human_bytes(report.buffer_bytes)));
  const double share = report.measured_s / (o.hours * 3600.0);
  if (share < 0.99) {
    rows.emplace_back("whole plan",
                      strf("at these rates {:.0f} global steps and {:.3g} merged tokens in {}",
                           report.steps_per_hour * o.hours,
                           report.goodput * o.learners * o.hours * 3600.0 / seconds(o.step) *
                               static_cast<double>(o.tokens),
                           human_seconds(o.hours * 3600.0)));
  }
  return rows;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '<' ? std::string("&lt;") : c == '&' ? std::string("&amp;") : std::string(1, c);
  }
  return out;
}

std::string panel(const PlanningReport& report, const Curve& curve) {
  constexpr double kWidth = 900.0;
  constexpr double kHeight = 120.0;
  constexpr double kLeft = 60.0;
  const double top = top_of(curve, report);
  const double end_s = std::max(report.simulated_s, 1e-9);
  const auto x = [&](double at_s) { return kLeft + at_s / end_s * (kWidth - kLeft); };
  std::string marks;
  std::string line;
  for (const TimelinePoint& point : report.timeline) {
    const double y = kHeight - curve.value(point) / top * kHeight;
    line += strf("{:.1f},{:.1f} ", x(point.at_s), y);
    if (point.faults > 0) {
      marks += strf("<line class=\"f\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"0\" y2=\"{1}\"/>",
                    x(point.at_s), kHeight);
    }
  }
  return strf(
      "<h2>{} ({})</h2>\n<svg viewBox=\"0 -10 {} {}\">{}"
      "<rect x=\"{}\" y=\"0\" width=\"{}\" height=\"{}\"/><polyline points=\"{}\"/>"
      "<text x=\"{}\" y=\"8\">{:.4g}</text><text x=\"{}\" y=\"{}\">0</text></svg>\n",
      curve.name, curve.unit, kWidth, kHeight + 20.0, marks, kLeft, kWidth - kLeft, kHeight, line,
      kLeft - 6.0, top, kLeft - 6.0, kHeight);
}

}  // namespace

std::string report_text(const PlanningReport& report) {
  std::string out;
  for (const auto& [name, text] : rows_of(report)) {
    out += strf("{:<14} {}\n", name, text);
  }
  if (!report.violation.empty()) {
    out += strf("{:<14} {}\n", "broken rule", report.violation);
  }
  return out;
}

std::string timeline_html(const PlanningReport& report) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>yeto sim</title>\n"
      "<style>body{font:14px sans-serif;max-width:960px;margin:2em auto}"
      "td{padding:2px 12px 2px 0;vertical-align:top}h2{font-size:14px;margin:1.2em 0 .2em}"
      "svg{width:100%}rect{fill:none;stroke:#999}polyline{fill:none;stroke:#1f6fb2;stroke-width:1."
      "5}"
      ".f{stroke:#d33;stroke-opacity:.15}text{font:10px "
      "sans-serif;text-anchor:end}</style></head>\n"
      "<body><h1>yeto sim</h1><table>\n";
  for (const auto& [name, text] : rows_of(report)) {
    out += strf("<tr><td>{}</td><td>{}</td></tr>\n", escaped(name), escaped(text));
  }
  out += "</table>\n";
  for (const Curve& curve : kCurves) {
    out += panel(report, curve);
  }
  out += strf("<p>0 to {} of virtual time; red: failures.</p></body></html>\n",
              human_seconds(report.simulated_s));
  return out;
}

}  // namespace yeto::sync::sim
