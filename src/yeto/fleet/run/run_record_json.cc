// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <utility>

#include "yeto/base/clock.h"
#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/fleet/run/run_record.h"

namespace yeto::fleet {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Reads one object of schema "yeto.<kind>/1" and hands it to `fill`; wrong types become E_DAMAGED.
template <class Fill>
Status read_object(const std::filesystem::path& path, const std::string& kind, Fill fill) {
  YETO_ASSIGN(const std::string text, read_text_file(path, std::size_t{1} << 26));
  const Json json = Json::parse(text, nullptr, false);
  const auto damaged = [&](const std::string& what) {
    return fail(ErrorCode::kDamaged, what, path.string(),
                "the file was changed or cut; restore it");
  };
  if (!json.is_object()) {
    return damaged("is not a JSON object");
  }
  try {
    const std::string schema = json.value("schema", "");
    if (schema != strf("yeto.{}/1", kind)) {
      return fail(ErrorCode::kDamaged,
                  strf("has schema \"{}\", expected \"yeto.{}/1\"", schema, kind), path.string(),
                  "use the version of yeto that wrote it");
    }
    fill(json);
  } catch (const nlohmann::json::exception& problem) {
    return damaged(problem.what());
  }
  return Unit{};
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

std::string text_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? "" : found->get<std::string>();
}

// The stored form of a value follows its type, so that readers of run.json need no table.
Json typed(std::string_view name, const Setting& setting) {
  const FlagSpec* spec = find_flag(kLaunch, name);
  if (spec != nullptr) {
    const bool number = spec->type == FlagType::kInt || spec->type == FlagType::kCount ||
                        spec->type == FlagType::kFloat || spec->type == FlagType::kIntOr ||
                        spec->type == FlagType::kFloatOr;
    if (spec->type == FlagType::kBool) {
      return setting.text == "true";
    }
    const Json parsed = number ? Json::parse(setting.text, nullptr, false) : Json();
    if (parsed.is_number()) {
      return parsed;
    }
  }
  return setting.text;
}

Json flags_json(const FlagValues& flags) {
  Json out = Json::object();
  for (const FlagSpec& spec : flag_table()) {
    const Setting* setting = flags.find(spec.name);
    if (setting != nullptr && (spec.verbs & kLaunch) != 0 && spec.to != 0) {
      out[std::string(spec.name)] = {{"value", typed(spec.name, *setting)},
                                     {"text", setting->text},
                                     {"origin", setting->origin}};
    }
  }
  return out;
}

void handle_into(Json& out, const std::optional<Handle>& handle) {
  out["pid"] = handle ? Json(handle->pid) : Json(nullptr);
  out["start_time"] = handle ? Json(handle->start_time) : Json(nullptr);
}

std::optional<Handle> handle_from(const Json& json) {
  if (!json.contains("pid") || json["pid"].is_null()) {
    return std::nullopt;
  }
  return Handle{json["pid"].get<std::int64_t>(), json.value("start_time", std::uint64_t{0})};
}

Slot slot_from(const Json& json) {
  Slot slot;
  const FleetParse parsed = parse_fleet(json.at("slot").get<std::string>());
  if (parsed.errors.empty() && parsed.fleet.slots.size() == 1) {
    slot = parsed.fleet.slots.front();
  }
  return slot;
}

void fill_record(const Json& json, RunRecord& out) {
  out.name = json.at("name").get<std::string>();
  out.run_id = json.at("run_id").get<std::string>();
  out.version = json.at("versions").value("yeto", "");
  out.created_at = json.value("created_at", 0.0);
  for (const auto& [name, entry] : json.at("flags").items()) {
    out.flags.set(name,
                  Setting{entry.at("text").get<std::string>(), "", entry.value("origin", "")});
  }
  for (const Json& island : json.at("islands")) {
    out.islands.push_back(slot_from(island));
  }
  const Json& programs = json.at("programs");
  programs.at("syncer").get_to(out.programs.syncer);
  programs.at("learner").get_to(out.programs.learner);
  programs.at("finish").get_to(out.programs.finish);
  programs.at("plot").get_to(out.programs.plot);
  out.output = text_of(json, "output");
  if (json.contains("check") && json["check"].is_object()) {
    out.check_json = json["check"].dump();
  }
}

}  // namespace

std::string run_record_json(const RunRecord& record) {
  Json islands = Json::array();
  for (std::size_t seat = 0; seat < record.islands.size(); ++seat) {
    islands.push_back({{"seat", seat},
                       {"slot", record.islands[seat].text()},
                       {"threads", record.islands[seat].count}});
  }
  const Json check =
      record.check_json.empty() ? Json() : Json::parse(record.check_json, nullptr, false);
  return dump({{"schema", "yeto.run/1"},
               {"name", record.name},
               {"run_id", record.run_id},
               {"created_at", record.created_at},
               {"created_utc", utc_text(record.created_at)},
               {"versions", {{"yeto", record.version}}},
               {"flags", flags_json(record.flags)},
               {"islands", islands},
               {"programs",
                {{"syncer", record.programs.syncer},
                 {"learner", record.programs.learner},
                 {"finish", record.programs.finish},
                 {"plot", record.programs.plot}}},
               {"output", text_or_null(record.output)},
               {"check", check.is_object() ? check : Json(nullptr)}});
}

Status write_run_record(const RunPaths& paths, const RunRecord& record) {
  return write_file_atomic(paths.run_json(), run_record_json(record));
}

