// SPDX-License-Identifier: Apache-2.0
// A learner's client under a syncer that says anything, in any order, and a trainer and a shell
// that keep to their part. Whatever comes: no crash, an offer is accepted or refused once, what is
// sent may travel and fits its frame, images are used only once they were checked and are given
// back, bodies are sent only if they were made.
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "yeto/base/fuzz_testing.h"
#include "yeto/sync/client/client.h"
#include "yeto/tensor/image.h"
#include "yeto/wire/codec.h"

namespace {

using namespace yeto;
using namespace yeto::sync::client;
using wire::Direction;
using wire::TransferKind;
using wire::Type;

constexpr std::uint32_t kFragments = 2;
constexpr std::size_t kMostOpen = 64;  // transfers that a link lets a peer open
constexpr int kMostSteps = 400;

const Layout& layout() {
  static const Layout made = [] {
    LayoutOptions options;
    options.fragments = kFragments;
    return make_layout({{"a.weight", {4, 2}, DType::kF32, MergeMode::kRda},
                        {"b.weight", {6}, DType::kF32, MergeMode::kRda}},
                       options)
        .value();
  }();
  return made;
}

ClientOptions client_options() {
  ClientOptions options;
  options.run_id = "run";
  options.seat = 1;
  options.incarnation = 77;
  return options;
}

template <class T>
T drawn(fuzz::Input& in, const std::set<T>& from) {
  auto at = from.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(in.below(from.size())));
  return *at;
}

// Carries actions out as the boundary does, without values and sockets.
class World {
 public:
  explicit World(fuzz::Input& in) : in_(in), client_(client_options(), layout()) {}

  void step() {
    switch (in_.byte() % 18U) {
      case 0:
        return connected_ ? say_small() : admit();
      case 1:
        return lose();
      case 2:
      case 3:
      case 4:
        return say_small();
      case 5:
        return say_random();
      case 6:
      case 7:
        return offer();
      case 8:
      case 9:
        return arrive();
      case 10:
        return check();
      case 11:
        return withdraw();
      case 12:
        return encode();
      case 13:
        return sent();
      case 14:
        return train();
      case 15:
        return carry(client_.boundary());
      case 16:
        return rows();
      default:
        return rare();
    }
  }
  // The session ends: what was received and not used is given back by then, or can still be used.
  void end() {
    lose();
    while (!checking_.empty()) {
      check();
    }
    static_cast<void>(client_.hello());
    static_cast<void>(client_.beat());
    static_cast<void>(client_.staleness_max());
    YETO_CHECK(checked_.size() <= 2 * kFragments, "images that nobody will use are kept");
  }

 private:
  // ---- events
  void feed(const Event& event) { carry(client_.on(event)); }

