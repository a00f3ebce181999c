// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "yeto/fleet/spec/flag_error.h"

namespace yeto::fleet {

std::string errors_as_json(const std::vector<FlagError>& errors) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const FlagError& error : errors) {
    Json where = {{"source", error.flag.empty() ? Json(nullptr) : Json("argv")},
                  {"flag", error.flag.empty() ? Json(nullptr) : Json(error.flag)},
                  {"value", error.flag.empty() ? Json(nullptr) : Json(error.value)},
                  {"offset", error.length > 0 ? Json(error.offset) : Json(nullptr)},
                  {"length", error.length > 0 ? Json(error.length) : Json(nullptr)}};
    list.push_back({{"code", error_name(error.code)},
                    {"what", error.what},
                    {"where", where},
                    {"why", error.why.empty() ? Json(nullptr) : Json(error.why)},
                    {"hint", error.hints}});
  }
  const Json out = {{"schema", "yeto.error/1"}, {"errors", list}};
  // Values come from argv and may be no UTF-8; they are shown with replacement characters.
  return out.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace yeto::fleet
