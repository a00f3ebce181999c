// SPDX-License-Identifier: Apache-2.0
// The loops for x86-64-v3 (AVX2). Compiled with flags for it; only the table's functions use them.
#include "yeto/tensor/kernels_loops.h"

namespace yeto {

const Kernels* kernels_v3() {
  static constexpr Kernels kTable = table_of("v3");
  return &kTable;
}

}  // namespace yeto
