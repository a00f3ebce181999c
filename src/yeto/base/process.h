// SPDX-License-Identifier: Apache-2.0
// What every place that starts a program needs: which program, and the attributes of posix_spawn.
#pragma once

#include <spawn.h>

#include <string>
#include <vector>

#include "yeto/base/result.h"

namespace yeto {

// Path of this program's file; empty if the system does not say.
std::string own_program();
// $YETO_PYTHON, else python3 or python beside this program, else python3 on PATH. kSetup if there
// is none.
Result<std::string> find_python();

// Pointers to the texts and a null at the end, as exec wants them. Valid while the texts are.
std::vector<char*> exec_pointers(std::vector<std::string>& texts);

// Owns what posix_spawn needs.
struct SpawnSetup {
  SpawnSetup();
  ~SpawnSetup();
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;
  // The child begins with no blocked and no ignored signal, whatever this process does with them,
  // and apart from this process's group: `group_flag` is POSIX_SPAWN_SETPGROUP or _SETSID.
  void stand_apart(short group_flag);

  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
};

}  // namespace yeto
