// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <variant>

#include "yeto/base/bytes.h"
#include "yeto/base/format.h"
#include "yeto/sync/server/records.h"

namespace yeto::sync {
namespace {

using Json = nlohmann::ordered_json;

std::string one_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json head_json(const TapeHead& head, std::string_view event) {
  return Json{{"ts", head.wall_s}, {"seq", head.seq}, {"term", head.term}, {"event", event}};
}

Json values_json(const std::vector<SeatValue>& values, const char* name) {
  Json out = Json::array();
  for (const SeatValue& value : values) {
    out.push_back(Json{{"seat", value.seat}, {name, value.value}});
  }
  return out;
}

Json counts_json(const std::vector<SeatValue>& values, const char* name) {
  Json out = Json::array();
  for (const SeatValue& value : values) {
    out.push_back(Json{{"seat", value.seat}, {name, static_cast<std::uint64_t>(value.value)}});
  }
  return out;
}

template <class T>
Json optional_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json ledger_json(const Ledger& ledger) {
  return Json{{"pushed", ledger.pushed},
              {"merged", ledger.merged},
              {"dropped", ledger.dropped},
              {"waiting", ledger.waiting}};
}

// How much of the sample order is settled, in positions.
Json data_json(const DataState& data) {
  std::uint64_t settled = 0;
  std::uint64_t out = 0;
  std::uint64_t returned = 0;
  for (const DataRange& range : data.settled) {
    settled += range.count;
  }
  for (const SeatRange& range : data.out) {
    out += range.range.count;
  }
  for (const DataRange& range : data.returned) {
    returned += range.count;
  }
  return Json{{"rows", data.rows},
              {"epoch", data.next.epoch},
              {"next", data.next.first},
              {"settled", settled},
              {"out", out},
              {"returned", returned},
              {"repeated", data.repeated}};
}

class RecordWriter {
 public:
  RecordWriter(const TapeHead& head, const std::vector<SeatValue>& weights)
      : head_(head), weights_(weights) {}

  Json operator()(const TapeJoin& r) const {
    Json out = head_json(head_, "join");
    out.update(Json{{"seat", r.seat},
                    {"incarnation", strf("{:016x}", r.incarnation)},
                    {"resumed", r.resumed},
                    {"device", r.device}});
    return out;
  }
  Json operator()(const TapeLeave& r) const { return seat_reason("leave", r.seat, r.reason); }
  Json operator()(const TapeLost& r) const { return seat_reason("lost", r.seat, r.reason); }
  Json operator()(const TapeRound& r) const {
    Json out = head_json(head_, "round");
    out["round"] = r.round;
    out["fragment"] = r.fragment;
    out["version"] = r.version;
    out["attempt"] = r.attempt;
    out["sweep"] = r.sweep;
    out["committed"] = r.committed;
    out["launch"] = seconds(r.launched);
    out["quorum"] = seconds_or_null(r.quorum);
    out["grace"] = seconds_or_null(r.grace_end);
    out["commit"] = seconds_or_null(r.committed_at);
    out["reason"] = r.reason;
    out["expected"] = r.expected;
    out["responded"] = r.responded;
    out["dropped"] = Json::array();
    for (const SeatReason& drop : r.dropped) {
      out["dropped"].push_back(Json{{"seat", drop.seat}, {"reason", drop.reason}});
    }
    out["carried"] = Json::array();
    for (std::size_t i = 0; i < r.carried.size(); ++i) {
      out["carried"].push_back(
          Json{{"seat", r.carried[i].seat},
               {"lag", static_cast<std::uint64_t>(r.carried[i].value)},
               {"factor", i < r.factors.size() ? Json(r.factors[i].value) : Json(nullptr)}});
    }
    out["weights"] = values_json(weights_, "weight");
    out["norms"] = values_json(r.norms, "norm");
    out["tokens"] = counts_json(r.tokens, "tokens");
    out["steps"] = counts_json(r.steps, "steps");
    out["bytes_in"] = r.bytes_in;
    out["bytes_out"] = r.bytes_out;
    out["digest"] = hex(r.digest);
    out["ledger"] = ledger_json(r.ledger);
    return out;
  }
  Json operator()(const TapeLate& r) const {
    Json out = head_json(head_, "late");
    out["seat"] = r.seat;
    out["fragment"] = r.fragment;
    out["round"] = r.round == 0 ? Json(nullptr) : Json(r.round);
    out["base_version"] = r.base_version;
    out["tokens"] = r.tokens;
    out["carried"] = r.carried;
    out["reason"] = r.reason.empty() ? Json(nullptr) : Json(r.reason);
    return out;
  }
  Json operator()(const TapeCheckpoint& r) const {
    Json out = head_json(head_, "checkpoint");
    out["global_step"] = r.global_step;
    out["ok"] = r.ok;
    out["error"] = r.error.empty() ? Json(nullptr) : Json(r.error);
    return out;
  }
  Json operator()(const TapeData& r) const {
    Json out = head_json(head_, "data");
    out["seat"] = r.seat;
    out["what"] = r.what;
    out["epoch"] = r.range.epoch;
    out["first"] = r.range.first;
    out["count"] = r.range.count;
    return out;
  }
  Json operator()(const TapeMetric& r) const {
    Json out = head_json(head_, "metric");
    out["seat"] = r.seat;
    Json data = Json::parse(r.json, nullptr, false);
    if (data.is_object()) {
      out["data"] = std::move(data);
    } else {
      // A learner's mistake is kept visible, never written through: the line must stay JSON.
      out["data"] = nullptr;
      out["error"] = strf("not a JSON object ({} bytes)", r.json.size());
    }
    return out;
  }
  Json operator()(const TapeFinish& r) const {
    Json out = head_json(head_, "finish");
    out["reason"] = r.reason;
    return out;
  }
  Json operator()(const TapeFinal& r) const {
    Json out = head_json(head_, "final");
    out["global_step"] = r.global_step;
    out["versions"] = r.versions;
    out["acknowledged"] = r.acknowledged;
    out["missing"] = r.missing;
    return out;
  }
  Json operator()(const TapeError& r) const {
    Json out = head_json(head_, "error");
    out["text"] = r.text;
    return out;
  }

