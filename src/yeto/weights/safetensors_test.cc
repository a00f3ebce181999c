// SPDX-License-Identifier: Apache-2.0
// Goal: files are byte for byte those of the reference writer, come back whole, and nothing hostile
// or damaged passes. Method: golden bytes made by the Python package safetensors 0.6, every
// truncation and bit flip, and one refusal per rule of the format.
#include "yeto/weights/safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/base/rng.h"

namespace yeto::weights {
namespace {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() : path_(fs::temp_directory_path() / strf("yeto-weights-{:x}", random_u64())) {
    fs::create_directories(path_);
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  fs::path operator/(std::string_view name) const { return path_ / name; }

 private:
  fs::path path_;
};

// numpy: big i64 [7]; a.bias f32 [−1.5]; b.weight f32 [[1,2,3],[4,5,6]]; e f32 of shape (0, 4); h
// i16 [1,2,3]; f bool [true, false]; metadata format: pt.
constexpr std::string_view kGoldenNumpy =
    "80010000000000007b225f5f6d657461646174615f5f223a7b22666f726d6174223a227074227d2c22626967223a7b"
    "226474797065223a22493634222c227368617065223a5b315d2c22646174615f6f666673657473223a5b302c385d7d"
    "2c22612e62696173223a7b226474797065223a22463332222c227368617065223a5b315d2c22646174615f6f666673"
    "657473223a5b382c31325d7d2c22622e776569676874223a7b226474797065223a22463332222c227368617065223a"
    "5b322c335d2c22646174615f6f666673657473223a5b31322c33365d7d2c2265223a7b226474797065223a22463332"
    "222c227368617065223a5b302c345d2c22646174615f6f666673657473223a5b33362c33365d7d2c2268223a7b2264"
    "74797065223a22493136222c227368617065223a5b335d2c22646174615f6f666673657473223a5b33362c34325d7d"
    "2c2266223a7b226474797065223a22424f4f4c222c227368617065223a5b325d2c22646174615f6f66667365747322"
    "3a5b34322c34345d7d7d20202020202007000000000000000000c0bf0000803f000000400000404000008040"
    "0000a0400000c0400100020003000100";
// torch: x bf16 [1, −2.5]; y f32 scalar 3; k"ö u8 [1]; z f16 [1, 2]; no metadata.
constexpr std::string_view kGoldenTorch =
    "e0000000000000007b2279223a7b226474797065223a22463332222c227368617065223a5b5d2c22646174615f6f66"
    "6673657473223a5b302c345d7d2c2278223a7b226474797065223a2242463136222c227368617065223a5b325d2c22"
    "646174615f6f666673657473223a5b342c385d7d2c227a223a7b226474797065223a22463136222c22736861706522"
    "3a5b325d2c22646174615f6f666673657473223a5b382c31325d7d2c226b5c22c3b6223a7b226474797065223a2255"
    "38222c227368617065223a5b315d2c22646174615f6f666673657473223a5b31322c31335d7d7d2020202020000040"
    "40803f20c0003c004001";

Bytes joined(const FileParts& parts) {
  Bytes out = parts.head;
  for (const ByteView part : parts.tensors) {
    out.insert(out.end(), part.begin(), part.end());
  }
  EXPECT_EQ(out.size(), parts.bytes());
  return out;
}

template <class T>
ByteView raw(const std::vector<T>& values) {
  return as_bytes_view(std::span<const T>(values));
}

TEST(Safetensors, WritesTheBytesOfTheReferenceWriter) {
  const std::vector<std::int64_t> big{7};
  const std::vector<float> bias{-1.5F};
  const std::vector<float> weight{1, 2, 3, 4, 5, 6};
  const std::vector<std::int16_t> h{1, 2, 3};
  const Bytes f{1, 0};
  const std::vector<TensorOut> numpy{{"b.weight", DType::kF32, {2, 3}, raw(weight)},
                                     {"f", DType::kBool, {2}, f},
                                     {"e", DType::kF32, {0, 4}, {}},
                                     {"big", DType::kI64, {1}, raw(big)},
                                     {"h", DType::kI16, {3}, raw(h)},
                                     {"a.bias", DType::kF32, {1}, raw(bias)}};
  EXPECT_EQ(hex(joined(*layout_file(numpy, {{"format", "pt"}}))), kGoldenNumpy);

  const std::vector<std::uint16_t> x{0x3f80, 0xc020};
  const std::vector<float> y{3};
  const std::vector<std::uint16_t> z{0x3c00, 0x4000};
  const Bytes k{1};
  const std::vector<TensorOut> torch{{"k\"ö", DType::kU8, {1}, k},
                                     {"z", DType::kF16, {2}, raw(z)},
                                     {"x", DType::kBf16, {2}, raw(x)},
                                     {"y", DType::kF32, {}, raw(y)}};
  EXPECT_EQ(hex(joined(*layout_file(torch, {}))), kGoldenTorch);
}

TEST(Safetensors, ReadsTheReferenceWriter) {
  const Bytes bytes = *from_hex(kGoldenNumpy);
  const auto file = SafetensorsView::parse(bytes, "numpy");
  ASSERT_TRUE(file) << file.error().text();
  EXPECT_EQ(file->metadata(), (Metadata{{"format", "pt"}}));
  ASSERT_EQ(file->tensors().size(), 6U);
  EXPECT_EQ(*file->read_f32("b.weight", 6), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(file->find("b.weight")->shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(*file->read_f32("e", 0), std::vector<float>{});
  EXPECT_EQ(hex(file->bytes(*file->find("h"))), "010002000300");
  EXPECT_EQ(file->find("none"), nullptr);
  EXPECT_EQ(file->read_f32("none", 1).error().code, ErrorCode::kData);
  EXPECT_EQ(file->read_f32("h", 3).error().code, ErrorCode::kData) << "another dtype";
  EXPECT_EQ(file->read_f32("a.bias", 2).error().code, ErrorCode::kData) << "another size";
  EXPECT_TRUE(SafetensorsView::parse(*from_hex(kGoldenTorch), "torch"));
}

TEST(Safetensors, FilesComeBackThroughTheMapping) {
  TemporaryFolder folder;
  const std::vector<float> values{1.25F, -3};
  const fs::path path = folder / "model.safetensors";
  const std::vector<TensorOut> tensors{{"w", DType::kF32, {2}, raw(values)}};
  ASSERT_TRUE(write_safetensors(path, tensors, {{"b", "2"}, {"a", "1"}}));
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file) << file.error().text();
  const SafetensorsFile copy = *file;
  EXPECT_EQ(*copy.view().read_f32("w", 2), values);
  EXPECT_EQ(copy.view().metadata().at("a"), "1");
  EXPECT_EQ(SafetensorsFile::open(folder / "none").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::open(folder / ".").error().code, ErrorCode::kData);
  std::ofstream(folder / "empty");
  EXPECT_EQ(SafetensorsFile::open(folder / "empty").error().code, ErrorCode::kData);
}

TEST(Safetensors, EveryTruncationIsRefused) {
  for (const std::string_view golden : {kGoldenNumpy, kGoldenTorch}) {
    Bytes bytes = *from_hex(golden);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(SafetensorsView::parse(ByteView(bytes).first(size), "cut")) << size;
    }
    bytes.push_back(0);
    EXPECT_FALSE(SafetensorsView::parse(bytes, "longer"));
  }
}

TEST(Safetensors, EveryBitFlipIsRefusedOrStillCoversItsData) {
  for (const std::string_view golden : {kGoldenNumpy, kGoldenTorch}) {
    const Bytes bytes = *from_hex(golden);
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      Bytes flipped = bytes;
      flipped[bit / 8] = static_cast<std::uint8_t>(flipped[bit / 8] ^ (1U << (bit % 8)));
      const auto file = SafetensorsView::parse(flipped, "flipped");
      if (file) {
        std::uint64_t next = 0;
        for (const TensorInfo& tensor : file->tensors()) {
          ASSERT_EQ(tensor.begin, next);
          next += file->bytes(tensor).size();
        }
      }
    }
  }
}

struct Refusal {
  const char* json;
  std::uint64_t data_bytes;
  const char* says;
  const char* tensor;
};

const Refusal kRefusals[] = {
    {"", 0, "does not begin with {", ""},
    {"[]", 0, "does not begin with {", ""},
    {"\xef\xbb\xbf{}", 0, "does not begin with {", ""},
    {"{", 0, "not valid JSON", ""},
    {"{} {}", 0, "not valid JSON", ""},
    {"{\"a\xff\":{}}", 0, "not valid JSON", ""},
    {R"({"a":1})", 0, "a number stands in a wrong place", ""},
    {R"({"a":null})", 0, "null stands in a wrong place", ""},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
     R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
     8, "\"a\" stands there twice", ""},
    {R"({"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", 4,
     "\"dtype\" stands there twice", "a"},
    {R"({"__metadata__":{"k":"1","k":"2"}})", 0, "\"k\" stands there twice", "__metadata__"},
    {R"({"__metadata__":{"k":1}})", 0, "a number stands in a wrong place", "__metadata__"},
    {R"({"__metadata__":{"k":{}}})", 0, "an object stands in a wrong place", "__metadata__"},
    {R"({"a":{"dtype":"F12","shape":[1],"data_offsets":[0,4]}})", 4, "F12 is not supported", "a"},
    {R"({"a":{"dtype":"F32","shape":[1]}})", 4, "needs dtype, shape and data_offsets", "a"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "two data_offsets", "a"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, "more than two", "a"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "data_offsets are 4 to 0",
     "a"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "needs 8 bytes", "a"},
    {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "a negative number", "a"},
    {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "not whole", "a"},
    {R"({"a":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]}})", 4, "not whole",
     "a"},
    {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
     "more bytes than can be counted", "a"},
    {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,4]}})", 4, "an array stands", "a"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"extra":1}})", 4, "unknown field",
     "a"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "after a hole", "a"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
     R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
     8, "inside, before byte 8", "b"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8, "it has 8", ""},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 0, "it has 0", ""},
};

