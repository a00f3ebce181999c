// SPDX-License-Identifier: Apache-2.0
#include "yeto/weights/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "yeto/base/files.h"
#include "yeto/base/format.h"

namespace yeto::weights {
namespace {

constexpr std::size_t kLengthBytes = 8;

tl::unexpected<Error> bad(std::string_view where, std::string what) {
  return fail(ErrorCode::kData, "safetensors file refused: " + std::move(what), std::string(where),
              "the file is damaged or was not written as safetensors");
}

}  // namespace

SafetensorsView::SafetensorsView(Header header, ByteView data, std::string where)
    : header_(std::move(header)), data_(data), where_(std::move(where)) {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
    by_name_.emplace(header_.tensors[i].name, i);
  }
}

Result<SafetensorsView> SafetensorsView::parse(ByteView file, std::string_view where) {
  std::uint64_t header_bytes = 0;
  ByteReader reader(file);
  if (!reader.number(header_bytes)) {
    return bad(where, strf("it has {} bytes, too few for a header", file.size()));
  }
  if (header_bytes > kMaxHeaderBytes) {
    return bad(where, strf("its header has {} bytes, at most {} are allowed", header_bytes,
                           kMaxHeaderBytes));
  }
  ByteView json;
  if (!reader.raw(static_cast<std::size_t>(header_bytes), json)) {
    return bad(where, strf("its header needs {} bytes, {} are there", header_bytes,
                           file.size() - kLengthBytes));
  }
  YETO_ASSIGN(Header header, parse_header(json, reader.left(), where));
  return SafetensorsView(std::move(header),
                         file.subspan(kLengthBytes + static_cast<std::size_t>(header_bytes)),
                         std::string(where));
}

const TensorInfo* SafetensorsView::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &header_.tensors[found->second];
}

ByteView SafetensorsView::bytes(const TensorInfo& tensor) const {
  YETO_CHECK(tensor.begin <= tensor.end && tensor.end <= data_.size(), "tensor of another file");
  return data_.subspan(tensor.begin, tensor.end - tensor.begin);
}

Result<std::vector<float>> SafetensorsView::read_f32(std::string_view name,
                                                     std::uint64_t values) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) {
    return bad(where_, strf("it has no tensor {}", name));
  }
  if (tensor->dtype != DType::kF32) {
    return bad(where_, strf("tensor {} is {}, not F32", name, dtype_name(tensor->dtype)));
  }
  const ByteView raw = bytes(*tensor);
  if (raw.size() != values * sizeof(float)) {
    return bad(where_,
               strf("tensor {} has {} values, not {}", name, raw.size() / sizeof(float), values));
  }
  std::vector<float> out(values);
  if (!raw.empty()) {
    std::memcpy(out.data(), raw.data(), raw.size());
  }
  return out;
}

// Unmapped when the last view of the file goes.
class SafetensorsFile::Mapping {
 public:
  static Result<std::shared_ptr<const Mapping>> map(const std::filesystem::path& path) {
    FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) {
      if (errno == ENOENT || errno == ENOTDIR) {
        return fail(ErrorCode::kNotFound, "file does not exist", path.string());
      }
      return fail(io_error("cannot open file", path.string(), errno));
    }
    struct stat info{};
    if (::fstat(file.get(), &info) != 0) {
      return fail(io_error("cannot read file", path.string(), errno));
    }
    if (!S_ISREG(info.st_mode)) {
      return fail(ErrorCode::kData, "it is not a file", path.string());
    }
    const auto size = static_cast<std::size_t>(info.st_size);
    if (size == 0) {
      return std::shared_ptr<const Mapping>(new Mapping(nullptr, 0));
    }
    void* start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (start == MAP_FAILED) {
      return fail(io_error("cannot map file", path.string(), errno));
    }
    return std::shared_ptr<const Mapping>(new Mapping(start, size));
  }
  ~Mapping() {
    if (start_ != nullptr) {
      ::munmap(start_, size_);
    }
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ByteView bytes() const { return {static_cast<const std::uint8_t*>(start_), size_}; }

 private:
  Mapping(void* start, std::size_t size) : start_(start), size_(size) {}
  void* start_;
  std::size_t size_;
};

SafetensorsFile::SafetensorsFile(std::shared_ptr<const Mapping> mapping, SafetensorsView view)
    : mapping_(std::move(mapping)),
      view_(std::make_shared<const SafetensorsView>(std::move(view))) {}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  YETO_ASSIGN(std::shared_ptr<const Mapping> mapping, Mapping::map(path));
  YETO_ASSIGN(SafetensorsView view, SafetensorsView::parse(mapping->bytes(), path.string()));
  return SafetensorsFile(std::move(mapping), std::move(view));
}

}  // namespace yeto::weights
