// SPDX-License-Identifier: Apache-2.0
// Events of the session. What happens at a boundary is in boundary_order.cc.
#include "yeto/sync/client/client.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/codec/codec.h"
#include "yeto/wire/codec.h"

namespace yeto::sync::client {

using wire::TransferKind;

Client::Client(ClientOptions options, const Layout& layout)
    : options_(std::move(options)),
      layout_bytes_(layout.encode().size()),
      layout_digest_(layout.fingerprint()),
      layout_values_(layout.values()),
      fragments_(layout.fragments.size()),
      final_images_(layout.fragments.size()) {
  for (const Fragment& fragment : layout.fragments) {
    values_.push_back(fragment.values);
  }
}

wire::Hello Client::hello() const {
  wire::Hello hello;
  hello.run_id = options_.run_id;
  hello.seat = options_.seat;
  hello.incarnation = options_.incarnation;
  hello.session = session_;
  hello.layout = layout_digest_;
  hello.values = layout_values_;
  hello.contract = options_.contract;
  for (const FragmentState& fragment : fragments_) {
    hello.held.push_back(fragment.overwrite ? wire::Held{} : fragment.anchor);
  }
  hello.tokens = tokens_;
  hello.local_step = local_step_;
  hello.streams = options_.streams;
  hello.device = options_.device;
  return hello;
}

Actions Client::on(const Event& event) {
  Actions out;
  std::visit([&](const auto& e) { handle(e, out); }, event);
  return out;
}

// ---- the session
// ---------------------------------------------------------------------------------

// Why a WELCOME cannot be followed; empty if it can.
std::string Client::welcome_fault(const wire::Welcome& welcome) const {
  const std::size_t count = fragments_.size();
  const bool sized = (welcome.versions.empty() && welcome.valid.empty()) ||
                     (welcome.versions.size() == count && welcome.valid.size() == count);
  if (!sized) {
    return strf("WELCOME names {} versions and {} valid ones of {} fragments",
                welcome.versions.size(), welcome.valid.size(), count);
  }
  for (const CodecId codec : {welcome.push_codec, welcome.broadcast_codec}) {
    if (const Status known = codec::check_codec(codec); !known) {
      return "WELCOME: " + known.error().what;
    }
  }
  if (!(welcome.settings.merge_alpha >= 0.0 && welcome.settings.merge_alpha <= 1.0)) {
    return strf("WELCOME names merge alpha {}, it is from 0 to 1", welcome.settings.merge_alpha);
  }
  return {};
}

void Client::handle(const Admitted& event, Actions& out) {
  const wire::Welcome& welcome = event.welcome;
  if (std::string fault = welcome_fault(welcome); !fault.empty()) {
    out.push_back(EndSession{std::move(fault)});
    return;
  }
  const bool resumed = welcome.resumed != 0 && welcome.term == run_.term;
  connected_ = true;
  options_.seat = welcome.seat;
  session_ = welcome.session;
  push_codec_ = welcome.push_codec;
  broadcast_codec_ = welcome.broadcast_codec;
  settings_ = welcome.settings;
  if (!admitted_once_) {
    first_admission(welcome);
  }
  if (!resumed) {
    rejoin(welcome, out);
  }
  run_.term = welcome.term;
  run_.global_step = welcome.global_step;
  run_.durable_step = welcome.durable_step;
  if (limit_) {
    send_limit(out);
  }
}

void Client::first_admission(const wire::Welcome& welcome) {
  admitted_once_ = true;
  // Tokens count over the seat's life: an earlier process of it has reached this many.
  tokens_ += welcome.seat_tokens;
  joined_late_ = welcome.global_step > 0;
  if (settings_.lockstep != 0 && joined_late_) {
    lockstep_fault_ =
        strf("a lockstep run cannot be joined at global step {}", welcome.global_step);
  }
}

// Another session than before, perhaps of another term: what was received for the old one is void,
// and each fragment keeps its anchor only if its bytes are the run's current ones.
void Client::rejoin(const wire::Welcome& welcome, Actions& out) {
  for (std::uint32_t index = 0; index < fragment_count(); ++index) {
    keep_or_void(index, welcome, out);
  }
}

void Client::keep_or_void(std::uint32_t index, const wire::Welcome& welcome, Actions& out) {
  FragmentState& fragment = fragments_[index];
  drop_ready(fragment, out);
  fragment.init_attempt.reset();
  fragment.newest = welcome.versions.empty() ? 0 : welcome.versions[index];
  const wire::Held held = fragment.overwrite ? wire::Held{} : fragment.anchor;
  const bool keep = held.term != 0 && !welcome.versions.empty() &&
                    held.version <= welcome.valid[index] && held.version == welcome.versions[index];
  if (!keep) {
    fragment.anchor = {};
    fragment.overwrite = true;
    return;
  }
  if (fragment.anchor.term != welcome.term) {
    // What an earlier life of the syncer received without merging it is forgotten there.
    fragment.returned += fragment.taken;
    fragment.taken = {};
  }
  fragment.anchor.term = welcome.term;
}

void Client::handle(const SessionLost& event, Actions& out) {
  connected_ = false;
  for (const auto& [ticket, outgoing] : outgoing_) {
    give_back(outgoing);
    out.push_back(DropBody{ticket});
  }
  outgoing_.clear();
  for (const auto& [image, incoming] : incoming_) {
    out.push_back(DropImage{image});
  }
  incoming_.clear();
  for (std::optional<ImageId>& image : final_images_) {
    if (image) {
      out.push_back(DropImage{*image});
      image.reset();
    }
  }
  final_ = {};
  for (FragmentState& fragment : fragments_) {
    // All that is still open is asked for again in the next session.
    fragment.pull.reset();
    fragment.init_attempt.reset();
  }
  if (lockstep() && local_step_ > 0 && lockstep_fault_.empty()) {
    lockstep_fault_ = "the session of a lockstep run was lost: " + event.reason;
  }
}

// ---- messages
// ------------------------------------------------------------------------------------

void Client::handle(const MessageArrived& event, Actions& out) {
  std::visit(
      [&](const auto& message) {
        using M = std::decay_t<decltype(message)>;
        if constexpr (std::is_same_v<M, wire::Pull> || std::is_same_v<M, wire::Cancel> ||
                      std::is_same_v<M, wire::Verdict> || std::is_same_v<M, wire::SyncerBeat> ||
                      std::is_same_v<M, wire::Final> || std::is_same_v<M, wire::Goodbye>) {
          receive(message, out);
        } else {
          out.push_back(EndSession{"the syncer sent a message that has no place in a session: " +
                                   wire::to_text(wire::Message(message))});
        }
      },
      event.message);
}

void Client::receive(const wire::Pull& pull, Actions& out) {
  if (pull.term != run_.term) {
    return;
  }
  if (pull.fragment == wire::kLayoutFragment) {
    send_layout(pull.attempt, out);
    return;
  }
  if (pull.fragment >= fragment_count()) {
    out.push_back(EndSession{
        strf("PULL of fragment {}, there are {} fragments", pull.fragment, fragment_count())});
    return;
  }
  FragmentState& fragment = fragments_[pull.fragment];
  if (pull.round == 0) {
    fragment.init_attempt = pull.attempt;
    return;
  }
  draining_ = draining_ || pull.sweep != 0;
  fragment.newest = std::max(fragment.newest, pull.base_version);
  fragment.pull = pull;  // control frames keep their order: the last one is the newest
}

void Client::receive(const wire::Cancel& cancel, Actions& /*out*/) {
  if (lockstep() && cancel.round == lockstep_round_) {
    lockstep_pushed_ = false;
  }
  for (FragmentState& fragment : fragments_) {
    if (fragment.pull && fragment.pull->round == cancel.round &&
        fragment.pull->attempt == cancel.attempt) {
      fragment.pull.reset();
    }
  }
  for (auto& [ticket, outgoing] : outgoing_) {
    if (outgoing.offer.kind == TransferKind::kPush && outgoing.offer.round == cancel.round &&
        outgoing.offer.attempt == cancel.attempt) {
      outgoing.cancelled = true;
    }
  }
}

void Client::receive(const wire::Verdict& verdict, Actions& /*out*/) {
  if (verdict.outcome == wire::Outcome::kMerged) {
    ++counters_.merged;
  } else if (verdict.outcome == wire::Outcome::kDropped) {
    ++counters_.dropped;
  }
}

void Client::receive(const wire::SyncerBeat& beat, Actions& /*out*/) {
  if (beat.term != run_.term) {
    return;
  }
  run_.global_step = beat.global_step;
  run_.durable_step = beat.durable_step;
  run_.run_tokens = beat.run_tokens;
  run_.live = beat.live;
}

void Client::receive(const wire::Final& final, Actions& out) {
  if (final.versions.size() != fragments_.size() || final.digests.size() != fragments_.size()) {
    out.push_back(EndSession{strf("FINAL names {} versions and {} digests of {} fragments",
                                  final.versions.size(), final.digests.size(), fragments_.size())});
    return;
  }
  final_ = final;
  draining_ = true;
  run_.global_step = final.global_step;
  if (own_final_ != final.digests) {
    own_final_.clear();  // another final state than the one that was applied
  }
  if (acknowledged()) {
    send_final_ack(out);
  }
}

void Client::receive(const wire::Goodbye& goodbye, Actions& /*out*/) {
  ended_ = true;
  end_reason_ = goodbye.reason;
}

// ---- received bodies
// -----------------------------------------------------------------------------

// Why an offered transfer cannot be taken; empty if it can.
std::string Client::offer_fault(const wire::Offer& offer) const {
  if (offer.kind != TransferKind::kBroadcast && offer.kind != TransferKind::kFinal) {
    return "a learner receives only broadcasts and final values";
  }
  if (offer.term != run_.term) {
    return strf("of term {}, this session is of term {}", offer.term, run_.term);
  }
  if (offer.fragment >= fragment_count()) {
    return strf("fragment {} of {}", offer.fragment, fragment_count());
  }
  const CodecId codec = offer.kind == TransferKind::kFinal ? CodecId::kF32 : broadcast_codec_;
  if (offer.codec != codec) {
    return "the codec is not the one of WELCOME";
  }
  const std::uint64_t bytes = codec::encoded_bytes(codec, values_[offer.fragment]);
  if (offer.bytes != bytes || offer.parts != 1) {
    return strf("{} bytes in {} parts, expected {} in one", offer.bytes, offer.parts, bytes);
  }
  return {};
}

void Client::handle(const OfferArrived& event, Actions& out) {
  const wire::Offer& offer = event.offer;
  if (std::string fault = offer_fault(offer); !fault.empty()) {
    out.push_back(Refuse{offer.transfer, std::move(fault)});
    return;
  }
  FragmentState& fragment = fragments_[offer.fragment];
  fragment.newest = std::max(fragment.newest, offer.version);
  draining_ = draining_ || offer.kind == TransferKind::kFinal;
  const ImageId image = next_id_++;
  incoming_.emplace(image, Incoming{offer.transfer, offer});
  out.push_back(Accept{offer.transfer, image, offer.bytes});
}

void Client::handle(const ImageArrived& event, Actions& out) {
  const auto found = incoming_.find(event.image);
  if (found == incoming_.end()) {
    return;
  }
  const wire::Offer& offer = found->second.offer;
  out.push_back(CheckImage{event.image, offer.codec, values_[offer.fragment], offer.digest});
}

void Client::handle(const ImageChecked& event, Actions& out) {
  const auto found = incoming_.find(event.image);
  if (found == incoming_.end()) {
    out.push_back(DropImage{event.image});
    return;
  }
  const Incoming incoming = found->second;
  incoming_.erase(found);
  out.push_back(FinishReceive{incoming.transfer, event.ok});
  if (!event.ok) {
    ++counters_.damaged_images;
    out.push_back(DropImage{event.image});
    return;
  }
  counters_.bytes_received += incoming.offer.bytes;
  if (incoming.offer.kind == TransferKind::kFinal) {
    keep_final(event.image, incoming.offer.fragment, out);
  } else {
    keep_broadcast(event.image, incoming.offer, out);
  }
}

// The newest broadcast wins; one that is held already is not needed.
void Client::keep_broadcast(ImageId image, const wire::Offer& offer, Actions& out) {
  FragmentState& fragment = fragments_[offer.fragment];
  const bool held = !fragment.overwrite && offer.version <= fragment.anchor.version;
  const bool older = fragment.ready && offer.version <= fragment.ready->version;
  if (held || older) {
    out.push_back(DropImage{image});
    return;
  }
  drop_ready(fragment, out);
  fragment.ready = ReadyImage{image, offer.version};
}

void Client::keep_final(ImageId image, std::uint32_t index, Actions& out) {
  if (final_images_[index]) {
    out.push_back(DropImage{*final_images_[index]});
  }
  final_images_[index] = image;
}

void Client::drop_ready(FragmentState& fragment, Actions& out) {
  if (fragment.ready) {
    out.push_back(DropImage{fragment.ready->image});
    fragment.ready.reset();
  }
}

// ---- bodies to send
// ------------------------------------------------------------------------------

void Client::send_layout(std::uint32_t attempt, Actions& out) {
  wire::Offer offer;
  offer.kind = TransferKind::kLayout;
  offer.term = run_.term;
  offer.fragment = wire::kLayoutFragment;
  offer.attempt = attempt;
  offer.bytes = layout_bytes_;
  const Ticket ticket = next_id_++;
  outgoing_.emplace(ticket, Outgoing{offer, {}, 0, false});
  out.push_back(SendLayout{ticket, offer});
}

void Client::send_empty_push(const wire::Offer& offer, Actions& out) {
  wire::Offer empty = offer;
  empty.bytes = 0;
  empty.c_steps = 0;
  empty.c_tokens = 0;
  empty.norm = 0.0;
  const Ticket ticket = next_id_++;
  outgoing_.emplace(ticket, Outgoing{empty, {}, 0, false});
  out.push_back(SendBody{ticket, empty});
}

void Client::handle(const PushEncoded& event, Actions& out) {
  const auto found = outgoing_.find(event.ticket);
  if (found == outgoing_.end() || found->second.cancelled || !event.finite) {
    out.push_back(DropBody{event.ticket});
    if (found == outgoing_.end()) {
      return;
    }
    const Outgoing outgoing = found->second;
    outgoing_.erase(found);
    if (!event.finite) {
      not_finite(outgoing, out);
    } else {
      give_back(outgoing);
    }
    return;
  }
  found->second.offer.norm = event.norm;
  out.push_back(SendBody{event.ticket, found->second.offer});
}

// Values that are not finite never leave the island; an empty push tells the syncer not to wait.
// The next broadcast replaces them, also where it would otherwise keep what was done since P.
void Client::not_finite(const Outgoing& outgoing, Actions& out) {
  ++counters_.nonfinite_pushes;
  FragmentState& fragment = fragments_[outgoing.offer.fragment];
  if (fragment.applications == outgoing.applications) {
    fragment.overwrite = true;
  }
  if (lockstep() && lockstep_fault_.empty()) {
    lockstep_fault_ = "values that are not finite cannot be pushed";
  }
  if (!outgoing.cancelled) {
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

void Client::handle(const BodySent& event, Actions& /*out*/) {
  const auto found = outgoing_.find(event.ticket);
  if (found == outgoing_.end()) {
    return;
  }
  const Outgoing outgoing = found->second;
  outgoing_.erase(found);
  if (!event.ok) {
    give_back(outgoing);
    return;
  }
  if (outgoing.offer.kind == TransferKind::kPush && outgoing.offer.bytes > 0) {
    ++counters_.pushes;
    counters_.bytes_pushed += outgoing.offer.bytes;
  }
}

// A delta that did not arrive: the next one carries its work too, unless a broadcast has replaced
// that work since.
void Client::give_back(const Outgoing& outgoing) {
  if (outgoing.offer.kind != TransferKind::kPush) {
    return;
  }
  FragmentState& fragment = fragments_[outgoing.offer.fragment];
  if (fragment.applications == outgoing.applications) {
    fragment.taken -= outgoing.work;
    fragment.returned += outgoing.work;
  }
}

}  // namespace yeto::sync::client
