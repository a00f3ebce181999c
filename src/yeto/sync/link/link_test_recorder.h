// SPDX-License-Identifier: Apache-2.0
// What the tests of Link share: a handler that keeps what it is told, and bodies to send.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "yeto/base/rng.h"
#include "yeto/sync/link/link.h"

namespace yeto::sync {

// Accepts every offer into memory of its own, unless told otherwise.
class Recorder : public LinkHandler {
 public:
  enum class Answer { kAccept, kRefuse, kLater };

  void on_message(wire::Message message) override {
    messages.push_back(std::move(message));
    if (act) {
      act();
    }
  }
  void on_offer(const wire::Offer& offer) override {
    offers.push_back(offer);
    if (answer == Answer::kAccept) {
      accept(offer);
    } else if (answer == Answer::kRefuse) {
      link->refuse(offer.transfer, "not now");
    }
  }
  void accept(const wire::Offer& offer) {
    auto body = std::make_shared<Bytes>(offer.bytes);
    bodies[offer.transfer] = body;
    inside_accept = true;
    link->accept(offer.transfer, *body, body);
    inside_accept = false;
  }
  void on_received(std::uint64_t transfer, bool ok) override {
    EXPECT_FALSE(inside_accept);
    EXPECT_EQ(received.count(transfer), 0u) << "told twice";
    received[transfer] = ok;
    if (ok && finish) {
      link->finish_receive(transfer, digest_ok);
    }
  }
  void on_sent(std::uint64_t ticket, bool ok) override {
    EXPECT_FALSE(closed) << "on_closed comes last";
    EXPECT_EQ(sent.count(ticket), 0u) << "told twice";
    sent[ticket] = ok;
  }
  void on_heard() override { ++heard; }
  void on_data_stream_lost(std::uint16_t index, const std::string& reason) override {
    EXPECT_FALSE(closed);
    lost.emplace_back(index, reason);
  }
  void on_closed(const std::string& reason) override {
    EXPECT_FALSE(closed) << "told twice";
    closed = reason;
  }

  Link* link = nullptr;
  Answer answer = Answer::kAccept;
  bool finish = true;
  bool digest_ok = true;
  bool inside_accept = false;
  std::function<void()> act;
  std::vector<wire::Message> messages;
  std::vector<wire::Offer> offers;
  std::map<std::uint64_t, std::shared_ptr<Bytes>> bodies;
  std::map<std::uint64_t, bool> received;
  std::map<std::uint64_t, bool> sent;
  std::vector<std::pair<std::uint16_t, std::string>> lost;  // data streams
  int heard = 0;
  std::optional<std::string> closed;
};

inline std::shared_ptr<const Bytes> random_body(std::uint64_t seed, std::size_t size) {
  Rng rng(seed);
  auto body = std::make_shared<Bytes>(size);
  for (auto& byte : *body) {
    byte = static_cast<std::uint8_t>(rng.next());
  }
  return body;
}

inline wire::Offer offer_of(wire::TransferKind kind) {
  wire::Offer offer;
  offer.kind = kind;
  return offer;
}

}  // namespace yeto::sync
