// SPDX-License-Identifier: Apache-2.0
// The loops as the compiler makes them for the oldest machine of this build (arm64: with NEON).
#include "yeto/tensor/kernels_loops.h"

namespace yeto {

const Kernels* kernels_base() {
  static constexpr Kernels kTable = table_of("base");
  return &kTable;
}

}  // namespace yeto
