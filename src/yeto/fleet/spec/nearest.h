// SPDX-License-Identifier: Apache-2.0
// Names near to a mistyped one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace yeto::fleet {

// Number of single-character insertions, deletions, substitutions and swaps of neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Up to `count` of `names`, nearest first (equal distance: order of `names`). Names that share
// nothing with `word` are left out: the distance must be at most half the longer length, or one
// starts the other.
std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& names,
                                 std::size_t count);

// "a, b or c"
std::string or_list(const std::vector<std::string>& items);

}  // namespace yeto::fleet
