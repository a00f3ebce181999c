// SPDX-License-Identifier: Apache-2.0
// Element types of tensors in files and on the wire.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace yeto {

enum class DType : std::uint8_t {
  kF32 = 0,
  kBf16 = 1,
  kF16 = 2,
  kF64 = 3,
  kI64 = 4,
  kI32 = 5,
  kI16 = 6,
  kI8 = 7,
  kU8 = 8,
  kBool = 9
};

// How values travel: f32, bf16 or 4-bit blocks (codec room).
enum class CodecId : std::uint8_t { kF32 = 0, kBf16 = 1, kQ4 = 2 };

// Bytes of one element.
std::uint64_t dtype_bytes(DType dtype);
// The name safetensors gives it: "F32", "BF16", …
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace yeto