  void admit() {
    wire::Welcome welcome;
    welcome.seat = static_cast<std::uint32_t>(in_.below(3));
    const std::uint8_t bends = in_.byte();
    welcome.resumed = bends & 1U;
    welcome.term = term_ = 3 + ((bends >> 1U) & 1U);
    if ((bends & 4U) == 0) {
      const std::size_t count = in_.below(16) == 0 ? in_.below(600) : kFragments;
      for (std::size_t i = 0; i < count; ++i) {
        welcome.versions.push_back(in_.below(4));
        welcome.valid.push_back(in_.below(4));
      }
    }
    const std::uint8_t codecs = in_.byte();
    welcome.broadcast_codec = static_cast<CodecId>(codecs % 4U);
    welcome.push_codec = static_cast<CodecId>((codecs >> 2U) % 4U);
    welcome.global_step = in_.below(4);
    welcome.seat_tokens = in_.below(100);
    welcome.settings.lockstep = (bends >> 3U) & 1U;
    welcome.settings.fixed_roster = (bends >> 4U) & 1U;
    welcome.settings.data_leases = (bends >> 5U) & 1U;
    welcome.settings.sync_interval_steps =
        (bends & 64U) != 0 ? in_.number<std::uint32_t>() : static_cast<std::uint32_t>(in_.below(4));
    welcome.settings.merge_alpha = (bends & 128U) != 0 ? in_.number<double>() : 0.5;
    welcome.settings.max_lag = static_cast<std::uint32_t>(in_.below(3));
    connected_ = true;
    feed(Admitted{std::move(welcome)});
  }
  void lose() {
    if (connected_) {
      connected_ = false;
      receiving_.clear();
      to_finish_.clear();
      sent_.clear();
      transfer_ = 0;
      feed(SessionLost{"lost"});
    }
  }
  void say(wire::Message message) {
    if (connected_) {
      feed(MessageArrived{std::move(message)});
    }
  }
  void say_small() {
    const auto fragment = static_cast<std::uint32_t>(in_.below(kFragments + 1));
    switch (in_.below(8)) {
      case 0:
      case 1: {
        wire::Pull pull;
        pull.term = term_ + (in_.below(16) == 0 ? 1 : 0);
        pull.fragment = in_.below(16) == 0 ? wire::kLayoutFragment : fragment % kFragments;
        pull.round = in_.below(6);
        pull.attempt = static_cast<std::uint32_t>(in_.below(2));
        pull.base_version = in_.below(4);
        pull.at_step = in_.below(8) == 0 ? in_.number<std::uint64_t>() : in_.below(3);
        pull.sweep = in_.below(8) == 0 ? 1 : 0;
        return say(pull);
      }
      case 2:
        return say(wire::Cancel{in_.below(6), static_cast<std::uint32_t>(in_.below(2))});
      case 3: {
        wire::Verdict verdict;
        verdict.term = term_;
        verdict.fragment = fragment;
        verdict.round = in_.below(6);
        verdict.attempt = static_cast<std::uint32_t>(in_.below(2));
        verdict.outcome = static_cast<wire::Outcome>(in_.below(3));
        return say(std::move(verdict));
      }
      case 4: {
        wire::SyncerBeat beat;
        beat.term = term_;
        beat.global_step = in_.below(16);
        beat.durable_step = in_.below(16);
        return say(std::move(beat));
      }
      case 5: {
        wire::Final final;
        final.global_step = in_.below(16);
        final.versions.assign(in_.below(8) == 0 ? fragment : kFragments, 3);
        final.digests.resize(final.versions.size());
        return say(std::move(final));
      }
      default: {
        wire::Data grant;
        grant.action = in_.below(16) == 0 ? wire::DataAction::kRequest : wire::DataAction::kGrant;
        grant.epoch = in_.below(2);
        grant.first = in_.below(8) == 0 ? in_.number<std::uint64_t>() : in_.below(64);
        grant.count = in_.below(8) == 0 ? in_.number<std::uint64_t>() : in_.below(16);
        return say(grant);
      }
    }
  }
  // Any message that a link hands on.
  void say_random() {
    const auto type = static_cast<Type>(1 + in_.below(22));
    const bool of_link = type == Type::kOffer || type == Type::kHave || type == Type::kDone ||
                         type == Type::kChunk || type == Type::kRefused;
    if (!of_link && type > Type::kAttached && wire::type_allowed(type, Direction::kToLearner)) {
      Rng rng(in_.number<std::uint32_t>());
      say(wire::random_message(rng, type, Direction::kToLearner));
    }
  }
  void offer() {
    if (!connected_ || receiving_.size() + to_finish_.size() >= kMostOpen) {
      return;
    }
    wire::Offer offer;
    const std::uint8_t bends = in_.byte();
    offer.transfer = ++transfer_;
    offer.kind = (bends & 7U) == 0   ? static_cast<TransferKind>(in_.below(5))
                 : (bends & 7U) == 1 ? TransferKind::kFinal
                                     : TransferKind::kBroadcast;
    offer.term = term_ + ((bends & 24U) == 24U ? 1 : 0);
    offer.fragment = static_cast<std::uint32_t>(in_.below(kFragments + (bends == 255 ? 1 : 0)));
    offer.version = in_.below(6);
    offer.base_version = (bends & 32U) != 0 ? in_.below(6) : offer.version - 1;
    offer.codec = static_cast<CodecId>(in_.below(3));
    offer.bytes = offer.fragment < kFragments
                      ? image_bytes(offer.codec, layout().fragments[offer.fragment].values)
                      : 0;
    if ((bends & 192U) == 192U) {
      offer.bytes = in_.number<std::uint64_t>();
      offer.parts = in_.number<std::uint16_t>();
    }
    offered_ = offer.transfer;
    answers_ = 0;
    feed(OfferArrived{offer});
    YETO_CHECK(answers_ == 1 || !connected_, "an offer must be accepted or refused, once");
    offered_ = 0;
  }
  void arrive() {
    if (!receiving_.empty()) {
      const auto [transfer, image] = *receiving_.begin();
      receiving_.erase(transfer);
      to_finish_[transfer] = image;
      feed(ImageArrived{image});
    }
  }
  void withdraw() {
    if (!receiving_.empty()) {
      const auto [transfer, image] = *receiving_.rbegin();
      receiving_.erase(transfer);
      feed(ImageChecked{image, false});
    }
  }
  void check() {
    if (!checking_.empty()) {
      const ImageId image = drawn(in_, checking_);
      checking_.erase(image);
      const bool ok = in_.below(8) != 0;
      if (ok) {
        checked_.insert(image);
      }
      feed(ImageChecked{image, ok});
    }
  }
  void encode() {
    if (!pushes_.empty()) {
      const Ticket ticket = drawn(in_, pushes_);
      pushes_.erase(ticket);
      const bool finite = in_.below(8) != 0;
      if (finite) {
        bodies_.insert(ticket);
      }
      return feed(PushEncoded{ticket, finite, 1.0});
    }
    if (!inits_.empty()) {
      const Ticket ticket = drawn(in_, inits_);
      inits_.erase(ticket);
      bodies_.insert(ticket);
      feed(InitEncoded{ticket, {}});
    }
  }
  void sent() {
    if (!sent_.empty()) {
      const Ticket ticket = drawn(in_, sent_);
      sent_.erase(ticket);
      feed(BodySent{ticket, in_.below(4) != 0});
    }
  }

