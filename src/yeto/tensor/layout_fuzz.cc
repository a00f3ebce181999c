// SPDX-License-Identifier: Apache-2.0
// Any bytes as a layout: refused, or a layout whose encoding they are.
#include <algorithm>

#include "yeto/tensor/layout.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace yeto;
  const ByteView bytes(data, size);
  const auto layout = Layout::decode(bytes);
  if (layout) {
    const Bytes again = layout->encode();
    YETO_CHECK(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()),
               "a layout with two encodings");
    YETO_CHECK(first_difference(*layout, *layout).empty(), "a layout that differs from itself");
    YETO_CHECK(tensor_hashes(*layout).size() == layout->tensors.size(), "a hash per tensor");
  }
  return 0;
}
