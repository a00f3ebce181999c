// SPDX-License-Identifier: Apache-2.0
// A syncer for tests that does what the test says: real sockets and links on its own thread, no
// rounds. One learner at a time. All public methods are for the test's thread.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "yeto/base/digest.h"
#include "yeto/base/rng.h"
#include "yeto/base/thread.h"
#include "yeto/codec/codec.h"
#include "yeto/net/connection.h"
#include "yeto/net/loop.h"
#include "yeto/sync/link/link.h"
#include "yeto/wire/codec.h"

namespace yeto::sync::scripted {

// A push or another body that came in.
struct ReceivedBody {
  wire::Offer offer;
  Bytes bytes;
};

class ScriptedSyncer final : public LinkHandler {
 public:
  static constexpr Nanos kPatience = 20 * kSecond;

  ScriptedSyncer(const Sha256& key, wire::Welcome welcome)
      : key_(key), welcome_(std::move(welcome)) {
    auto listener = net::Listener::open(
        loop_, {"127.0.0.1", 0},
        [this](std::unique_ptr<net::Connection> connection) { on_accept(std::move(connection)); });
    EXPECT_TRUE(listener);
    listener_ = std::move(*listener);
    address_ = listener_->address();
    thread_ = JoiningThread([this] { loop_.run(); });
  }
  ~ScriptedSyncer() override {
    loop_.post([this] {
      close_all();
      listener_.reset();
      loop_.stop();
    });
    thread_.join();
  }

  net::Address address() const { return address_; }

  // The WELCOME of sessions to come.
  void set_welcome(wire::Welcome welcome) {
    on_loop([this, welcome] { welcome_ = welcome; });
  }
  // Answers HELLO by REFUSED from now on.
  void refuse(wire::Refused refused) {
    on_loop([this, refused] { refused_ = refused; });
  }
  // Answers every LAYOUT and INIT by asking for the next, and then broadcasts the values given.
  void act_as_new_run() {
    on_loop([this] { new_run_ = true; });
  }
  void send(wire::Message message) {
    on_loop([this, message] {
      if (link_) {
        link_->send(message);
      }
    });
  }
  void pull(std::uint32_t fragment, std::uint64_t round, std::uint64_t base, bool sweep = false,
            std::uint32_t attempt = 1) {
    wire::Pull pull;
    pull.fragment = fragment;
    pull.round = round;
    pull.attempt = attempt;
    pull.base_version = base;
    pull.sweep = sweep ? 1 : 0;
    on_loop([this, pull]() mutable {
      pull.term = welcome_.term;
      if (link_) {
        link_->send(pull);
      }
    });
  }
  // Offers an image; `intact` false announces a wrong digest.
  void offer(wire::TransferKind kind, std::uint32_t fragment, std::uint64_t version,
             const std::vector<float>& values, bool intact = true) {
    on_loop([this, kind, fragment, version, values, intact] {
      send_values(kind, fragment, version, values, intact);
    });
  }
  void broadcast(std::uint32_t fragment, std::uint64_t version, const std::vector<float>& values) {
    offer(wire::TransferKind::kBroadcast, fragment, version, values);
  }
  // Cuts the session, as a lost network would.
  void drop() {
    on_loop([this] { close_all(); });
  }

  // Waits until `ready` holds of the received things; false if it does not come to that.
  bool wait(const std::function<bool()>& ready) {
    const Nanos deadline = monotonic_now() + kPatience;
    MutexLock lock(mutex_);
    while (!ready()) {
      if (monotonic_now() > deadline) {
        return false;
      }
      changed_.wait_for(mutex_, std::chrono::milliseconds(50));
    }
    return true;
  }
  bool wait_for_hellos(std::size_t count) {
    return wait([&] { return hellos_.size() >= count; });
  }
  bool wait_for_sent(std::size_t count) {
    return wait([&] { return sent_.size() >= count; });
  }
  // The count-th push (from 1), empty ones included.
  std::optional<ReceivedBody> push(std::size_t count) {
    return body(wire::TransferKind::kPush, count);
  }
  std::optional<ReceivedBody> body(wire::TransferKind kind, std::size_t count) {
    std::optional<ReceivedBody> found;
    wait([&] {
      std::size_t seen = 0;
      for (const ReceivedBody& candidate : bodies_) {
        if (candidate.offer.kind == kind && ++seen == count) {
          found = candidate;
        }
      }
      return found.has_value();
    });
    return found;
  }
  template <class M>
  std::optional<M> message(const std::function<bool(const M&)>& fits = [](const M&) {
    return true;
  }) {
    std::optional<M> found;
    wait([&] {
      for (const wire::Message& candidate : messages_) {
        if (const M* match = std::get_if<M>(&candidate); match && fits(*match)) {
          found = *match;
        }
      }
      return found.has_value();
    });
    return found;
  }
  std::vector<wire::Hello> hellos() {
    MutexLock lock(mutex_);
    return hellos_;
  }
  // Outcome of the transfers we offered, in the order they ended.
  std::vector<bool> sent() {
    MutexLock lock(mutex_);
    return sent_;
  }

 private:
  struct Guest {
    std::unique_ptr<FramedStream> stream;
    wire::Nonce nonce{};
  };

  void on_loop(std::function<void()> task) { loop_.post(std::move(task)); }

  template <class F>
  void record(F&& change) {
    MutexLock lock(mutex_);
    change();
    changed_.notify_all();
  }

