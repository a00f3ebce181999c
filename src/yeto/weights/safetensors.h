// SPDX-License-Identifier: Apache-2.0
// safetensors files: 8 bytes header length, a JSON header, then the tensors' bytes without gaps.
// Reading takes nothing on trust: doubled names, bad offsets, overlaps, holes, wrong sizes, deep or
// oversized headers are refused (kData) with the tensor's name. Reading is zero-copy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/base/result.h"
#include "yeto/tensor/dtype.h"

namespace yeto::weights {

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

using Metadata = std::map<std::string, std::string>;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // bytes [begin, end) of the data section
  std::uint64_t end = 0;
  bool operator==(const TensorInfo&) const = default;
};

struct Header {
  std::vector<TensorInfo> tensors;  // ascending by begin, then name
  Metadata metadata;
  std::uint64_t data_bytes = 0;
};
// The JSON part alone; `data_bytes` is the size of the data section. `where` names the file in
// errors.
Result<Header> parse_header(ByteView json, std::uint64_t data_bytes, std::string_view where);

// A safetensors file in borrowed memory. Not owning; cheap to copy the views it gives.
class SafetensorsView {
 public:
  static Result<SafetensorsView> parse(ByteView file, std::string_view where);
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const Metadata& metadata() const { return header_.metadata; }
  // Null if there is none of that name.
  const TensorInfo* find(std::string_view name) const;
  // Bytes of a tensor of this file; not aligned for its dtype in files of other writers.
  ByteView bytes(const TensorInfo& tensor) const;
  // Values of an f32 tensor. kData if it is missing, of another dtype or not of `values` values.
  Result<std::vector<float>> read_f32(std::string_view name, std::uint64_t values) const;

 private:
  SafetensorsView(Header header, ByteView data, std::string where);
  Header header_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  ByteView data_;
  std::string where_;
};

// A file mapped into memory for as long as the object lives. The file must not be truncated
// meanwhile.
class SafetensorsFile {
 public:
  // kNotFound, kIo, kData.
  static Result<SafetensorsFile> open(const std::filesystem::path& path);
  const SafetensorsView& view() const { return *view_; }

 private:
  class Mapping;
  SafetensorsFile(std::shared_ptr<const Mapping> mapping, SafetensorsView view);
  std::shared_ptr<const Mapping> mapping_;
  std::shared_ptr<const SafetensorsView> view_;
};

// A tensor to write; `bytes` is borrowed.
struct TensorOut {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::uint64_t> shape;
  ByteView bytes;
};

// A file as parts, so that tensor bytes are not copied: the head (length and JSON), then the
// tensors ordered by element size (largest first, which keeps them aligned), dtype and name. Equal
// input, equal bytes.
struct FileParts {
  Bytes head;
  std::vector<ByteView> tensors;
  std::uint64_t bytes() const;
};
// kInternal for a doubled or reserved name, or bytes that do not fit the shape.
Result<FileParts> layout_file(std::span<const TensorOut> tensors, const Metadata& metadata);
// Writes a file that is whole or not there: temp, fsync, rename, directory fsync.
Status write_safetensors(const std::filesystem::path& path, std::span<const TensorOut> tensors,
                         const Metadata& metadata);

}  // namespace yeto::weights
