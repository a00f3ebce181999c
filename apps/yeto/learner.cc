// SPDX-License-Identifier: Apache-2.0
// `yeto learner …` is `python -m yeto.learner …`: this process is replaced, so that signals arrive
// there.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "cli.h"
#include "verbs.h"
#include "yeto/base/format.h"
#include "yeto/base/process.h"

namespace yeto::apps {

int run_learner(int argc, char** argv) {
  const Result<std::string> python = find_python();
  if (!python) {
    return report(python.error(), false);
  }
  std::vector<std::string> words = {*python, "-m", "yeto.learner"};
  words.insert(words.end(), argv + 1, argv + argc);
  std::vector<char*> pointers = exec_pointers(words);
  ::execvp(pointers[0], pointers.data());
  return report(Error{ErrorCode::kSetup, strf("cannot start {}: {}", *python, std::strerror(errno)),
                      "", "set YETO_PYTHON to a Python that has yeto"},
                false);
}

}  // namespace yeto::apps
