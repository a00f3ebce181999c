// SPDX-License-Identifier: Apache-2.0
#include "yeto/tensor/bf16.h"

#include "yeto/tensor/kernels.h"

namespace yeto {

void bf16_from_f32(const float* in, std::uint16_t* out, std::size_t count) {
  kernels().encode_bf16(in, out, count);
}

void f32_from_bf16(const std::uint16_t* in, float* out, std::size_t count) {
  kernels().decode_bf16(in, out, count);
}

}  // namespace yeto
