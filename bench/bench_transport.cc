// SPDX-License-Identifier: Apache-2.0
// Transfers of a Link (frames, CRC-32C on both sides, OFFER to DONE) against plain sockets with
// equally many streams: each sample measures both, one after the other, over the same bytes and
// target. The row with TLS pays for encryption on both sides; it says what TLS costs and has no
// goal.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "bench/figure.h"
#include "bench/loopback.h"
#include "yeto/base/clock.h"
#include "yeto/base/format.h"
#include "yeto/base/thread.h"
#include "yeto/net/certificates_testing.h"
#include "yeto/net/connection.h"
#include "yeto/net/loop.h"
#include "yeto/sync/link/link.h"

namespace yeto::bench {
namespace {

constexpr std::size_t kBytes = std::size_t{256} << 20;
constexpr int kSamples = 7;
constexpr Nanos kLimit = 60 * kSecond;

// One side of the session, on a thread of its own.
class End : public sync::LinkHandler {
 public:
  void on_message(wire::Message) override {}
  void on_offer(const wire::Offer& offer) override { link->accept(offer.transfer, *target, keep); }
  void on_received(std::uint64_t transfer, bool ok) override {
    if (ok) {
      link->finish_receive(transfer, true);
    }
  }
  void on_sent(std::uint64_t, bool ok) override { sent.set_value(ok); }
  void on_heard() override {}
  void on_closed(const std::string&) override {}  // on_sent(false) has told it

  net::Loop loop;
  std::unique_ptr<sync::Link> link;
  std::vector<std::uint8_t>* target = nullptr;
  std::shared_ptr<void> keep;
  std::promise<bool> sent;
  JoiningThread thread;
};

class Session {
 public:
  explicit Session(std::uint16_t streams, const std::shared_ptr<const net::Tls>& tls = nullptr) {
    open(syncer_, wire::Direction::kToSyncer, streams);
    open(learner_, wire::Direction::kToLearner, streams);
    auto listener = net::Listener::open(
        syncer_.loop, {"127.0.0.1", 0},
        [this](std::unique_ptr<net::Connection> c) { add(syncer_, std::move(c), accepted_++); },
        tls);
    // A handshake needs both loops at once.
    JoiningThread accepting(
        [&] { syncer_.loop.run_until([&] { return accepted_ > streams && met_; }, kLimit); });
    for (std::uint16_t i = 0; i <= streams; ++i) {
      bool connected = false;
      const auto connecting = net::connect(
          learner_.loop, (*listener)->address(), kLimit,
          [&](auto connection) {
            add(learner_, std::move(*connection), i);
            connected = true;
          },
          tls);
      learner_.loop.run_until([&] { return connected; }, kLimit);
    }
    syncer_.loop.post([this] { met_ = true; });
    accepting.join();
    for (End* end : {&syncer_, &learner_}) {
      end->thread = JoiningThread([end] { end->loop.run(); });
    }
  }
  ~Session() {
    for (End* end : {&syncer_, &learner_}) {
      end->loop.post([end] {
        end->link->close();
        end->loop.stop();
      });
      end->thread.join();
    }
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Bytes per second from OFFER to DONE.
  double transfer(const std::shared_ptr<const Bytes>& from, std::vector<std::uint8_t>& to) {
    std::promise<void> ready;
    learner_.loop.post([this, &to, &ready] {
      learner_.target = &to;
      ready.set_value();
    });
    ready.get_future().wait();
    syncer_.sent = std::promise<bool>();
    auto done = syncer_.sent.get_future();
    const Nanos start = monotonic_now();
    syncer_.loop.post([this, &from] {
      wire::Offer offer;
      offer.kind = wire::TransferKind::kBroadcast;
      syncer_.link->send_transfer(1, offer, from);
    });
    if (!done.get()) {
      std::printf("the transfer failed\n");
      std::exit(1);
    }
    return static_cast<double>(from->size()) / seconds(monotonic_now() - start);
  }

 private:
  static void open(End& end, wire::Direction incoming, std::uint16_t streams) {
    sync::LinkOptions options;
    options.incoming = incoming;
    options.data_streams = streams;
    end.link = std::make_unique<sync::Link>(end.loop, options, &end);
  }
  void add(End& end, std::unique_ptr<net::Connection> connection, std::uint16_t index) {
    const auto incoming =
        &end == &syncer_ ? wire::Direction::kToSyncer : wire::Direction::kToLearner;
    auto stream = std::make_unique<sync::FramedStream>(end.loop, std::move(connection), incoming);
    if (index == 0) {
      end.link->start(std::move(stream));
    } else if (!end.link->add_data_stream(std::move(stream),
                                          static_cast<std::uint16_t>(index - 1))) {
      std::exit(1);
    }
  }

  End syncer_;
  End learner_;
  std::uint16_t accepted_ = 0;
  bool met_ = false;  // all connections are made, as the syncer's loop has been told
};

void measure(Session& session, const Figure& figure, std::uint16_t streams) {
  static const auto from = std::make_shared<const Bytes>(kBytes, std::uint8_t{7});
  static std::vector<std::uint8_t> to(kBytes);
  session.transfer(from, to);
  std::vector<double> ratios;
  for (int i = 0; i < kSamples; ++i) {
    const double raw = raw_loopback(streams, *from, to);
    const double link = session.transfer(from, to);
    std::printf("%s: raw %s/s, link %s/s\n", figure.name.c_str(), human_bytes(raw).c_str(),
                human_bytes(link).c_str());
    ratios.push_back(link / raw);
  }
  print_figure(figure, ratios);
}

std::shared_ptr<const net::Tls> make_tls() {
  const auto folder =
      std::filesystem::temp_directory_path() / strf("yeto-bench-{}", static_cast<int>(::getpid()));
  std::filesystem::create_directories(folder);
  const auto tls = net::Tls::load(net::TestCa(folder).issue("bench", {}));
  std::filesystem::remove_all(folder);
  if (!tls) {
    std::printf("%s", tls.error().text().c_str());
    std::exit(1);
  }
  return *tls;
}

void run() {
  for (const std::uint16_t streams : {std::uint16_t{1}, std::uint16_t{4}}) {
    Session session(streams);
    measure(session, {strf("transport/link_s{}", streams), "x raw loopback", 0.6, 0.85}, streams);
  }
  constexpr std::uint16_t kTlsStreams = 4;
  Session session(kTlsStreams, make_tls());
  measure(session, {"transport/tls_s4", "x raw loopback", std::nullopt, 0.3}, kTlsStreams);
}

}  // namespace
}  // namespace yeto::bench

int main() { yeto::bench::run(); }
