// SPDX-License-Identifier: Apache-2.0
// The canonical encoding of a layout (format page docs/PROTOCOL.md), all little-endian:
//   "YLAY" · u32 version = 1
//   u32 tensors, each: u16 name bytes · name · u8 dtype · u8 merge mode · u8 dimensions · u64 each
//   dimension u32 fragments, each: u32 pieces, each: u32 tensor · u64 first · u64 count
// Pieces ascend by (tensor, first); offsets follow from the counts and are not stored. One layout
// has exactly one encoding, so decode refuses every other byte string.
#include "yeto/tensor/layout.h"

#include <algorithm>
#include <limits>
#include <set>

#include "yeto/base/format.h"

namespace yeto {
namespace {

constexpr std::uint32_t kMagic = 0x59414c59;  // "YLAY"
constexpr std::uint32_t kVersion = 1;
// Byte counts of f32 values must fit into a signed 64-bit number as well.
constexpr std::uint64_t kMaxValues = std::uint64_t{1} << 60;
// The least a tensor, a fragment and a piece take; counts beyond bytes/least are refused before
// allocating.
constexpr std::size_t kLeastTensorBytes = 2 + 1 + 3;
constexpr std::size_t kPieceBytes = 4 + 8 + 8;
constexpr std::size_t kLeastFragmentBytes = 4 + kPieceBytes;

tl::unexpected<Error> bad(std::string what) {
  return fail(ErrorCode::kData, "layout refused: " + std::move(what), "layout",
              "the learner's and the syncer's builds must agree on the layout encoding");
}

void encode_tensor(ByteWriter& writer, const TensorSpec& tensor) {
  writer.number(static_cast<std::uint16_t>(tensor.name.size()));
  writer.raw(as_bytes_view(tensor.name));
  writer.number(static_cast<std::uint8_t>(tensor.dtype));
  writer.number(static_cast<std::uint8_t>(tensor.merge));
  writer.number(static_cast<std::uint8_t>(tensor.shape.size()));
  for (const std::uint64_t dimension : tensor.shape) {
    writer.number(dimension);
  }
}

Status decode_tensor(ByteReader& reader, TensorSpec& tensor, std::size_t index) {
  std::uint16_t name_bytes = 0;
  ByteView name;
  std::uint8_t dtype = 0;
  std::uint8_t merge = 0;
  std::uint8_t dimensions = 0;
  if (!reader.number(name_bytes) || !reader.raw(name_bytes, name) || !reader.number(dtype) ||
      !reader.number(merge) || !reader.number(dimensions)) {
    return bad(strf("it ends in tensor {}", index));
  }
  if (dtype > static_cast<std::uint8_t>(DType::kBool) ||
      merge > static_cast<std::uint8_t>(MergeMode::kRda) || dimensions > kMaxDimensions) {
    return bad(strf("tensor {} has an unknown dtype, merge mode or too many dimensions", index));
  }
  tensor.name.assign(name.begin(), name.end());
  tensor.dtype = static_cast<DType>(dtype);
  tensor.merge = static_cast<MergeMode>(merge);
  tensor.shape.resize(dimensions);
  for (std::uint64_t& dimension : tensor.shape) {
    if (!reader.number(dimension)) {
      return bad(strf("it ends in the shape of tensor {}", index));
    }
  }
  return tensor.check();
}

// Reads the pieces of one fragment; they must ascend by (tensor, first) and stay inside their
// tensors.
Status decode_fragment(ByteReader& reader, const std::vector<TensorSpec>& tensors,
                       Fragment& fragment, std::size_t index) {
  std::uint32_t pieces = 0;
  if (!reader.number(pieces) || pieces == 0 || pieces > reader.left() / kPieceBytes) {
    return bad(strf("fragment {} is empty or cut off", index));
  }
  fragment.pieces.resize(pieces);
  const Piece* before = nullptr;
  for (Piece& piece : fragment.pieces) {
    if (!reader.number(piece.tensor) || !reader.number(piece.first) ||
        !reader.number(piece.count)) {
      return bad(strf("it ends in fragment {}", index));
    }
    if (piece.tensor >= tensors.size()) {
      return bad(strf("fragment {} names tensor {} of {}", index, piece.tensor, tensors.size()));
    }
    const std::uint64_t values = tensors[piece.tensor].values();
    if (piece.count == 0 || piece.first > values || piece.count > values - piece.first) {
      return bad(strf("fragment {} leaves tensor {}", index, piece.tensor));
    }
    if (before != nullptr &&
        std::pair(piece.tensor, piece.first) <= std::pair(before->tensor, before->first)) {
      return bad(strf("the pieces of fragment {} are out of order", index));
    }
    if (fragment.values > kMaxValues - piece.count) {
      return bad(strf("fragment {} is too large", index));
    }
    piece.offset = fragment.values;
    fragment.values += piece.count;
    before = &piece;
  }
  return Unit{};
}

// Every value of every tensor must be in exactly one piece.
Status check_coverage(const Layout& layout) {
  std::vector<Piece> all;
  for (const Fragment& fragment : layout.fragments) {
    all.insert(all.end(), fragment.pieces.begin(), fragment.pieces.end());
  }
  std::sort(all.begin(), all.end(), [](const Piece& a, const Piece& b) {
    return std::pair(a.tensor, a.first) < std::pair(b.tensor, b.first);
  });
  auto piece = all.begin();
  for (std::uint32_t tensor = 0; tensor < layout.tensors.size(); ++tensor) {
    std::uint64_t next = 0;
    for (; piece != all.end() && piece->tensor == tensor; ++piece) {
      if (piece->first != next) {
        return bad(strf("value {} of tensor {} is {}", std::min(next, piece->first), tensor,
                        piece->first < next ? "in two pieces" : "in no piece"));
      }
      next += piece->count;
    }
    if (next != layout.tensors[tensor].values()) {
      return bad(strf("value {} of tensor {} is in no piece", next, tensor));
    }
  }
  return Unit{};
}

Status check_names(const std::vector<TensorSpec>& tensors) {
  std::set<std::string_view> names;
  for (const TensorSpec& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return bad(strf("two tensors are called {}", tensor.name));
    }
  }
  return Unit{};
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    out += strf("{}{}", i == 0 ? "" : ", ", shape[i]);
  }
  return out + "]";
}

