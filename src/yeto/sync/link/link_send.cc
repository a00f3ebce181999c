// SPDX-License-Identifier: Apache-2.0
// The sending half of a link: which chunk goes over which stream, and what becomes of it when the
// stream is lost.
#include <algorithm>
#include <limits>
#include <utility>

#include "yeto/base/clock.h"
#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/sync/link/link.h"
#include "yeto/sync/link/link_impl.h"

namespace yeto::sync {
namespace {

// Of a stream that has sent nothing yet.
constexpr double kRateAssumed = 64 << 20;  // bytes per second
// A stream that would be done this much later than all of them together waits rather than take a
// chunk from a faster one.
constexpr double kPatience = 0.05;  // s
// What waits longer than this on one stream is moved to a faster one.
constexpr double kQueueTooLong = 0.3;  // s

double rate_of(const Pace& pace) { return pace.rate() > 0.0 ? pace.rate() : kRateAssumed; }

}  // namespace

void Link::Impl::send_transfer(Outgoing transfer) {
  if (!open) {
    return;
  }
  if (waiting.size() >= kMaxWaitingTransfers) {
    return fail_later(transfer.ticket);
  }
  waiting.push_back(std::move(transfer));
  offer_waiting();
}

void Link::Impl::fail_later(std::uint64_t ticket) {
  failed.push_back(ticket);
  post([](Impl& impl) {
    if (!impl.failed.empty()) {
      const std::uint64_t first = impl.failed.front();
      impl.failed.pop_front();
      impl.handler->on_sent(first, false);
    }
  });
}

void Link::Impl::abort_transfer(std::uint64_t ticket) {
  const auto has_ticket = [ticket](const Outgoing& transfer) { return transfer.ticket == ticket; };
  if (const auto found = std::find_if(waiting.begin(), waiting.end(), has_ticket);
      found != waiting.end()) {
    const Outgoing dropped = std::move(*found);
    waiting.erase(found);
    return fail_later(ticket);
  }
  const auto found = std::find_if(outgoing.begin(), outgoing.end(),
                                  [&](const auto& entry) { return has_ticket(entry.second); });
  if (found == outgoing.end()) {
    return;
  }
  const auto dropped = outgoing.extract(found);
  wire::Offer withdrawal = dropped.mapped().offer;
  withdrawal.parts = 0;
  send(withdrawal);
  for (Lane& lane : data) {
    take_back(lane);
  }
  fail_later(ticket);
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
  arm_tick();
}

// The stream that would be done first with one more chunk, of those that may take one; none if it
// is better to wait for another.
Link::Impl::Lane* Link::Impl::best_lane() {
  if (over_control) {
    const bool room = control.open() && control.stream->queued_bytes() < control.pace.queue_limit();
    return room ? &control : nullptr;
  }
  double rate = 0.0;
  double bytes = 0.0;
  for (const auto& [id, transfer] : outgoing) {
    bytes += transfer.state == Outgoing::State::kSending
                 ? static_cast<double>(transfer.chunks.left()) * options.chunk_bytes
                 : 0.0;
  }
  Lane* best = nullptr;
  double best_done = std::numeric_limits<double>::infinity();
  double first_done = best_done;  // of any stream
  for (Lane& lane : data) {
    if (!lane.open()) {
      continue;
    }
    const auto queued = static_cast<double>(lane.stream->queued_bytes());
    const double done = (queued + options.chunk_bytes) / rate_of(lane.pace);
    rate += rate_of(lane.pace);
    bytes += queued;
    first_done = std::min(first_done, done);
    if (lane.stream->queued_bytes() < lane.pace.queue_limit() && done < best_done) {
      best = &lane;
      best_done = done;
    }
  }
  const bool too_slow = best_done > bytes / rate + kPatience && first_done < best_done / 2;
  return too_slow ? nullptr : best;
}

void Link::Impl::pump() {
  if (!open) {
    return;
  }
  for (auto& [id, transfer] : outgoing) {
    while (transfer.state == Outgoing::State::kSending && !transfer.chunks.exhausted()) {
      Lane* const lane = best_lane();
      if (lane == nullptr) {
        return;
      }
      send_chunk(*lane, id, transfer);
    }
  }
}

void Link::Impl::send_chunk(Lane& lane, std::uint64_t id, Outgoing& transfer) {
  const std::uint32_t index = *transfer.chunks.next(lane.carrier);
  const wire::ChunkPlan& plan = transfer.chunks.plan();
  const wire::ChunkRange range = plan.range(index);
  const ByteView bytes = transfer.body.subspan(range.offset, range.bytes);
  const std::uint32_t crc =
      options.crcs != nullptr && transfer.offer.kind != wire::TransferKind::kPush
          ? options.crcs->of(transfer.keep_alive, transfer.body, plan, index)
          : crc32c(bytes);
  const Nanos now = monotonic_now();
  lane.wrote_at = now;
  lane.pace.wake(now, lane.stream->bytes_out());
  lane.stream->send_chunk(id, index, {bytes, crc, transfer.keep_alive});
}

void Link::Impl::take_back(Lane& lane) {
  if (lane.stream == nullptr) {
    return;
  }
  for (const auto& [id, index] : lane.stream->take_back()) {
    const auto found = outgoing.find(id);
    if (found != outgoing.end()) {
      found->second.chunks.give_back(index);
    }
  }
}

void Link::Impl::relieve_slow_lanes() {
  double best = 0.0;
  for (const Lane& lane : data) {
    best = std::max(best, lane.open() ? rate_of(lane.pace) : 0.0);
  }
  for (Lane& lane : data) {
    if (lane.open()) {
      const double wait = static_cast<double>(lane.stream->queued_bytes()) / rate_of(lane.pace);
      if (wait > kQueueTooLong && rate_of(lane.pace) < best / 2) {
        take_back(lane);
      }
    }
  }
}

void Link::Impl::on_have(const wire::Have& have) {
  const auto found = outgoing.find(have.transfer);
  if (found == outgoing.end()) {
    if (have.transfer > last_sent) {
      lose(strf("HAVE of transfer {}, which is not open", have.transfer));
    }
    return;  // it crossed the end of the transfer
  }
  Outgoing& transfer = found->second;
  if (have.accept == 0) {
    return end_sending(have.transfer, false);
  }
  if (const auto skipped = transfer.chunks.skip(have.chunks); !skipped) {
    return lose(strf("{} (transfer {})", skipped.error().what, have.transfer));
  }
  const bool again = transfer.state == Outgoing::State::kSending;
  transfer.state = Outgoing::State::kSending;
  if (again) {
    drop_silent_carriers(transfer);
  }
  if (!open) {
    return;
  }
  transfer.chunks.reclaim([this](wire::Carrier carrier) { return !carries(carrier); });
  pump();
}

void Link::Impl::drop_silent_carriers(const Outgoing& transfer) {
  const Nanos now = monotonic_now();
  for (std::size_t i = 0; open && i < data.size(); ++i) {
    if (data[i].open() && data[i].pace.idle_for(now) >= options.lease &&
        transfer.chunks.carried_by(data[i].carrier)) {
      drop_lane(i, strf("data stream {} of {}: a chunk that left {} ago has not arrived", i,
                        data[i].stream->peer().text(), human_seconds(seconds(options.lease))));
    }
  }
}

void Link::Impl::on_done(const wire::Done& done) {
  const auto found = outgoing.find(done.transfer);
  if (found == outgoing.end() && done.transfer <= last_sent) {
    return;  // it crossed the end of the transfer
  }
  if (found == outgoing.end() || found->second.state != Outgoing::State::kSending ||
      !found->second.chunks.may_be_complete()) {
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

}  // namespace yeto::sync
