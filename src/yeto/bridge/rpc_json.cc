// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <optional>

#include "yeto/base/format.h"
#include "yeto/bridge/rpc.h"

namespace yeto::bridge {
namespace {

using Json = nlohmann::ordered_json;

std::optional<ErrorCode> code_of(std::string_view name) {
#define YETO_ERROR(id, text, exit_code, meaning) \
  if (name == (text)) {                          \
    return ErrorCode::id;                        \
  }
#include "yeto/base/errors.def"
#undef YETO_ERROR
  return std::nullopt;
}

std::string text_of(const Json& in, const char* key) {
  const Json value = in.is_object() ? in.value(key, Json()) : Json();
  return value.is_string() ? value.get<std::string>() : std::string();
}

tl::unexpected<Error> no_reply(std::string_view line) {
  return fail(ErrorCode::kProtocol, "the bridge answered with something that is no reply",
              std::string(line.substr(0, 200)));
}

}  // namespace

Result<std::string> request_line(std::uint64_t id, std::string_view method,
                                 std::string_view params) {
  Json json = Json::parse(params, nullptr, false);
  if (!json.is_object()) {
    return fail(ErrorCode::kInternal, "the parameters of a call are no JSON object",
                std::string(method));
  }
  const Json out{{"jsonrpc", "2.0"}, {"id", id}, {"method", method}, {"params", std::move(json)}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<std::string> parse_reply(std::string_view line, std::uint64_t id) {
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object() || json.value("jsonrpc", Json()) != "2.0" ||
      json.value("id", Json()) != id) {
    return no_reply(line);
  }
  if (json.contains("error")) {
    const Json& error = json["error"];
    const Json data = error.is_object() ? error.value("data", Json()) : Json();
    return fail(code_of(text_of(data, "error")).value_or(ErrorCode::kInternal),
                text_of(error, "message"), text_of(data, "where"), text_of(data, "hint"));
  }
  if (!json.contains("result") || !json["result"].is_object()) {
    return no_reply(line);
  }
  return json["result"].dump();
}

}  // namespace yeto::bridge
