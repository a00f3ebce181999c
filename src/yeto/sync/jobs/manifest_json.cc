// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/jobs/manifest_json.h"

#include <nlohmann/json.hpp>

#include "yeto/base/format.h"
#include "yeto/codec/codec.h"
#include "yeto/sync/jobs/checkpoint.h"

namespace yeto::sync::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSelfDigest = "xxh3_128";  // of the manifest without this field

// Thrown and caught in this file only.
struct Bad {
  std::string what;
};

const Json& need(const Json& in, const char* key) {
  if (!in.is_object() || !in.contains(key)) {
    throw Bad{strf("the field {} is missing", key)};
  }
  return in[key];
}

const Json& need_list(const Json& in, const char* key) {
  const Json& list = need(in, key);
  if (!list.is_array()) {
    throw Bad{strf("the field {} is not a list", key)};
  }
  return list;
}

std::uint64_t number(const Json& value, const char* key) {
  if (!value.is_number_unsigned()) {
    throw Bad{strf("the field {} is not a whole number", key)};
  }
  return value.get<std::uint64_t>();
}

std::uint64_t number_of(const Json& in, const char* key) { return number(need(in, key), key); }

std::uint32_t small_number_of(const Json& in, const char* key) {
  const std::uint64_t value = number_of(in, key);
  if (value > 0xffffffffU) {
    throw Bad{strf("the field {} is too large", key)};
  }
  return static_cast<std::uint32_t>(value);
}

std::string text_of(const Json& in, const char* key) {
  const Json& value = need(in, key);
  if (!value.is_string()) {
    throw Bad{strf("the field {} is not a text", key)};
  }
  return value.get<std::string>();
}

double real_of(const Json& in, const char* key) {
  const Json& value = need(in, key);
  if (!value.is_number()) {
    throw Bad{strf("the field {} is not a number", key)};
  }
  return value.get<double>();
}

float small_real_of(const Json& in, const char* key) {
  return static_cast<float>(real_of(in, key));
}

template <std::size_t kBytes>
void hex_of(const Json& in, const char* key, std::array<std::uint8_t, kBytes>& out) {
  const auto bytes = from_hex(text_of(in, key));
  if (!bytes || bytes->size() != kBytes) {
    throw Bad{strf("the field {} is not {} hex digits", key, 2 * kBytes)};
  }
  std::copy(bytes->begin(), bytes->end(), out.begin());
}

template <class T>
T named(Result<T> value, const char* key) {
  if (!value) {
    throw Bad{strf("the field {}: {}", key, value.error().what)};
  }
  return *value;
}

std::vector<std::uint64_t> numbers_of(const Json& in, const char* key) {
  std::vector<std::uint64_t> out;
  for (const Json& value : need_list(in, key)) {
    out.push_back(number(value, key));
  }
  return out;
}

Json to_json(const FileEntry& file) {
  return {{"name", file.name}, {"bytes", file.bytes}, {"sha256", hex(file.sha256)}};
}

FileEntry file_of(const Json& in) {
  FileEntry file;
  file.name = text_of(in, "name");
  file.bytes = number_of(in, "bytes");
  hex_of(in, "sha256", file.sha256);
  return file;
}

Json to_json(const DataRange& range) {
  return {{"epoch", range.epoch}, {"first", range.first}, {"count", range.count}};
}

DataRange range_of(const Json& in) {
  return {number_of(in, "epoch"), number_of(in, "first"), number_of(in, "count")};
}

Json to_json(const std::vector<DataRange>& ranges) {
  Json out = Json::array();
  for (const DataRange& range : ranges) {
    out.push_back(to_json(range));
  }
  return out;
}

std::vector<DataRange> ranges_of(const Json& in, const char* key) {
  std::vector<DataRange> out;
  for (const Json& range : need_list(in, key)) {
    out.push_back(range_of(range));
  }
  return out;
}

Json to_json(const DataState& data) {
  Json out;
  out["rows"] = data.rows;
  out["next"] = to_json(data.next);
  out["returned"] = to_json(data.returned);
  out["out"] = Json::array();
  for (const SeatRange& lease : data.out) {
    out["out"].push_back({{"seat", lease.seat}, {"range", to_json(lease.range)}});
  }
  out["settled"] = to_json(data.settled);
  out["repeated"] = data.repeated;
  return out;
}

