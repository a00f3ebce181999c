// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "yeto/base/bytes.h"
#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/sync/boundary/endpoint.h"

namespace yeto::sync::client {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxEndpointBytes = 64U << 10;
constexpr std::size_t kMaxMetricBytes = 8192;

Status check_reach(const net::Address& address, Reach reach) {
  if (reach == Reach::kAnywhere || net::is_loopback(address)) {
    return Unit{};
  }
  return fail(ErrorCode::kPermission,
              strf("{} is on another machine, and there is no TLS", address.text()), {},
              "give --tls-cert, --tls-key and --tls-ca; or --insecure for plain TCP on a network "
              "where nobody else can listen");
}

Error unreadable(const std::filesystem::path& file, std::string what) {
  return Error{ErrorCode::kConfig, std::move(what), file.string(),
               "the syncer writes this file when it starts"};
}

}  // namespace

Result<Endpoint> Endpoint::parse(std::string_view text, std::string run_id, Reach reach) {
  Endpoint endpoint;
  endpoint.reach_ = reach;
  endpoint.run_id_ = std::move(run_id);
  if (text.starts_with('@')) {
    endpoint.file_ = std::string(text.substr(1));
    if (endpoint.file_.empty()) {
      return fail(ErrorCode::kUsage, "the syncer's address is '@' without a file", {},
                  "give HOST:PORT or @RUN/endpoint.json");
    }
    return endpoint;
  }
  YETO_ASSIGN(endpoint.address_, net::parse_address(text));
  if (endpoint.address_.port == 0) {
    return fail(ErrorCode::kUsage, strf("{}: port 0 cannot be connected to", text));
  }
  YETO_TRY(check_reach(endpoint.address_, reach));
  return endpoint;
}

std::string Endpoint::text() const {
  return file_.empty() ? address_.text() : "@" + file_.string();
}

Result<net::Address> Endpoint::resolve() const {
  if (file_.empty()) {
    return address_;
  }
  YETO_ASSIGN(const std::string text, read_text_file(file_, kMaxEndpointBytes));
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("host") || !json["host"].is_string() ||
      !json.contains("port") || !json["port"].is_number_unsigned()) {
    return fail(unreadable(file_, "not an endpoint file: host and port are missing"));
  }
  const auto port = json["port"].get<std::uint64_t>();
  if (port == 0 || port > 65535) {
    return fail(unreadable(file_, strf("port {} is not from 1 to 65535", port)));
  }
  if (json.contains("run_id") && json["run_id"].is_string() &&
      json["run_id"].get<std::string>() != run_id_) {
    return fail(ErrorCode::kConflict,
                strf("the endpoint is of run {}, this learner belongs to run {}",
                     json["run_id"].get<std::string>(), run_id_),
                file_.string(), "give the endpoint file of this run");
  }
  const net::Address address{json["host"].get<std::string>(), static_cast<std::uint16_t>(port)};
  YETO_TRY(check_reach(address, reach_));
  return address;
}

Result<SeatKey> read_seat_key(const std::filesystem::path& path) {
  YETO_ASSIGN(const std::string text, read_text_file(path, 4096));
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) {
    return fail(io_error("cannot look at the key file", path.string(), errno));
  }
  if ((info.st_mode & 0077) != 0) {
    return fail(ErrorCode::kPermission, "the key file can be read by others", path.string(),
                "chmod 600 on it, and make new keys if others may have read it");
  }
  const auto end = std::find_if(text.begin(), text.end(),
                                [](char c) { return c == '\n' || c == '\r' || c == ' '; });
  const auto bytes = from_hex(std::string_view(text.data(), end - text.begin()));
  SeatKey key{};
  if (!bytes || bytes->size() != key.size()) {
    return fail(ErrorCode::kData, "not a key: 64 hex digits are expected", path.string(),
                "give the seat-<n>.key file that was made for this seat");
  }
  std::copy(bytes->begin(), bytes->end(), key.begin());
  return key;
}

Status check_metric(std::string_view text) {
  if (text.size() > kMaxMetricBytes) {
    return fail(ErrorCode::kData,
                strf("a metric of {} bytes; at most {} are taken", text.size(), kMaxMetricBytes));
  }
  if (text.find('\n') != std::string_view::npos) {
    return fail(ErrorCode::kData, "a metric of several lines");
  }
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) {
    return fail(ErrorCode::kData, "a metric that is not one JSON object");
  }
  return Unit{};
}

}  // namespace yeto::sync::client