std::string tensor_difference(const TensorSpec& here, const TensorSpec& there) {
  if (here.name != there.name) {
    return strf("name {} here, {} there", here.name, there.name);
  }
  if (here.shape != there.shape) {
    return strf("{}: shape {} here, {} there", here.name, shape_text(here.shape),
                shape_text(there.shape));
  }
  if (here.dtype != there.dtype) {
    return strf("{}: dtype {} here, {} there", here.name, dtype_name(here.dtype),
                dtype_name(there.dtype));
  }
  const auto mode = [](MergeMode merge) { return merge == MergeMode::kAvg ? "avg" : "rda"; };
  return strf("{}: merge mode {} here, {} there", here.name, mode(here.merge), mode(there.merge));
}

}  // namespace

std::uint64_t TensorSpec::values() const {
  std::uint64_t product = 1;
  for (const std::uint64_t dimension : shape) {
    product *= dimension;
  }
  return product;
}

Status TensorSpec::check() const {
  if (name.empty() || name.size() > kMaxTensorNameBytes) {
    return fail(
        ErrorCode::kData,
        strf("a tensor has a name of {} bytes: must be 1 to {}", name.size(), kMaxTensorNameBytes),
        "layout");
  }
  std::uint64_t product = 1;
  bool fits = shape.size() <= kMaxDimensions;
  for (const std::uint64_t dimension : shape) {
    fits = fits && dimension != 0 && product <= kMaxValues / dimension;
    product = fits ? product * dimension : 1;
  }
  if (!fits) {
    return fail(ErrorCode::kData,
                strf("the shape {} holds no values or too many", shape_text(shape)),
                strf("tensor {}", name));
  }
  return Unit{};
}

std::uint64_t Layout::values() const {
  std::uint64_t sum = 0;
  for (const Fragment& fragment : fragments) {
    sum += fragment.values;
  }
  return sum;
}