  void on_accept(std::unique_ptr<net::Connection> connection) {
    const std::uint64_t id = next_guest_++;
    Guest& guest = guests_[id];
    guest.stream =
        std::make_unique<FramedStream>(loop_, std::move(connection), wire::Direction::kToSyncer);
    random_bytes(guest.nonce);
    guest.stream->send(wire::Challenge{guest.nonce, welcome_.term, wire::kMinor});
    guest.stream->expect_one_message(
        wire::kMaxUnadmittedBytes, kPatience,
        [this, id](Result<wire::Message> message) { on_first(id, std::move(message)); });
  }

  void on_first(std::uint64_t id, Result<wire::Message> message) {
    Guest guest = std::move(guests_[id]);
    guests_.erase(id);
    if (!message) {
      return;
    }
    if (const auto* hello = std::get_if<wire::Hello>(&*message)) {
      EXPECT_TRUE(wire::proof_ok(key_, guest.nonce, *hello));
      on_hello(*hello, std::move(guest.stream));
    } else if (const auto* attach = std::get_if<wire::Attach>(&*message)) {
      EXPECT_TRUE(wire::proof_ok(key_, guest.nonce, *attach));
      if (link_ && attach->session == welcome_.session) {
        guest.stream->send(wire::Attached{attach->stream});
        EXPECT_TRUE(link_->add_data_stream(std::move(guest.stream), attach->stream));
      }
    }
  }

  void on_hello(const wire::Hello& hello, std::unique_ptr<FramedStream> stream) {
    record([&] { hellos_.push_back(hello); });
    if (refused_) {
      stream->send(*refused_);
      stream->close_gracefully(kSecond);
      return;
    }
    close_all();
    stream->send(welcome_);
    LinkOptions options;
    options.incoming = wire::Direction::kToSyncer;
    options.chunk_bytes = welcome_.chunk_bytes;
    options.data_streams = hello.streams;
    link_ = std::make_unique<Link>(loop_, options, this);
    link_->start(std::move(stream));
    if (new_run_) {
      ask(wire::kLayoutFragment);
    }
  }

  void ask(std::uint32_t fragment) {
    wire::Pull ask;
    ask.term = welcome_.term;
    ask.fragment = fragment;
    link_->send(ask);
  }

  void close_all() {
    guests_.clear();
    incoming_.clear();
    if (link_) {
      link_->close();
      link_.reset();
    }
  }

  void send_values(wire::TransferKind kind, std::uint32_t fragment, std::uint64_t version,
                   const std::vector<float>& values, bool intact) {
    if (!link_) {
      return;
    }
    const CodecId codec =
        kind == wire::TransferKind::kFinal ? CodecId::kF32 : welcome_.broadcast_codec;
    auto image = std::make_shared<Bytes>(codec::encoded_bytes(codec, values.size()));
    EXPECT_TRUE(codec::encode(codec, values, *image));
    wire::Offer offer;
    offer.kind = kind;
    offer.term = welcome_.term;
    offer.fragment = fragment;
    offer.version = version;
    offer.codec = codec;
    offer.bytes = image->size();
    offer.digest = codec::public_digest(*image);
    offer.digest[0] = static_cast<std::uint8_t>(offer.digest[0] + (intact ? 0 : 1));
    link_->send_transfer(next_ticket_++, offer, std::move(image));
  }

  void on_message(wire::Message message) override {
    record([&] { messages_.push_back(std::move(message)); });
  }
  void on_offer(const wire::Offer& offer) override {
    auto memory = std::make_shared<Bytes>(offer.bytes);
    incoming_[offer.transfer] = {offer, memory};
    link_->accept(offer.transfer, MutableByteView(*memory), memory);
  }
  void on_received(std::uint64_t transfer, bool ok) override {
    const auto [offer, memory] = incoming_[transfer];
    incoming_.erase(transfer);
    if (!ok) {
      return;
    }
    link_->finish_receive(transfer, true);
    if (new_run_ && offer.kind == wire::TransferKind::kLayout) {
      const auto layout = Layout::decode(*memory);
      EXPECT_TRUE(layout);
      for (std::uint32_t i = 0; layout && i < layout->fragments.size(); ++i) {
        ask(i);
      }
    }
    if (new_run_ && offer.kind == wire::TransferKind::kInit) {
      std::vector<float> values(offer.bytes / sizeof(float));
      EXPECT_TRUE(codec::decode(CodecId::kF32, *memory, values));
      send_values(wire::TransferKind::kBroadcast, offer.fragment, 0, values, true);
    }
    record([&] { bodies_.push_back({offer, *memory}); });
  }
  void on_sent(std::uint64_t /*ticket*/, bool ok) override {
    record([&] { sent_.push_back(ok); });
  }
  void on_heard() override {}
  void on_closed(const std::string& /*reason*/) override { link_.reset(); }

  const Sha256 key_;
  net::Loop loop_;
  net::Address address_;

  // Loop thread.
  wire::Welcome welcome_;
  std::optional<wire::Refused> refused_;
  bool new_run_ = false;
  std::unique_ptr<net::Listener> listener_;
  std::map<std::uint64_t, Guest> guests_;
  std::uint64_t next_guest_ = 1;
  std::unique_ptr<Link> link_;
  std::map<std::uint64_t, std::pair<wire::Offer, std::shared_ptr<Bytes>>> incoming_;
  std::uint64_t next_ticket_ = 1;

  // Under mutex_; wait() calls the test's conditions with it held.
  Mutex mutex_;
  ConditionVariable changed_;
  std::vector<wire::Hello> hellos_;
  std::vector<wire::Message> messages_;
  std::vector<ReceivedBody> bodies_;
  std::vector<bool> sent_;
  JoiningThread thread_;
};

}  // namespace yeto::sync::scripted
