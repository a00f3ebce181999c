// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "yeto/fleet/run/delivery.h"
#include "yeto/fleet/run/observed.h"

namespace yeto::fleet {
namespace {

using Json = nlohmann::ordered_json;

struct Figures {
  std::optional<double> first_ts, last_ts;  // of training steps, wall seconds
  std::map<std::string, Json> eval;         // "before", "after" → loss
  std::map<std::string, Json> sample;
  Json prompt;
  std::int64_t commits = 0;
};

// One object of an island: a step, an evaluation or a sample.
void take_metric(const Json& json, Figures& out) {
  const std::string event = json.value("event", "");
  const std::string when = json.value("when", "");
  if (event == "eval" && json.contains("loss")) {
    out.eval[when] = json["loss"];
  } else if (event == "sample") {
    out.sample[when] = json.contains("text") ? json["text"] : Json();
    if (json.contains("prompt")) {
      out.prompt = json["prompt"];
    }
  } else if (event.empty() && json.contains("step") && json.contains("ts")) {
    const double ts = json["ts"].get<double>();
    const double begin = ts - json.value("step_s", 0.0);
    out.first_ts = std::min(out.first_ts.value_or(begin), begin);
    out.last_ts = std::max(out.last_ts.value_or(ts), ts);
  }
}

void take_tape_line(const Json& json, Figures& out) {
  const std::string event = json.value("event", "");
  if (event == "round") {
    out.commits += 1;
  } else if (event == "metric" && json.contains("data") && json["data"].is_object()) {
    take_metric(json["data"], out);
  }
}

// Lines that are no JSON object (a torn last one) or have other types than expected are passed
// over: the summary reports, it does not judge.
template <class Take>
void each_line(const std::filesystem::path& path, Take take) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_object()) {
      try {
        take(json);
      } catch (const nlohmann::json::exception&) {
        continue;
      }
    }
  }
}

Json value_of(const std::map<std::string, Json>& from, const char* key) {
  const auto found = from.find(key);
  return found == from.end() ? Json() : found->second;
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json island_json(int seat, const SyncerStatus* status, const RunView& view) {
  SeatStatus found;
  if (status != nullptr) {
    for (const SeatStatus& one : status->seats) {
      if (one.seat == seat) {
        found = one;
      }
    }
  }
  return {{"id", seat},
          {"tokens", or_null(found.tokens)},
          {"pushes", or_null(found.pushes)},
          {"bytes_pushed", or_null(found.bytes_pushed)},
          {"bytes_received", or_null(found.bytes_received)},
          {"restarts", view.islands[static_cast<std::size_t>(seat)].restarts}};
}

}  // namespace

std::string summary_json(const RunPaths& paths, const RunRecord& record, const RunView& view) {
  Figures figures;
  each_line(paths.tape(), [&](const Json& json) { take_tape_line(json, figures); });
  for (std::size_t seat = 0; seat < record.islands.size(); ++seat) {
    each_line(paths.metrics(static_cast<int>(seat)),
              [&](const Json& json) { take_metric(json, figures); });
  }
  const Result<SyncerStatus> status = read_syncer_status(paths.status_json());
  const SyncerStatus* known = status ? &*status : nullptr;
  Json islands = Json::array();
  for (std::size_t seat = 0; seat < view.islands.size(); ++seat) {
    islands.push_back(island_json(static_cast<int>(seat), known, view));
  }
  Json train_seconds;
  if (figures.first_ts && figures.last_ts) {
    train_seconds = *figures.last_ts - *figures.first_ts;
  }
  // The tape repeats rounds that a restarted syncer did again; global_step counts each merge once.
  Json commits =
      known != nullptr && known->global_step ? Json(*known->global_step) : Json(figures.commits);
  const Json out = {{"schema", "yeto.summary/1"},
                    {"name", record.name},
                    {"run_id", record.run_id},
                    {"heldout_loss_before", value_of(figures.eval, "before")},
                    {"heldout_loss_after", value_of(figures.eval, "after")},
                    {"train_seconds", train_seconds},
                    {"tokens", known != nullptr ? or_null(known->run_tokens) : Json()},
                    {"commits", commits},
                    {"islands", islands},
                    {"prompt", figures.prompt},
                    {"sample_before", value_of(figures.sample, "before")},
                    {"sample_after", value_of(figures.sample, "after")}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace yeto::fleet
