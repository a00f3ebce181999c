// SPDX-License-Identifier: Apache-2.0
// One link, of either side, whose peer writes anything on its control and data streams while the
// owner accepts, refuses, sends, aborts and waits. Whatever the peer does: no crash, every frame it
// gets is right, every accept ends in one on_received and every transfer sent in one on_sent, all
// before the one on_closed; nothing is written outside a body.
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "yeto/base/fuzz_testing.h"
#include "yeto/net/connection.h"
#include "yeto/net/loop.h"
#include "yeto/sync/link/frame_peer_testing.h"
#include "yeto/sync/link/link.h"

namespace {

using namespace yeto;
using namespace yeto::sync;
using wire::Direction;
using wire::Type;

constexpr int kMostSteps = 96;
constexpr std::uint16_t kStreams = 3;
constexpr std::uint64_t kMostBytes = 64 << 10;  // of a body that the owner takes
constexpr std::uint32_t kChunkBytes = 64;
constexpr Nanos kPatience = 10 * kSecond;

// The loop and its listener serve all inputs; what belongs to one input does not outlive it.
class Net {
 public:
  Net() {
    auto opened = net::Listener::open(
        loop, {"127.0.0.1", 0},
        [this](std::unique_ptr<net::Connection> c) { accepted_.push_back(std::move(c)); });
    YETO_CHECK(opened.has_value(), "a listener of this machine");
    listener_ = std::move(*opened);
  }
  std::pair<net::RawSocket, std::unique_ptr<net::Connection>> connect() {
    net::RawSocket socket = net::RawSocket::connect(listener_->address().port);
    YETO_CHECK(loop.run_until([this] { return !accepted_.empty(); }, kPatience), "nobody comes");
    std::pair out(std::move(socket), std::move(accepted_.front()));
    accepted_.pop_front();
    return out;
  }
  void turn(int times) {
    for (int i = 0; i < times; ++i) {
      bool ran = false;
      loop.post([&] { ran = true; });
      YETO_CHECK(loop.run_until([&] { return ran; }, kPatience), "a loop that stands still");
    }
  }
  net::Loop loop;

 private:
  std::unique_ptr<net::Listener> listener_;
  std::deque<std::unique_ptr<net::Connection>> accepted_;
};

class Owner final : public LinkHandler {
 public:
  explicit Owner(fuzz::Input& in) : in_(in) {}

  void on_message(wire::Message message) override {
    const Type type = wire::type_of(message);
    YETO_CHECK(!closed && type > Type::kAttached && type != Type::kOffer && type != Type::kHave &&
                   type != Type::kDone && type != Type::kChunk,
               "a message that is not for the owner");
  }
  void on_offer(const wire::Offer& offer) override {
    YETO_CHECK(!closed, "an offer after the end");
    offers_[offer.transfer] = offer;
    if (in_.below(4) != 0) {
      answer();
    }
  }
  // Of the oldest offer that waits.
  void answer() {
    if (offers_.empty() || closed) {
      return;
    }
    const wire::Offer offer = offers_.begin()->second;
    offers_.erase(offers_.begin());
    if (offer.bytes > kMostBytes || in_.below(4) == 0) {
      return link->refuse(offer.transfer, "no");
    }
    auto body = std::make_shared<Bytes>(offer.bytes);
    accepted_.insert(offer.transfer);
    inside_ = true;
    link->accept(offer.transfer, *body, body);
    inside_ = false;
  }
  void on_received(std::uint64_t transfer, bool ok) override {
    YETO_CHECK(!inside_ && !closed && accepted_.erase(transfer) == 1, "received, but not accepted");
    if (ok) {
      received_.push_back(transfer);
      if (in_.below(4) != 0) {
        finish();
      }
    }
  }
  void finish() {
    if (!received_.empty() && !closed) {
      link->finish_receive(received_.front(), in_.below(4) != 0);
      received_.pop_front();
    }
  }
  void abort() {
    if (!accepted_.empty() && !closed) {
      const std::uint64_t transfer = *accepted_.begin();
      accepted_.erase(transfer);
      link->abort(transfer, "not any more");
    }
  }
  void send() {
    if (closed) {
      return;
    }
    wire::Offer offer;
    offer.kind = static_cast<wire::TransferKind>(in_.below(5));
    const std::uint64_t ticket = ++tickets_;
    sending_.insert(ticket);
    inside_ = true;
    link->send_transfer(ticket, offer,
                        std::make_shared<const Bytes>(in_.number<std::uint16_t>() % 1024U));
    inside_ = false;
  }
  void withdraw() {
    inside_ = true;
    link->abort_transfer(1 + in_.below(8));
    inside_ = false;
  }
  void on_sent(std::uint64_t ticket, bool) override {
    YETO_CHECK(!inside_ && !closed && sending_.erase(ticket) == 1, "sent, but not ordered");
  }
  void on_heard() override {}
  void on_data_stream_lost(std::uint16_t index, const std::string& reason) override {
    YETO_CHECK(!closed && index < kStreams && !reason.empty(), "a stream that never was");
  }
  void on_closed(const std::string& reason) override {
    YETO_CHECK(!closed && !reason.empty(), "closed twice, or without a reason");
    YETO_CHECK(accepted_.empty() && sending_.empty(), "closed with transfers that did not end");
    closed = true;
  }

  Link* link = nullptr;
  bool closed = false;

