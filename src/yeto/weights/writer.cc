// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "yeto/base/format.h"
#include "yeto/store/object_store.h"
#include "yeto/weights/json_text.h"
#include "yeto/weights/safetensors.h"

namespace yeto::weights {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::size_t kAlignment = 8;  // of the data section

Status check_tensor(const TensorOut& tensor) {
  std::uint64_t bytes = dtype_bytes(tensor.dtype);
  for (const std::uint64_t dimension : tensor.shape) {
    bytes *= dimension;
  }
  if (tensor.name == kMetadataKey || bytes != tensor.bytes.size()) {
    return fail(ErrorCode::kInternal,
                strf("a tensor of {} bytes was given {} bytes, or its name is reserved", bytes,
                     tensor.bytes.size()),
                strf("tensor {}", tensor.name));
  }
  return Unit{};
}

// Order of the file: large elements first, so that all stay aligned; then dtype and name.
bool before(const TensorOut* a, const TensorOut* b) {
  const std::uint64_t bytes_a = dtype_bytes(a->dtype);
  const std::uint64_t bytes_b = dtype_bytes(b->dtype);
  return bytes_a != bytes_b     ? bytes_a > bytes_b
         : a->dtype != b->dtype ? a->dtype < b->dtype
                                : a->name < b->name;
}

std::string metadata_json(const Metadata& metadata) {
  std::string out = json_text::quoted(kMetadataKey) + ":{";
  for (const auto& [key, value] : metadata) {
    out += strf("{}{}:{}", out.back() == '{' ? "" : ",", json_text::quoted(key),
                json_text::quoted(value));
  }
  return out + "}";
}

std::string tensor_json(const TensorOut& tensor, std::uint64_t begin) {
  std::string shape;
  for (const std::uint64_t dimension : tensor.shape) {
    shape += strf("{}{}", shape.empty() ? "" : ",", dimension);
  }
  return strf("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
              json_text::quoted(tensor.name), dtype_name(tensor.dtype), shape, begin,
              begin + tensor.bytes.size());
}

}  // namespace

std::uint64_t FileParts::bytes() const {
  std::uint64_t sum = head.size();
  for (const ByteView part : tensors) {
    sum += part.size();
  }
  return sum;
}

Result<FileParts> layout_file(std::span<const TensorOut> tensors, const Metadata& metadata) {
  std::vector<const TensorOut*> order;
  std::set<std::string_view> names;
  for (const TensorOut& tensor : tensors) {
    YETO_TRY(check_tensor(tensor));
    if (!names.insert(tensor.name).second) {
      return fail(ErrorCode::kInternal, "two tensors have one name",
                  strf("tensor {}", tensor.name));
    }
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), before);
  FileParts parts;
  std::string json = "{";
  if (!metadata.empty()) {
    json += metadata_json(metadata);
  }
  std::uint64_t begin = 0;
  for (const TensorOut* tensor : order) {
    json += strf("{}{}", json.size() == 1 ? "" : ",", tensor_json(*tensor, begin));
    begin += tensor->bytes.size();
    parts.tensors.push_back(tensor->bytes);
  }
  json += "}";
  json.resize((json.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  if (json.size() > kMaxHeaderBytes) {
    return fail(ErrorCode::kInternal, strf("the header would have {} bytes", json.size()),
                "safetensors");
  }
  ByteWriter writer(parts.head);
  writer.number(static_cast<std::uint64_t>(json.size()));
  writer.raw(as_bytes_view(json));
  return parts;
}

Status write_safetensors(const std::filesystem::path& path, std::span<const TensorOut> tensors,
                         const Metadata& metadata) {
  YETO_ASSIGN(const FileParts file, layout_file(tensors, metadata));
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  YETO_ASSIGN(const std::shared_ptr<store::LocalFolder> store, store::LocalFolder::open(folder));
  std::vector<ByteView> parts{file.head};
  parts.insert(parts.end(), file.tensors.begin(), file.tensors.end());
  YETO_TRY(store->put(path.filename().string(), parts, store::PutMode::kReplace));
  return Unit{};
}

}  // namespace yeto::weights
