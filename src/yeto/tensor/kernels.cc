// SPDX-License-Identifier: Apache-2.0
// Which loops run. Compiled without flags for an instruction set and without link-time
// optimisation, so that the question itself runs on every machine.
#include "yeto/tensor/kernels.h"

#include <algorithm>
#include <cstdlib>

#include "yeto/base/log.h"

namespace yeto {
namespace {

bool cpu_has_v3() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi") != 0 &&
         __builtin_cpu_supports("bmi2") != 0 && __builtin_cpu_supports("popcnt") != 0 &&
         __builtin_cpu_supports("fma") != 0 && __builtin_cpu_supports("lzcnt") != 0 &&
         __builtin_cpu_supports("movbe") != 0 && __builtin_cpu_supports("f16c") != 0;
#else
  return false;
#endif
}

const Kernels* choose() {
  const std::vector<const Kernels*> supported = supported_kernels();
  const char* wanted = std::getenv("YETO_ISA");
  if (wanted != nullptr) {
    if (const Kernels* found = kernels_by_name(wanted, supported)) {
      return found;
    }
    std::string names;
    for (const Kernels* table : supported) {
      names += strf("{}{}", names.empty() ? "" : ", ", table->name);
    }
    log(LogLevel::kError, "tensor",
        "YETO_ISA={} is no instruction set that this build has and this machine can run ({}); {} "
        "is "
        "used",
        wanted, names, supported.back()->name);
  }
  return supported.back();
}

}  // namespace

double fold(const Lanes& lanes) {
  Lanes sum = lanes;
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) {
      sum[i] += sum[i + half];
    }
  }
  return sum[0];
}

std::vector<const Kernels*> supported_kernels() {
  std::vector<const Kernels*> out{kernels_base()};
  if (kernels_v3() != nullptr && cpu_has_v3()) {
    out.push_back(kernels_v3());
  }
  return out;
}

const Kernels* kernels_by_name(std::string_view name, const std::vector<const Kernels*>& among) {
  if (name.empty()) {
    return among.back();
  }
  const auto found = std::find_if(among.begin(), among.end(),
                                  [&](const Kernels* table) { return table->name == name; });
  return found == among.end() ? nullptr : *found;
}

const Kernels& kernels() {
  static const Kernels* const chosen = choose();
  return *chosen;
}

}  // namespace yeto
