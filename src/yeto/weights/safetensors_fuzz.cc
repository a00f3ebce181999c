// SPDX-License-Identifier: Apache-2.0
// Any bytes: parsed or refused, and what was parsed covers its data exactly.
#include "yeto/weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace yeto;
  const auto file = weights::SafetensorsView::parse({data, size}, "input");
  if (file) {
    std::uint64_t next = 0;
    for (const weights::TensorInfo& tensor : file->tensors()) {
      YETO_CHECK(tensor.begin == next, "a hole or an overlap");
      YETO_CHECK(file->find(tensor.name) == &tensor, "a tensor that its name does not find");
      next += file->bytes(tensor).size();
    }
  }
  // The header alone, against a data section of the input's size.
  static_cast<void>(weights::parse_header({data, size}, size, "input"));
  return 0;
}
