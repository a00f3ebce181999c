// SPDX-License-Identifier: Apache-2.0
// Internal to this room: JSON that stands in the metadata of a fragment's file.
#pragma once

#include <cstdint>
#include <string>

#include "yeto/tensor/layout.h"

namespace yeto::sync::checkpoint {

// [{"tensor": "w", "dtype": "F32", "shape": [2, 3], "first": 0, "count": 6, "offset": 0}, …]
std::string pieces_to_json(const Layout& layout, std::uint32_t fragment);

}  // namespace yeto::sync::checkpoint
