// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/jobs/parallel.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "yeto/base/thread.h"

namespace yeto::sync {

void run_parallel(std::size_t parts, int threads, const std::function<void(std::size_t)>& run) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t part = next++; part < parts; part = next++) {
      run(part);
    }
  };
  const std::size_t workers =
      std::min<std::size_t>(parts, static_cast<std::size_t>(std::max(threads, 1)));
  std::vector<JoiningThread> others;
  for (std::size_t i = 1; i < workers; ++i) {
    others.emplace_back(work);
  }
  work();
}

}  // namespace yeto::sync
