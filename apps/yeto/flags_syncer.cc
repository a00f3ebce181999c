// SPDX-License-Identifier: Apache-2.0
#include "flags_syncer.h"

#include <algorithm>
#include <charconv>
#include <set>
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
  core.max_lag = static_cast<std::uint32_t>(flags.integer("max-lag"));
  if (flags.text("max-buffer") != "auto") {
    core.max_buffer = static_cast<std::uint64_t>(flags.integer("max-buffer"));
  }
  const std::string quorum = flags.text("quorum");
  core.quorum_all = quorum == "all";
  if (quorum != "all" && quorum != "auto") {
    core.quorum = static_cast<std::uint32_t>(flags.integer("quorum"));
  }
}

// "0,2,5-7" as ascending seats; each item that is wrong is told with its place.
std::vector<sync::Seat> read_seats(const std::string& text, std::vector<FlagError>& errors) {
  constexpr std::uint32_t kHighest = 65535;
  std::set<sync::Seat> seats;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t to = std::min(text.find(',', from), text.size());
    const char* const end = text.data() + to;
    std::uint32_t first = 0;
    auto read = std::from_chars(text.data() + from, end, first);
    std::uint32_t last = first;
    if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, end, last);
    }
    const auto tell = [&](ErrorCode code, std::string what) {
      errors.push_back(refusal(code, std::move(what), "seats", text));
      errors.back().offset = from;
      errors.back().length = std::max<std::size_t>(to - from, 1);
      return std::vector<sync::Seat>{};
    };
    if (read.ec != std::errc() || read.ptr != end || first > last || last > kHighest) {
      return tell(ErrorCode::kType,
                  strf("--seats takes seats from 0 to {} and ranges, such as 0,2,5-7", kHighest));
    }
    for (sync::Seat seat = first; seat <= last; ++seat) {
      if (!seats.insert(seat).second) {
        return tell(ErrorCode::kConflict, strf("--seats: seat {} stands there twice", seat));
      }
    }
    from = to + 1;
  }
  return {seats.begin(), seats.end()};
}

void read_fixed_roster(const FlagValues& flags, SyncerRequest& request) {
  sync::CoreOptions& core = request.options.core;
  if (flags.text("roster") != "fixed") {
    for (const char* flag : {"seats", "recover-timeout"}) {
      if (flags.given(flag)) {
        request.errors.push_back(refusal(ErrorCode::kConflict,
                                         strf("--{} belongs to --roster fixed", flag), flag,
                                         flags.text(flag)));
        request.errors.back().hints.push_back(strf("add --roster fixed, or leave --{} out", flag));
      }
    }
    return;
  }
  core.recover_timeout = from_seconds(flags.number("recover-timeout"));
  if (!flags.has("seats")) {
    for (sync::Seat seat = 0; seat < core.learners; ++seat) {
      core.fixed_roster.push_back(seat);
    }
    return;
  }
  core.fixed_roster = read_seats(flags.text("seats"), request.errors);
  if (!core.fixed_roster.empty() && core.fixed_roster.size() != core.learners) {
    request.errors.push_back(refusal(
        ErrorCode::kConflict,
        strf("--seats names {} seats, --learners {}", core.fixed_roster.size(), core.learners),
        "seats", flags.text("seats")));
    request.errors.back().hints.push_back("give as many seats as --learners says");
  }
}