DataState data_of(const Json& in) {
  DataState data;
  data.rows = number_of(in, "rows");
  data.next = range_of(need(in, "next"));
  data.returned = ranges_of(in, "returned");
  for (const Json& lease : need_list(in, "out")) {
    data.out.push_back({small_number_of(lease, "seat"), range_of(need(lease, "range"))});
  }
  data.settled = ranges_of(in, "settled");
  data.repeated = number_of(in, "repeated");
  return data;
}

Json to_json(const CommitRecord& commit) {
  Json out;
  out["round"] = commit.round;
  out["fragment"] = commit.fragment;
  out["version"] = commit.version;
  out["bytes_in"] = commit.bytes_in;
  out["bytes_out"] = commit.bytes_out;
  out["digest"] = hex(commit.digest);
  out["pushes"] = Json::array();
  for (const CommittedPush& push : commit.pushes) {
    out["pushes"].push_back({{"seat", push.seat},
                             {"base_version", push.base_version},
                             {"steps", push.steps},
                             {"tokens", push.tokens},
                             {"norm", push.norm}});
  }
  out["weights"] = Json::array();
  for (const merge::SeatWeight& weight : commit.weights) {
    out["weights"].push_back({{"seat", weight.seat}, {"weight", weight.weight}});
  }
  return out;
}

CommitRecord commit_of(const Json& in) {
  CommitRecord commit;
  commit.round = number_of(in, "round");
  commit.fragment = small_number_of(in, "fragment");
  commit.version = number_of(in, "version");
  commit.bytes_in = number_of(in, "bytes_in");
  commit.bytes_out = number_of(in, "bytes_out");
  hex_of(in, "digest", commit.digest);
  for (const Json& push : need_list(in, "pushes")) {
    commit.pushes.push_back({small_number_of(push, "seat"), number_of(push, "base_version"),
                             number_of(push, "steps"), number_of(push, "tokens"),
                             real_of(push, "norm")});
  }
  for (const Json& weight : need_list(in, "weights")) {
    commit.weights.push_back({small_number_of(weight, "seat"), real_of(weight, "weight")});
  }
  return commit;
}

Json state_to_json(const CoreState& state) {
  Json out;
  out["term"] = state.term;
  out["global_step"] = state.global_step;
  out["versions"] = state.versions;
  out["finish_reason"] = state.finish_reason;
  out["seats"] = Json::array();
  for (const SeatTokens& seat : state.seats) {
    out["seats"].push_back({{"seat", seat.seat},
                            {"tokens", seat.tokens},
                            {"active", seat.active},
                            {"merged_bases", seat.merged_bases}});
  }
  out["ledger"] = {{"pushed", state.ledger.pushed},
                   {"merged", state.ledger.merged},
                   {"dropped", state.ledger.dropped},
                   {"waiting", state.ledger.waiting}};
  out["forks"] = Json::array();
  for (const Fork& fork : state.forks) {
    out["forks"].push_back({{"term", fork.term}, {"versions", fork.versions}});
  }
  out["contract"] = Json::array();
  for (const wire::ContractPair& pair : state.contract) {
    out["contract"].push_back({{"name", pair.name}, {"hash", hex(pair.hash)}});
  }
  out["data"] = to_json(state.data);
  return out;
}

CoreState state_of(const Json& in) {
  CoreState state;
  state.term = number_of(in, "term");
  state.global_step = number_of(in, "global_step");
  state.versions = numbers_of(in, "versions");
  state.finish_reason = text_of(in, "finish_reason");
  for (const Json& seat : need_list(in, "seats")) {
    const Json& active = need(seat, "active");
    if (!active.is_boolean()) {
      throw Bad{"the field active is not true or false"};
    }
    SeatTokens& out = state.seats.emplace_back();
    out.seat = small_number_of(seat, "seat");
    out.tokens = number_of(seat, "tokens");
    out.active = active.get<bool>();
    if (seat.contains("merged_bases")) {
      out.merged_bases = numbers_of(seat, "merged_bases");
    }
  }
  const Json& ledger = need(in, "ledger");
  state.ledger = {number_of(ledger, "pushed"), number_of(ledger, "merged"),
                  number_of(ledger, "dropped"), number_of(ledger, "waiting")};
  for (const Json& fork : need_list(in, "forks")) {
    state.forks.push_back({number_of(fork, "term"), numbers_of(fork, "versions")});
  }
  for (const Json& pair : need_list(in, "contract")) {
    wire::ContractPair& out = state.contract.emplace_back();
    out.name = text_of(pair, "name");
    hex_of(pair, "hash", out.hash);
  }
  if (in.contains("data")) {
    state.data = data_of(in["data"]);
  }
  return state;
}

