// SPDX-License-Identifier: Apache-2.0
// Bodies to send, and the fate of pushes: from the delta to its verdict.
//
// A push ends in exactly one of three ways, and its work is in exactly one place:
//   kept      its VERDICT was merged or carried; a push that was carried ends once more
//   returned  it did not arrive, and the values still show its work: the next delta counts it
//   lost      it did not arrive and a broadcast has replaced its work: counted as discarded
#include <algorithm>
#include <utility>

#include "yeto/sync/client/client.h"

namespace yeto::sync::client {

using wire::TransferKind;

// ---- bodies
// --------------------------------------------------------------------------------------

void Client::send_layout(std::uint32_t attempt, Actions& out) {
  wire::Offer offer;
  offer.kind = TransferKind::kLayout;
  offer.term = run_.term;
  offer.fragment = wire::kLayoutFragment;
  offer.attempt = attempt;
  offer.bytes = layout_bytes_;
  const Ticket ticket = next_id_++;
  outgoing_.emplace(ticket, Outgoing{offer, true, false});
  out.push_back(SendLayout{ticket, offer});
}

void Client::send_empty_push(const wire::Offer& offer, Actions& out) {
  wire::Offer empty = offer;
  empty.bytes = 0;
  empty.c_steps = 0;
  empty.c_tokens = 0;
  empty.norm = 0.0;
  const Ticket ticket = next_id_++;
  outgoing_.emplace(ticket, Outgoing{empty, true, false});
  out.push_back(SendBody{ticket, empty});
}

void Client::handle(const PushEncoded& event, Actions& out) {
  const auto found = outgoing_.find(event.ticket);
  if (found == outgoing_.end()) {
    out.push_back(DropBody{event.ticket});
    return;
  }
  if (event.finite && !found->second.cancelled) {
    found->second.offer.norm = event.norm;
    found->second.sent = true;
    out.push_back(SendBody{event.ticket, found->second.offer});
    return;
  }
  const Outgoing outgoing = found->second;
  outgoing_.erase(found);
  out.push_back(DropBody{event.ticket});
  const auto push = push_of(event.ticket);
  if (push == pushes_.end()) {
    return;
  }
  if (event.finite) {
    push_failed(*push, out);
    return;
  }
  settle(*push, false, out);
  rows_.lost(push->fragment, push->ticket);
  counters_.discarded_tokens += push->work.tokens;
  not_finite(outgoing, *push, out);
  pushes_.erase(push);
}

// Values that are not finite never leave the island; an empty push tells the syncer not to wait.
// No later step makes them finite again, nor does a broadcast that keeps what was done since P.
void Client::not_finite(const Outgoing& outgoing, const Push& push, Actions& out) {
  ++counters_.nonfinite_pushes;
  FragmentState& fragment = fragments_[push.fragment];
  if (!fragment.overwrite && push.applications >= fragment.replaced) {
    fragment.reset = true;
  }
  if (lockstep() && lockstep_fault_.empty()) {
    lockstep_fault_ = "values that are not finite cannot be pushed";
  }
  if (!outgoing.cancelled && outgoing.offer.round != 0) {
    send_empty_push(outgoing.offer, out);
  }
}

void Client::handle(const InitEncoded& event, Actions& out) {
  const auto found = outgoing_.find(event.ticket);
  if (found == outgoing_.end()) {
    out.push_back(DropBody{event.ticket});
    return;
  }
  found->second.offer.digest = event.digest;
  out.push_back(SendBody{event.ticket, found->second.offer});
}

void Client::handle(const BodySent& event, Actions& out) {
  const auto found = outgoing_.find(event.ticket);
  if (found == outgoing_.end()) {
    return;
  }
  const wire::Offer offer = found->second.offer;
  outgoing_.erase(found);
  const auto push = push_of(event.ticket);
  if (push == pushes_.end()) {
    return;  // no push, an empty one, or its verdict came first
  }
  if (!event.ok) {
    push_failed(*push, out);
    settle_rows(out);
    return;
  }
  ++counters_.pushes;
  counters_.bytes_pushed += offer.bytes;
}

// ---- the fate of a push
// --------------------------------------------------------------------------

Client::Pushes::iterator Client::push_of(Ticket ticket) {
  return std::find_if(pushes_.begin(), pushes_.end(),
                      [&](const Push& push) { return push.ticket == ticket; });
}

// Two pushes may answer one PULL that was sent twice: the second is refused, with a verdict too.
Client::Pushes::iterator Client::push_named(const wire::Verdict& verdict) {
  const auto named = [&](const Push& push) {
    return push.fragment == verdict.fragment && push.round == verdict.round &&
           push.attempt == verdict.attempt;
  };
  const bool dropped = verdict.outcome == wire::Outcome::kDropped;
  const auto refused = std::find_if(pushes_.begin(), pushes_.end(), [&](const Push& push) {
    return named(push) && push.state == Push::State::kRefused;
  });
  if (dropped && refused != pushes_.end()) {
    return refused;
  }
  return std::find_if(pushes_.begin(), pushes_.end(), [&](const Push& push) {
    return named(push) && push.state != Push::State::kRefused;
  });
}

void Client::settle(const Push& push, bool kept, Actions& out) const {
  out.push_back(SettlePush{push.ticket, push.fragment, kept});
}

// The next delta carries the work too, unless a broadcast has replaced it since.
void Client::take_back_work(Push& push) {
  FragmentState& fragment = fragments_[push.fragment];
  const bool there = fragment.applications == push.applications;
  if (push.state == Push::State::kUnsure) {
    if (push.returned && there) {
      rows_.returned(push.fragment, push.ticket);
      return;
    }
  } else if (there) {
    fragment.taken -= push.work;
    fragment.returned += push.work;
    rows_.returned(push.fragment, push.ticket);
    return;
  }
  counters_.discarded_tokens += push.work.tokens;
  rows_.lost(push.fragment, push.ticket);
}

void Client::push_failed(Push& push, Actions& out) {
  settle(push, false, out);
  take_back_work(push);
  push.state = Push::State::kRefused;
}

// The syncer may have it whole: then its verdict comes in the next session.
void Client::push_unsure(Push& push) {
  FragmentState& fragment = fragments_[push.fragment];
  push.state = Push::State::kUnsure;
  push.returned = fragment.applications == push.applications;
  if (push.returned) {
    fragment.taken -= push.work;
    fragment.returned += push.work;
  }
}

void Client::push_kept(Push& push, Actions& out) {
  FragmentState& fragment = fragments_[push.fragment];
  if (push.state == Push::State::kUnsure && push.returned &&
      fragment.applications == push.applications) {
    fragment.returned -= push.work;
    fragment.taken += push.work;
  }
  if (push.state != Push::State::kCarried) {
    settle(push, true, out);
  }
}

// No verdict will come, or it says that the push is lost.
Client::Pushes::iterator Client::end_push(Pushes::iterator push, Actions& out) {
  if (push->state == Push::State::kLive || push->state == Push::State::kUnsure) {
    settle(*push, false, out);
  }
  if (push->state != Push::State::kRefused) {
    take_back_work(*push);
  }
  return pushes_.erase(push);
}

void Client::receive(const wire::Verdict& verdict, Actions& out) {
  const auto push = push_named(verdict);
  if (push == pushes_.end()) {
    return;  // told before: the last verdicts are sent again to a session that was resumed
  }
  switch (verdict.outcome) {
    case wire::Outcome::kMerged:
      push_kept(*push, out);
      ++counters_.merged;
      rows_.kept(push->fragment, push->ticket,
                 push->state == Push::State::kCarried ? 0 : push->round);
      pushes_.erase(push);
      break;
    case wire::Outcome::kCarried:
      if (push->state != Push::State::kCarried) {
        push_kept(*push, out);
        ++counters_.carried;
        push->state = Push::State::kCarried;
      }
      break;
    case wire::Outcome::kDropped:
      ++counters_.dropped;
      end_push(push, out);
      break;
  }
  settle_rows(out);
}

// A new delta of the fragment is taken: what was asked for again did not arrive before. No verdict
// comes any more for a push that is further behind than late work may be.
void Client::supersede_pushes(std::uint32_t index, Actions& out) {
  const std::uint64_t version = fragments_[index].anchor.version;
  for (auto push = pushes_.begin(); push != pushes_.end();) {
    const bool silent = push->base_version + settings_.max_lag + 2 < version;
    const bool over =
        push->state == Push::State::kUnsure || push->state == Push::State::kRefused || silent;
    push = push->fragment == index && over ? end_push(push, out) : std::next(push);
  }
}

// A syncer that was started anew knows none of them.
void Client::forget_pushes(Actions& out) {
  for (const Push& push : pushes_) {
    if (push.state == Push::State::kLive || push.state == Push::State::kUnsure) {
      settle(push, false, out);
    }
    const bool there = fragments_[push.fragment].applications == push.applications;
    if (!there && push.state != Push::State::kRefused) {
      counters_.discarded_tokens += push.work.tokens;
    }
  }
  pushes_.clear();
}

// ---- data leases
// ---------------------------------------------------------------------------------

Actions Client::want_rows(std::uint64_t rows, std::uint64_t count) {
  Actions out;
  if (rows_.want(rows, count) && connected_) {
    out.push_back(Send{*rows_.open_request()});
  }
  return out;
}

Actions Client::return_rows() {
  Actions out;
  for (const wire::Data& back : rows_.give_up()) {
    if (connected_) {
      out.push_back(Send{back});
    }
  }
  return out;
}

void Client::settle_rows(Actions& out) {
  if (!connected_) {
    return;  // a resumed session grants again what it has not heard of
  }
  for (const wire::Data& settled : rows_.settle(run_.durable_step)) {
    out.push_back(Send{settled});
  }
}

void Client::resume_rows(bool resumed, Actions& out) {
  if (!resumed) {
    rows_.forget();
  }
  if (const auto request = rows_.open_request()) {
    out.push_back(Send{*request});
  }
  settle_rows(out);
}

}  // namespace yeto::sync::client
