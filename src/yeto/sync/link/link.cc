// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/link/link.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "yeto/base/clock.h"
#include "yeto/base/format.h"
#include "yeto/sync/link/link_impl.h"

namespace yeto::sync {
namespace {

constexpr Nanos kHeardEvery = 100 * kMillisecond;
// How often the link looks at its streams while it sends, and otherwise.
constexpr Nanos kTickBusy = 100 * kMillisecond;
constexpr Nanos kTickIdle = kSecond;
constexpr Nanos kHaveEvery = kSecond;
// The kernel gives up a peer that acknowledges nothing for this many leases.
constexpr int kSilentLeases = 4;

bool is_handshake(wire::Type type) {
  return type == wire::Type::kChallenge || type == wire::Type::kHello ||
         type == wire::Type::kWelcome || type == wire::Type::kAttach ||
         type == wire::Type::kAttached;
}

}  // namespace

// ---- streams
// ---------------------------------------------------------------------------------------

void Link::Impl::start(std::unique_ptr<FramedStream> stream) {
  YETO_CHECK(control.stream == nullptr, "start() of a link twice");
  control.stream = std::move(stream);
  control.carrier = ++last_carrier;
  control.stream->set_liveness(kSilentLeases * options.lease);
  over_control = options.data_streams == 0;
  streamless_since = monotonic_now();
  arm_tick();
  control.stream->start(this);
}

Status Link::Impl::add_data_stream(std::unique_ptr<FramedStream> stream, std::uint16_t index) {
  if (!open) {
    return fail(ErrorCode::kClosed, "the session is over");
  }
  if (index >= data.size()) {
    return fail(ErrorCode::kProtocol,
                strf("data stream {} of a session with {}", index, data.size()),
                stream->peer().text());
  }
  Lane& lane = data[index];
  const bool again = std::exchange(lane.had_one, true);
  clear_lane(lane);
  lane.stream = std::move(stream);
  lane.carrier = ++last_carrier;
  lane.pace = Pace();
  lane.wrote_at = monotonic_now();
  lane.read_at = lane.wrote_at;
  lane.bytes_in = 0;
  lane.stream->set_liveness(kSilentLeases * options.lease);
  over_control = false;
  lane.stream->start(this);
  if (again) {
    tell_what_is_here();
  }
  pump();
  return Unit{};
}

void Link::Impl::clear_lane(Lane& lane) {
  if (lane.stream == nullptr) {
    return;
  }
  take_back(lane);
  if (const auto chunk = lane.stream->storing()) {
    const auto found = incoming.find(chunk->transfer);
    if (found != incoming.end() && found->second.state == Incoming::State::kReceiving) {
      found->second.chunks->unplace(chunk->index);
    }
  }
  lost_in += lane.stream->bytes_in();
  lost_out += lane.stream->bytes_out();
  ++streams_lost;
  lane.stream.reset();
  if (data_streams_open() == 0) {
    streamless_since = monotonic_now();
  }
}

void Link::Impl::drop_lane(std::size_t index, const std::string& reason) {
  clear_lane(data[index]);
  tell_what_is_here();
  pump();
  handler->on_data_stream_lost(static_cast<std::uint16_t>(index), reason);
}

Link::Impl::Lane* Link::Impl::lane_of(const FramedStream& stream) {
  for (Lane& lane : data) {
    if (lane.stream.get() == &stream) {
      return &lane;
    }
  }
  return &control;
}

bool Link::Impl::carries(wire::Carrier carrier) const {
  return carrier == control.carrier || std::any_of(data.begin(), data.end(), [&](const Lane& lane) {
           return lane.open() && lane.carrier == carrier;
         });
}

std::size_t Link::Impl::data_streams_open() const {
  return static_cast<std::size_t>(
      std::count_if(data.begin(), data.end(), [](const Lane& lane) { return lane.open(); }));
}

void Link::Impl::heard() {
  const Nanos now = monotonic_now();
  if (last_heard == 0 || now - last_heard >= kHeardEvery) {
    last_heard = now;
    handler->on_heard();
  }
}

void Link::Impl::on_message(FramedStream& stream, wire::Message message) {
  const auto self = shared_from_this();
  heard();
  if (!open) {
    return;
  }
  const wire::Type type = wire::type_of(message);
  const bool on_control = &stream == control.stream.get();
  if (!on_control || is_handshake(type)) {
    return lose(strf("{} on a {} stream of an admitted session", wire::type_name(type),
                     on_control ? "control" : "data"));
  }
  if (const auto* offer = std::get_if<wire::Offer>(&message)) {
    on_offer(*offer);
  } else if (const auto* have = std::get_if<wire::Have>(&message)) {
    on_have(*have);
  } else if (const auto* done = std::get_if<wire::Done>(&message)) {
    on_done(*done);
  } else {
    handler->on_message(std::move(message));
  }
}

void Link::Impl::on_drained(FramedStream& stream) {
  Lane& lane = *lane_of(stream);
  const Nanos now = monotonic_now();
  lane.wrote_at = now;
  if (lane.pace.due(now)) {
    sample(lane, now);
  }
  pump();
}

void Link::Impl::on_stream_closed(FramedStream& stream, const Error& error) {
  const auto self = shared_from_this();
  if (&stream == control.stream.get()) {
    return lose(strf("control stream of {}: {}", error.where, error.what));
  }
  const auto index = static_cast<std::size_t>(lane_of(stream) - data.data());
  const std::string reason = strf("data stream {} of {}: {}", index, error.where, error.what);
  if (error.code == ErrorCode::kProtocol) {
    return lose(reason);
  }
  drop_lane(index, reason);
}

void Link::Impl::send(const wire::Message& message) {
  if (!open || control.stream == nullptr) {
    return;
  }
  control.stream->send(message);
  if (control.stream->queued_bytes() > kMaxQueuedControlBytes && !overfull) {
    overfull = true;
    // Not inside the caller's call: it may be in the middle of something.
    post([](Impl& impl) {
      impl.lose(strf("the peer does not read: {} of control frames are queued",
                     human_bytes(static_cast<double>(impl.control.stream->queued_bytes()))));
    });
  }
}

void Link::Impl::post(std::function<void(Impl&)> task) {
  loop.post([weak = weak_from_this(), run = std::move(task)] {
    const auto self = weak.lock();
    if (self != nullptr && self->open) {
      run(*self);
    }
  });
}

// ---- time
// ------------------------------------------------------------------------------------------

// Soon while something is on its way, otherwise now and then.
void Link::Impl::arm_tick() {
  const bool soon = !outgoing.empty() || !incoming.empty();
  if (tick_timer != 0 && (tick_is_soon || !soon)) {
    return;
  }
  loop.cancel(tick_timer);
  tick_is_soon = soon;
  tick_timer = loop.after(std::min(soon ? kTickBusy : kTickIdle, options.lease / 4),
                          [weak = weak_from_this()] {
                            const auto self = weak.lock();
                            if (self != nullptr && self->open) {
                              self->tick_timer = 0;
                              self->tick();
                            }
                          });
}

void Link::Impl::tick() {
  const Nanos now = monotonic_now();
  for (Lane& lane : data) {
    if (lane.open()) {
      sample(lane, now);
    }
  }
  if (over_control) {
    sample(control, now);
  }
  drop_stalled(now);
  if (!open) {
    return;
  }
  const std::size_t streams = data_streams_open();
  over_control =
      options.data_streams == 0 || (streams == 0 && now - streamless_since >= options.lease);
  if (streams < data.size() && now - have_sent_at >= kHaveEvery) {
    tell_what_is_here();
  }
  ask_for_what_stalls(now);
  keep_lanes_alive(now);
  relieve_slow_lanes();
  pump();
  arm_tick();
}

void Link::Impl::sample(Lane& lane, Nanos now) {
  const std::size_t unacknowledged = lane.stream->unacknowledged_bytes();
  const std::uint64_t sent = lane.stream->bytes_out();
  lane.pace.sample(now, sent - std::min<std::uint64_t>(sent, unacknowledged),
                   lane.stream->queued_bytes() + unacknowledged);
  const bool slow = lane.pace.unacknowledged_limit(0) != 0;
  lane.stream->set_unacknowledged_limit(
      slow ? lane.pace.unacknowledged_limit(lane.stream->shortest_round_trip()) : 0);
}

void Link::Impl::drop_stalled(Nanos now) {
  if (now - last_heard >= options.lease / 2) {
    return;  // a peer that is not heard is a matter of its lease
  }
  const std::string limit = human_seconds(seconds(options.lease));
  for (std::size_t i = 0; open && i < data.size(); ++i) {
    Lane& lane = data[i];
    if (!lane.open()) {
      continue;
    }
    if (lane.bytes_in != lane.stream->bytes_in()) {
      lane.bytes_in = lane.stream->bytes_in();
      lane.read_at = now;
    }
    const std::string who = strf("data stream {} of {}", i, lane.stream->peer().text());
    if (lane.pace.stalled_for(now) >= options.lease) {
      drop_lane(i, strf("{} delivered nothing for {} although the peer is heard", who, limit));
    } else if (lane.stream->storing() && now - lane.read_at >= options.lease) {
      drop_lane(i, strf("{} brought nothing for {} in the middle of a chunk", who, limit));
    }
  }
}

void Link::Impl::keep_lanes_alive(Nanos now) {
  for (Lane& lane : data) {
    if (lane.open() && lane.stream->queued_bytes() == 0 &&
        now - lane.wrote_at >= options.idle_frame) {
      lane.wrote_at = now;
      lane.stream->send_chunk(0, 0, {});
    }
  }
}

// ---- end
// -------------------------------------------------------------------------------------------

void Link::Impl::close() {
  open = false;
  handler = nullptr;
  loop.cancel(std::exchange(tick_timer, 0));
  for (const Lane& lane : data) {
    if (lane.stream != nullptr) {
      lane.stream->close();
    }
  }
  if (control.stream != nullptr) {
    control.stream->close();
  }
  const auto dropped_in = std::exchange(incoming, {});
  const auto dropped_out = std::exchange(outgoing, {});
  const auto dropped_waiting = std::exchange(waiting, {});
}

void Link::Impl::lose(const std::string& reason) {
  if (!open) {
    return;
  }
  const auto self = shared_from_this();
  LinkHandler* const told = handler;
  std::vector<std::uint64_t> received;
  for (const auto& [id, transfer] : incoming) {
    if (transfer.state == Incoming::State::kReceiving) {
      received.push_back(id);
    }
  }
  std::vector<std::uint64_t> tickets(failed.begin(), failed.end());
  failed.clear();
  for (const auto& [id, transfer] : outgoing) {
    tickets.push_back(transfer.ticket);
  }
  for (const auto& transfer : waiting) {
    tickets.push_back(transfer.ticket);
  }
  close();
  ended = false;
  for (const std::uint64_t id : received) {
    if (!ended) {
      told->on_received(id, false);
    }
  }
  for (const std::uint64_t ticket : tickets) {
    if (!ended) {
      told->on_sent(ticket, false);
    }
  }
  if (!ended) {
    told->on_closed(reason);
  }
}

// ---- Link
// ------------------------------------------------------------------------------------------

Link::Link(net::Loop& loop, const LinkOptions& options, LinkHandler* handler)
    : impl_(std::make_shared<Impl>(loop, options, handler)) {
  YETO_CHECK(options.data_streams <= kMaxDataStreams, "too many data streams");
  YETO_CHECK(options.chunk_bytes > 0 && options.chunk_bytes <= wire::kMaxChunkBytes,
             "chunk size out of range");
}

Link::~Link() { close(); }

void Link::start(std::unique_ptr<FramedStream> control) { impl_->start(std::move(control)); }

Status Link::add_data_stream(std::unique_ptr<FramedStream> stream, std::uint16_t index) {
  return impl_->add_data_stream(std::move(stream), index);
}

void Link::send(const wire::Message& message) {
  const wire::Type type = wire::type_of(message);
  YETO_CHECK(type != wire::Type::kOffer && type != wire::Type::kHave && type != wire::Type::kDone &&
                 type != wire::Type::kChunk,
             "transfers are sent by send_transfer()");
  impl_->send(message);
}

void Link::send_transfer(std::uint64_t ticket, wire::Offer offer,
                         std::shared_ptr<const Bytes> body) {
  const ByteView bytes(*body);
  send_transfer(ticket, std::move(offer), bytes, std::move(body));
}

void Link::send_transfer(std::uint64_t ticket, wire::Offer offer, ByteView body,
                         std::shared_ptr<const void> keep_alive) {
  offer.bytes = body.size();
  impl_->send_transfer(Impl::Outgoing{ticket,
                                      std::move(offer),
                                      body,
                                      std::move(keep_alive),
                                      {body.size(), impl_->options.chunk_bytes}});
}

void Link::abort_transfer(std::uint64_t ticket) { impl_->abort_transfer(ticket); }

void Link::accept(std::uint64_t transfer, MutableByteView target,
                  std::shared_ptr<void> keep_alive) {
  impl_->accept(transfer, target, std::move(keep_alive));
}
void Link::refuse(std::uint64_t transfer, std::string reason) {
  impl_->refuse(transfer, std::move(reason));
}
void Link::abort(std::uint64_t transfer, std::string reason) {
  impl_->refuse(transfer, std::move(reason));
}
void Link::finish_receive(std::uint64_t transfer, bool ok) { impl_->finish_receive(transfer, ok); }

void Link::close() {
  const auto self = impl_;
  self->ended = true;
  self->close();
}

void Link::close_gracefully(Nanos limit, std::function<void()> done) {
  const auto self = impl_;
  if (self->control.stream != nullptr && self->open) {
    // The data streams stay until the peer has read the farewell and closes: it would bring new
    // ones for them.
    auto data = std::make_shared<std::vector<Impl::Lane>>(std::move(self->data));
    for (const Impl::Lane& lane : *data) {
      if (lane.stream != nullptr) {
        lane.stream->detach();
      }
    }
    self->data.clear();
    self->control.stream->close_gracefully(limit, [data, after = std::move(done)] {
      data->clear();
      if (after) {
        after();
      }
    });
  } else if (done) {
    self->loop.post(std::move(done));
  }
  close();
}

bool Link::is_open() const { return impl_->open; }

LinkCounters Link::counters() const {
  LinkCounters counters;
  counters.bytes_in = impl_->lost_in;
  counters.bytes_out = impl_->lost_out;
  const auto add = [&counters](const Impl::Lane& lane) {
    if (lane.stream != nullptr) {
      counters.bytes_in += lane.stream->bytes_in();
      counters.bytes_out += lane.stream->bytes_out();
    }
  };
  add(impl_->control);
  std::for_each(impl_->data.begin(), impl_->data.end(), add);
  counters.open_in = impl_->incoming.size();
  counters.open_out = impl_->outgoing.size() + impl_->waiting.size();
  counters.data_streams = impl_->data_streams_open();
  counters.data_streams_lost = impl_->streams_lost;
  return counters;
}

}  // namespace yeto::sync