TEST(Safetensors, EachRuleOfTheHeaderIsKeptAndTheTensorNamed) {
  for (const Refusal& refusal : kRefusals) {
    SCOPED_TRACE(refusal.json);
    const auto header = parse_header(as_bytes_view(refusal.json), refusal.data_bytes, "x.bin");
    ASSERT_FALSE(header);
    EXPECT_EQ(header.error().code, ErrorCode::kData);
    EXPECT_NE(header.error().what.find(refusal.says), std::string::npos) << header.error().what;
    const std::string where =
        *refusal.tensor == '\0' ? "x.bin" : strf("x.bin, tensor {}", refusal.tensor);
    EXPECT_EQ(header.error().where, where);
  }
}

TEST(Safetensors, DeepNestingIsRefusedBeforeItIsFollowed) {
  std::string json = R"({"a":{"shape":)";
  json.append(1'000'000, '[');
  EXPECT_FALSE(parse_header(as_bytes_view(json), 0, "deep"));
  json = R"({"__metadata__":)";
  for (int i = 0; i < 100'000; ++i) {
    json += R"({"a":)";
  }
  EXPECT_FALSE(parse_header(as_bytes_view(json), 0, "deep"));
}

TEST(Safetensors, HugeLengthsAreRefusedBeforeAllocating) {
  Bytes bytes = *from_hex("ffffffffffffffff7b7d");
  EXPECT_FALSE(SafetensorsView::parse(bytes, "huge"));
  bytes = *from_hex("00e1f505000000007b7d");
  EXPECT_FALSE(SafetensorsView::parse(bytes, "100 MB of header that is not there"));
}

