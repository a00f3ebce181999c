// SPDX-License-Identifier: Apache-2.0
#include "yeto/fleet/spec/nearest.h"

#include <algorithm>
#include <utility>

namespace yeto::fleet {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1);
  std::vector<std::size_t> above(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) {
    above[j] = j;
  }
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& names,
                                 std::size_t count) {
  // (distance, place in `names`): the place keeps the order of equal distances.
  std::vector<std::pair<std::size_t, std::size_t>> ranked;
  for (std::size_t at = 0; at < names.size(); ++at) {
    const std::string& name = names[at];
    const bool starts = !word.empty() && (name.starts_with(word) || word.starts_with(name));
    const std::size_t distance = edit_distance(word, name);
    if (starts || distance <= std::max(word.size(), name.size()) / 2) {
      ranked.emplace_back(starts ? std::min<std::size_t>(distance, 2) : distance, at);
    }
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> out;
  for (std::size_t i = 0; i < std::min(count, ranked.size()); ++i) {
    out.push_back(names[ranked[i].second]);
  }
  return out;
}

std::string or_list(const std::vector<std::string>& items) {
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    out += (i == 0 ? "" : i + 1 == items.size() ? " or " : ", ") + items[i];
  }
  return out;
}

}  // namespace yeto::fleet
