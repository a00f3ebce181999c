// SPDX-License-Identifier: Apache-2.0
// The lines of JSON-RPC 2.0. Internal to this room; pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "yeto/base/result.h"

namespace yeto::bridge {

// One line without its end. kInternal if `params` is no JSON object.
Result<std::string> request_line(std::uint64_t id, std::string_view method,
                                 std::string_view params);
// The result of a reply as text, or the error it carries. kProtocol for a line that is no reply to
// that request.
Result<std::string> parse_reply(std::string_view line, std::uint64_t id);

}  // namespace yeto::bridge
