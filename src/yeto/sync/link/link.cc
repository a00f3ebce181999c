// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/link/link.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "yeto/base/clock.h"
#include "yeto/base/format.h"
#include "yeto/sync/link/link_impl.h"

namespace yeto::sync {
namespace {

// A stream with less than this queued gets the next chunk.
constexpr std::size_t kQueuedPerStream = std::size_t{1} << 20;
constexpr Nanos kHeardEvery = 100 * kMillisecond;

bool is_handshake(wire::Type type) {
  return type == wire::Type::kChallenge || type == wire::Type::kHello ||
         type == wire::Type::kWelcome || type == wire::Type::kAttach ||
         type == wire::Type::kAttached;
}

}  // namespace

// ---- streams
// ---------------------------------------------------------------------------------------

void Link::Impl::start(std::unique_ptr<FramedStream> stream) {
  YETO_CHECK(control == nullptr, "start() of a link twice");
  control = std::move(stream);
  data.resize(options.data_streams);
  if (options.data_streams > 0) {
    attach_timer = loop.after(options.attach_timeout, [self = shared_from_this()] {
      self->lose(strf("only {} of {} data streams were attached within {}", self->attached,
                      self->options.data_streams,
                      human_seconds(seconds(self->options.attach_timeout))));
    });
  }
  control->start(this);
}

Status Link::Impl::add_data_stream(std::unique_ptr<FramedStream> stream, std::uint16_t index) {
  if (!open) {
    return fail(ErrorCode::kClosed, "the session is over");
  }
  if (index >= data.size() || data[index] != nullptr) {
    return fail(ErrorCode::kProtocol,
                index >= data.size()
                    ? strf("data stream {} of a session with {}", index, data.size())
                    : strf("data stream {} is attached already", index),
                stream->peer().text());
  }
  data[index] = std::move(stream);
  if (++attached == data.size()) {
    loop.cancel(std::exchange(attach_timer, 0));
  }
  data[index]->start(this);
  pump();
  return Unit{};
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
  if (&stream != control.get() || is_handshake(type)) {
    return lose(strf("{} on a {} stream of an admitted session", wire::type_name(type),
                     &stream == control.get() ? "control" : "data"));
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

void Link::Impl::on_drained(FramedStream&) { pump(); }

void Link::Impl::on_stream_closed(FramedStream& stream, const Error& error) {
  const auto self = shared_from_this();
  std::string name = "control stream";
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (data[i].get() == &stream) {
      name = strf("data stream {}", i);
    }
  }
  lose(strf("{} of {}: {}", name, error.where, error.what));
}

void Link::Impl::send(const wire::Message& message) {
  if (!open || control == nullptr) {
    return;
  }
  control->send(message);
  if (control->queued_bytes() > kMaxQueuedControlBytes && !overfull) {
    overfull = true;
    // Not inside the caller's call: it may be in the middle of something.
    post([](Impl& impl) {
      impl.lose(strf("the peer does not read: {} of control frames are queued",
                     human_bytes(static_cast<double>(impl.control->queued_bytes()))));
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

// ---- end
// -------------------------------------------------------------------------------------------

void Link::Impl::close() {
  open = false;
  handler = nullptr;
  loop.cancel(std::exchange(attach_timer, 0));
  for (const auto& stream : data) {
    if (stream != nullptr) {
      stream->close();
    }
  }
  if (control != nullptr) {
    control->close();
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
  std::vector<std::uint64_t> tickets;
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

// ---- sending
// ---------------------------------------------------------------------------------------

void Link::Impl::send_transfer(Outgoing transfer) {
  if (!open) {
    return;
  }
  if (waiting.size() >= kMaxWaitingTransfers) {
    post([ticket = transfer.ticket](Impl& impl) { impl.handler->on_sent(ticket, false); });
    return;
  }
  waiting.push_back(std::move(transfer));
  offer_waiting();
}

void Link::Impl::offer_waiting() {
  while (open && !waiting.empty() && outgoing.size() < kMaxOpenTransfers) {
    Outgoing transfer = std::move(waiting.front());
    waiting.pop_front();
    const std::uint64_t id = ++last_sent;
    transfer.offer.transfer = id;
    const bool push = transfer.offer.kind == wire::TransferKind::kPush;
    transfer.state = push ? Outgoing::State::kSending : Outgoing::State::kOffered;
    send(transfer.offer);
    outgoing.emplace(id, std::move(transfer));
  }
  pump();
}

FramedStream* Link::Impl::emptiest_stream() {
  FramedStream* best = nullptr;
  const auto consider = [&best](FramedStream* stream) {
    if (stream != nullptr && stream->is_open() && stream->queued_bytes() < kQueuedPerStream &&
        (best == nullptr || stream->queued_bytes() < best->queued_bytes())) {
      best = stream;
    }
  };
  if (options.data_streams == 0) {
    consider(control.get());
  }
  for (const auto& stream : data) {
    consider(stream.get());
  }
  return best;
}

void Link::Impl::pump() {
  if (!open) {
    return;
  }
  for (auto& [id, transfer] : outgoing) {
    while (transfer.state == Outgoing::State::kSending) {
      if (transfer.chunks.exhausted()) {
        transfer.state = Outgoing::State::kSent;
        break;
      }
      FramedStream* const stream = emptiest_stream();
      if (stream == nullptr) {
        return;
      }
      const std::uint32_t index = *transfer.chunks.next();
      const wire::ChunkRange range = transfer.chunks.plan().range(index);
      stream->send_chunk(id, index, transfer.body.subspan(range.offset, range.bytes),
                         transfer.keep_alive);
    }
  }
}

void Link::Impl::on_have(const wire::Have& have) {
  const auto found = outgoing.find(have.transfer);
  if (found == outgoing.end()) {
    return lose(strf("HAVE of transfer {}, which is not open", have.transfer));
  }
  Outgoing& transfer = found->second;
  if (have.accept == 0) {
    return end_sending(have.transfer, false);
  }
  if (transfer.state != Outgoing::State::kOffered) {
    return lose(strf("HAVE of transfer {}, which waits for none", have.transfer));
  }
  if (const auto skipped = transfer.chunks.skip(have.chunks); !skipped) {
    return lose(strf("{} (transfer {})", skipped.error().what, have.transfer));
  }
  transfer.state = Outgoing::State::kSending;
  pump();
}

void Link::Impl::on_done(const wire::Done& done) {
  const auto found = outgoing.find(done.transfer);
  if (found == outgoing.end() || found->second.state != Outgoing::State::kSent) {
    return lose(strf("DONE of transfer {}, which is not sent", done.transfer));
  }
  end_sending(done.transfer, done.ok != 0);
}

void Link::Impl::end_sending(std::uint64_t transfer, bool ok) {
  const auto ended_transfer = outgoing.extract(transfer);
  offer_waiting();
  if (open) {
    handler->on_sent(ended_transfer.mapped().ticket, ok);
  }
}

// ---- receiving
// -------------------------------------------------------------------------------------

void Link::Impl::on_offer(const wire::Offer& offer) {
  if (offer.transfer <= highest_offer) {
    return lose(strf("OFFER of transfer {} after {}", offer.transfer, highest_offer));
  }
  highest_offer = offer.transfer;
  if (incoming.size() >= kMaxOpenTransfers) {
    send(wire::Have{offer.transfer, 0, strf("{} transfers are open", kMaxOpenTransfers), {}});
  } else {
    incoming[offer.transfer].offer = offer;
    handler->on_offer(offer);
  }
  // Its chunks may be waiting, to be stored or discarded.
  unpark();
}

void Link::Impl::accept(std::uint64_t id, MutableByteView target,
                        std::shared_ptr<void> keep_alive) {
  if (!open) {
    return;
  }
  const auto found = incoming.find(id);
  YETO_CHECK(found != incoming.end() && found->second.state == Incoming::State::kOffered,
             "accept() of a transfer that is not offered");
  Incoming& transfer = found->second;
  YETO_CHECK(target.size() == transfer.offer.bytes, "accept() with a target of another size");
  transfer.state = Incoming::State::kReceiving;
  transfer.chunks.emplace(target, options.chunk_bytes);
  transfer.keep_alive = std::move(keep_alive);
  if (transfer.offer.kind != wire::TransferKind::kPush) {
    send(wire::Have{id, 1, {}, {}});
  }
  post([id](Impl& impl) {
    impl.complete(id);  // a transfer of no bytes
    impl.unpark();
  });
}

void Link::Impl::refuse(std::uint64_t id, std::string reason) {
  if (!open || incoming.erase(id) == 0) {
    return;
  }
  for (const auto& stream : data) {
    if (stream != nullptr) {
      stream->discard_current(id);
    }
  }
  if (control != nullptr) {
    control->discard_current(id);
  }
  send(wire::Have{id, 0, std::move(reason), {}});
  post([](Impl& impl) { impl.unpark(); });
}

void Link::Impl::finish_receive(std::uint64_t id, bool ok) {
  if (!open) {
    return;
  }
  const auto found = incoming.find(id);
  YETO_CHECK(found != incoming.end() && found->second.state == Incoming::State::kReceived,
             "finish_receive() of a transfer that is not received");
  incoming.erase(found);
  send(wire::Done{id, static_cast<std::uint8_t>(ok ? 1 : 0)});
}

void Link::Impl::unpark() {
  const auto self = shared_from_this();
  for (std::size_t i = 0; open && i < data.size(); ++i) {
    if (data[i] != nullptr) {
      data[i]->unpark();
    }
  }
  if (open && control != nullptr) {
    control->unpark();
  }
}

ChunkTarget Link::Impl::on_chunk(FramedStream& stream, const wire::ChunkPrefix& prefix) {
  using Way = ChunkTarget::Way;
  const bool on_control = &stream == control.get();
  if (on_control && options.data_streams > 0) {
    return {
        Way::kRefuse, {}, nullptr, "CHUNK on the control stream of a session with data streams"};
  }
  if (prefix.transfer > highest_offer) {
    if (on_control) {
      return {Way::kRefuse, {}, nullptr, "CHUNK before its OFFER"};
    }
    return {Way::kPark, {}, nullptr, {}};
  }
  const auto found = incoming.find(prefix.transfer);
  if (found == incoming.end()) {
    return {Way::kDiscard, {}, nullptr, {}};
  }
  Incoming& transfer = found->second;
  if (transfer.state == Incoming::State::kOffered) {
    if (transfer.offer.kind != wire::TransferKind::kPush) {
      return {Way::kRefuse, {}, nullptr, "CHUNK before HAVE"};
    }
    return {Way::kPark, {}, nullptr, {}};
  }
  const auto place = transfer.chunks->place(prefix.index, prefix.bytes);
  if (!place) {
    return {Way::kRefuse, {}, nullptr, place.error().what};
  }
  if (!*place) {
    return {Way::kDiscard, {}, nullptr, {}};
  }
  return {Way::kStore, **place, transfer.keep_alive, {}};
}

void Link::Impl::on_chunk_read(FramedStream&, const wire::ChunkPrefix& prefix, bool stored) {
  const auto self = shared_from_this();
  heard();
  if (!open || !stored) {
    return;
  }
  incoming.at(prefix.transfer).chunks->mark(prefix.index);
  complete(prefix.transfer);
}

void Link::Impl::complete(std::uint64_t id) {
  const auto found = incoming.find(id);
  if (found == incoming.end() || found->second.state != Incoming::State::kReceiving ||
      !found->second.chunks->complete()) {
    return;
  }
  found->second.state = Incoming::State::kReceived;
  found->second.keep_alive = nullptr;
  handler->on_received(id, true);
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
  if (self->control != nullptr && self->open) {
    // The data streams stay until the peer has read the farewell and closes: it takes the loss of
    // any stream for the loss of the session.
    auto data = std::make_shared<std::vector<std::unique_ptr<FramedStream>>>(std::move(self->data));
    for (const auto& stream : *data) {
      if (stream != nullptr) {
        stream->detach();
      }
    }
    self->data.clear();
    self->control->close_gracefully(limit, [data, after = std::move(done)] {
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
  const auto add = [&counters](const std::unique_ptr<FramedStream>& stream) {
    if (stream != nullptr) {
      counters.bytes_in += stream->bytes_in();
      counters.bytes_out += stream->bytes_out();
    }
  };
  add(impl_->control);
  std::for_each(impl_->data.begin(), impl_->data.end(), add);
  counters.open_in = impl_->incoming.size();
  counters.open_out = impl_->outgoing.size() + impl_->waiting.size();
  return counters;
}

}  // namespace yeto::sync