 private:
  Json seat_reason(std::string_view event, Seat seat, const std::string& reason) const {
    Json out = head_json(head_, event);
    out["seat"] = seat;
    out["reason"] = reason;
    return out;
  }
  // 0: it did not happen.
  static Json seconds_or_null(Nanos at) { return at == 0 ? Json(nullptr) : Json(seconds(at)); }

  const TapeHead& head_;
  const std::vector<SeatValue>& weights_;
};

Json seat_json(const SeatStatus& seat) {
  return Json{{"seat", seat.seat},
              {"state", seat.state},
              {"incarnation", strf("{:016x}", seat.incarnation)},
              {"phase", phase_name(seat.phase)},
              {"local_step", seat.local_step},
              {"tokens", seat.tokens},
              {"step_time_s", optional_json(seat.step_time_s)},
              {"version_lag", optional_json(seat.version_lag)},
              {"participation", optional_json(seat.participation)},
              {"heartbeat_age_s", optional_json(seat.heartbeat_age_s)},
              {"pushes", seat.pushes},
              {"merged", seat.merged},
              {"carried", seat.carried},
              {"dropped", seat.dropped},
              {"quarantined_until", optional_json(seat.quarantined_until)},
              {"bytes_pushed", seat.bytes_pushed},
              {"bytes_received", seat.bytes_received}};
}

Json fragments_json(const StatusRecord& record) {
  Json out = Json::array();
  for (std::size_t i = 0; i < record.fragment_values.size(); ++i) {
    const auto& versions = record.core.versions;
    out.push_back(Json{{"version", i < versions.size() ? Json(versions[i]) : Json(nullptr)},
                       {"values", record.fragment_values[i]}});
  }
  return out;
}

}  // namespace

std::string tape_line(const TapeHead& head, const TapeRecord& record,
                      const std::vector<SeatValue>& weights) {
  return one_line(std::visit(RecordWriter(head, weights), record));
}

std::string tape_repaired_line(const TapeHead& head, const TapeRound& record,
                               const std::vector<SeatValue>& weights) {
  Json out = RecordWriter(head, weights)(record);
  for (const char* time : {"launch", "quorum", "grace", "commit"}) {
    out[time] = nullptr;
  }
  out["repaired"] = true;
  return one_line(out);
}

std::string tape_run_line(const TapeHead& head, const RunRecord& record) {
  Json out = head_json(head, "run");
  out["run_id"] = record.run_id;
  out["pid"] = record.pid;
  out["resumed"] = record.resumed;
  out["settings"] = Json::object();
  for (const auto& [name, value] : record.settings) {
    out["settings"][name] = value;
  }
  if (record.resumed) {
    out["global_step"] = record.global_step;
    out["versions"] = record.versions;
  }
  return one_line(out);
}

std::optional<std::uint64_t> seq_of_tape_line(std::string_view line) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("seq") || !json["seq"].is_number_unsigned()) {
    return std::nullopt;
  }
  return json["seq"].get<std::uint64_t>();
}