std::uint64_t Layout::largest_fragment() const {
  std::uint64_t largest = 0;
  for (const Fragment& fragment : fragments) {
    largest = std::max(largest, fragment.values);
  }
  return largest;
}

Bytes Layout::encode() const {
  Bytes out;
  ByteWriter writer(out);
  writer.number(kMagic);
  writer.number(kVersion);
  writer.number(static_cast<std::uint32_t>(tensors.size()));
  for (const TensorSpec& tensor : tensors) {
    encode_tensor(writer, tensor);
  }
  writer.number(static_cast<std::uint32_t>(fragments.size()));
  for (const Fragment& fragment : fragments) {
    writer.number(static_cast<std::uint32_t>(fragment.pieces.size()));
    for (const Piece& piece : fragment.pieces) {
      writer.number(piece.tensor);
      writer.number(piece.first);
      writer.number(piece.count);
    }
  }
  return out;
}

Result<Layout> Layout::decode(ByteView bytes) {
  if (bytes.size() > kMaxLayoutBytes) {
    return bad(strf("it has {} bytes, the limit is {}", bytes.size(), kMaxLayoutBytes));
  }
  ByteReader reader(bytes);
  std::uint32_t magic = 0;
  std::uint32_t version = 0;
  if (!reader.number(magic) || magic != kMagic || !reader.number(version) || version != kVersion) {
    return bad("it does not begin with YLAY, version 1");
  }
  Layout layout;
  std::uint32_t count = 0;
  if (!reader.number(count) || count == 0 || count > reader.left() / kLeastTensorBytes) {
    return bad("it has no tensors, or is cut off");
  }
  layout.tensors.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    YETO_TRY(decode_tensor(reader, layout.tensors[i], i));
  }
  YETO_TRY(check_names(layout.tensors));
  if (!reader.number(count) || count == 0 || count > kMaxFragments ||
      count > reader.left() / kLeastFragmentBytes) {
    return bad(strf("it has no fragments, more than {}, or is cut off", kMaxFragments));
  }
  layout.fragments.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    YETO_TRY(decode_fragment(reader, layout.tensors, layout.fragments[i], i));
  }
  if (reader.left() != 0) {
    return bad(strf("{} bytes follow its end", reader.left()));
  }
  YETO_TRY(check_coverage(layout));
  return layout;
}

Sha256 Layout::fingerprint() const { return sha256(encode()); }

std::vector<std::array<std::uint8_t, 8>> tensor_hashes(const Layout& layout) {
  std::vector<Bytes> encodings(layout.tensors.size());
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    ByteWriter writer(encodings[i]);
    encode_tensor(writer, layout.tensors[i]);
  }
  for (std::uint32_t fragment = 0; fragment < layout.fragments.size(); ++fragment) {
    for (const Piece& piece : layout.fragments[fragment].pieces) {
      ByteWriter writer(encodings[piece.tensor]);
      writer.number(fragment);
      writer.number(piece.first);
      writer.number(piece.count);
    }
  }
  std::vector<std::array<std::uint8_t, 8>> hashes(layout.tensors.size());
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const Sha256 digest = sha256(encodings[i]);
    std::copy_n(digest.begin(), hashes[i].size(), hashes[i].begin());
  }
  return hashes;
}

std::string first_difference(const Layout& here, const Layout& there) {
  for (std::size_t i = 0; i < std::min(here.tensors.size(), there.tensors.size()); ++i) {
    if (here.tensors[i] != there.tensors[i]) {
      return strf("tensor {}: {}", i, tensor_difference(here.tensors[i], there.tensors[i]));
    }
  }
  if (here.tensors.size() != there.tensors.size()) {
    return strf("{} tensors here, {} there", here.tensors.size(), there.tensors.size());
  }
  if (here.fragments.size() != there.fragments.size()) {
    return strf("{} fragments here, {} there", here.fragments.size(), there.fragments.size());
  }
  for (std::size_t i = 0; i < here.fragments.size(); ++i) {
    if (here.fragments[i] != there.fragments[i]) {
      return strf("fragment {}: other tensors or slices", i);
    }
  }
  return {};
}

}  // namespace yeto