  // ---- the trainer
  void train() {
    if (client_.ready() && !client_.must_wait() && !client_.draining() && !client_.finishing()) {
      now_ += static_cast<Nanos>(in_.below(4)) * kSecond;
      client_.step(in_.below(64), now_);
      carry(client_.boundary());
      client_.resume_training(now_);
    } else {
      carry(client_.boundary());
    }
  }
  void rows() {
    if (client_.settings().data_leases == 0 || client_.finishing()) {
      return;
    }
    carry(client_.want_rows(64, 1 + in_.below(8)));
    if (const auto range = client_.take_rows(1 + in_.below(8))) {
      YETO_CHECK(range->count > 0 && range->count <= 8, "rows that were not asked for");
    }
    static_cast<void>(client_.rows_exhausted());
  }
  void rare() {
    switch (in_.below(6)) {
      case 0:
        return carry(client_.finalize(in_.coin()));
      case 1:
        return carry(client_.return_rows());
      case 2:
        if (final_ordered_) {
          final_ordered_ = false;
          carry(client_.final_applied(std::vector<wire::Digest32>(kFragments)));
        }
        return;
      case 3:
        return say(wire::Goodbye{"the end"});
      default:
        return client_.set_phase(static_cast<wire::Phase>(in_.below(5)), now_);
    }
  }

  // ---- actions
  void carry(const Actions& actions) {
    bool over = false;
    for (const Action& action : actions) {
      over = over || std::holds_alternative<EndSession>(action);
      std::visit([this](const auto& a) { perform(a); }, action);
    }
    if (over) {
      lose();
    }
  }
  void perform(const Send& action) const {
    const Type type = wire::type_of(action.message);
    YETO_CHECK(wire::type_allowed(type, Direction::kToSyncer), "a message of the wrong way");
    YETO_CHECK(wire::encode_message(action.message).size() <=
                   wire::max_payload(type, Direction::kToSyncer),
               "a message that is too large");
  }
  void perform(const EndSession& action) const {
    YETO_CHECK(!action.reason.empty(), "a session ends without a reason");
  }
  void perform(const Accept& action) {
    YETO_CHECK(action.transfer == offered_, "a transfer that was not offered is accepted");
    ++answers_;
    receiving_[action.transfer] = action.image;
  }
  void perform(const Refuse& action) {
    YETO_CHECK(action.transfer == offered_ && !action.reason.empty(), "refused without a reason");
    ++answers_;
  }
  // The link takes it only of what has arrived; of what was withdrawn it knows nothing any more.
  void perform(const FinishReceive& action) {
    YETO_CHECK(!receiving_.contains(action.transfer), "finished before it arrived");
    to_finish_.erase(action.transfer);
  }
  void perform(const CheckImage& action) {
    YETO_CHECK(
        action.fragment < kFragments && action.values == layout().fragments[action.fragment].values,
        "an image of no fragment");
    checking_.insert(action.image);
  }
  void perform(const DropImage& action) { checked_.erase(action.image); }
  void perform(const SendLayout& action) { sent_.insert(action.ticket); }
  void perform(const SendBody& action) {
    YETO_CHECK(action.offer.bytes == 0 || bodies_.erase(action.ticket) == 1,
               "a body that was not made is sent");
    sent_.insert(action.ticket);
  }
  void perform(const DropBody& action) { bodies_.erase(action.ticket); }
  void perform(const SettlePush&) {}
  void perform(const TakePush& action) {
    YETO_CHECK(pushes_.insert(action.ticket).second && action.fragment < kFragments,
               "a ticket that is used twice");
  }
  void perform(const TakeInit& action) {
    YETO_CHECK(inits_.insert(action.ticket).second, "a ticket that is used twice");
  }
  void perform(const Apply& action) {
    YETO_CHECK(checked_.erase(action.image) == 1, "an image that was not checked is applied");
  }
  void perform(const ResetFragment&) {}
  void perform(const ApplyFinal& action) {
    YETO_CHECK(action.images.size() == kFragments, "final values of all fragments");
    for (const ImageId image : action.images) {
      YETO_CHECK(checked_.erase(image) == 1, "an image that was not checked is applied");
    }
    final_ordered_ = true;
  }

  fuzz::Input& in_;
  Client client_;
  Nanos now_ = 0;
  bool connected_ = false;
  std::uint64_t term_ = 3;
  std::uint64_t transfer_ = 0;
  std::uint64_t offered_ = 0;
  int answers_ = 0;
  bool final_ordered_ = false;
  std::map<std::uint64_t, ImageId> receiving_;  // by transfer
  std::map<std::uint64_t, ImageId> to_finish_;
  std::set<ImageId> checking_;
  std::set<ImageId> checked_;
  std::set<Ticket> pushes_;  // being encoded
  std::set<Ticket> inits_;
  std::set<Ticket> bodies_;
  std::set<Ticket> sent_;
};

}  // namespace

YETO_FUZZ_EXAMPLES(fuzz::any_script)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  World world(in);
  for (int i = 0; i < kMostSteps && !in.empty(); ++i) {
    world.step();
  }
  world.end();
  return 0;
}