// Manifests of version 0.1.0 have one codec for both directions, and none of the later fields.
void read_recipe(const Json& json, Manifest& manifest) {
  if (json.contains("codec")) {
    manifest.broadcast_codec = named(codec::codec_from_name(text_of(json, "codec")), "codec");
    manifest.push_codec = manifest.broadcast_codec;
  } else {
    const Json& codecs = need(json, "codecs");
    manifest.push_codec = named(codec::codec_from_name(text_of(codecs, "push")), "push");
    manifest.broadcast_codec =
        named(codec::codec_from_name(text_of(codecs, "broadcast")), "broadcast");
  }
  const Json& outer = need(json, "outer");
  manifest.outer.kind = named(merge::outer_kind_from_name(text_of(outer, "kind")), "kind");
  manifest.outer.lr = small_real_of(outer, "lr");
  manifest.outer.momentum = small_real_of(outer, "momentum");
  if (json.contains("correction")) {
    manifest.correction =
        named(merge::correction_from_name(text_of(json, "correction")), "correction");
  }
  manifest.weights = named(merge::weight_rule_from_name(text_of(json, "weights")), "weights");
}

void read_records(const Json& json, Manifest& manifest) {
  if (json.contains("tape") && !json["tape"].is_null()) {
    manifest.tape = TapePosition{number_of(json["tape"], "bytes"), number_of(json["tape"], "seq")};
  }
  if (json.contains("commits")) {
    for (const Json& commit : need_list(json, "commits")) {
      manifest.commits.push_back(commit_of(commit));
    }
  }
}

std::map<std::string, std::string> settings_of(const Json& in) {
  std::map<std::string, std::string> settings;
  const Json& object = need(in, "settings");
  if (!object.is_object()) {
    throw Bad{"the field settings is not an object"};
  }
  for (const auto& [key, value] : object.items()) {
    settings[key] = text_of(object, key.c_str());
  }
  return settings;
}

// What must agree inside a manifest, so that readers can rely on it.
void check(const Manifest& manifest) {
  const std::size_t fragments = manifest.fragments.size();
  if (fragments == 0 || fragments > kMaxFragments || manifest.state.versions.size() != fragments) {
    throw Bad{"the numbers of fragments and versions differ"};
  }
  for (const Fork& fork : manifest.state.forks) {
    if (fork.versions.size() != fragments) {
      throw Bad{"a fork has not one version per fragment"};
    }
  }
  for (const CommitRecord& commit : manifest.commits) {
    if (commit.fragment >= fragments ||
        commit.version != manifest.state.versions[commit.fragment]) {
      throw Bad{strf("the commit of round {} is not of a fragment's version", commit.round)};
    }
  }
  for (std::size_t i = 0; i < fragments; ++i) {
    const std::string want =
        fragment_name(static_cast<std::uint32_t>(i), manifest.state.versions[i]);
    if (manifest.fragments[i].name != want) {
      throw Bad{strf("fragment {} is in {}, expected {}", i, manifest.fragments[i].name, want)};
    }
  }
  if (manifest.layout.name != kLayoutName) {
    throw Bad{strf("the layout is in {}, expected {}", manifest.layout.name, kLayoutName)};
  }
}

std::string self_digest(Json json) {
  json.erase(kSelfDigest);
  return hex(xxh3_128(as_bytes_view(json.dump())));
}

