// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "yeto/base/files.h"
#include "yeto/fleet/run/observed.h"

namespace yeto::fleet {
namespace {

using Json = nlohmann::json;

template <class T>
std::optional<T> number(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) {
    return std::nullopt;
  }
  return found->get<T>();
}

std::string text(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || !found->is_string() ? "" : found->get<std::string>();
}

SeatStatus seat_of(const Json& json) {
  SeatStatus out;
  out.seat = number<int>(json, "seat").value_or(-1);
  out.state = text(json, "state");
  out.phase = text(json, "phase");
  const auto incarnation = json.find("incarnation");
  if (incarnation != json.end() && !incarnation->is_null()) {
    out.incarnation =
        incarnation->is_string() ? incarnation->get<std::string>() : incarnation->dump();
  }
  out.local_step = number<std::int64_t>(json, "local_step");
  out.tokens = number<std::int64_t>(json, "tokens");
  out.version_lag = number<std::int64_t>(json, "version_lag");
  out.pushes = number<std::int64_t>(json, "pushes");
  out.merged = number<std::int64_t>(json, "merged");
  out.dropped = number<std::int64_t>(json, "dropped");
  out.bytes_pushed = number<std::int64_t>(json, "bytes_pushed");
  out.bytes_received = number<std::int64_t>(json, "bytes_received");
  out.participation = number<double>(json, "participation");
  out.heartbeat_age_s = number<double>(json, "heartbeat_age_s");
  return out;
}

// The last `most` bytes of a file; empty if it cannot be read.
std::string tail_of(const std::filesystem::path& path, std::size_t most) {
  FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const off_t size = file ? ::lseek(file.get(), 0, SEEK_END) : 0;
  if (size <= 0) {
    return "";
  }
  const auto want = std::min(static_cast<std::size_t>(size), most);
  std::string out(want, '\0');
  const ssize_t count = ::pread(file.get(), out.data(), want, size - static_cast<off_t>(want));
  out.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return out;
}

}  // namespace

Result<SyncerStatus> read_syncer_status(const std::filesystem::path& path) {
  YETO_ASSIGN(const std::string body, read_text_file(path, std::size_t{1} << 26));
  const Json json = Json::parse(body, nullptr, false);
  if (!json.is_object()) {
    return fail(ErrorCode::kDamaged, "is not a JSON object", path.string());
  }
  SyncerStatus out;
  out.phase = text(json, "phase");
  out.global_step = number<std::int64_t>(json, "global_step");
  out.total_steps = number<std::int64_t>(json, "total_steps");
  out.run_tokens = number<std::int64_t>(json, "run_tokens");
  out.pid = number<std::int64_t>(json, "pid").value_or(0);
  out.updated_at = number<double>(json, "updated_at").value_or(0);
  out.exit = number<int>(json, "exit");
  const auto seats = json.find("seats");
  if (seats != json.end() && seats->is_array()) {
    for (const Json& seat : *seats) {
      if (seat.is_object()) {
        out.seats.push_back(seat_of(seat));
      }
    }
  }
  return out;
}

event::Report report_of(const SyncerStatus& status) {
  event::Report out;
  out.phase = status.phase;
  out.global_step = status.global_step.value_or(0);
  for (const SeatStatus& seat : status.seats) {
    const bool silent = seat.state == "suspended" || seat.state == "lost";
    out.seats.push_back(SeatReport{.seat = seat.seat,
                                   .joined = !seat.state.empty() && seat.state != "joining",
                                   .live = !silent && seat.state != "joining",
                                   .phase = seat.phase,
                                   .incarnation = seat.incarnation,
                                   .local_step = seat.local_step.value_or(0)});
  }
  return out;
}

IslandMetrics read_last_metrics(const std::filesystem::path& path) {
  IslandMetrics out;
  const std::string body = tail_of(path, 1 << 16);
  // From the end to the first line that is a step; the newest line may be torn.
  for (std::size_t end = body.size(); end > 0;) {
    const std::size_t newline = body.rfind('\n', end - 1);
    const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
    const Json json = Json::parse(body.begin() + static_cast<std::ptrdiff_t>(begin),
                                  body.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    if (json.is_object() && !json.contains("event") && json.contains("step")) {
      out.loss = number<double>(json, "loss");
      out.tokens_per_s = number<double>(json, "tok_s");
      out.step = number<std::int64_t>(json, "step");
      out.tokens = number<std::int64_t>(json, "tokens");
      out.targets = number<std::int64_t>(json, "targets");
      return out;
    }
    end = newline == std::string::npos ? 0 : newline;
  }
  return out;
}

}  // namespace yeto::fleet
