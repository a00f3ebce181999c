// SPDX-License-Identifier: Apache-2.0
#include "yeto/base/rng.h"

#include <openssl/rand.h>

#include "yeto/base/result.h"

namespace yeto {

void random_bytes(MutableByteView out) {
  YETO_CHECK(RAND_bytes(out.data(), static_cast<int>(out.size())) == 1, "no random bytes");
}

std::uint64_t random_u64() {
  std::uint64_t value = 0;
  random_bytes({reinterpret_cast<std::uint8_t*>(&value), sizeof value});
  return value;
}

}  // namespace yeto
