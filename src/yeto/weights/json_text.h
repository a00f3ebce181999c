// SPDX-License-Identifier: Apache-2.0
// Internal to this room.
#pragma once

#include <string>
#include <string_view>

namespace yeto::weights::json_text {

std::string quoted(std::string_view text);

}  // namespace yeto::weights::json_text
