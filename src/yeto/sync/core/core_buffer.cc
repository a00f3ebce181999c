// SPDX-License-Identifier: Apache-2.0
// The budget of buffers: who gets room, and who makes room when it is used up.
#include <algorithm>

#include "yeto/base/format.h"
#include "yeto/sync/core/core.h"

namespace yeto::sync {

std::uint32_t Core::present_members() const {
  return static_cast<std::uint32_t>(
      std::count_if(roster_.members().begin(), roster_.members().end(),
                    [](const auto& entry) { return entry.second.present(); }));
}

std::uint64_t Core::push_bytes(std::uint32_t fragment) const {
  return transfer_bytes(push_codec_, layout_->fragments[fragment].values);
}

std::uint64_t Core::buffer_cap() const {
  return options_.max_buffer != 0
             ? options_.max_buffer
             : automatic_buffer(buffer_sizes_, std::max(options_.learners, most_members_));
}

BufferUse Core::buffer_use() const {
  BufferUse use;
  use.late = carried_.bytes();
  for (const OpenRound& round : rounds_) {
    use.reserved += round.reserved;
    for (const Push& push : round.carried) {
      use.late += push.offer.bytes;
    }
  }
  for (const auto& [key, incoming] : incoming_) {
    use.late += incoming.fate != Fate::kWanted ? incoming.offer.bytes : 0;
  }
  for (const auto& [job, incoming] : inspections_) {
    use.late += incoming.fate != Fate::kWanted ? incoming.offer.bytes : 0;
  }
  use.images = broadcasts_ ? broadcasts_->retired_bytes() : 0;
  return use;
}

bool Core::abort_slowest_reader() {
  const auto aborted = broadcasts_->abort_slowest();
  if (!aborted) {
    return false;
  }
  const auto ticket =
      std::find_if(broadcast_tickets_.begin(), broadcast_tickets_.end(),
                   [&](const auto& entry) { return entry.second == aborted->seat; });
  emit(AbortTransfer{*roster_.find(aborted->seat)->conn, ticket->first});
  broadcast_tickets_.erase(ticket);
  free_all(aborted->free);
  return true;
}

void Core::keep_images_in_budget() {
  while (buffer_use().total() > buffer_cap() && abort_slowest_reader()) {
  }
}

// Late work takes only what one whole round leaves, so that a round can always be launched.
bool Core::room_for_late(std::uint64_t bytes) {
  const std::uint64_t one_round = present_members() * buffer_sizes_.largest_push;
  for (;;) {
    const BufferUse use = buffer_use();
    if (use.total() + bytes <= buffer_cap() &&
        use.late + use.images + one_round + bytes <= buffer_cap()) {
      return true;
    }
    if (!abort_slowest_reader()) {
      return false;
    }
  }
}

std::set<Seat> Core::seats_sending_late() const {
  std::set<Seat> out;
  for (const auto& [key, incoming] : incoming_) {
    if (incoming.fate != Fate::kWanted) {
      out.insert(incoming.seat);
    }
  }
  return out;
}

// Whether the pushes of a new round fit. Behind another round it waits for it. The oldest takes the
// room of slow readers, then of carried work, then leaves out who still sends late work; the last
// sweep leaves nobody out but waits until that is here.
bool Core::fit_round(std::uint32_t fragment, std::vector<Seat>& seats) {
  const std::uint64_t each = push_bytes(fragment);
  const bool anybody = !seats.empty();
  room_obstacle_.clear();
  const auto fits = [&] { return buffer_use().total() + seats.size() * each <= buffer_cap(); };
  if (rounds_.empty()) {
    while (!fits() && abort_slowest_reader()) {
    }
    while (!fits() && carried_.size() > 0) {
      drop_late(*carried_.take_oldest(), "no buffer room");
    }
    if (!fits() && !fixed() && phase_ != RunPhase::kSweeping) {
      const std::set<Seat> late = seats_sending_late();
      std::erase_if(seats, [&](Seat seat) { return late.contains(seat); });
      while (!seats.empty() && !fits()) {
        seats.pop_back();
      }
    }
  }
  if (fits() && (!anybody || !seats.empty())) {
    return true;
  }
  room_obstacle_ = strf("no buffer room for round {}: its pushes need {} bytes, {} of {} are used",
                        next_round_, seats.size() * each, buffer_use().total(), buffer_cap());
  launch_obstacle_ = room_obstacle_;
  return false;
}

// The next attempt of the oldest round. The rounds behind it hold their buffers until it commits,
// so it takes at least what it had.
bool Core::fit_attempt(OpenRound& round, std::vector<Seat>& seats) {
  const std::uint64_t each = push_bytes(round.attempt.fragment);
  const std::uint64_t others = buffer_use().total() - round.reserved;
  const std::uint64_t room = buffer_cap() - others;
  while (!seats.empty() && seats.size() * each > room) {
    seats.pop_back();
  }
  if (seats.empty()) {
    launch_obstacle_ = strf("no buffer room for the next attempt of round {}", round.attempt.round);
    return false;
  }
  round.reserved = seats.size() * each;
  return true;
}

}  // namespace yeto::sync
