// SPDX-License-Identifier: Apache-2.0
// Run ids: ULIDs, 26 characters of Crockford's base 32, 48 bits of wall time and 80 random bits.
#pragma once

#include <string>
#include <string_view>

namespace yeto::fleet {

std::string make_ulid();
// The last six characters, lower case; they stand in the names of folders and processes.
std::string run6(std::string_view run_id);

}  // namespace yeto::fleet
