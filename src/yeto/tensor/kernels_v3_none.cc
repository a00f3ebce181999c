// SPDX-License-Identifier: Apache-2.0
// In place of kernels_v3.cc where the machine is not x86-64.
#include "yeto/tensor/kernels.h"

namespace yeto {

const Kernels* kernels_v3() { return nullptr; }

}  // namespace yeto