Manifest manifest_of(const Json& json) {
  if (text_of(json, kSelfDigest) != self_digest(json)) {
    throw Bad{"its digest is not that of its content"};
  }
  Manifest manifest;
  manifest.run_id = text_of(json, "run_id");
  manifest.state = state_of(json);
  read_recipe(json, manifest);
  read_records(json, manifest);
  manifest.settings = settings_of(json);
  const Json& layout = need(json, "layout");
  manifest.layout = file_of(layout);
  hex_of(layout, "fingerprint", manifest.fingerprint);
  for (const Json& file : need_list(json, "fragments")) {
    manifest.fragments.push_back(file_of(file));
  }
  check(manifest);
  return manifest;
}

// "yeto.checkpoint/1" → its parts; a newer minor may follow the major as "/1.2".
Status check_schema(const Json& json, std::string_view where) {
  const std::string schema = text_of(json, "schema");
  const std::string_view name = kSchema.substr(0, kSchema.find('/'));
  if (schema.substr(0, schema.find('/')) != name) {
    throw Bad{strf("the schema is {}, expected {}", schema, kSchema)};
  }
  if (schema != kSchema && !schema.starts_with(std::string(kSchema) + ".")) {
    return fail(ErrorCode::kNotInBuild, strf("the checkpoint has the schema {}", schema),
                std::string(where), strf("this build reads {}", kSchema));
  }
  return Unit{};
}

}  // namespace

std::string manifest_to_json(const Manifest& manifest) {
  Json json;
  json["schema"] = kSchema;
  json["run_id"] = manifest.run_id;
  json.update(state_to_json(manifest.state));
  json["codecs"] = {{"push", codec::codec_name(manifest.push_codec)},
                    {"broadcast", codec::codec_name(manifest.broadcast_codec)}};
  json["outer"] = {{"kind", merge::outer_kind_name(manifest.outer.kind)},
                   {"lr", manifest.outer.lr},
                   {"momentum", manifest.outer.momentum}};
  json["correction"] = merge::correction_name(manifest.correction);
  json["weights"] = merge::weight_rule_name(manifest.weights);
  json["settings"] = Json::object();
  for (const auto& [key, value] : manifest.settings) {
    json["settings"][key] = value;
  }
  json["layout"] = to_json(manifest.layout);
  json["layout"]["fingerprint"] = hex(manifest.fingerprint);
  json["fragments"] = Json::array();
  for (const FileEntry& file : manifest.fragments) {
    json["fragments"].push_back(to_json(file));
  }
  json["tape"] = manifest.tape ? Json{{"bytes", manifest.tape->bytes}, {"seq", manifest.tape->seq}}
                               : Json(nullptr);
  json["commits"] = Json::array();
  for (const CommitRecord& commit : manifest.commits) {
    json["commits"].push_back(to_json(commit));
  }
  // Texts that are no UTF-8 (a seat's free text, say) are replaced rather than thrown upon.
  const auto replace = Json::error_handler_t::replace;
  json = Json::parse(json.dump(-1, ' ', false, replace));
  json[kSelfDigest] = self_digest(json);
  return json.dump(2) + "\n";
}

Result<Manifest> manifest_from_json(std::string_view text, std::string_view where) {
  try {
    const Json json = Json::parse(text);
    YETO_TRY(check_schema(json, where));
    return manifest_of(json);
  } catch (const Bad& bad) {
    return fail(ErrorCode::kDamaged, "the manifest is damaged: " + bad.what, std::string(where),
                "take the folder from a backup, or start a new run in another folder");
  } catch (const nlohmann::json::exception&) {
    return fail(ErrorCode::kDamaged, "the manifest is damaged: it is not valid JSON",
                std::string(where),
                "take the folder from a backup, or start a new run in another folder");
  }
}

std::string pieces_to_json(const Layout& layout, std::uint32_t fragment) {
  Json out = Json::array();
  for (const Piece& piece : layout.fragments[fragment].pieces) {
    const TensorSpec& tensor = layout.tensors[piece.tensor];
    out.push_back({{"tensor", tensor.name},
                   {"dtype", dtype_name(tensor.dtype)},
                   {"shape", tensor.shape},
                   {"first", piece.first},
                   {"count", piece.count},
                   {"offset", piece.offset}});
  }
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace yeto::sync::checkpoint
