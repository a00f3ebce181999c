// SPDX-License-Identifier: Apache-2.0
#include "flags_syncer.h"

#include <algorithm>
#include <thread>

#include "yeto/base/format.h"

namespace yeto::apps {
namespace {

using fleet::FlagError;
using fleet::FlagValues;

FlagError refusal(ErrorCode code, std::string what, std::string flag, std::string value) {
  FlagError error;
  error.code = code;
  error.what = std::move(what);
  error.flag = "--" + flag;
  error.value = std::move(value);
  error.length = error.value.size();
  return error;
}

bool is_run_id(const std::string& text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

void read_rounds(const FlagValues& flags, sync::CoreOptions& core) {
  core.total_steps = static_cast<std::uint64_t>(flags.integer("total-steps"));
  core.pipeline = static_cast<std::uint32_t>(flags.integer("pipeline"));
  core.sync_interval_steps = static_cast<std::uint32_t>(flags.integer("sync-interval-steps"));
  core.min_round = from_millis(flags.number("min-round-ms"));
  core.round_timeout = from_seconds(flags.number("round-timeout"));
  if (flags.text("grace-ms") != "auto") {
    core.grace_cap = from_millis(flags.number("grace-ms"));
  }
  core.grace_gamma = flags.number("grace-gamma");
  core.grace_tau = flags.number("grace-tau");
  core.merge_alpha = flags.number("merge-alpha");
  core.delta_blended = flags.text("delta-reference") == "blended";
  core.lockstep = flags.on("lockstep");
  const std::string quorum = flags.text("quorum");
  core.quorum_all = quorum == "all";
  if (quorum != "all" && quorum != "auto") {
    core.quorum = static_cast<std::uint32_t>(flags.integer("quorum"));
  }
}

void read_roster(const FlagValues& flags, sync::CoreOptions& core) {
  core.run_id = flags.text("run-id");
  core.learners = static_cast<std::uint32_t>(flags.integer("learners"));
  core.start_quorum = static_cast<std::uint32_t>(flags.integer("start-quorum"));
  core.start_timeout = from_seconds(flags.number("start-timeout"));
  core.lease = flags.integer("lease-ms") * kMillisecond;
  // Five beats in a lease, so that one late beat costs nobody his seat.
  core.heartbeat = std::min(core.heartbeat, core.lease / 5);
  core.final_timeout = from_seconds(flags.number("final-timeout"));
}

void read_values(const FlagValues& flags, sync::ServerOptions& options) {
  sync::CoreOptions& core = options.core;
  const std::string wire_dtype = flags.text("wire-dtype");
  if (wire_dtype == "f32" || wire_dtype == "bf16") {
    core.push_codec = wire_dtype == "f32" ? CodecId::kF32 : CodecId::kBf16;
    core.broadcast_codec = core.push_codec;
  }
  const std::string durability = flags.text("durability");
  if (durability == "commit" || durability == "interval") {
    core.durability =
        durability == "commit" ? sync::Durability::kCommit : sync::Durability::kInterval;
  }
  core.checkpoint_every = from_seconds(flags.number("checkpoint-every"));
  // The table of flags lists exactly these names, so both look-ups succeed.
  options.outer = merge::OuterRule::of(*merge::outer_kind_from_name(flags.text("outer")));
  options.weights = *merge::weight_rule_from_name(flags.text("weights"));
  if (flags.has("outer-lr")) {
    options.outer.lr = static_cast<float>(flags.number("outer-lr"));
  }
  if (flags.has("outer-momentum")) {
    options.outer.momentum = static_cast<float>(flags.number("outer-momentum"));
  }
  const std::int64_t threads = flags.integer("threads");
  options.threads = threads > 0
                        ? static_cast<int>(threads)
                        : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void check_together(const FlagValues& flags, std::vector<FlagError>& errors) {
  const std::string run_id = flags.text("run-id");
  if (!is_run_id(run_id)) {
    errors.push_back(
        refusal(ErrorCode::kType, "a run id has 1 to 64 of A-Z a-z 0-9 . _ -", "run-id", run_id));
  }
  if (flags.has("start-quorum") && flags.integer("start-quorum") > flags.integer("learners")) {
    errors.push_back(refusal(
        ErrorCode::kRange, strf("--start-quorum is above --learners {}", flags.integer("learners")),
        "start-quorum", flags.text("start-quorum")));
  }
  const std::string quorum = flags.text("quorum");
  if (flags.on("lockstep") && quorum != "all" && quorum != "auto") {
    errors.push_back(
        refusal(ErrorCode::kConflict, "--lockstep waits for every island", "quorum", quorum));
    errors.back().hints.push_back("leave --quorum out, or give --quorum all");
  }
  const std::string outer = flags.text("outer");
  if (flags.has("outer-lr") && outer == "direct") {
    errors.push_back(refusal(ErrorCode::kConflict, "--outer direct has no learning rate",
                             "outer-lr", flags.text("outer-lr")));
  }
  if (flags.has("outer-momentum") && outer != "nesterov") {
    errors.push_back(refusal(ErrorCode::kConflict, strf("--outer {} takes no momentum", outer),
                             "outer-momentum", flags.text("outer-momentum")));
  }
}

void read_wiring(const FlagValues& flags, SyncerRequest& request) {
  sync::ServerOptions& options = request.options;
  if (const Result<net::Address> bind = net::parse_address(flags.text("bind"))) {
    options.bind = *bind;
  } else {
    request.errors.push_back(
        refusal(bind.error().code, bind.error().what, "bind", flags.text("bind")));
  }
  if (const auto token = sync::read_token_file(flags.text("token-file"))) {
    options.run_token = *token;
  } else {
    request.errors.push_back(fleet::flag_error_of(token.error()));
  }
  request.checkpoint = flags.text("checkpoint");
  options.resume = flags.on("resume");
  options.endpoint = flags.text("endpoint");
  options.status = flags.text("status");
  options.tape = flags.text("tape");
}

// The recipe of the run: what the checkpoint's manifest and the tape tell.
sync::TextPairs settings_of(const FlagValues& flags) {
  sync::TextPairs settings{{"learners", flags.text("learners")}};
  for (const fleet::FlagSpec& spec : fleet::flag_table()) {
    const bool sent = (spec.to & fleet::kToSyncer) != 0 && (spec.verbs & fleet::kSyncer) != 0;
    if (sent && flags.has(spec.name)) {
      settings.emplace_back(spec.name, flags.text(spec.name));
    }
  }
  return settings;
}

}  // namespace

SyncerRequest read_syncer_flags(std::span<const std::string> args) {
  SyncerRequest request;
  fleet::ParsedLine line = fleet::parse_line(fleet::kSyncer, args);
  request.help = line.help;
  request.errors = std::move(line.errors);
  if (request.help || !request.errors.empty()) {
    return request;
  }
  if (!line.positionals.empty()) {
    FlagError error;
    error.what = strf("`yeto syncer` takes flags only, not '{}'", line.positionals.front());
    request.errors.push_back(std::move(error));
  }
  check_together(line.values, request.errors);
  read_roster(line.values, request.options.core);
  read_rounds(line.values, request.options.core);
  read_values(line.values, request.options);
  read_wiring(line.values, request);
  request.options.settings = settings_of(line.values);
  return request;
}

std::string timeouts_text(const sync::ServerOptions& options) {
  const sync::CoreOptions& core = options.core;
  const std::string grace =
      core.grace_cap ? strf("at most {} ms", *core.grace_cap / kMillisecond) : "auto";
  return strf(
      "limits: start {:g} s, round {:g} s, shortest round {} ms, grace {}, lease {} ms, heartbeat "
      "{} ms, "
      "checkpoint every {:g} s, final acknowledgement {:g} s, first frame {:g} s, leave {:g} s",
      seconds(core.start_timeout), seconds(core.round_timeout), core.min_round / kMillisecond,
      grace, core.lease / kMillisecond, core.heartbeat / kMillisecond,
      seconds(core.checkpoint_every), seconds(core.final_timeout),
      seconds(options.first_frame_timeout), seconds(options.leave_limit));
}

}  // namespace yeto::apps
