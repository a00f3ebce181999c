// SPDX-License-Identifier: Apache-2.0
#include <mach-o/dyld.h>

#include <climits>
#include <cstdint>
#include <cstdlib>

#include "yeto/base/process.h"

namespace yeto {

std::string own_program() {
  char path[PATH_MAX];
  std::uint32_t bytes = sizeof path;
  char real[PATH_MAX];
  if (::_NSGetExecutablePath(path, &bytes) != 0 || ::realpath(path, real) == nullptr) {
    return "";
  }
  return real;
}

}  // namespace yeto
