// SPDX-License-Identifier: Apache-2.0
// Goal: our code writes and reads the very bytes of protocol_vectors.json, which come from a client
// written from docs/PROTOCOL.md and docs/DESIGN.md alone. So page, C++ and Python agree. Made again
// with: python tests/e2e/stranger/vectors.py > tests/golden/protocol_vectors.json
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "yeto/base/digest.h"
#include "yeto/codec/codec.h"
#include "yeto/merge/merge.h"
#include "yeto/wire/codec.h"
#include "yeto/wire/frame.h"

namespace yeto {
namespace {

using nlohmann::json;
using Values = std::vector<float>;

json read_vectors() {
  std::ifstream file(YETO_VECTORS);
  EXPECT_TRUE(file.good()) << YETO_VECTORS;
  return json::parse(file);
}
const json& vectors() {
  static const json all = read_vectors();
  return all;
}

Bytes unhex(const std::string& text) {
  Bytes out(text.size() / 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<std::uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  }
  return out;
}
Bytes bytes_at(const json& from, const char* key) { return unhex(from.at(key).get<std::string>()); }

Values floats(const Bytes& bytes) {
  Values out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), 4 * out.size());
  return out;
}
Values floats_at(const json& from, const char* key) { return floats(bytes_at(from, key)); }

