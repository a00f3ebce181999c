// SPDX-License-Identifier: Apache-2.0
// FramePeer: the far end of one stream as a fuzz target plays it, over a raw socket. It reads
// frames as a peer would and writes any: right ones, bent ones, pieces of them. On the thread of
// the loop at the other end; nothing here waits.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <utility>

#include "yeto/base/digest.h"
#include "yeto/base/fuzz_testing.h"
#include "yeto/net/raw_socket_testing.h"
#include "yeto/wire/codec.h"
#include "yeto/wire/frame.h"
#include "yeto/wire/messages.h"

namespace yeto::sync {

// How a frame differs from a right one; all zero: not at all.
struct FrameBend {
  std::uint64_t sequence = 0;  // added
  std::uint32_t crc = 0;       // xored
  std::uint32_t bytes = 0;     // added to the announced size
  std::uint8_t at = 0;         // of the header: this byte is xored
  std::uint8_t with = 0;

  static FrameBend of(fuzz::Input& in) {
    FrameBend out;
    switch (in.below(24)) {
      case 0:
        out.sequence = in.number<std::uint64_t>();
        break;
      case 1:
        out.crc = in.number<std::uint32_t>();
        break;
      case 2:
        out.bytes = in.number<std::uint32_t>();
        break;
      case 3:
        out.at = static_cast<std::uint8_t>(in.below(wire::kHeaderBytes));
        out.with = in.byte();
        break;
      default:
        break;
    }
    return out;
  }
};

class FramePeer {
 public:
  // `incoming`: the way the frames travel that are read here.
  FramePeer(net::RawSocket socket, wire::Direction incoming)
      : socket_(std::move(socket)), incoming_(incoming) {}

  bool open() const { return socket_.open(); }
  void close() { socket_.close(); }
  void shut_down_writing() { socket_.shut_down_writing(); }
  void raw(ByteView bytes) { socket_.send(bytes); }

  void send(const wire::Message& message) {
    frame(wire::type_of(message), wire::encode_message(message), {});
  }
  void frame(wire::Type type, ByteView payload, const FrameBend& bend) {
    raw(bytes_of(type, payload, bend));
  }
  // The frame's bytes; its number counts as used.
  Bytes bytes_of(wire::Type type, ByteView payload, const FrameBend& bend) {
    wire::FrameHeader header;
    header.type = type;
    header.payload_bytes = static_cast<std::uint32_t>(payload.size()) + bend.bytes;
    header.crc = crc32c(payload) ^ bend.crc;
    header.sequence = sequence_++ + bend.sequence;
    Bytes out(wire::kHeaderBytes);
    wire::encode_header(header, std::span<std::uint8_t, wire::kHeaderBytes>(out));
    out[bend.at] ^= bend.with;
    out.insert(out.end(), payload.begin(), payload.end());
    return out;
  }

  // The messages that have come since; what the other end writes must be right in every frame.
  std::deque<wire::Message> read() {
    const bool here = socket_.receive(inbox_);
    std::deque<wire::Message> out;
    std::size_t at = 0;
    while (inbox_.size() - at >= wire::kHeaderBytes) {
      std::array<std::uint8_t, wire::kHeaderBytes> bytes{};
      std::copy_n(inbox_.begin() + static_cast<std::ptrdiff_t>(at), bytes.size(), bytes.begin());
      const auto header = wire::parse_header(bytes, incoming_, 0xffffffff);
      YETO_CHECK(header.has_value(), "a frame that breaks the rules was sent");
      if (inbox_.size() - at - bytes.size() < header->payload_bytes) {
        break;
      }
      const ByteView payload = ByteView(inbox_).subspan(at + bytes.size(), header->payload_bytes);
      YETO_CHECK(received_.check(header->sequence) && wire::check_crc(*header, crc32c(payload)),
                 "a frame out of order, or damaged, was sent");
      auto message = wire::decode(header->type, incoming_, payload);
      YETO_CHECK(message.has_value(), "a message that nobody can read was sent");
      out.push_back(std::move(*message));
      at += bytes.size() + payload.size();
    }
    inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<std::ptrdiff_t>(at));
    if (!here) {
      close();
    }
    return out;
  }

 private:
  net::RawSocket socket_;
  const wire::Direction incoming_;
  std::uint64_t sequence_ = 0;
  wire::FrameSequence received_;
  Bytes inbox_;
};

}  // namespace yeto::sync
