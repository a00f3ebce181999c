// SPDX-License-Identifier: Apache-2.0
// Internal to this room.
#pragma once

#include <cstddef>
#include <functional>

namespace yeto::sync {

// Calls `run` once for each of 0 … parts − 1 on up to `threads` threads (this one among them) and
// returns when all are done. `run` must be safe to call for different parts at once and must not
// throw.
void run_parallel(std::size_t parts, int threads, const std::function<void(std::size_t)>& run);

}  // namespace yeto::sync
