// SPDX-License-Identifier: Apache-2.0
// Byte sequences and little-endian readers and writers. All wire and file formats are
// little-endian.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace yeto {

static_assert(std::endian::native == std::endian::little, "Yeto runs on little-endian machines");

using Bytes = std::vector<std::uint8_t>;
using ByteView = std::span<const std::uint8_t>;
using MutableByteView = std::span<std::uint8_t>;

inline ByteView as_bytes_view(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}
template <class T>
  requires std::is_trivially_copyable_v<T>
ByteView as_bytes_view(std::span<const T> values) {
  return {reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes()};
}

// Lower-case hex of the bytes.
std::string hex(ByteView bytes);
// The bytes of lower- or upper-case hex; nothing if the text is not hex of even length.
std::optional<Bytes> from_hex(std::string_view text);

// Appends little-endian values to a byte vector it does not own.
class ByteWriter {
 public:
  explicit ByteWriter(Bytes& out) : out_(out) {}
  template <class T>
    requires std::is_arithmetic_v<T>
  void number(T value) {
    raw({reinterpret_cast<const std::uint8_t*>(&value), sizeof(T)});
  }
  // Not vector::insert: g++ 12 sees overflows in it that are not there.
  void raw(ByteView bytes) {
    const std::size_t before = out_.size();
    out_.resize(before + bytes.size());
    std::copy(bytes.begin(), bytes.end(), out_.begin() + static_cast<std::ptrdiff_t>(before));
  }

 private:
  Bytes& out_;
};

// Reads little-endian values; every read says whether the bytes were there. Never reads past the
// end.
class ByteReader {
 public:
  explicit ByteReader(ByteView in) : in_(in) {}
  template <class T>
    requires std::is_arithmetic_v<T>
  bool number(T& value) {
    if (in_.size() < sizeof(T)) {
      return false;
    }
    std::memcpy(&value, in_.data(), sizeof(T));
    in_ = in_.subspan(sizeof(T));
    return true;
  }
  bool raw(std::size_t count, ByteView& out) {
    if (in_.size() < count) {
      return false;
    }
    out = in_.first(count);
    in_ = in_.subspan(count);
    return true;
  }
  std::size_t left() const { return in_.size(); }

 private:
  ByteView in_;
};

}  // namespace yeto
