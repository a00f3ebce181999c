// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <climits>

#include "yeto/base/process.h"

namespace yeto {

std::string own_program() {
  char path[PATH_MAX];
  const ssize_t count = ::readlink("/proc/self/exe", path, sizeof path);
  return count > 0 ? std::string(path, static_cast<std::size_t>(count)) : std::string();
}

}  // namespace yeto
