// SPDX-License-Identifier: Apache-2.0
// Runs a program to its end and keeps what it printed.
#pragma once

#include <string>
#include <vector>

#include "yeto/base/result.h"

namespace yeto::apps {

struct Captured {
  int exit = 0;  // 128 + signal if a signal ended it
  std::string out;
  std::string err;
};

// stdin is closed. The program stays in this process group, so Ctrl-C reaches it too.
Result<Captured> run_captured(std::vector<std::string> argv);

}  // namespace yeto::apps
