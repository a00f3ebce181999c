// SPDX-License-Identifier: Apache-2.0
// Random numbers. SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
// OOPSLA 2014) for everything that must replay from a seed; random_bytes for secrets and
// identities.
#pragma once

#include <cstdint>

#include "yeto/base/bytes.h"

namespace yeto {

// Finaliser of SplitMix64: a bijection of 64-bit values.
constexpr std::uint64_t mix64(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// Not thread-safe. Same seed, same numbers, on every machine.
class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() { return mix64(state_ += 0x9e3779b97f4a7c15ULL); }
  // Uniform in [0, bound); bound > 0.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  // Uniform in [0, 1) with 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

// Bytes of the operating system's generator. Aborts if it has none.
void random_bytes(MutableByteView out);
std::uint64_t random_u64();

}  // namespace yeto