TEST(Safetensors, TheWriterRefusesWhatNoReaderWouldTake) {
  const std::vector<float> one{1};
  const TensorOut good{"w", DType::kF32, {1}, raw(one)};
  TensorOut wrong = good;
  wrong.shape = {2};
  EXPECT_EQ(layout_file(std::vector{wrong}, {}).error().code, ErrorCode::kInternal);
  wrong = good;
  wrong.name = "__metadata__";
  EXPECT_FALSE(layout_file(std::vector{wrong}, {}));
  EXPECT_FALSE(layout_file(std::vector{good, good}, {}));
}

TEST(Safetensors, RandomFilesComeBack) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(strf("seed {}", seed));
    Rng rng(seed);
    std::vector<Bytes> data;
    std::vector<TensorOut> tensors;
    for (std::size_t i = 0; i < rng.below(20); ++i) {
      TensorOut tensor;
      tensor.name = strf("t{}", i);
      tensor.dtype = static_cast<DType>(rng.below(10));
      std::uint64_t bytes = dtype_bytes(tensor.dtype);
      for (std::size_t d = 0; d < rng.below(4); ++d) {
        tensor.shape.push_back(rng.below(6));
        bytes *= tensor.shape.back();
      }
      Bytes& values = data.emplace_back(bytes);
      for (std::uint8_t& value : values) {
        value = static_cast<std::uint8_t>(rng.next());
      }
      tensors.push_back(std::move(tensor));
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].bytes = data[i];
    }
    const Bytes bytes = joined(*layout_file(tensors, {{"seed", strf("{}", seed)}}));
    std::shuffle(tensors.begin(), tensors.end(), std::mt19937_64(seed));
    EXPECT_EQ(joined(*layout_file(tensors, {{"seed", strf("{}", seed)}})), bytes)
        << "equal input, equal bytes";
    const auto file = SafetensorsView::parse(bytes, "random");
    ASSERT_TRUE(file) << file.error().text();
    for (const TensorOut& tensor : tensors) {
      const TensorInfo* info = file->find(tensor.name);
      ASSERT_NE(info, nullptr);
      EXPECT_EQ(info->shape, tensor.shape);
      EXPECT_EQ(info->dtype, tensor.dtype);
      EXPECT_TRUE(std::ranges::equal(file->bytes(*info), tensor.bytes));
      // Large elements come first, so every tensor is aligned for its dtype.
      EXPECT_EQ(info->begin % dtype_bytes(tensor.dtype), 0U);
    }
  }
}

}  // namespace
}  // namespace yeto::weights
