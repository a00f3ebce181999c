// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file, by a SAX handler that refuses what the format forbids:
// nothing is kept that the header does not pay for, and nesting is bounded before it is followed.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "yeto/base/format.h"
#include "yeto/weights/safetensors.h"

namespace yeto::weights {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::size_t kMaxDimensions = 32;

// {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …, "__metadata__": {"k":
// "v"}}
class HeaderHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Header header;
  std::string problem;  // of the first refusal
  std::string tensor;   // being read

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a number that is not whole");
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (info_.shape.size() == kMaxDimensions) {
        return refuse(strf("it has more than {} dimensions", kMaxDimensions));
      }
      info_.shape.push_back(value);
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (offsets_.size() == 2) {
        return refuse("it has more than two data_offsets");
      }
      offsets_.push_back(value);
      return true;
    }
    return unexpected("a number");
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header.metadata[key_] = std::move(value);
      return true;
    }
    if (place_ == Place::kTensor && key_ == "dtype") {
      const auto dtype = dtype_from_name(value);
      if (!dtype) {
        return refuse(strf("its dtype {} is not supported", value.substr(0, 32)));
      }
      info_.dtype = *dtype;
      return true;
    }
    return unexpected("a string");
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kNothing) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ == Place::kTop) {
      place_ = key_ == kMetadataKey ? Place::kMetadata : Place::kTensor;
      tensor = key_;
      info_ = TensorInfo{};
      offsets_.clear();
      keys_seen_.clear();
      return true;
    }
    return unexpected("an object");
  }

  bool key(string_t& value) override {
    std::set<std::string>& seen = place_ == Place::kTop ? names_seen_ : keys_seen_;
    if (!seen.insert(value).second) {
      return refuse(strf("the name \"{}\" stands there twice", value.substr(0, 200)));
    }
    if (place_ == Place::kTensor && value != "dtype" && value != "shape" &&
        value != "data_offsets") {
      return refuse(strf("it has the unknown field \"{}\"", value.substr(0, 200)));
    }
    key_ = std::move(value);
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      return end_tensor();
    }
    place_ = place_ == Place::kMetadata ? Place::kTop : Place::kNothing;
    tensor.clear();
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
      return true;
    }
    return unexpected("an array");
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // Texts of the library quote the input; the position is enough.
    static_cast<void>(error);
    problem = strf("it is not valid JSON at byte {}", position);
    return false;
  }

 private:
  enum class Place { kNothing, kTop, kMetadata, kTensor, kShape, kOffsets };

  bool refuse(std::string what) {
    problem = std::move(what);
    return false;
  }
  bool unexpected(std::string_view what) {
    return refuse(strf("{} stands in a wrong place", what));
  }

  bool end_tensor() {
    if (keys_seen_.size() != 3) {
      return refuse("it needs dtype, shape and data_offsets");
    }
    if (offsets_.size() != 2) {
      return refuse("it needs two data_offsets");
    }
    info_.name = tensor;
    info_.begin = offsets_[0];
    info_.end = offsets_[1];
    if (!check_size()) {
      return false;
    }
    header.tensors.push_back(std::move(info_));
    tensor.clear();
    place_ = Place::kTop;
    return true;
  }

  bool check_size() {
    std::uint64_t bytes = dtype_bytes(info_.dtype);
    for (const std::uint64_t dimension : info_.shape) {
      if (dimension != 0 && bytes > std::numeric_limits<std::uint64_t>::max() / dimension) {
        return refuse("its shape holds more bytes than can be counted");
      }
      bytes *= dimension;
    }
    if (info_.begin > info_.end || info_.end - info_.begin != bytes) {
      return refuse(strf("its shape needs {} bytes, its data_offsets are {} to {}", bytes,
                         info_.begin, info_.end));
    }
    return true;
  }

  Place place_ = Place::kNothing;
  std::string key_;
  TensorInfo info_;
  std::vector<std::uint64_t> offsets_;
  std::set<std::string> names_seen_;
  std::set<std::string> keys_seen_;
};

tl::unexpected<Error> bad(std::string_view where, std::string_view tensor, std::string_view what) {
  return fail(
      ErrorCode::kData, strf("safetensors file refused: {}", what),
      tensor.empty() ? std::string(where) : strf("{}, tensor {}", where, tensor.substr(0, 200)),
      "the file is damaged or was not written as safetensors");
}

// The tensors must fill the data section without gap or overlap.
Status check_cover(Header& header, std::string_view where) {
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  std::uint64_t next = 0;
  for (const TensorInfo& info : header.tensors) {
    if (info.begin != next) {
      return bad(where, info.name,
                 strf("it begins at byte {}, {} byte {} of the tensors before it", info.begin,
                      info.begin < next ? "inside, before" : "after a hole from", next));
    }
    next = info.end;
  }
  if (next != header.data_bytes) {
    return bad(where, "",
               strf("its tensors need {} data bytes, it has {}", next, header.data_bytes));
  }
  return Unit{};
}

}  // namespace

Result<Header> parse_header(ByteView json, std::uint64_t data_bytes, std::string_view where) {
  if (json.size() > kMaxHeaderBytes) {
    return bad(
        where, "",
        strf("its header has {} bytes, at most {} are allowed", json.size(), kMaxHeaderBytes));
  }
  // Also keeps out a byte order mark, which the JSON library would take.
  if (json.empty() || json.front() != '{') {
    return bad(where, "", "its header does not begin with {");
  }
  HeaderHandler handler;
  bool good = false;
  try {
    good = nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  } catch (const nlohmann::json::exception&) {
    handler.problem = "its header is not valid JSON";
  }
  if (!good) {
    return bad(where, handler.tensor, handler.problem);
  }
  handler.header.data_bytes = data_bytes;
  YETO_TRY(check_cover(handler.header, where));
  return std::move(handler.header);
}

namespace json_text {

// Text as a JSON string. Invalid UTF-8 is replaced; names come from our own process.
std::string quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace json_text

}  // namespace yeto::weights
