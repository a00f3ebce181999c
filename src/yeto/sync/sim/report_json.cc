// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "yeto/codec/codec.h"
#include "yeto/sync/sim/planning.h"

namespace yeto::sync::sim {

std::string report_json(const PlanningReport& report) {
  using Json = nlohmann::ordered_json;
  const PlanningOptions& o = report.options;
  Json out;
  out["schema"] = "yeto.sim/1";
  out["plan"] = {{"learners", o.learners},
                 {"params", o.params},
                 {"fragments", o.fragments},
                 {"codec", std::string(codec::codec_name(o.codec))},
                 {"sync_interval_steps", o.sync_interval_steps},
                 {"link_bytes_per_s", o.bytes_per_s},
                 {"round_trip_s", seconds(o.round_trip)},
                 {"syncer_bytes_per_s", o.syncer_bytes_per_s},
                 {"step_s", seconds(o.step)},
                 {"tokens_per_step", o.tokens},
                 {"mtbf_s", seconds(o.mtbf)},
                 {"restart_s", seconds(o.restart)},
                 {"hours", o.hours},
                 {"seed", o.seed}};
  out["simulated_s"] = report.simulated_s;
  out["measured_s"] = report.measured_s;
  out["lease_s"] = report.lease_s;
  out["first_commit_s"] = report.first_commit_s;
  out["commits"] = report.commits;
  out["faults"] = report.faults;
  out["goodput"] = report.goodput;
  out["trained"] = report.trained;
  out["participation"] = report.participation;
  out["answered_of_all"] = report.answered_of_all;
  out["staleness_mean_versions"] = report.staleness_mean;
  out["round_p50_s"] = report.round_p50_s;
  out["round_p99_s"] = report.round_p99_s;
  out["global_steps_per_hour"] = report.steps_per_hour;
  out["bytes_per_learner_hour"] = report.bytes_per_learner_hour;
  out["syncer_moved_bytes_per_s"] = report.syncer_bytes_per_s;
  out["ready_p50_s"] = report.ready_p50_s;
  out["syncer_buffer_bytes_max"] = report.buffer_bytes;
  out["violation"] = report.violation.empty() ? Json(nullptr) : Json(report.violation);
  out["timeline"] = Json::array();
  for (const TimelinePoint& point : report.timeline) {
    out["timeline"].push_back({{"at_s", point.at_s},
                               {"training", point.training},
                               {"participation", point.participation},
                               {"goodput", point.goodput},
                               {"round_s", point.round_s},
                               {"faults", point.faults}});
  }
  return out.dump(2) + "\n";
}

}  // namespace yeto::sync::sim
