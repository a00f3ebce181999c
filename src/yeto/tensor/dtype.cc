// SPDX-License-Identifier: Apache-2.0
#include "yeto/tensor/dtype.h"

#include <array>

#include "yeto/base/result.h"

namespace yeto {
namespace {

struct Row {
  std::string_view name;
  std::uint64_t bytes;
};
// Indexed by DType.
constexpr std::array<Row, 10> kRows{{{"F32", 4},
                                     {"BF16", 2},
                                     {"F16", 2},
                                     {"F64", 8},
                                     {"I64", 8},
                                     {"I32", 4},
                                     {"I16", 2},
                                     {"I8", 1},
                                     {"U8", 1},
                                     {"BOOL", 1}}};

const Row& row(DType dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  YETO_CHECK(index < kRows.size(), "a DType is not one of its enumerators");
  return kRows[index];
}

}  // namespace

std::uint64_t dtype_bytes(DType dtype) { return row(dtype).bytes; }

std::string_view dtype_name(DType dtype) { return row(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) {
      return static_cast<DType>(i);
    }
  }
  return std::nullopt;
}

}  // namespace yeto
