// SPDX-License-Identifier: Apache-2.0
// What the client is told (Event) and what it orders (Action). The client never touches a tensor
// value or a socket: it names images (received bodies) and tickets (bodies to send) by numbers that
// are unique for the life of the process, and its shell carries the actions out.
//
// Two kinds of action, told apart by is_value_work():
//   wire and worker actions   in any order of threads, but those of one call in the order given;
//   value work                reads or writes the trainer's tensors; only calls of the trainer
//                             (Client::boundary, Client::step) return it, and the trainer's thread
//                             does it before it goes on, in the order given.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "yeto/wire/messages.h"

namespace yeto::sync::client {

using ImageId = std::uint64_t;
using Ticket = std::uint64_t;

// ---- events ------------------------------------------------------------------------------------

// WELCOME came and the session's streams are up.
struct Admitted {
  wire::Welcome welcome;
};
struct SessionLost {
  std::string reason;
};
// Any session message except OFFER, HAVE, DONE and CHUNK.
struct MessageArrived {
  wire::Message message;
};
// Answered in the same call by Accept or Refuse.
struct OfferArrived {
  wire::Offer offer;
};
// All bytes of an accepted transfer are in its image. Answered by CheckImage.
struct ImageArrived {
  ImageId image = 0;
};
// The image was decoded; `ok`: its digest is the announced one and its values are finite.
struct ImageChecked {
  ImageId image = 0;
  bool ok = false;
};
// The body that TakePush ordered is encoded.
struct PushEncoded {
  Ticket ticket = 0;
  bool finite = false;
  double norm = 0.0;
};
// The body that TakeInit ordered is ready.
struct InitEncoded {
  Ticket ticket = 0;
  wire::Digest16 digest{};
};
// The transfer of a ticket ended.
struct BodySent {
  Ticket ticket = 0;
  bool ok = false;
};

using Event = std::variant<Admitted, SessionLost, MessageArrived, OfferArrived, ImageArrived,
                           ImageChecked, PushEncoded, InitEncoded, BodySent>;

// ---- actions -----------------------------------------------------------------------------------

struct Send {
  wire::Message message;
};
// The peer broke a rule of the protocol: end this session and connect again.
struct EndSession {
  std::string reason;
};
struct Accept {
  std::uint64_t transfer = 0;
  ImageId image = 0;
  std::uint64_t bytes = 0;
};
struct Refuse {
  std::uint64_t transfer = 0;
  std::string reason;
};
struct FinishReceive {
  std::uint64_t transfer = 0;
  bool ok = false;
};
// Turn the image into the public value of (fragment, version) in the anchor dtype and compare its
// digest (XXH3-128 of those bytes). A q4 image changes the public value of `base_version`, which is
// the fragment's anchor or an image checked before; any other stands alone.
struct CheckImage {
  ImageId image = 0;
  CodecId codec = CodecId::kF32;
  std::uint64_t values = 0;
  wire::Digest16 digest{};
  std::uint32_t fragment = 0;
  std::uint64_t version = 0;
  std::uint64_t base_version = 0;
};
// What the syncer made of a push (error feedback): kept, its rounding error becomes the residual;
// otherwise the residual it was made with comes back.
struct SettlePush {
  Ticket ticket = 0;
  std::uint32_t fragment = 0;
  bool kept = false;
};
struct DropImage {
  ImageId image = 0;
};
// The encoded layout.
struct SendLayout {
  Ticket ticket = 0;
  wire::Offer offer;
};
// The body kept under the ticket; offer.bytes 0: no body.
struct SendBody {
  Ticket ticket = 0;
  wire::Offer offer;
};
struct DropBody {
  Ticket ticket = 0;
};

// Value work.

// P ← local; a worker encodes reference − P under the ticket. Ends in PushEncoded.
struct TakePush {
  Ticket ticket = 0;
  std::uint32_t fragment = 0;
  std::uint64_t base_version = 0;
  std::uint64_t bytes = 0;  // of the body
  CodecId codec = CodecId::kF32;
  bool again = false;  // P stays as it is: the last delta once more, since it did not arrive
};
// A copy of the local values becomes an f32 body under the ticket. Ends in InitEncoded.
struct TakeInit {
  Ticket ticket = 0;
  std::uint32_t fragment = 0;
};
enum class ApplyMode : std::uint8_t {
  kOverwrite,    // local ← θ̂
  kAfterPush,    // local ← θ̂ + α·(P − θ̂) + (local − P)
  kWithoutPush,  // local ← θ̂ + α·(local − θ̂)
};
// The image becomes the anchor. P is forgotten.
struct Apply {
  std::uint32_t fragment = 0;
  std::uint64_t version = 0;
  ImageId image = 0;
  ApplyMode mode = ApplyMode::kOverwrite;
  double alpha = 0.0;
  bool blended = false;
};
// The local values were not finite: local ← anchor, which stays; P is forgotten, and with it the
// fragment's error feedback.
struct ResetFragment {
  std::uint32_t fragment = 0;
};
// All fragments are overwritten by their final f32 values; then Client::final_applied().
struct ApplyFinal {
  std::vector<ImageId> images;  // one per fragment
};

using Action = std::variant<Send, EndSession, Accept, Refuse, FinishReceive, CheckImage, DropImage,
                            SendLayout, SendBody, DropBody, SettlePush, TakePush, TakeInit, Apply,
                            ResetFragment, ApplyFinal>;
using Actions = std::vector<Action>;

inline bool is_value_work(const Action& action) {
  return std::holds_alternative<TakePush>(action) || std::holds_alternative<TakeInit>(action) ||
         std::holds_alternative<Apply>(action) || std::holds_alternative<ResetFragment>(action) ||
         std::holds_alternative<ApplyFinal>(action);
}

}  // namespace yeto::sync::client
