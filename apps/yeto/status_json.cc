// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "status.h"
#include "yeto/base/clock.h"

namespace yeto::apps {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json run_json(const StatusView& run) {
  Json islands = Json::array();
  for (const IslandLine& island : run.islands) {
    islands.push_back({{"id", island.id},
                       {"state", island.state},
                       {"pid", or_null(island.pid)},
                       {"version_lag", or_null(island.version_lag)},
                       {"participation", or_null(island.participation)},
                       {"tokens", or_null(island.tokens)},
                       {"heartbeat_age_s", or_null(island.heartbeat_age_s)}});
  }
  return {{"schema", "yeto.status/1"},
          {"name", run.name},
          {"run_id", text_or_null(run.run_id)},
          {"state", run.state},
          {"phase", text_or_null(run.phase)},
          {"exit", or_null(run.exit)},
          {"global_step", or_null(run.global_step)},
          {"total_steps", or_null(run.total_steps)},
          {"loss", or_null(run.loss)},
          {"tokens_per_s", or_null(run.tokens_per_s)},
          {"checked_at", utc_text(run.checked_at)},
          {"islands", islands}};
}

}  // namespace

std::string status_json(const std::vector<StatusView>& runs, bool one) {
  Json out = Json::array();
  for (const StatusView& run : runs) {
    out.push_back(run_json(run));
  }
  return (one && !out.empty() ? out[0] : out).dump(2, ' ', false, Json::error_handler_t::replace) +
         "\n";
}

}  // namespace yeto::apps
