// SPDX-License-Identifier: Apache-2.0
// Walkers over the field lists of messages.h, shared by the .cc files of this room. One overload
// set per walker, chosen by the kind of field: number, enum, byte array, text, list, struct.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "yeto/wire/messages.h"

namespace yeto::wire {

// Values of an enum on the wire: `first`, then one per name.
struct EnumNames {
  std::uint16_t first = 0;
  std::span<const std::string_view> names;
  bool holds(std::uint64_t value) const { return value >= first && value - first < names.size(); }
};

EnumNames enum_names(Role);
EnumNames enum_names(Phase);
EnumNames enum_names(CodecId);
EnumNames enum_names(TransferKind);
EnumNames enum_names(Outcome);
EnumNames enum_names(LeaveReason);
EnumNames enum_names(FinishMode);
EnumNames enum_names(DataAction);
EnumNames enum_names(RefuseCode);

template <class T>
inline constexpr bool kIsByteArray = false;
template <std::size_t kCount>
inline constexpr bool kIsByteArray<std::array<std::uint8_t, kCount>> = true;

template <class T>
concept Number = std::is_arithmetic_v<T>;
template <class T>
concept Enum = std::is_enum_v<T>;
template <class T>
concept ByteArray = kIsByteArray<T>;
template <class T>
concept Struct = std::is_class_v<T> && !ByteArray<T>;

// Elements that are the same bytes in memory and on the wire.
template <class T>
concept Flat = Number<T> || ByteArray<T>;

// Calls `f` for the message type that `type` and `direction` name, as f.template operator()<M>().
// The caller has checked type_allowed().
template <class F>
auto with_type(Type type, bool to_syncer, F&& f) {
  switch (type) {
    case Type::kChallenge:
      return f.template operator()<Challenge>();
    case Type::kHello:
      return f.template operator()<Hello>();
    case Type::kWelcome:
      return f.template operator()<Welcome>();
    case Type::kRefused:
      return f.template operator()<Refused>();
    case Type::kAttach:
      return f.template operator()<Attach>();
    case Type::kAttached:
      return f.template operator()<Attached>();
    case Type::kPull:
      return f.template operator()<Pull>();
    case Type::kCancel:
      return f.template operator()<Cancel>();
    case Type::kVerdict:
      return f.template operator()<Verdict>();
    case Type::kHeartbeat:
      return to_syncer ? f.template operator()<LearnerBeat>() : f.template operator()<SyncerBeat>();
    case Type::kLeave:
      return f.template operator()<Leave>();
    case Type::kFinish:
      return f.template operator()<Finish>();
    case Type::kLimit:
      return f.template operator()<Limit>();
    case Type::kFinal:
      return f.template operator()<Final>();
    case Type::kFinalAck:
      return f.template operator()<FinalAck>();
    case Type::kGoodbye:
      return f.template operator()<Goodbye>();
    case Type::kOffer:
      return f.template operator()<Offer>();
    case Type::kHave:
      return f.template operator()<Have>();
    case Type::kDone:
      return f.template operator()<Done>();
    case Type::kData:
      return f.template operator()<Data>();
    case Type::kMetric:
      return f.template operator()<Metric>();
    case Type::kChunk:
      break;
  }
  return f.template operator()<Chunk>();
}

}  // namespace yeto::wire
