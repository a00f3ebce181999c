// SPDX-License-Identifier: Apache-2.0
// FuzzLearner: a learner whose every frame may be another than the protocol asks for, and which can
// also do what it asks for, so that scripts come far. One control stream, or one data stream of
// another learner's session.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "yeto/base/digest.h"
#include "yeto/sync/link/frame_peer_testing.h"
#include "yeto/sync/server/door.h"
#include "yeto/tensor/image.h"
#include "yeto/tensor/layout.h"

namespace yeto::sync {

class FuzzLearner {
 public:
  FuzzLearner(std::uint16_t port, const Layout& layout, const SessionKey& run_token)
      : peer(net::RawSocket::connect(port), wire::Direction::kToLearner),
        layout_(layout),
        run_token_(run_token) {}

  // Takes in what has come. Challenges, welcomes and finals are remembered; the rest waits for
  // answer().
  void read() {
    for (wire::Message& message : peer.read()) {
      if (const auto* hello = std::get_if<wire::Challenge>(&message)) {
        challenge = *hello;
      } else if (auto* in = std::get_if<wire::Welcome>(&message)) {
        welcome = std::move(*in);
      } else if (const auto* ask = std::get_if<wire::Pull>(&message)) {
        pull = *ask;
        waiting_.push_back(std::move(message));
      } else if (auto* end = std::get_if<wire::Final>(&message)) {
        final = std::move(*end);
      } else {
        waiting_.push_back(std::move(message));
      }
    }
    if (waiting_.size() > kMostWaiting) {
      waiting_.erase(waiting_.begin(), waiting_.end() - kMostWaiting);
    }
  }

  wire::Hello hello_of(std::uint32_t of_seat, wire::Role role) const {
    wire::Hello hello;
    hello.run_id = "run";
    hello.role = role;
    hello.seat = of_seat;
    hello.incarnation = 1 + of_seat;
    hello.layout = layout_.fingerprint();
    hello.values = layout_.values();
    return hello;
  }
  // With a proof of the seat's key.
  void say(wire::Hello hello) {
    if (challenge) {
      const SessionKey key = session_key(run_token_, hello.role, hello.seat);
      hello.proof = wire::make_proof(key, challenge->nonce, hello);
    }
    seat = hello.seat;
    peer.send(hello);
  }
  void attach_to(const FuzzLearner& session, std::uint16_t stream) {
    wire::Attach attach;
    attach.session = session.welcome ? session.welcome->session : wire::SessionToken{};
    attach.stream = stream;
    if (challenge) {
      const SessionKey key = session_key(run_token_, wire::Role::kLearner, session.seat);
      attach.proof = wire::make_proof(key, challenge->nonce, attach);
    }
    peer.send(attach);
  }

  // Answers everything that waits as a good learner does.
  void answer() {
    for (const wire::Message& message : std::exchange(waiting_, {})) {
      std::visit([this](const auto& m) { answer(m); }, message);
    }
    if (final && finals_ == layout_.fragments.size()) {
      wire::FinalAck ack;
      ack.global_step = final->global_step;
      ack.versions = final->versions;
      ack.digests = final->digests;
      peer.send(ack);
      finals_ = 0;
    }
  }

  // What a right offer says of a push that answers the newest pull.
  wire::Offer push_offer() const {
    wire::Offer offer;
    offer.kind = wire::TransferKind::kPush;
    if (pull) {
      offer.term = pull->term;
      offer.fragment = pull->fragment;
      offer.base_version = pull->base_version;
      offer.round = pull->round;
      offer.attempt = pull->attempt;
    }
    offer.codec = welcome ? welcome->push_codec : CodecId::kF32;
    offer.bytes = bytes_of(offer.codec, offer.fragment);
    offer.c_steps = 2;
    offer.c_tokens = 20;
    return offer;
  }
  // The bytes of the fragment's image; of the first one's for a fragment that does not exist.
  std::uint64_t bytes_of(CodecId codec, std::uint32_t fragment) const {
    const std::size_t at = fragment < layout_.fragments.size() ? fragment : 0;
    return image_bytes(codec, layout_.fragments[at].values);
  }
  // Offers it under the next number; the chunks of a push follow at once.
  void offer(wire::Offer offer, Bytes body) {
    offer.transfer = ++transfers;
    peer.send(offer);
    if (offer.kind == wire::TransferKind::kPush) {
      send_chunks(offer.transfer, body);
    } else {
      bodies_[offer.transfer] = std::move(body);
    }
  }

  FramePeer peer;
  std::uint32_t seat = 0;
  std::uint64_t transfers = 0;  // offered so far
  std::optional<wire::Challenge> challenge;
  std::optional<wire::Welcome> welcome;
  std::optional<wire::Pull> pull;  // newest
  std::optional<wire::Final> final;

 private:
  static constexpr std::ptrdiff_t kMostWaiting = 256;

  template <class M>
  void answer(const M&) {}
  void answer(const wire::Pull& ask) {
    wire::Offer offer;
    offer.term = ask.term;
    offer.fragment = ask.fragment;
    offer.attempt = ask.attempt;
    if (ask.fragment == wire::kLayoutFragment) {
      offer.kind = wire::TransferKind::kLayout;
      const Bytes body = layout_.encode();
      offer.bytes = body.size();
      return this->offer(offer, body);
    }
    if (ask.round == 0) {
      offer.kind = wire::TransferKind::kInit;
      const Bytes body = zeros(bytes_of(CodecId::kF32, ask.fragment));
      offer.bytes = body.size();
      offer.digest = xxh3_128(body);
      return this->offer(offer, body);
    }
    pull = ask;
    const wire::Offer push = push_offer();
    this->offer(push, zeros(push.bytes));
  }
  void answer(const wire::Have& have) {
    const auto found = bodies_.find(have.transfer);
    if (found != bodies_.end()) {
      if (have.accept != 0) {
        send_chunks(have.transfer, found->second);
      }
      bodies_.erase(found);
    }
  }
  void answer(const wire::Offer& offer) {
    if (offer.parts != 0) {
      incoming_[offer.transfer] = {offer, 0};
      peer.send(wire::Have{offer.transfer, 1, {}, {}});
    }
  }
  void answer(const wire::Chunk& chunk) {
    const auto found = incoming_.find(chunk.transfer);
    if (found == incoming_.end()) {
      return;
    }
    auto& [offer, got] = found->second;
    got += chunk.bytes.size();
    if (got >= offer.bytes) {
      finals_ += offer.kind == wire::TransferKind::kFinal ? 1 : 0;
      peer.send(wire::Done{chunk.transfer, 1});
      incoming_.erase(found);
    }
  }

  static Bytes zeros(std::uint64_t bytes) { return Bytes(bytes); }
  void send_chunks(std::uint64_t transfer, const Bytes& body) {
    const std::size_t most = welcome ? welcome->chunk_bytes : wire::kMinChunkBytes;
    for (std::size_t at = 0; at < body.size(); at += most) {
      const std::size_t count = std::min(most, body.size() - at);
      const auto from = body.begin() + static_cast<std::ptrdiff_t>(at);
      peer.send(wire::Chunk{transfer, static_cast<std::uint32_t>(at / most),
                            Bytes(from, from + static_cast<std::ptrdiff_t>(count))});
    }
  }

  const Layout& layout_;
  const SessionKey run_token_;
  std::deque<wire::Message> waiting_;
  std::map<std::uint64_t, Bytes> bodies_;  // offered, not asked for yet
  std::map<std::uint64_t, std::pair<wire::Offer, std::uint64_t>> incoming_;
  std::size_t finals_ = 0;
};

}  // namespace yeto::sync
