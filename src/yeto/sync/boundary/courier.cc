// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/boundary/courier.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/base/rng.h"
#include "yeto/wire/codec.h"
#include "yeto/wire/transfer.h"

namespace yeto::sync::client {
namespace {

// A session over which nothing came for this many leases, and at least for kSilenceLeast, is given
// up: the syncer beats every second.
constexpr int kSilentLeases = 4;
constexpr Nanos kSilenceLeast = 20 * kSecond;
// Waits double up to this many times.
constexpr std::uint32_t kDoublingsMax = 10;

bool may_pass(ErrorCode code) {
  return code == ErrorCode::kNotFound || code == ErrorCode::kConfig || code == ErrorCode::kIo;
}

std::string welcome_limits_fault(const wire::Welcome& welcome, std::uint32_t wanted_seat) {
  if (welcome.chunk_bytes < wire::kMinChunkBytes || welcome.chunk_bytes > wire::kMaxChunkBytes) {
    return strf("WELCOME names chunks of {} bytes", welcome.chunk_bytes);
  }
  if (welcome.heartbeat_ms == 0 || welcome.lease_ms == 0) {
    return "WELCOME names no heartbeat or no lease";
  }
  if (wanted_seat != wire::kNoSeat && welcome.seat != wanted_seat) {
    return strf("WELCOME gives seat {}, seat {} was asked for", welcome.seat, wanted_seat);
  }
  return {};
}

}  // namespace

Courier::Courier(net::Loop& loop, CourierOptions options, CourierOwner* owner)
    : loop_(loop), options_(std::move(options)), owner_(owner) {}

Courier::~Courier() { close(); }

void Courier::close() {
  stopped_ = true;
  loop_.cancel(retry_timer_);
  retry_timer_ = 0;
  dial_.reset();
  close_link();
}

void Courier::close_link() {
  loop_.cancel(watch_timer_);
  watch_timer_ = 0;
  for (const DataStream& stream : streams_) {
    loop_.cancel(stream.retry_timer);
  }
  streams_.clear();
  receiving_.clear();
  if (link_) {
    link_->close();
    link_.reset();
  }
}

// ---- coming to a session
// -------------------------------------------------------------------------

void Courier::attempt() {
  retry_timer_ = 0;
  if (stopped_) {
    return;
  }
  const Result<net::Address> address = options_.endpoint.resolve();
  if (!address) {
    return may_pass(address.error().code) ? attempt_failed(address.error())
                                          : stop_for_good(address.error());
  }
  address_ = *address;
  const wire::Hello hello = owner_->hello();
  dial_ = std::make_unique<Dial>(
      loop_, to_syncer(),
      [this, hello](const wire::Challenge& challenge) { return prove(challenge, hello); },
      [this](Result<DialAnswer> answer) { on_answer(std::move(answer)); });
}

Dial::To Courier::to_syncer() const {
  return {address_, options_.dial_timeout, options_.tls, options_.syncer_uri};
}

wire::Message Courier::prove(const wire::Challenge& challenge, wire::Hello hello) const {
  hello.proof = wire::make_proof(options_.key, challenge.nonce, hello);
  return hello;
}

void Courier::attempt_failed(const Error& why) {
  owner_->on_attempt_failed(why);
  try_later();
}

void Courier::try_later() {
  if (stopped_ || retry_timer_ != 0) {
    return;
  }
  const std::uint32_t doublings = std::min(failures_++, kDoublingsMax);
  const Nanos wait = std::min(options_.retry_most, options_.retry_first << doublings);
  // From half to one and a half: learners that lost one syncer do not come back as one.
  const auto permille = static_cast<Nanos>(500 + random_u64() % 1001);
  retry_timer_ = loop_.after(wait / 1000 * permille, [this] { attempt(); });
}

void Courier::stop_for_good(const Error& why) {
  close();
  owner_->on_refused(why);
}

void Courier::on_answer(Result<DialAnswer> answer) {
  const std::unique_ptr<Dial> dial = std::move(dial_);
  if (!answer) {
    return attempt_failed(answer.error());
  }
  if (const auto* refused = std::get_if<wire::Refused>(&answer->message)) {
    return on_refusal(*refused);
  }
  const auto* welcome = std::get_if<wire::Welcome>(&answer->message);
  if (welcome == nullptr) {
    return attempt_failed(Error{ErrorCode::kProtocol,
                                "the syncer answered HELLO with neither WELCOME nor REFUSED",
                                address_.text(),
                                {}});
  }
  const wire::Welcome copy = *welcome;
  const std::string fault = welcome_limits_fault(copy, owner_->hello().seat);
  if (!fault.empty()) {
    return attempt_failed(Error{ErrorCode::kProtocol, fault, address_.text(), {}});
  }
  admit(std::move(*answer), copy);
}

void Courier::on_refusal(const wire::Refused& refused) {
  Error error{ErrorCode::kRefused, refused.text, address_.text(), {}};
  if (refused.code == wire::RefuseCode::kLayout && !refused.tensors.empty()) {
    const std::string difference = owner_->layout_difference(refused.tensors);
    if (!difference.empty()) {
      error.what += "; " + difference;
    }
    error.hint = "islands of one run need the same model, adapter and --fragments";
  }
  if (refused.retryable != 0) {
    return attempt_failed(error);
  }
  stop_for_good(error);
}

void Courier::admit(DialAnswer answer, const wire::Welcome& welcome) {
  welcome_ = welcome;
  heard_at_ = monotonic_now();
  const std::uint16_t streams = owner_->hello().streams;
  LinkOptions options;
  options.incoming = wire::Direction::kToLearner;
  options.chunk_bytes = welcome.chunk_bytes;
  options.data_streams = streams;
  options.lease = static_cast<Nanos>(welcome.lease_ms) * kMillisecond;
  link_ = std::make_unique<Link>(loop_, options, this);
  link_->start(std::move(answer.stream));
  streams_.resize(streams);
  for (std::uint16_t index = 0; index < streams; ++index) {
    attach(index);
  }
  beat_later();
  owner_->on_event(Admitted{welcome});
  send_beat();
}

void Courier::attach(std::uint16_t index) {
  wire::Attach attach;
  attach.session = welcome_.session;
  attach.stream = index;
  streams_[index].dial = std::make_unique<Dial>(
      loop_, to_syncer(),
      [this, attach](const wire::Challenge& challenge) {
        wire::Attach proven = attach;
        proven.proof = wire::make_proof(options_.key, challenge.nonce, attach);
        return wire::Message(proven);
      },
      [this, index](Result<DialAnswer> answer) { on_attach_answer(index, std::move(answer)); });
}

void Courier::on_attach_answer(std::uint16_t index, Result<DialAnswer> answer) {
  DataStream& stream = streams_[index];
  const std::unique_ptr<Dial> dial = std::move(stream.dial);
  if (!answer) {
    return attach_later(index, answer.error().what);
  }
  if (!std::holds_alternative<wire::Attached>(answer->message)) {
    const auto* refused = std::get_if<wire::Refused>(&answer->message);
    const std::string why =
        refused != nullptr ? refused->text : std::string("an answer that is not ATTACHED");
    if (refused == nullptr || refused->retryable == 0) {
      return lose(strf("data stream {}: {}", index, why));
    }
    return attach_later(index, why);
  }
  stream.attached_at = monotonic_now();
  if (const Status added = link_->add_data_stream(std::move(answer->stream), index); !added) {
    lose(strf("data stream {}: {}", index, added.error().what));
  }
}

void Courier::attach_later(std::uint16_t index, const std::string& why) {
  DataStream& stream = streams_[index];
  if (stream.failures == 0) {
    log(LogLevel::kInfo, "boundary", "data stream {} is missing: {}", index, why);
  }
  const Nanos wait = std::min(options_.retry_most,
                              options_.retry_first << std::min(stream.failures, kDoublingsMax));
  ++stream.failures;
  loop_.cancel(stream.retry_timer);
  stream.retry_timer = loop_.after(wait, [this, index] {
    streams_[index].retry_timer = 0;
    attach(index);
  });
}

void Courier::on_data_stream_lost(std::uint16_t index, const std::string& reason) {
  DataStream& stream = streams_[index];
  if (monotonic_now() - stream.attached_at > options_.retry_most) {
    stream.failures = 0;  // a stream that lasted
  }
  attach_later(index, reason);
}

// ---- a session
// -----------------------------------------------------------------------------------

void Courier::beat_later() {
  watch_timer_ =
      loop_.after(static_cast<Nanos>(welcome_.heartbeat_ms) * kMillisecond, [this] { watch(); });
}

// Heartbeats, and an eye on the syncer's.
void Courier::watch() {
  const Nanos lease = static_cast<Nanos>(welcome_.lease_ms) * kMillisecond;
  const Nanos limit = std::max(kSilenceLeast, kSilentLeases * lease);
  if (monotonic_now() - heard_at_ > limit) {
    return lose(strf("nothing was heard from the syncer for {:.0f} s", seconds(limit)));
  }
  failures_ = 0;  // a session that lasts
  beat_later();
  send_beat();
}

void Courier::send_beat() { send(owner_->beat()); }

void Courier::send(const wire::Message& message) {
  if (link_) {
    link_->send(message);
  }
}

// The session is over; another one is tried unless the courier is stopped.
void Courier::lose(const std::string& reason) {
  if (!link_) {
    return;
  }
  close_link();
  owner_->on_event(SessionLost{reason});
  try_later();
}

void Courier::leave(wire::LeaveReason reason, Nanos limit, std::function<void()> done) {
  if (!link_) {
    close();
    return done();
  }
  stopped_ = true;
  link_->send(wire::Leave{reason, 0});
  const std::unique_ptr<Link> link = std::move(link_);
  link->close_gracefully(limit, std::move(done));
  close();
}

void Courier::on_message(wire::Message message) {
  if (const auto* refused = std::get_if<wire::Refused>(&message)) {
    // The syncer sends it also to a session it has to end.
    const wire::Refused copy = *refused;
    close_link();
    owner_->on_event(SessionLost{copy.text});
    return on_refusal(copy);
  }
  if (std::holds_alternative<wire::Goodbye>(message)) {
    stopped_ = true;
  }
  owner_->on_event(MessageArrived{std::move(message)});
}

void Courier::on_offer(const wire::Offer& offer) { owner_->on_event(OfferArrived{offer}); }

void Courier::on_received(std::uint64_t transfer, bool ok) {
  const auto found = receiving_.find(transfer);
  if (found == receiving_.end()) {
    return;
  }
  const ImageId image = found->second;
  receiving_.erase(found);
  if (ok) {
    owner_->on_event(ImageArrived{image});
  } else if (link_->is_open()) {
    // The syncer has withdrawn it. A lost session tells the owner by itself.
    owner_->on_event(ImageChecked{image, false});
  }
}

void Courier::on_sent(std::uint64_t ticket, bool ok) { owner_->on_event(BodySent{ticket, ok}); }

void Courier::on_heard() { heard_at_ = monotonic_now(); }

void Courier::on_closed(const std::string& reason) { lose(reason); }

// ---- actions
// -------------------------------------------------------------------------------------

void Courier::carry(const Action& action) {
  std::visit(
      [this](const auto& a) {
        using A = std::decay_t<decltype(a)>;
        if constexpr (std::is_same_v<A, Send> || std::is_same_v<A, EndSession> ||
                      std::is_same_v<A, Accept> || std::is_same_v<A, Refuse> ||
                      std::is_same_v<A, FinishReceive> || std::is_same_v<A, SendLayout> ||
                      std::is_same_v<A, SendBody>) {
          if (link_) {
            carry_out(a);
          }
        }
      },
      action);
}

void Courier::carry_out(const Send& action) { link_->send(action.message); }

void Courier::carry_out(const EndSession& action) { lose(action.reason); }

void Courier::carry_out(const Accept& action) {
  const std::shared_ptr<Bytes> memory = owner_->new_image(action.image, action.bytes);
  receiving_[action.transfer] = action.image;
  link_->accept(action.transfer, MutableByteView(*memory), memory);
}

void Courier::carry_out(const Refuse& action) { link_->refuse(action.transfer, action.reason); }

void Courier::carry_out(const FinishReceive& action) {
  link_->finish_receive(action.transfer, action.ok);
}

void Courier::carry_out(const SendLayout& action) {
  link_->send_transfer(action.ticket, action.offer, owner_->layout_body());
}

void Courier::carry_out(const SendBody& action) {
  std::shared_ptr<const Bytes> body =
      action.offer.bytes == 0 ? std::make_shared<const Bytes>() : owner_->take_body(action.ticket);
  if (body) {
    link_->send_transfer(action.ticket, action.offer, std::move(body));
  }
}

}  // namespace yeto::sync::client
