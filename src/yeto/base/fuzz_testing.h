// SPDX-License-Identifier: Apache-2.0
// What fuzz targets share: reading a script from the input, files for decoders that take a path,
// and examples. Not thread-safe; one process, one input at a time.
//
// Where random bytes would never become a good input, a target names its examples:
//   Bytes example(Rng& rng) { … }
//   YETO_FUZZ_EXAMPLES(example)
// Then now and then a mutation begins with one of them instead of the bytes at hand, so that the
// target needs no corpus of files.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "yeto/base/bytes.h"
#include "yeto/base/files.h"
#include "yeto/base/result.h"
#include "yeto/base/rng.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max);

namespace yeto::fuzz {

// The input as a script: at its end every number is 0.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : left_(data, size) {}
  bool empty() const { return left_.empty(); }
  template <class T>
  T number() {
    T value{};
    const ByteView bytes = take(sizeof(T));
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  std::uint8_t byte() { return number<std::uint8_t>(); }
  bool coin() { return (byte() & 1U) != 0; }
  // In [0, bound), from one byte up to 256 and from four above.
  std::uint64_t below(std::uint64_t bound) {
    return (bound <= 256 ? byte() : number<std::uint32_t>()) % bound;
  }
  // At most `count` bytes of what is left.
  ByteView take(std::size_t count) {
    const ByteView out = left_.first(std::min(count, left_.size()));
    left_ = left_.subspan(out.size());
    return out;
  }
  ByteView rest() { return take(left_.size()); }

 private:
  ByteView left_;
};

inline std::string_view text_of(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline Bytes bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

// A folder of this process, in memory where the system has such a place; gone at exit.
class Folder {
 public:
  Folder() {
    const char* const place = std::filesystem::is_directory("/dev/shm") ? "/dev/shm" : "/tmp";
    std::string name = std::string(place) + "/yeto-fuzz-XXXXXX";
    YETO_CHECK(::mkdtemp(name.data()) != nullptr, "no folder for the files of a fuzz target");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  // A file that only its owner can read, as keys must be.
  std::filesystem::path write(std::string_view name, ByteView bytes) const {
    std::filesystem::path path = path_ / name;
    const FileHandle file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    YETO_CHECK(file && write_all(file.get(), bytes, path), "a file of a fuzz target");
    return path;
  }

 private:
  std::filesystem::path path_;
};

// One mutation in this many begins with an example.
inline constexpr std::uint64_t kExampleEvery = 64;

// An example of a script: any bytes are one.
inline Bytes any_script(Rng& rng) {
  Bytes out(16 + rng.below(600));
  for (std::uint8_t& byte : out) {
    byte = static_cast<std::uint8_t>(rng.next());
  }
  return out;
}

template <class Example>
std::size_t mutate(std::uint8_t* data, std::size_t size, std::size_t max, unsigned seed,
                   Example example) {
  Rng rng(seed);
  if (rng.below(kExampleEvery) == 0 || size < 2) {
    const Bytes bytes = example(rng);
    size = std::min(max, bytes.size());
    std::copy_n(bytes.begin(), size, data);
    if (rng.below(2) == 0) {
      return size;  // as it is: others are mutated from it
    }
  }
  return LLVMFuzzerMutate(data, size, max);
}

}  // namespace yeto::fuzz

#define YETO_FUZZ_EXAMPLES(example)                                                              \
  extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,           \
                                                 std::size_t max, unsigned seed) {               \
    return ::yeto::fuzz::mutate(data, size, max, seed,                                           \
                                [](::yeto::Rng& rng) -> ::yeto::Bytes { return example(rng); }); \
  }
