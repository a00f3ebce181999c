// SPDX-License-Identifier: Apache-2.0
// The fixture of the client's tests: events are injected by hand, the actions are looked at; no
// socket, no thread, no value.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "yeto/codec/codec.h"
#include "yeto/sync/client/client.h"

namespace yeto::sync::client::testing_world {

using wire::TransferKind;

inline constexpr std::uint64_t kTerm = 3;

inline Layout two_fragments() {
  LayoutOptions options;
  options.fragments = 2;
  std::vector<TensorSpec> tensors = {{"a.weight", {4, 2}, DType::kF32, MergeMode::kRda},
                                     {"b.weight", {6}, DType::kF32, MergeMode::kRda}};
  return make_layout(std::move(tensors), options).value();
}

template <class T>
std::vector<T> all(const Actions& actions) {
  std::vector<T> found;
  for (const Action& action : actions) {
    if (const T* match = std::get_if<T>(&action)) {
      found.push_back(*match);
    }
  }
  return found;
}

template <class T>
std::optional<T> one(const Actions& actions) {
  const std::vector<T> found = all<T>(actions);
  EXPECT_LE(found.size(), 1U);
  return found.empty() ? std::nullopt : std::optional<T>(found.front());
}

template <class M>
std::optional<M> sent(const Actions& actions) {
  for (const Send& send : all<Send>(actions)) {
    if (const M* message = std::get_if<M>(&send.message)) {
      return *message;
    }
  }
  return std::nullopt;
}

// Position of the first action of type T about a fragment, or the number of actions.
template <class T>
std::size_t position(const Actions& actions, std::uint32_t fragment) {
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (const T* match = std::get_if<T>(&actions[i]); match && match->fragment == fragment) {
      return i;
    }
  }
  return actions.size();
}

class World : public testing::Test {
 protected:
  World() : layout_(two_fragments()), client_(options(), layout_) {}

  static ClientOptions options() {
    ClientOptions options;
    options.run_id = "run";
    options.seat = 1;
    options.incarnation = 77;
    return options;
  }

  static wire::Welcome welcome(std::vector<std::uint64_t> versions, std::uint64_t term = kTerm) {
    wire::Welcome welcome;
    welcome.seat = 1;
    welcome.session.fill(9);
    welcome.term = term;
    welcome.valid = versions;
    welcome.versions = std::move(versions);
    return welcome;
  }

  Actions admit(std::vector<std::uint64_t> versions, std::uint64_t term = kTerm) {
    return client_.on(Admitted{welcome(std::move(versions), term)});
  }

  wire::Offer offer(TransferKind kind, std::uint32_t fragment, std::uint64_t version) {
    wire::Offer offer;
    offer.transfer = ++transfer_;
    offer.kind = kind;
    offer.term = client_.run().term;
    offer.fragment = fragment;
    offer.version = version;
    offer.bytes = layout_.fragments[fragment].values * 4;
    return offer;
  }

  // A transfer from OFFER to a verified image.
  Actions deliver(TransferKind kind, std::uint32_t fragment, std::uint64_t version,
                  bool intact = true) {
    const auto accept = one<Accept>(client_.on(OfferArrived{offer(kind, fragment, version)}));
    EXPECT_TRUE(accept);
    EXPECT_TRUE(one<CheckImage>(client_.on(ImageArrived{accept->image})));
    last_image_ = accept->image;
    return client_.on(ImageChecked{accept->image, intact});
  }
  Actions broadcast(std::uint32_t fragment, std::uint64_t version) {
    return deliver(TransferKind::kBroadcast, fragment, version);
  }

  Actions pull(std::uint32_t fragment, std::uint64_t round, std::uint64_t base, bool sweep = false,
               std::uint64_t at_step = 0, std::uint32_t attempt = 1) {
    wire::Pull pull;
    pull.term = client_.run().term;
    pull.fragment = fragment;
    pull.round = round;
    pull.attempt = attempt;
    pull.base_version = base;
    pull.sweep = sweep ? 1 : 0;
    pull.at_step = at_step;
    return client_.on(MessageArrived{pull});
  }

  Actions step(std::uint64_t tokens = 10) {
    now_ += kSecond;
    client_.step(tokens, now_);
    return client_.boundary();
  }

  // Admitted, all fragments overwritten by version 0.
  void join() {
    admit({0, 0});
    broadcast(0, 0);
    broadcast(1, 0);
    client_.boundary();
    ASSERT_TRUE(client_.ready());
  }

  Layout layout_;
  Client client_;
  std::uint64_t transfer_ = 0;
  ImageId last_image_ = 0;
  Nanos now_ = 0;
};

}  // namespace yeto::sync::client::testing_world
