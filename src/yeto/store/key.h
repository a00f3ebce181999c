// SPDX-License-Identifier: Apache-2.0
// What all kinds of store check alike. Internal to this room.
#pragma once

#include <cstdint>
#include <string_view>

#include "yeto/base/result.h"

namespace yeto::store {

inline constexpr std::size_t kMaxKeyBytes = 200;

// kConfig unless the key is one plain file name.
Status check_key(std::string_view key);
Error too_large(std::string_view key, std::uint64_t bytes, std::uint64_t max_bytes);

}  // namespace yeto::store
