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
      rows_(layout.fragments.size()),
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
    hello.held.push_back(held(fragment));
  }
  hello.tokens = tokens_;
  hello.local_step = local_step_;
  hello.streams = options_.streams;
  hello.device = options_.device;
  return hello;
}

// The newest version that is here, applied or not.
wire::Held Client::held(const FragmentState& fragment) const {
  if (fragment.overwrite) {
    return {};
  }
  return fragment.ready ? wire::Held{run_.term, fragment.ready->version} : fragment.anchor;
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
  if (!lockstep_broken_.empty() && !resumed && lockstep_fault_.empty()) {
    lockstep_fault_ =
        "the syncer did not keep the seat of a lost lockstep session: " + lockstep_broken_;
  }
  lockstep_broken_.clear();
  run_.term = welcome.term;
  run_.global_step = welcome.global_step;
  run_.durable_step = welcome.durable_step;
  resume_rows(resumed, out);
  // A syncer that has lost the sweep trains on. So does a trainer that has not stopped for it yet;
  // one that has makes no more steps.
  if (draining_ && !finishing_ && !resumed) {
    draining_ = false;
    drain_lost_ = true;
  }
  if (limit_ || (finishing_ && !resumed)) {
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

// Another session than before, perhaps of another term: each fragment keeps what it holds only if
// that is the run's current version.
void Client::rejoin(const wire::Welcome& welcome, Actions& out) {
  if (welcome.term != run_.term) {
    forget_pushes(out);
  }
  for (std::uint32_t index = 0; index < fragment_count(); ++index) {
    keep_or_void(index, welcome, out);
  }
}

void Client::keep_or_void(std::uint32_t index, const wire::Welcome& welcome, Actions& out) {
  FragmentState& fragment = fragments_[index];
  fragment.init_attempt.reset();
  fragment.newest = welcome.versions.empty() ? 0 : welcome.versions[index];
  if (welcome.term != run_.term) {
    // What an earlier life of the syncer received without merging it is forgotten there.
    fragment.returned += fragment.taken;
    fragment.taken = {};
  }
  const wire::Held here = held(fragment);
  const bool keep = here.term != 0 && !welcome.versions.empty() &&
                    here.version <= welcome.valid[index] && here.version == welcome.versions[index];
  if (!keep) {
    void_anchor(index, welcome, out);
    return;
  }
  fragment.anchor.term = welcome.term;
}

// The fragment is overwritten by the first broadcast to come. If the bytes of its anchor are the
// run's still, the work since may be offered late before that.
void Client::void_anchor(std::uint32_t index, const wire::Welcome& welcome, Actions& out) {
  FragmentState& fragment = fragments_[index];
  drop_ready(fragment, out);
  const std::optional<wire::Held> base =
      fragment.overwrite ? fragment.late : std::optional<wire::Held>(fragment.anchor);
  // `valid` speaks of the terms that HELLO named, and a second break names none for this fragment.
  const bool survives = base && base->term != 0 && !welcome.versions.empty() &&
                        (!fragment.overwrite || base->term == welcome.term) &&
                        base->version <= welcome.valid[index];
  fragment.late = survives && !lockstep() ? base : std::nullopt;
  fragment.anchor = {};
  fragment.overwrite = true;
  fragment.reset = false;
}

void Client::handle(const SessionLost& event, Actions& out) {
  connected_ = false;
  for (const auto& [ticket, outgoing] : outgoing_) {
    out.push_back(DropBody{ticket});
    const auto push = push_of(ticket);
    if (push == pushes_.end()) {
      continue;
    }
    fragments_[push->fragment].broken_off = true;
    if (outgoing.sent) {
      push_unsure(*push);
    } else {
      push_failed(*push, out);
    }
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
    if (settings_.fixed_roster != 0) {
      lockstep_broken_ = event.reason;  // the syncer keeps the seat and waits
    } else {
      lockstep_fault_ = "the session of a lockstep run was lost: " + event.reason;
    }
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
                      std::is_same_v<M, wire::Data> || std::is_same_v<M, wire::Final> ||
                      std::is_same_v<M, wire::Goodbye>) {
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

void Client::receive(const wire::Cancel& cancel, Actions& out) {
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
  for (Push& push : pushes_) {
    // One that is under way is judged when it has arrived; one that had arrived is dropped.
    if (push.round == cancel.round && push.attempt == cancel.attempt &&
        push.state == Push::State::kLive && !outgoing_.contains(push.ticket)) {
      push_failed(push, out);
    }
  }
}

void Client::receive(const wire::SyncerBeat& beat, Actions& out) {
  if (beat.term != run_.term) {
    return;
  }
  run_.global_step = beat.global_step;
  run_.durable_step = beat.durable_step;
  run_.run_tokens = beat.run_tokens;
  run_.live = beat.live;
  rows_.beat(beat.global_step);
  settle_rows(out);
}

void Client::receive(const wire::Data& data, Actions& out) {
  if (data.action != wire::DataAction::kGrant || data.count > ~std::uint64_t{0} - data.first) {
    out.push_back(EndSession{"DATA from the syncer that is not a grant of positions"});
    return;
  }
  for (const wire::Data& missed : rows_.granted(data)) {
    out.push_back(Send{missed});
  }
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
  run_.durable_step = final.global_step;  // the final values stand in a checkpoint
  rows_.beat(final.global_step);
  settle_rows(out);
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
  if (std::string fault = broadcast_fault(offer);
      offer.kind == TransferKind::kBroadcast && !fault.empty()) {
    return fault;
  }
  if (offer.kind == TransferKind::kFinal && offer.codec != CodecId::kF32) {
    return "final values come as f32";
  }
  const std::uint64_t bytes = codec::encoded_bytes(offer.codec, values_[offer.fragment]);
  if (offer.bytes != bytes || offer.parts != 1) {
    return strf("{} bytes in {} parts, expected {} in one", offer.bytes, offer.parts, bytes);
  }
  return {};
}

// A q4 image changes the newest value that is here; what stands alone comes in the anchor dtype.
std::string Client::broadcast_fault(const wire::Offer& offer) const {
  const bool q4 = broadcast_codec_ == CodecId::kQ4;
  if (!q4 || offer.codec != CodecId::kQ4) {
    const CodecId whole = q4 ? CodecId::kBf16 : broadcast_codec_;
    return offer.codec == whole ? "" : "the codec is not the one of WELCOME";
  }
  const FragmentState& fragment = fragments_[offer.fragment];
  if (!fragment.ready && fragment.anchor.term == 0) {
    return strf("fragment {} holds no value that an image could change: send the whole",
                offer.fragment);
  }
  const std::uint64_t newest = fragment.ready ? fragment.ready->version : fragment.anchor.version;
  if (offer.base_version != newest || offer.version <= newest) {
    return strf("the image changes version {} into {}, here is {}: send the whole",
                offer.base_version, offer.version, newest);
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
  out.push_back(CheckImage{event.image, offer.codec, values_[offer.fragment], offer.digest,
                           offer.fragment, offer.version, offer.base_version});
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

}  // namespace yeto::sync::client
