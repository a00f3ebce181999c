// SPDX-License-Identifier: Apache-2.0
// The courier of an island: one session with the syncer, made again after each loss. The limits are
// those of sync/boundary's courier.
#include <algorithm>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/sync/sim/island.h"
#include "yeto/sync/sim/world.h"

namespace yeto::sync::sim {
namespace {

constexpr Nanos kDialTimeout = 10 * kSecond;
constexpr Nanos kRetryFirst = 200 * kMillisecond;
constexpr Nanos kRetryMost = 2 * kSecond;
constexpr std::uint32_t kDoublingsMax = 10;
constexpr Nanos kSilenceLeast = 20 * kSecond;
constexpr int kSilentLeases = 4;

}  // namespace

void Island::attempt() {
  if (courier_ != Courier::kIdle) {
    return;
  }
  courier_ = Courier::kDialing;
  hello_ = client_->hello();
  const std::uint64_t number = ++attempts_;
  // Connect, then the syncer's CHALLENGE: one and a half round trips.
  const Nanos there = world_.network().round_trip(index_);
  later(
      world_.now() + there + there / 2, [](Island& island, std::uint64_t it) { island.dialed(it); },
      number);
}

void Island::dialed(std::uint64_t number) {
  if (courier_ != Courier::kDialing || number != attempts_) {
    return;
  }
  if (!world_.network().passes(index_) || !world_.syncer().machine_up()) {
    later(
        world_.now() + kDialTimeout,
        [](Island& island, std::uint64_t it) {
          if (island.courier_ == Courier::kDialing && it == island.attempts_) {
            island.attempt_failed("no answer");
          }
        },
        number);
    return;
  }
  if (!world_.syncer().listening()) {
    return attempt_failed("connection refused");
  }
  conn_ = world_.network().open(index_);
  courier_ = Courier::kAsking;
  world_.network().send(conn_, End::kIsland, std::move(hello_));
  later(
      world_.now() + kDialTimeout,
      [](Island& island, std::uint64_t it) {
        if (island.courier_ == Courier::kAsking && it == island.attempts_) {
          island.close_link();
          island.attempt_failed("no answer to HELLO");
        }
      },
      number);
}

void Island::attempt_failed(const std::string& why) {
  world_.trace("client", [&] { return strf("island {}: no session yet: {}", index_, why); });
  ++failed_since_session_;
  courier_ = Courier::kIdle;
  try_later();
  look();
}

void Island::try_later() {
  if (courier_ != Courier::kIdle) {
    return;
  }
  const std::uint32_t doublings = std::min(failures_++, kDoublingsMax);
  const Nanos wait = std::min(kRetryMost, kRetryFirst << doublings);
  const auto permille = static_cast<Nanos>(500 + rng_.below(1001));
  later(world_.now() + wait / 1000 * permille,
        [](Island& island, std::uint64_t) { island.attempt(); });
}

void Island::stop_for_good(const std::string& why) {
  courier_ = Courier::kStopped;
  close_link();
  refused_for_good_ = true;
  if (end_reason_.empty()) {
    end_reason_ = why;
  }
  look();
}

void Island::refused(const wire::Refused& refusal) {
  if (refusal.retryable != 0) {
    return attempt_failed(refusal.text);
  }
  stop_for_good(refusal.text);
}

void Island::close_link() {
  receiving_.clear();
  if (conn_ != 0) {
    world_.network().close(std::exchange(conn_, 0), End::kIsland);
  }
}

void Island::admit(wire::Welcome welcome) {
  if (world_.plan().breakage == Breakage::kStaleTokens) {
    welcome.seat_tokens = 0;
  }
  courier_ = Courier::kSession;
  welcome_ = welcome;
  heard_at_ = local_now();
  const std::uint64_t session = ++session_;
  // The data streams are there after their own handshake.
  const Nanos there = world_.network().round_trip(index_);
  world_.network().attach(conn_, world_.now() + there + there / 2);
  later(
      world_.now() + Nanos{welcome_.heartbeat_ms} * kMillisecond,
      [](Island& island, std::uint64_t it) { island.watch(it); }, session);
  failed_since_session_ = 0;
  if (state_ == State::kWaiting) {
    client_->set_phase(wire::Phase::kTrain, local_now());
  }
  on_event(client::Admitted{std::move(welcome)});
  if (courier_ == Courier::kSession && session == session_) {
    send_beat();
  }
}

// Heartbeats, and an eye on the syncer's.
void Island::watch(std::uint64_t session) {
  if (courier_ != Courier::kSession || session != session_) {
    return;
  }
  const Nanos limit =
      std::max(kSilenceLeast, kSilentLeases * Nanos{welcome_.lease_ms} * kMillisecond);
  if (local_now() - heard_at_ > limit) {
    return lose("nothing was heard from the syncer");
  }
  failures_ = 0;
  later(
      world_.now() + Nanos{welcome_.heartbeat_ms} * kMillisecond,
      [](Island& island, std::uint64_t it) { island.watch(it); }, session);
  send_beat();
}

void Island::send_beat() {
  catch_up();
  if (state_ == State::kDown || state_ == State::kOver) {
    return;
  }
  wire::LearnerBeat beat = client_->beat();
  if (world_.plan().breakage == Breakage::kHungCountsAsLive) {
    beat.local_step += static_cast<std::uint64_t>(world_.now() / kSecond);
  }
  world_.sample_staleness(client_->staleness_max());
  world_.network().send(conn_, End::kIsland, beat);
}

void Island::lose(const std::string& reason) {
  if (courier_ != Courier::kSession) {
    return;
  }
  world_.trace("client", [&] { return strf("island {} lost its session: {}", index_, reason); });
  courier_ = Courier::kIdle;
  close_link();
  alone_since_ = world_.now();
  world_.checks().touched(shape_.seat, world_.now());
  on_event(client::SessionLost{reason});
  try_later();
}

// ---- from the network
// ------------------------------------------------------------------------------

void Island::on_message(ConnId conn, wire::Message message) {
  if (conn != conn_) {
    return;
  }
  world_.trace("network",
               [&] { return strf("syncer → island {}: {}", index_, to_words(message)); });
  heard_at_ = local_now();
  if (courier_ == Courier::kAsking) {
    if (auto* welcome = std::get_if<wire::Welcome>(&message)) {
      return admit(std::move(*welcome));
    }
    close_link();
    if (const auto* no = std::get_if<wire::Refused>(&message)) {
      return refused(*no);
    }
    return attempt_failed("an answer that is neither WELCOME nor REFUSED");
  }
  if (courier_ != Courier::kSession) {
    return;
  }
  if (const auto* no = std::get_if<wire::Refused>(&message)) {
    const wire::Refused copy = *no;
    courier_ = Courier::kIdle;
    close_link();
    alone_since_ = world_.now();
    on_event(client::SessionLost{copy.text});
    return refused(copy);
  }
  const bool goodbye = std::holds_alternative<wire::Goodbye>(message);
  on_event(client::MessageArrived{std::move(message)});
  if (goodbye && courier_ == Courier::kSession) {
    courier_ = Courier::kStopped;
  }
}

void Island::on_offer(ConnId conn, const wire::Offer& offer) {
  if (conn == conn_ && courier_ == Courier::kSession) {
    world_.trace("network",
                 [&] { return strf("syncer → island {}: {}", index_, to_words(offer)); });
    heard_at_ = local_now();
    on_event(client::OfferArrived{offer});
  }
}

void Island::on_received(ConnId conn, std::uint64_t transfer, bool ok, const Body& body) {
  const auto found = receiving_.find(transfer);
  if (conn != conn_ || found == receiving_.end()) {
    return;
  }
  const client::ImageId image = found->second;
  receiving_.erase(found);
  if (ok) {
    if (values_) {
      values_->receive(image, body);
    }
    on_event(client::ImageArrived{image});
  }
}

void Island::on_sent(ConnId conn, std::uint64_t ticket, bool ok) {
  if (conn == conn_ && courier_ == Courier::kSession) {
    on_event(client::BodySent{ticket, ok});
  }
}

void Island::on_heard(ConnId conn) {
  if (conn == conn_) {
    heard_at_ = local_now();
  }
}

void Island::on_closed(ConnId conn, const std::string& reason) {
  if (conn != conn_) {
    return;
  }
  if (courier_ == Courier::kAsking) {
    close_link();
    return attempt_failed(reason);
  }
  if (courier_ == Courier::kStopped) {
    conn_ = 0;
    on_event(client::SessionLost{reason});
    return;
  }
  lose(reason);
}

}  // namespace yeto::sync::sim