void read_data_leases(const FlagValues& flags, SyncerRequest& request) {
  request.options.core.data_leases = flags.on("data-leases");
  request.options.core.epochs = static_cast<std::uint64_t>(flags.integer("data-epochs"));
  if (flags.has("data-epochs") && !flags.on("data-leases")) {
    request.errors.push_back(refusal(ErrorCode::kConflict, "--data-epochs belongs to --data-leases",
                                     "data-epochs", flags.text("data-epochs")));
    request.errors.back().hints.push_back("add --data-leases, or leave --data-epochs out");
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

// Nothing for "auto".
std::optional<CodecId> codec_of(const std::string& name) {
  if (name == "f32") {
    return CodecId::kF32;
  }
  if (name == "bf16") {
    return CodecId::kBf16;
  }
  return name == "q4" ? std::optional(CodecId::kQ4) : std::nullopt;
}

void read_values(const FlagValues& flags, sync::ServerOptions& options) {
  sync::CoreOptions& core = options.core;
  const std::string wire_dtype = flags.text("wire-dtype");
  core.push_codec = codec_of(flags.text("push-dtype", wire_dtype));
  core.broadcast_codec = codec_of(flags.text("bcast-dtype", wire_dtype));
  const std::string durability = flags.text("durability");
  if (durability == "commit" || durability == "interval") {
    core.durability =
        durability == "commit" ? sync::Durability::kCommit : sync::Durability::kInterval;
  }
  core.checkpoint_every = from_seconds(flags.number("checkpoint-every"));
  // The table of flags lists exactly these names, so both look-ups succeed.
  options.outer = merge::OuterRule::of(*merge::outer_kind_from_name(flags.text("outer")));
  options.weights = *merge::weight_rule_from_name(flags.text("weights"));
  options.correction = *merge::correction_from_name(flags.text("correction"));
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

// The address of a flag; nothing if it is refused.
std::optional<net::Address> read_address(const FlagValues& flags, const char* flag,
                                         std::vector<FlagError>& errors) {
  const Result<net::Address> address = net::parse_address(flags.text(flag));
  if (address) {
    return *address;
  }
  errors.push_back(refusal(address.error().code, strf("--{}: {}", flag, address.error().what), flag,
                           flags.text(flag)));
  errors.back().hints.push_back(address.error().hint);
  return std::nullopt;
}

// By what learners are known: the run token, or certificates.
void read_credentials(const FlagValues& flags, SyncerRequest& request) {
  constexpr const char* kTlsFlags[] = {"tls-cert", "tls-key", "tls-ca"};
  std::vector<FlagError>& errors = request.errors;
  const auto given = [&](const char* flag) { return flags.has(flag); };
  const bool tls = std::any_of(std::begin(kTlsFlags), std::end(kTlsFlags), given);
  request.options.insecure = flags.on("insecure");
  if (!tls) {
    if (!flags.has("token-file")) {
      errors.push_back(refusal(ErrorCode::kUsage, "--token-file is missing", "token-file", ""));
      errors.back().why = "learners prove by the run's secret, or by certificates, who they are";
      errors.back().hints = {"add --token-file FILE, or --tls-cert, --tls-key and --tls-ca"};
    } else if (const auto token = sync::read_token_file(flags.text("token-file"))) {
      request.options.run_token = *token;
    } else {
      errors.push_back(fleet::flag_error_of(token.error()));
    }
    return;
  }
  for (const char* flag : kTlsFlags) {
    if (!flags.has(flag)) {
      errors.push_back(refusal(ErrorCode::kUsage, strf("--{} is missing", flag), flag, ""));
      errors.back().hints = {"TLS needs --tls-cert, --tls-key and --tls-ca together"};
      return;
    }
  }
  for (const char* flag : {"token-file", "insecure"}) {
    if (flags.given(flag)) {
      errors.push_back(refusal(ErrorCode::kConflict,
                               strf("--{} and --tls-cert exclude each other", flag), flag,
                               flags.text(flag)));
      errors.back().hints = {
          strf("with TLS the certificates say who is who: leave --{} out", flag)};
    }
  }
  auto loaded =
      net::Tls::load({flags.text("tls-cert"), flags.text("tls-key"), flags.text("tls-ca")});
  if (loaded) {
    request.options.tls = std::move(*loaded);
  } else {
    errors.push_back(fleet::flag_error_of(loaded.error()));
  }
}

void read_http(const FlagValues& flags, SyncerRequest& request) {
  if (!flags.has("http")) {
    return;
  }
  request.options.http = read_address(flags, "http", request.errors);
  if (request.options.http && !net::is_loopback(*request.options.http)) {
    request.errors.push_back(refusal(ErrorCode::kPermission,
                                     "--http: status pages are served on loopback only", "http",
                                     flags.text("http")));
    request.errors.back().hints = {
        "give 127.0.0.1:PORT or [::1]:PORT; from another machine, forward that port (ssh -L)"};
  }
}

void read_wiring(const FlagValues& flags, SyncerRequest& request) {
  sync::ServerOptions& options = request.options;
  options.bind = read_address(flags, "bind", request.errors).value_or(options.bind);
  read_credentials(flags, request);
  read_http(flags, request);
  request.checkpoint = flags.text("checkpoint");
  request.checkpoint_copy = flags.text("checkpoint-copy");
  options.resume = flags.on("resume");
  options.endpoint = flags.text("endpoint");
  options.status = flags.text("status");
  options.tape = flags.text("tape");
}

// The recipe of the run: what the checkpoint's manifest and the tape tell.
sync::TextPairs settings_of(const FlagValues& flags) {
  sync::TextPairs settings{{"learners", flags.text("learners")}};
  for (const fleet::FlagSpec& spec : fleet::flag_table()) {
    const bool recipe = spec.section != "wiring" && spec.section != "common";
    if (recipe && (spec.verbs & fleet::kSyncer) != 0 && flags.has(spec.name)) {
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
  read_fixed_roster(line.values, request);
  read_data_leases(line.values, request);
  read_rounds(line.values, request.options.core);
  read_values(line.values, request.options);
  read_wiring(line.values, request);
  request.options.settings = settings_of(line.values);
  return request;
}

std::vector<std::string> limit_lines(const sync::ServerOptions& options) {
  const sync::CoreOptions& core = options.core;
  const auto of = [](Nanos time) { return strf("{:g} s", seconds(time)); };
  std::vector<std::string> lines = {
      strf("start {}, final acknowledgement {}, leave {}", of(core.start_timeout),
           of(core.final_timeout), of(options.leave_limit)),
      strf("round {}, shortest round {} ms, grace {}", of(core.round_timeout),
           core.min_round / kMillisecond,
           core.grace_cap ? strf("at most {} ms", *core.grace_cap / kMillisecond) : "auto"),
      strf("lease {} ms, heartbeat {} ms, stall at least 60 s or 10 step times",
           core.lease / kMillisecond, core.heartbeat / kMillisecond),
      strf("strangers: {} at once, first frame {} bytes within {}, handshake included",
           options.max_unadmitted, wire::kMaxUnadmittedBytes, of(options.first_frame_timeout)),
      strf("checkpoint every {}, status every {}, watchdog {}", of(core.checkpoint_every),
           of(options.status_interval), of(options.watchdog_limit)),
      strf("late pushes up to {} merges, buffers {}", core.max_lag,
           core.max_buffer == 0 ? "auto" : strf("{} bytes", core.max_buffer))};
  if (!core.fixed_roster.empty()) {
    lines.push_back(strf("fixed roster of {} seats, a lost one is awaited for {}",
                         core.fixed_roster.size(), of(core.recover_timeout)));
  }
  return lines;
}

}  // namespace yeto::apps
