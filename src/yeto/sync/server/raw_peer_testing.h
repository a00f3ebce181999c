// SPDX-License-Identifier: Apache-2.0
// For the tests of the syncer's door.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "yeto/net/connection.h"
#include "yeto/net/loop.h"
#include "yeto/net/tls.h"
#include "yeto/sync/link/framed_stream.h"
#include "yeto/wire/codec.h"

namespace yeto::sync {

// A connection whose frames a test writes itself: a peer that misbehaves. It reads what a
// stranger may be sent. For one thread, the loop's.
class RawPeer {
 public:
  RawPeer(net::Loop& loop, const net::Address& address,
          std::shared_ptr<const net::Tls> tls = nullptr)
      : loop_(loop) {
    connecting_ = net::connect(
        loop, address, kPatience,
        [this](auto connection) {
          if (!connection) {
            lost_ = true;
            return;
          }
          stream_ = std::make_unique<FramedStream>(loop_, std::move(*connection),
                                                   wire::Direction::kToLearner);
          expect();
        },
        std::move(tls));
  }
  FramedStream& stream() { return *stream_; }
  bool connected() const { return stream_ != nullptr; }
  // It could not connect, or the connection is over.
  bool lost() const { return lost_; }
  template <class M>
  const M* got() const {
    for (const wire::Message& message : messages_) {
      if (const M* found = std::get_if<M>(&message)) {
        return found;
      }
    }
    return nullptr;
  }
  std::string refusal() const {
    const auto* refused = got<wire::Refused>();
    return refused != nullptr ? refused->text : "not refused";
  }

 private:
  static constexpr Nanos kPatience = 30 * kSecond;

  void expect() {
    stream_->expect_one_message(
        wire::max_payload(wire::Type::kRefused, wire::Direction::kToLearner), kPatience,
        [this](Result<wire::Message> message) {
          if (!message) {
            lost_ = true;
            return;
          }
          messages_.push_back(std::move(*message));
          expect();
        });
  }
  net::Loop& loop_;
  std::unique_ptr<net::Connecting> connecting_;
  std::unique_ptr<FramedStream> stream_;
  std::vector<wire::Message> messages_;
  bool lost_ = false;
};

}  // namespace yeto::sync
