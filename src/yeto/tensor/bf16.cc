// SPDX-License-Identifier: Apache-2.0
#include "yeto/tensor/bf16.h"

namespace yeto {

void bf16_from_f32(const float* __restrict in, std::uint16_t* __restrict out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = bf16_from_f32(in[i]);
  }
}

void f32_from_bf16(const std::uint16_t* __restrict in, float* __restrict out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = f32_from_bf16(in[i]);
  }
}

}  // namespace yeto
