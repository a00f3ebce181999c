// SPDX-License-Identifier: Apache-2.0
// The loops of kernels.h. Included by one .cc file per instruction set and by nothing else, and so
// are the kernels_loops_*.h it is made of.
//
// Everything here has internal linkage and nothing is called that another file could share: a
// function of the standard library that is not inlined would be merged by the linker with the
// copies of all other files, and machines without this instruction set would run it.
#pragma once

#include "yeto/tensor/kernels_loops_q4.h"
#include "yeto/tensor/kernels_loops_step.h"

namespace yeto {
namespace {

bool encode_bf16(const float* __restrict x, std::uint16_t* __restrict image, std::size_t count) {
  std::uint16_t bad = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t value = bf16_from_f32(x[i]);
    image[i] = value;
    bad = static_cast<std::uint16_t>(bad | not_finite(value));
  }
  return bad == 0;
}

void decode_bf16(const std::uint16_t* __restrict image, float* __restrict out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = f32_from_bf16(image[i]);
  }
}

constexpr Kernels table_of(const char* name) {
  return {name,
          sum<float>,
          sum<std::uint16_t>,
          mean_step<float>,
          mean_step<std::uint16_t>,
          scaled_step,
          blend,
          squares<float>,
          squares<std::uint16_t>,
          dots,
          encode_bf16,
          decode_bf16,
          encode_q4,
          decode_q4,
          encode_q4_feedback,
          encode_q4_change,
          apply_q4};
}

}  // namespace
}  // namespace yeto