std::optional<CommittedRound> committed_round_of(std::string_view line) {
  // Most lines are of another kind; this spares parsing them.
  if (line.find("\"event\":\"round\"") == std::string_view::npos) {
    return std::nullopt;
  }
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object() || json.value("committed", Json()) != true) {
    return std::nullopt;
  }
  for (const char* key : {"fragment", "version"}) {
    if (!json.contains(key) || !json[key].is_number_unsigned()) {
      return std::nullopt;
    }
  }
  CommittedRound out{
      json["fragment"].get<std::uint32_t>(), json["version"].get<std::uint64_t>(), {}};
  const Json digest = json.value("digest", Json());
  const std::optional<Bytes> bytes =
      digest.is_string() ? from_hex(digest.get<std::string>()) : std::nullopt;
  if (!bytes || bytes->size() != out.digest.size()) {
    return std::nullopt;
  }
  std::copy(bytes->begin(), bytes->end(), out.digest.begin());
  return out;
}

std::string status_text(const StatusRecord& record) {
  const CoreStatus& core = record.core;
  Json out{{"schema", "yeto.syncer-status/1"},
           {"run_id", record.run_id},
           {"term", core.term},
           {"pid", record.pid},
           {"phase", phase_name(core.phase)},
           {"global_step", core.global_step},
           {"total_steps", optional_json(core.total_steps)},
           {"durable_step", core.durable_step},
           {"run_tokens", core.run_tokens},
           {"updated_at", record.wall_s}};
  out["seats"] = Json::array();
  for (const SeatStatus& seat : core.seats) {
    out["seats"].push_back(seat_json(seat));
  }
  out["fragments"] = fragments_json(record);
  out["ledger"] = ledger_json(core.ledger);
  out["carried_pushes"] = core.carried_pushes;
  out["buffer_bytes"] = core.buffer_bytes;
  out["data"] = core.data.rows == 0 ? Json(nullptr) : data_json(core.data);
  out["waiting_for"] = core.waiting_for.empty() ? Json(nullptr) : Json(core.waiting_for);
  const std::string& error = core.error.empty() ? record.error : core.error;
  out["error"] = error.empty() ? Json(nullptr) : Json(error);
  if (record.checkpoint_copy) {
    const CopyStatus& copy = *record.checkpoint_copy;
    out["checkpoint_copy"] = Json{{"place", copy.place},
                                  {"global_step", optional_json(copy.global_step)},
                                  {"error", copy.error.empty() ? Json(nullptr) : Json(copy.error)}};
  }
  out["exit"] = optional_json(record.exit);
  return one_line(out) + "\n";
}

std::string endpoint_text(const EndpointRecord& record) {
  const Json out{{"schema", "yeto.endpoint/1"}, {"host", record.host}, {"port", record.port},
                 {"run_id", record.run_id},     {"term", record.term}, {"pid", record.pid}};
  return one_line(out) + "\n";
}

Result<EndpointRecord> parse_endpoint(std::string_view text, const std::string& where) {
  const auto bad = [&](std::string what) {
    return fail(ErrorCode::kConfig, std::move(what), where,
                "the file is written by `yeto syncer` when it listens");
  };
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return bad("the endpoint file is not a JSON object");
  }
  if (json.value("schema", Json()) != "yeto.endpoint/1") {
    return bad("the endpoint file has another schema than yeto.endpoint/1");
  }
  const auto is_text = [&](const char* key) { return json.contains(key) && json[key].is_string(); };
  const auto is_count = [&](const char* key) {
    return json.contains(key) && json[key].is_number_unsigned();
  };
  if (!is_text("host") || !is_text("run_id")) {
    return bad("the endpoint file lacks host or run_id");
  }
  if (!is_count("port") || json["port"].get<std::uint64_t>() > 65535 || !is_count("term") ||
      !is_count("pid")) {
    return bad("the endpoint file lacks port, term or pid, or one of them is out of range");
  }
  return EndpointRecord{json["host"], json["port"], json["run_id"], json["term"], json["pid"]};
}

std::string_view phase_name(RunPhase phase) {
  switch (phase) {
    case RunPhase::kWaiting:
      return "waiting";
    case RunPhase::kInitialising:
      return "initialising";
    case RunPhase::kTraining:
      return "training";
    case RunPhase::kSweeping:
      return "sweeping";
    case RunPhase::kFinal:
      return "final";
    case RunPhase::kEnded:
      return "ended";
  }
  return "unknown";
}

std::string_view phase_name(wire::Phase phase) {
  switch (phase) {
    case wire::Phase::kLoad:
      return "load";
    case wire::Phase::kTrain:
      return "train";
    case wire::Phase::kEval:
      return "eval";
    case wire::Phase::kSnapshot:
      return "snapshot";
    case wire::Phase::kPaused:
      return "paused";
  }
  return "unknown";
}

}  // namespace yeto::sync