 private:
  fuzz::Input& in_;
  bool inside_ = false;
  std::map<std::uint64_t, wire::Offer> offers_;
  std::set<std::uint64_t> accepted_;
  std::deque<std::uint64_t> received_;
  std::set<std::uint64_t> sending_;
  std::uint64_t tickets_ = 0;
};

class Script {
 public:
  Script(Net& net, fuzz::Input& in)
      : net_(net),
        in_(in),
        incoming_(in.coin() ? Direction::kToSyncer : Direction::kToLearner),
        owner_(in),
        link_(net.loop, options(), &owner_) {
    owner_.link = &link_;
    auto [socket, connection] = net_.connect();
    peers_.emplace_back(std::move(socket), wire::opposite(incoming_));
    link_.start(std::make_unique<FramedStream>(net_.loop, std::move(connection), incoming_));
  }

  void run() {
    for (int i = 0; i < kMostSteps && !in_.empty(); ++i) {
      step();
      net_.turn(3);
      for (FramePeer& peer : peers_) {
        for (const wire::Message& message : peer.read()) {
          see(message);
        }
      }
    }
    for (FramePeer& peer : peers_) {
      peer.close();
    }
    // A stream whose chunk waits for the owner's answer is not read, so its end is not seen.
    const auto is_over = [this] {
      owner_.answer();
      return owner_.closed;
    };
    YETO_CHECK(net_.loop.run_until(is_over, kPatience), "the peer is gone, and the link is not");
    net_.turn(2);
  }

 private:
  LinkOptions options() const {
    LinkOptions out;
    out.incoming = incoming_;
    out.chunk_bytes = kChunkBytes;
    out.data_streams = kStreams;
    return out;
  }
  FramePeer& any() { return peers_[in_.below(peers_.size())]; }
  FramePeer& control() { return peers_.front(); }

  void step() {
    switch (in_.byte() % 16U) {
      case 0:
        return attach();
      case 1:
        return send_bytes(any(), static_cast<Type>(1 + in_.below(22)), copy(in_.take(in_.byte())));
      case 2:
        return any().raw(in_.take(in_.byte()));
      case 3:
      case 4:
        return offer();
      case 5:
      case 6:
      case 7:
        return chunk();
      case 8:
        return have();
      case 9:
        return control().send(
            wire::Done{1 + in_.below(6), static_cast<std::uint8_t>(in_.below(2))});
      case 10:
        return owner_.answer();
      case 11:
        return in_.coin() ? owner_.finish() : owner_.abort();
      case 12:
        return owner_.send();
      case 13:
        return owner_.closed ? void() : owner_.withdraw();
      case 14:
        return follow();
      default:
        return in_.coin() ? any().close() : any().shut_down_writing();
    }
  }
  static Bytes copy(ByteView bytes) { return {bytes.begin(), bytes.end()}; }

  void attach() {
    if (peers_.size() > 2U * kStreams || owner_.closed) {
      return;
    }
    auto [socket, connection] = net_.connect();
    peers_.emplace_back(std::move(socket), wire::opposite(incoming_));
    static_cast<void>(link_.add_data_stream(
        std::make_unique<FramedStream>(net_.loop, std::move(connection), incoming_),
        static_cast<std::uint16_t>(in_.below(kStreams + 1))));
  }
  void send_bytes(FramePeer& to, Type type, const Bytes& payload) {
    const Bytes bytes = to.bytes_of(type, payload, FrameBend::of(in_));
    const std::size_t first = in_.below(4) == 0 ? in_.below(bytes.size() + 1) : bytes.size();
    to.raw(ByteView(bytes).first(first));
    if (first < bytes.size()) {
      net_.turn(2);
      to.raw(ByteView(bytes).subspan(first));
    }
  }
  void offer() {
    wire::Offer offer;
    offer.transfer = in_.below(8) == 0 ? in_.number<std::uint64_t>() : ++transfers_;
    offer.kind = static_cast<wire::TransferKind>(in_.below(5));
    offer.bytes = in_.below(8) == 0 ? in_.number<std::uint64_t>() : in_.below(300);
    offer.parts = static_cast<std::uint16_t>(in_.below(8) == 0 ? 0 : 1);
    if (offer.parts == 0) {
      offer.transfer = 1 + in_.below(transfers_ + 1);
    }
    control().send(offer);
  }
  void chunk() {
    wire::Chunk chunk;
    chunk.transfer = in_.below(8) == 0 ? in_.below(64) : 1 + in_.below(transfers_ + 2);
    chunk.index =
        in_.below(16) == 0 ? in_.number<std::uint32_t>() : static_cast<std::uint32_t>(in_.below(6));
    chunk.bytes.resize(in_.below(4) == 0 ? in_.below(70) : kChunkBytes, in_.byte());
    send_bytes(any(), Type::kChunk, wire::encode(chunk));
  }
  void have() {
    wire::Have have;
    have.transfer = 1 + in_.below(6);
    have.accept = static_cast<std::uint8_t>(in_.below(4) == 0 ? 0 : 1);
    have.chunks = copy(in_.take(in_.below(4)));
    control().send(have);
  }
  // What a good peer answers to the link's own offers.
  void follow() {
    for (const wire::Offer& offer : std::exchange(offers_, {})) {
      control().send(wire::Have{offer.transfer, 1, {}, {}});
    }
  }
  void see(const wire::Message& message) {
    if (const auto* offer = std::get_if<wire::Offer>(&message); offer && offer->parts != 0) {
      offers_.push_back(*offer);
    } else if (const auto* chunk = std::get_if<wire::Chunk>(&message)) {
      YETO_CHECK(chunk->bytes.size() <= kChunkBytes, "a chunk that is too large");
    }
  }

  Net& net_;
  fuzz::Input& in_;
  const Direction incoming_;
  Owner owner_;
  Link link_;
  std::deque<FramePeer> peers_;  // the first is control
  std::uint64_t transfers_ = 0;
  std::vector<wire::Offer> offers_;  // of the link, not answered
};

}  // namespace

YETO_FUZZ_EXAMPLES(fuzz::any_script)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Net net;
  fuzz::Input in(data, size);
  Script(net, in).run();
  return 0;
}
