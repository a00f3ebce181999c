// SPDX-License-Identifier: Apache-2.0
#include "yeto/wire/frame.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/wire/codec.h"

namespace yeto::wire {
namespace {

// What a newer minor may append to a message before an older reader takes it for damage.
constexpr std::size_t kNewerMinorBytes = 1024;

enum class Way : std::uint8_t { kNone, kToSyncer, kToLearner, kBoth };

struct TypeRow {
  std::string_view name;
  Way way = Way::kNone;
  std::uint32_t to_syncer_bytes = 0;
  std::uint32_t to_learner_bytes = 0;
};

template <class M>
std::uint32_t limit_of() {
  return static_cast<std::uint32_t>(max_bytes<M>() + kNewerMinorBytes);
}

template <class M>
TypeRow row(std::string_view name, Way way) {
  return {name, way, way == Way::kToLearner ? 0 : limit_of<M>(),
          way == Way::kToSyncer ? 0 : limit_of<M>()};
}

using Table = std::array<TypeRow, 23>;

Table make_table() {
  Table table{};
  const auto set = [&](Type type, TypeRow value) { table[static_cast<std::size_t>(type)] = value; };
  set(Type::kChallenge, row<Challenge>("CHALLENGE", Way::kToLearner));
  set(Type::kHello, row<Hello>("HELLO", Way::kToSyncer));
  set(Type::kWelcome, row<Welcome>("WELCOME", Way::kToLearner));
  set(Type::kRefused, row<Refused>("REFUSED", Way::kToLearner));
  set(Type::kAttach, row<Attach>("ATTACH", Way::kToSyncer));
  set(Type::kAttached, row<Attached>("ATTACHED", Way::kToLearner));
  set(Type::kPull, row<Pull>("PULL", Way::kToLearner));
  set(Type::kCancel, row<Cancel>("CANCEL", Way::kToLearner));
  set(Type::kVerdict, row<Verdict>("VERDICT", Way::kToLearner));
  set(Type::kHeartbeat, {"HEARTBEAT", Way::kBoth, limit_of<LearnerBeat>(), limit_of<SyncerBeat>()});
  set(Type::kLeave, row<Leave>("LEAVE", Way::kToSyncer));
  set(Type::kFinish, row<Finish>("FINISH", Way::kToSyncer));
  set(Type::kLimit, row<Limit>("LIMIT", Way::kToSyncer));
  set(Type::kFinal, row<Final>("FINAL", Way::kToLearner));
  set(Type::kFinalAck, row<FinalAck>("FINAL_ACK", Way::kToSyncer));
  set(Type::kGoodbye, row<Goodbye>("GOODBYE", Way::kToLearner));
  set(Type::kOffer, row<Offer>("OFFER", Way::kBoth));
  set(Type::kHave, row<Have>("HAVE", Way::kBoth));
  set(Type::kDone, row<Done>("DONE", Way::kBoth));
  set(Type::kData, row<Data>("DATA", Way::kBoth));
  set(Type::kMetric, row<Metric>("METRIC", Way::kToSyncer));
  set(Type::kChunk, row<Chunk>("CHUNK", Way::kBoth));
  return table;
}

const TypeRow& row_of(Type type) {
  static const Table table = make_table();
  const auto index = static_cast<std::size_t>(type);
  return index < table.size() ? table[index] : table[0];
}

tl::unexpected<Error> broken(std::string what, std::string hint = {}) {
  return fail(ErrorCode::kProtocol, std::move(what), "frame header", std::move(hint));
}

std::string_view way_text(Direction direction) {
  return direction == Direction::kToSyncer ? "to the syncer" : "to a learner";
}

template <class T>
T load(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <class T>
void store(std::uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

}  // namespace

std::string_view type_name(Type type) { return row_of(type).name; }

bool type_allowed(Type type, Direction direction) {
  const Way way = row_of(type).way;
  return way == Way::kBoth ||
         way == (direction == Direction::kToSyncer ? Way::kToSyncer : Way::kToLearner);
}

std::uint32_t max_payload(Type type, Direction direction) {
  const TypeRow& of_type = row_of(type);
  return direction == Direction::kToSyncer ? of_type.to_syncer_bytes : of_type.to_learner_bytes;
}

void encode_header(const FrameHeader& header, std::span<std::uint8_t, kHeaderBytes> out) {
  store(out.data(), kMagic);
  out[4] = kMajor;
  out[5] = static_cast<std::uint8_t>(header.type);
  store(out.data() + 6, std::uint16_t{0});
  store(out.data() + 8, header.payload_bytes);
  store(out.data() + 12, header.crc);
  store(out.data() + 16, header.sequence);
}

Result<FrameHeader> parse_header(std::span<const std::uint8_t, kHeaderBytes> bytes,
                                 Direction direction, std::uint32_t limit) {
  if (load<std::uint32_t>(bytes.data()) != kMagic) {
    return broken(strf("wrong magic {} (expected 5945544f)", hex(bytes.first(4))),
                  "the peer does not speak this protocol: check host and port");
  }
  if (bytes[4] != kMajor) {
    return broken(strf("protocol major {} is not {}", bytes[4], kMajor),
                  "run the same release of yeto on both sides");
  }
  const auto flags = load<std::uint16_t>(bytes.data() + 6);
  if (flags != 0) {
    return broken(strf("unknown flags {:#06x}", flags),
                  "run the same release of yeto on both sides");
  }
  const Type type = static_cast<Type>(bytes[5]);
  if (type_name(type).empty()) {
    return broken(strf("unknown message type {}", bytes[5]),
                  "run the same release of yeto on both sides");
  }
  if (!type_allowed(type, direction)) {
    return broken(strf("{} may not be sent {}", type_name(type), way_text(direction)));
  }
  FrameHeader header{type, load<std::uint32_t>(bytes.data() + 8),
                     load<std::uint32_t>(bytes.data() + 12),
                     load<std::uint64_t>(bytes.data() + 16)};
  const std::uint32_t most = std::min(limit, max_payload(type, direction));
  if (header.payload_bytes > most) {
    return broken(strf("{} of {} payload bytes is over the limit of {}", type_name(type),
                       header.payload_bytes, most));
  }
  return header;
}

Status check_crc(const FrameHeader& header, std::uint32_t crc_of_payload) {
  if (header.crc != crc_of_payload) {
    return fail(ErrorCode::kProtocol,
                strf("CRC-32C of the payload is {:08x}, the header says {:08x}", crc_of_payload,
                     header.crc),
                strf("{} frame {}", type_name(header.type), header.sequence),
                "bytes were damaged on the way; the connection is made anew");
  }
  return Unit{};
}

Bytes encode_frame(Type type, std::uint64_t sequence, ByteView payload) {
  Bytes frame(kHeaderBytes + payload.size());
  encode_header({type, static_cast<std::uint32_t>(payload.size()), crc32c(payload), sequence},
                std::span<std::uint8_t, kHeaderBytes>(frame.data(), kHeaderBytes));
  std::copy(payload.begin(), payload.end(), frame.begin() + kHeaderBytes);
  return frame;
}

Status FrameSequence::check(std::uint64_t sequence) {
  if (sequence != next_) {
    return broken(strf("sequence {} where {} was due (a gap, repeat or reorder)", sequence, next_));
  }
  ++next_;
  return Unit{};
}

}  // namespace yeto::wire