Result<RunRecord> read_run_record(const RunPaths& paths) {
  RunRecord out;
  YETO_TRY(read_object(paths.run_json(), "run", [&](const Json& json) { fill_record(json, out); }));
  if (out.islands.empty() || out.programs.syncer.empty() || out.programs.learner.empty()) {
    return fail(ErrorCode::kDamaged, "names no island or no program", paths.run_json().string());
  }
  return out;
}

CoreConfig core_config(const RunRecord& record) {
  CoreConfig out;
  const FlagValues& flags = record.flags;
  out.islands = static_cast<int>(record.islands.size());
  out.relaunch = flags.text("island-relaunch", "true") == "true";
  out.max_recoveries = static_cast<int>(flags.integer("max-recoveries", out.max_recoveries));
  out.recover_timeout = from_seconds(flags.number("recover-timeout", seconds(out.recover_timeout)));
  out.stall_timeout = from_seconds(flags.number("stall-timeout", seconds(out.stall_timeout)));
  out.final_timeout = from_seconds(flags.number("final-timeout", seconds(out.final_timeout)));
  return out;
}

Status write_state(const RunPaths& paths, const StoredState& state) {
  Json islands = Json::array();
  for (const StoredIsland& island : state.islands) {
    Json one = {{"id", island.id}, {"state", island.state}, {"attempt", island.attempt}};
    handle_into(one, island.handle);
    one["exit"] = or_null(island.exit);
    one["restarts"] = island.restarts;
    islands.push_back(std::move(one));
  }
  Json syncer = Json::object();
  handle_into(syncer, state.syncer.handle);
  syncer["restarts"] = state.syncer.restarts;
  return write_file_atomic(paths.state_json(), dump({{"schema", "yeto.state/1"},
                                                     {"name", state.name},
                                                     {"run_id", state.run_id},
                                                     {"state", run_state_name(state.state)},
                                                     {"phase", text_or_null(state.phase)},
                                                     {"exit", or_null(state.exit)},
                                                     {"error", text_or_null(state.error)},
                                                     {"islands", islands},
                                                     {"syncer", syncer},
                                                     {"artifact", text_or_null(state.artifact)},
                                                     {"updated_at", state.updated_at},
                                                     {"seq", state.seq}}));
}

Result<StoredState> read_state(const RunPaths& paths) {
  StoredState out;
  std::string state_name;
  YETO_TRY(read_object(paths.state_json(), "state", [&](const Json& json) {
    out.name = json.at("name").get<std::string>();
    out.run_id = json.at("run_id").get<std::string>();
    state_name = json.at("state").get<std::string>();
    out.phase = text_of(json, "phase");
    out.error = text_of(json, "error");
    out.artifact = text_of(json, "artifact");
    if (json.contains("exit") && !json["exit"].is_null()) {
      out.exit = json["exit"].get<int>();
    }
    for (const Json& one : json.at("islands")) {
      StoredIsland island;
      island.id = one.at("id").get<int>();
      island.state = one.value("state", "");
      island.attempt = one.value("attempt", -1);
      island.handle = handle_from(one);
      if (one.contains("exit") && !one["exit"].is_null()) {
        island.exit = one["exit"].get<int>();
      }
      island.restarts = one.value("restarts", 0);
      out.islands.push_back(std::move(island));
    }
    out.syncer.handle = handle_from(json.at("syncer"));
    out.syncer.restarts = json.at("syncer").value("restarts", 0);
    out.updated_at = json.value("updated_at", 0.0);
    out.seq = json.value("seq", std::uint64_t{0});
  }));
  const std::optional<RunState> state = run_state_of(state_name);
  if (!state) {
    return fail(ErrorCode::kDamaged, strf("knows no state \"{}\"", state_name),
                paths.state_json().string());
  }
  out.state = *state;
  return out;
}

Status write_controller(const RunPaths& paths, const Handle& handle) {
  return write_file_atomic(paths.controller_json(), dump({{"schema", "yeto.controller/1"},
                                                          {"pid", handle.pid},
                                                          {"start_time", handle.start_time}}));
}

Result<Handle> read_controller(const RunPaths& paths) {
  Handle out;
  YETO_TRY(read_object(paths.controller_json(), "controller", [&](const Json& json) {
    out.pid = json.at("pid").get<std::int64_t>();
    out.start_time = json.at("start_time").get<std::uint64_t>();
  }));
  return out;
}

std::string_view stop_mode_name(StopMode mode) { return mode == StopMode::kNow ? "now" : "finish"; }

Status write_stop(const RunPaths& paths, const StopRequest& request) {
  return write_file_atomic(paths.stop(), dump({{"schema", "yeto.stop/1"},
                                               {"mode", stop_mode_name(request.mode)},
                                               {"id", request.id},
                                               {"by", request.by},
                                               {"reason", request.reason}}));
}

Result<StopRequest> read_stop(const RunPaths& paths) {
  StopRequest out;
  YETO_TRY(read_object(paths.stop(), "stop", [&](const Json& json) {
    out.id = json.at("id").get<std::string>();
    out.mode = json.at("mode").get<std::string>() == "now" ? StopMode::kNow : StopMode::kFinish;
    out.by = text_of(json, "by");
    out.reason = text_of(json, "reason");
  }));
  return out;
}

}  // namespace yeto::fleet
