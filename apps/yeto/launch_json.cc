// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "launch.h"
#include "yeto/base/format.h"
#include "yeto/base/process.h"
#include "yeto/fleet/providers/process.h"
#include "yeto/fleet/run/commands.h"

namespace yeto::apps {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json limits_json(const fleet::FlagValues& flags) {
  Json out = Json::object();
  for (const char* limit : {"total-steps", "epochs", "tokens", "local-steps"}) {
    out[limit] = flags.has(limit) ? Json(flags.integer(limit)) : Json(nullptr);
  }
  return out;
}

Json check_of(const fleet::RunRecord& record) {
  const Json check = Json::parse(record.check_json, nullptr, false);
  return check.is_object() ? check : Json(nullptr);
}

std::string count_text(const Json& check, const char* key) {
  const auto found = check.find(key);
  return found == check.end() || !found->is_number() ? "unknown" : found->dump();
}

std::string text_or_unknown(const Json& check, const char* key) {
  const auto found = check.find(key);
  return found == check.end() || !found->is_string() ? "unknown" : found->get<std::string>();
}

}  // namespace

std::string plan_json(const fleet::RunRecord& record, const fleet::RunPaths& paths,
                      const std::vector<std::string>& warnings) {
  const Json stored = Json::parse(fleet::run_record_json(record));
  Json islands = stored["islands"];
  Json secrets = Json::array({"security/run.token"});
  for (std::size_t i = 0; i < islands.size(); ++i) {
    const int seat = static_cast<int>(i);
    islands[i]["argv"] = fleet::island_argv(record, paths, seat);
    islands[i]["env"] = fleet::island_env(record, seat);
    secrets.push_back(strf("security/seat-{}.key", seat));
  }
  return dump({{"schema", "yeto.plan/1"},
               {"name", record.name},
               {"folder", paths.root.string()},
               {"output", stored["output"]},
               {"islands", islands},
               {"syncer", {{"argv", fleet::syncer_argv(record, paths, false)}}},
               {"controller", {{"argv", {own_program(), "_controller", paths.root.string()}}}},
               {"secrets", secrets},
               {"limits", limits_json(record.flags)},
               {"flags", stored["flags"]},
               {"check", check_of(record)},
               {"warnings", warnings}});
}

std::string launched_json(const fleet::RunRecord& record, const fleet::RunPaths& paths,
                          const std::vector<std::string>& warnings) {
  return dump({{"schema", "yeto.launch/1"},
               {"name", record.name},
               {"run_id", record.run_id},
               {"folder", paths.root.string()},
               {"output", record.output.empty() ? Json(nullptr) : Json(record.output)},
               {"islands", record.islands.size()},
               {"limits", limits_json(record.flags)},
               {"check", check_of(record)},
               {"warnings", warnings}});
}

std::string check_lines(const std::string& check_json) {
  const Json check = Json::parse(check_json, nullptr, false);
  if (!check.is_object()) {
    return "";
  }
  std::string out =
      strf("  model     {}, {} parameters, vocabulary {}\n", text_or_unknown(check, "model_type"),
           count_text(check, "model_parameters"), count_text(check, "vocabulary"));
  out += strf("  data      {} rows, {} trainable, {} tokens, {} targets, masks by {}\n",
              count_text(check, "rows"), count_text(check, "trainable_rows"),
              count_text(check, "tokens"), count_text(check, "targets"),
              text_or_unknown(check, "mask_method"));
  out += strf("  held out  {} rows, {} targets\n", count_text(check, "heldout_rows"),
              count_text(check, "heldout_targets"));
  return out;
}

std::optional<std::int64_t> planned_local_steps(const fleet::FlagValues& flags, std::size_t islands,
                                                const std::string& check_json) {
  const Json check = Json::parse(check_json, nullptr, false);
  const auto count = [&](const char* key) {
    const bool known = check.is_object() && check.contains(key) && check[key].is_number_integer();
    return known ? check[key].get<double>() : 0.0;
  };
  const double rows = count("trainable_rows");
  const double rows_of_step =
      static_cast<double>(flags.integer("micro-batch-size") * flags.integer("grad-accum"));
  std::optional<double> steps;
  const auto limit = [&](double value) { steps = std::min(steps.value_or(value), value); };
  if (flags.has("local-steps")) {
    limit(flags.number("local-steps"));
  }
  if (islands > 0 && rows > 0 && rows_of_step > 0) {
    if (flags.has("epochs")) {
      limit(std::ceil(rows * flags.number("epochs") / static_cast<double>(islands) / rows_of_step));
    }
    const double tokens_of_step = count("tokens") / rows * rows_of_step;
    if (flags.has("tokens") && tokens_of_step > 0) {
      limit(flags.number("tokens") / static_cast<double>(islands) / tokens_of_step);
    }
  }
  return steps ? std::optional<std::int64_t>(static_cast<std::int64_t>(*steps)) : std::nullopt;
}

std::vector<std::string> check_warnings(const std::string& check_json) {
  std::vector<std::string> out;
  const Json check = Json::parse(check_json, nullptr, false);
  if (!check.is_object()) {
    return out;
  }
  const auto without = check.find("rows_without_target");
  if (without != check.end() && without->is_number_integer() && without->get<std::int64_t>() > 0) {
    std::string places;
    if (check.contains("rows_without_target_listed") &&
        check["rows_without_target_listed"].is_array()) {
      for (const Json& place : check["rows_without_target_listed"]) {
        places += (places.empty() ? "" : ", ") +
                  (place.is_string() ? place.get<std::string>() : place.dump());
      }
    }
    out.push_back(
        strf("{} rows have no target and are left out: {}", without->get<std::int64_t>(), places));
  }
  return out;
}

}  // namespace yeto::apps