// The very bits, which == of floats does not compare.
Bytes bits_of(const Values& values) {
  Bytes out(4 * values.size());
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

template <std::size_t kCount>
void assign(const json& from, std::array<std::uint8_t, kCount>& to) {
  const Bytes bytes = unhex(from.get<std::string>());
  ASSERT_EQ(bytes.size(), kCount);
  std::copy(bytes.begin(), bytes.end(), to.begin());
}
void assign(const json& from, std::string& to) { to = from.get<std::string>(); }
void assign(const json& from, std::vector<std::uint8_t>& to) {
  const Bytes bytes = unhex(from.get<std::string>());
  to.assign(bytes.begin(), bytes.end());
}

template <class T>
void assign(const json& from, std::vector<T>& to);

// Fills a message from a JSON object whose keys are the names of its fields.
struct FromJson {
  const json& object;
  std::size_t seen = 0;

  template <class T>
  void operator()(const char* name, T& field) {
    ++seen;
    fill(object.at(name), field);
  }
  template <class T>
  void operator()(const char* name, T& field, wire::Max) {
    (*this)(name, field);
  }

  template <class T>
  static void fill(const json& from, T& to) {
    if constexpr (std::is_enum_v<T>) {
      to = static_cast<T>(from.get<std::underlying_type_t<T>>());
    } else if constexpr (std::is_arithmetic_v<T>) {
      to = from.get<T>();
    } else if constexpr (requires(FromJson& f) { T::fields(to, f); }) {
      FromJson inner{from};
      T::fields(to, inner);
      EXPECT_EQ(inner.seen, from.size());
    } else {
      assign(from, to);
    }
  }
};

template <class T>
void assign(const json& from, std::vector<T>& to) {
  for (const json& element : from) {
    FromJson::fill(element, to.emplace_back());
  }
}

wire::Direction direction_of(const json& frame) {
  return frame.at("from") == "L" ? wire::Direction::kToSyncer : wire::Direction::kToLearner;
}

// The alternative of Message that this frame is, its fields filled in.
template <std::size_t kIndex = 0>
wire::Message message_of(const json& frame) {
  if constexpr (kIndex == std::variant_size_v<wire::Message>) {
    ADD_FAILURE() << "no message is called " << frame.at("name");
    return {};
  } else {
    using M = std::variant_alternative_t<kIndex, wire::Message>;
    const bool other_beat = (std::is_same_v<M, wire::LearnerBeat> && frame.at("from") == "S") ||
                            (std::is_same_v<M, wire::SyncerBeat> && frame.at("from") == "L");
    if (wire::type_name(M::kType) != frame.at("name").get<std::string>() || other_beat) {
      return message_of<kIndex + 1>(frame);
    }
    M message;
    FromJson::fill(frame.at("fields"), message);
    return message;
  }
}

TEST(ProtocolVectors, EveryMessageHasAFrame) {
  std::set<std::size_t> seen;
  for (const json& frame : vectors().at("frames")) {
    seen.insert(message_of(frame).index());
  }
  EXPECT_EQ(seen.size(), std::variant_size_v<wire::Message>);
}

TEST(ProtocolVectors, FramesAreWrittenByteForByte) {
  for (const json& frame : vectors().at("frames")) {
    SCOPED_TRACE(frame.at("name"));
    const wire::Message message = message_of(frame);
    const Bytes payload = wire::encode_message(message);
    EXPECT_EQ(wire::encode_frame(wire::type_of(message), frame.at("sequence"), payload),
              bytes_at(frame, "frame"));
  }
}

TEST(ProtocolVectors, FramesAreReadBack) {
  for (const json& frame : vectors().at("frames")) {
    SCOPED_TRACE(frame.at("name"));
    const Bytes bytes = bytes_at(frame, "frame");
    const std::span<const std::uint8_t, wire::kHeaderBytes> head(bytes.data(), wire::kHeaderBytes);
    const auto header = wire::parse_header(head, direction_of(frame), wire::kMaxChunkBytes);
    ASSERT_TRUE(header) << header.error().text();
    const ByteView payload = ByteView(bytes).subspan(wire::kHeaderBytes);
    EXPECT_EQ(header->payload_bytes, payload.size());
    EXPECT_EQ(header->sequence, frame.at("sequence"));
    EXPECT_TRUE(wire::check_crc(*header, crc32c(payload)));
    const auto message = wire::decode(header->type, direction_of(frame), payload);
    ASSERT_TRUE(message) << message.error().text();
    EXPECT_EQ(*message, message_of(frame));
  }
}

TEST(ProtocolVectors, ProofsAreThoseOfTheKeyAndTheNonce) {
  const json& key = vectors().at("key");
  const std::string name = key.at("name");
  const Bytes token = bytes_at(key, "token");
  const Sha256 made = hkdf_sha256(token, as_bytes_view(name));
  EXPECT_EQ(Bytes(made.begin(), made.end()), bytes_at(key, "key"));
  wire::Nonce nonce{};
  assign(key.at("nonce"), nonce);
  int checked = 0;
  for (const json& frame : vectors().at("frames")) {
    const wire::Message message = message_of(frame);
    if (const auto* hello = std::get_if<wire::Hello>(&message)) {
      EXPECT_EQ(wire::make_proof(made, nonce, *hello), hello->proof);
      ++checked;
    } else if (const auto* attach = std::get_if<wire::Attach>(&message)) {
      EXPECT_EQ(wire::make_proof(made, nonce, *attach), attach->proof);
      ++checked;
    }
  }
  EXPECT_EQ(checked, 2);
}

TEST(ProtocolVectors, LayoutHasItsEncodingAndFingerprint) {
  const json& wanted = vectors().at("layout");
  const auto layout = Layout::decode(bytes_at(wanted, "encoding"));
  ASSERT_TRUE(layout) << layout.error().text();
  EXPECT_EQ(layout->encode(), bytes_at(wanted, "encoding"));
  const Sha256 print = layout->fingerprint();
  EXPECT_EQ(Bytes(print.begin(), print.end()), bytes_at(wanted, "fingerprint"));
  ASSERT_EQ(layout->tensors.size(), wanted.at("tensors").size());
  for (std::size_t i = 0; i < layout->tensors.size(); ++i) {
    const json& tensor = wanted.at("tensors")[i];
    EXPECT_EQ(layout->tensors[i].name, tensor.at("name"));
    EXPECT_EQ(layout->tensors[i].shape, tensor.at("shape").get<std::vector<std::uint64_t>>());
    EXPECT_EQ(static_cast<int>(layout->tensors[i].dtype), tensor.at("dtype"));
    EXPECT_EQ(static_cast<int>(layout->tensors[i].merge), tensor.at("mode"));
  }
  ASSERT_EQ(layout->fragments.size(), wanted.at("fragments").size());
  for (std::size_t p = 0; p < layout->fragments.size(); ++p) {
    json pieces;
    for (const Piece& piece : layout->fragments[p].pieces) {
      pieces.push_back({piece.tensor, piece.first, piece.count});
    }
    EXPECT_EQ(pieces, wanted.at("fragments")[p]);
  }
}

TEST(ProtocolVectors, CodecsWriteAndReadTheirImages) {
  for (const json& one : vectors().at("codecs")) {
    SCOPED_TRACE(one.at("name").get<std::string>() + ", codec " + one.at("codec").dump());
    const auto codec = static_cast<CodecId>(one.at("codec").get<int>());
    const Values values = floats_at(one, "values");
    Bytes image(codec::encoded_bytes(codec, values.size()));
    ASSERT_TRUE(codec::encode(codec, values, image));
    EXPECT_EQ(image, bytes_at(one, "body"));
    Values decoded(values.size());
    ASSERT_TRUE(codec::decode(codec, image, decoded));
    EXPECT_EQ(bits_of(decoded), bytes_at(one, "decoded"));
    const Xxh128 digest = xxh3_128(image);
    EXPECT_EQ(Bytes(digest.begin(), digest.end()), bytes_at(one, "digest"));
  }
}

TEST(ProtocolVectors, AQ4BroadcastLeadsToTheNewPublicValue) {
  for (const json& one : vectors().at("public")) {
    const Bytes old = bytes_at(one, "old");
    Bytes made(old.size());
    ASSERT_TRUE(codec::apply_q4(bytes_at(one, "image"), old, made));
    EXPECT_EQ(made, bytes_at(one, "new"));
    const Xxh128 digest = codec::public_digest(made);
    EXPECT_EQ(Bytes(digest.begin(), digest.end()), bytes_at(one, "digest"));
    // The image is that of the change from the old public value to the master.
    Values change = floats_at(one, "master");
    Values before(change.size());
    ASSERT_TRUE(codec::decode(CodecId::kBf16, old, before));
    for (std::size_t i = 0; i < change.size(); ++i) {
      change[i] -= before[i];
    }
    Bytes image(codec::encoded_bytes(CodecId::kQ4, change.size()));
    ASSERT_TRUE(codec::encode(CodecId::kQ4, change, image));
    EXPECT_EQ(image, bytes_at(one, "image"));
  }
}

TEST(ProtocolVectors, ErrorFeedbackOfAPush) {
  for (const json& one : vectors().at("feedback")) {
    const Values delta = floats_at(one, "delta");
    Values residual = floats_at(one, "residual");
    Bytes image(codec::encoded_bytes(CodecId::kQ4, delta.size()));
    ASSERT_TRUE(codec::encode_q4_feedback(delta, residual, image));
    EXPECT_EQ(image, bytes_at(one, "image"));
    Bytes rounded(2 * delta.size());
    ASSERT_TRUE(codec::encode(CodecId::kBf16, residual, rounded));
    EXPECT_EQ(rounded, bytes_at(one, "new_residual"));
  }
}

TEST(ProtocolVectors, MergesAreTheSameBits) {
  for (const json& one : vectors().at("merges")) {
    const Values theta = floats_at(one, "theta");
    const Values momentum = floats_at(one, "momentum");
    Layout layout;
    TensorSpec tensor;
    tensor.name = "w";
    tensor.shape = {theta.size()};
    tensor.merge = static_cast<MergeMode>(one.at("mode").get<int>());
    layout.tensors = {tensor};
    layout.fragments = {{{{0, 0, theta.size(), 0}}, theta.size()}};
    std::vector<Bytes> deltas;
    for (const json& push : one.at("pushes")) {
      deltas.push_back(bytes_at(push, "delta"));
    }
    merge::Inputs in;
    in.layout = &layout;
    const auto rule = merge::weight_rule_from_name(one.at("weights").get<std::string>());
    const auto outer = merge::outer_kind_from_name(one.at("outer").get<std::string>());
    ASSERT_TRUE(rule && outer);
    in.weights = *rule;
    in.outer = merge::OuterRule::of(*outer);
    in.values = theta;
    in.momentum = momentum;
    for (std::size_t m = 0; m < deltas.size(); ++m) {
      const json& from = one.at("pushes")[m];
      merge::Push push;
      push.seat = from.at("seat");
      push.c_steps = from.at("c_steps");
      push.c_tokens = from.at("c_tokens");
      push.image = deltas[m];
      in.pushes.push_back(push);
    }
    Values new_theta(theta.size());
    Values new_momentum(theta.size());
    Bytes image(4 * theta.size());
    const auto finite =
        merge::merge_fragment(std::move(in), {new_theta, new_momentum, CodecId::kF32, image});
    ASSERT_TRUE(finite && *finite);
    EXPECT_EQ(bits_of(new_theta), bytes_at(one, "new_theta"));
    EXPECT_EQ(bits_of(new_momentum), bytes_at(one, "new_momentum"));
  }
}

}  // namespace
}  // namespace yeto
