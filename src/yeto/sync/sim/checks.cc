// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/sim/checks.h"

#include <algorithm>
#include <bit>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/sync/round/round.h"

namespace yeto::sync::sim {
namespace {

constexpr std::uint64_t kCommitDurableBytes = std::uint64_t{256} << 20;

bool is_commit_durable(const Plan& plan) {
  const Durability automatic = 12 * plan.layout.values() <= kCommitDurableBytes
                                   ? Durability::kCommit
                                   : Durability::kInterval;
  return plan.core.durability.value_or(automatic) == Durability::kCommit;
}

bool names(const std::vector<SeatReason>& list, Seat seat) {
  return std::any_of(list.begin(), list.end(), [&](const auto& it) { return it.seat == seat; });
}

}  // namespace

Checks::Checks(const Plan& plan) : plan_(plan), commit_durable_(is_commit_durable(plan)) {
  const std::size_t fragments = plan.layout.fragments.size();
  versions_.assign(fragments, 0);
  durable_versions_.assign(fragments, 0);
  counted_.resize(fragments);
}

void Checks::violate(std::string what) {
  if (violation_.empty()) {
    violation_ = std::move(what);
  }
}

Checks::SeatView& Checks::seat(Seat seat) {
  if (seat >= seats_.size()) {
    seats_.resize(seat + 1);
  }
  SeatView& view = seats_[seat];
  if (view.merged.empty()) {
    view.merged.assign(versions_.size(), 0);
  }
  return view;
}

// ---- the syncer
// ----------------------------------------------------------------------------------

void Checks::syncer_started(std::uint64_t term, const std::optional<Restored>& restored) {
  mix(term);
  if (term <= highest_term_) {
    violate(strf("a syncer started in term {} after one in term {}", term, highest_term_));
  }
  const std::uint64_t before = term_;
  term_ = term;
  highest_term_ = std::max(highest_term_, term);
  merged_buffers_.clear();
  initialised_ = restored.has_value();
  const std::vector<std::uint64_t> versions =
      restored ? restored->state.versions : std::vector<std::uint64_t>(versions_.size(), 0);
  const std::uint64_t step = restored ? restored->state.global_step : 0;
  if (step < promised_step_) {
    violate(strf("global step {} was told to be durable; the restart came back at {}",
                 promised_step_, step));
  }
  for (std::uint32_t fragment = 0; fragment < versions.size(); ++fragment) {
    const auto digest = digests_.find({before, fragment, versions[fragment]});
    if (restored && digest != digests_.end()) {
      digests_[{term, fragment, versions[fragment]}] = digest->second;
    }
    for (const Counted& commit : counted_[fragment]) {
      if (commit.version > versions[fragment]) {
        for (const auto& tokens : commit.tokens) {
          seat(tokens.first).merged[fragment] -= tokens.second;
        }
      }
    }
    counted_[fragment].clear();
  }
  versions_ = versions;
  durable_versions_ = versions;
  durable_step_ = step;
  disk_refused_ = false;
}

void Checks::admitted(Seat number, std::uint64_t incarnation, bool of_this_run) {
  ++totals_.joins;
  seat(number).incarnation = incarnation;
  mix(incarnation);
  if (!of_this_run) {
    violate(strf("seat {} of another run was admitted", number));
  }
}

void Checks::push_accepted(Seat number, std::uint64_t incarnation) {
  if (seat(number).incarnation != incarnation) {
    violate(strf("a push of a dead process of seat {} was accepted after its successor joined",
                 number));
  }
}

void Checks::beat_arrived(Seat number, std::uint64_t incarnation, const wire::LearnerBeat& beat) {
  if (plan_.breakage == Breakage::kHungCountsAsLive) {
    return;  // it tells steps that nobody made
  }
  SeatView& view = seat(number);
  slowest_step_s_ = std::max(slowest_step_s_, beat.step_time_s);
  std::uint64_t& told = view.told[incarnation];
  for (const IslandShape& island : plan_.islands) {
    if (island.seat == number) {
      told = std::max(told, beat.local_step * island.tokens);
    }
  }
}

void Checks::beat_sent(const wire::SyncerBeat& beat) {
  if (beat.durable_step > durable_step_) {
    violate(strf("global step {} was told to be durable; the disk holds {}", beat.durable_step,
                 durable_step_));
  }
  promised_step_ = std::max(promised_step_, beat.durable_step);
}

void Checks::init_ordered() {
  if (initialised_) {
    violate("initial values were loaded into a state that is initialised");
  }
}

void Checks::images_made(const ImagesMade& made) {
  initialised_ = true;
  for (std::uint32_t fragment = 0; fragment < made.images.size(); ++fragment) {
    const Value value{term_, fragment, versions_[fragment]};
    const auto [at, fresh] = digests_.try_emplace(value, made.images[fragment].digest);
    if (!fresh && at->second != made.images[fragment].digest) {
      violate(strf("fragment {} version {} came back with another digest after a restart", fragment,
                   versions_[fragment]));
    }
  }
}

void Checks::merge_ordered(const Merge& order) {
  if (plan_.values == ValueKind::kPhantom) {
    merged_buffers_.clear();
  }
  for (std::size_t i = 0; i < order.pushes.size(); ++i) {
    const PushInput& push = order.pushes[i];
    if (!merged_buffers_.insert(push.buffer).second) {
      violate(strf("a push of seat {} was merged twice (fragment {}, version {})", push.seat,
                   order.fragment, order.version));
    }
    if (i > 0) {
      const PushInput& before = order.pushes[i - 1];
      if (std::tie(before.seat, before.base_version) >= std::tie(push.seat, push.base_version)) {
        violate(strf("pushes are not merged by seat: {} before {}", before.seat, push.seat));
      }
    }
  }
}

void Checks::merged(const Merge& order, const Merged& result) {
  if (!result.ok) {
    return violate(
        strf("a push that is not finite went into the merge of fragment {}", order.fragment));
  }
  count_tokens(order);
  if (plan_.values == ValueKind::kReal) {
    digests_[{term_, order.fragment, order.version}] = result.image.digest;
  }
}

void Checks::finals_made(const FinalsMade& made) {
  final_hash_ = 1;
  for (const wire::Digest32& digest : made.digests) {
    for (const std::uint8_t byte : digest) {
      final_hash_ = mix64(final_hash_ ^ byte);
    }
  }
  mix(final_hash_);
}

void Checks::checkpoint_ended(const CoreState& state, bool ok) {
  disk_refused_ = !ok;
  if (!ok) {
    return;
  }
  durable_versions_ = state.versions;
  durable_step_ = state.global_step;
  for (std::uint32_t fragment = 0; fragment < counted_.size(); ++fragment) {
    std::erase_if(counted_[fragment], [&](const Counted& commit) {
      return commit.version <= state.versions[fragment];
    });
  }
}

void Checks::buffers_used(const CoreStatus& status) {
  if (status.effective && status.buffer_bytes > status.effective->max_buffer) {
    violate(strf("{} bytes of buffers are in use; the budget is {}", status.buffer_bytes,
                 status.effective->max_buffer));
  }
}

void Checks::broadcast_offered(Seat number, const wire::Offer& offer) {
  SeatView& view = seat(number);
  view.whole_images += offer.codec != CodecId::kQ4 && offer.version > 0 ? 1 : 0;
  view.q4_after_whole += offer.codec == CodecId::kQ4 && view.whole_images > 0 ? 1 : 0;
  if (commit_durable_ && !disk_refused_ && offer.version > durable_versions_[offer.fragment]) {
    violate(strf("fragment {} version {} was broadcast before it was durable", offer.fragment,
                 offer.version));
  }
}

// ---- the tape
// ------------------------------------------------------------------------------------

void Checks::taped(const TapeRecord& record, Nanos now) {
  hash_record(record, now);
  if (const auto* round = std::get_if<TapeRound>(&record)) {
    committed(*round, now);
  } else if (std::holds_alternative<TapeLost>(record)) {
    ++totals_.lost;
  }
}

void Checks::committed(const TapeRound& round, Nanos now) {
  totals_.dropped += round.dropped.size();
  if (!round.committed) {
    ++totals_.abandoned;
    return;
  }
  ++totals_.commits;
  totals_.expected += round.expected.size();
  totals_.responded += round.responded.size();
  totals_.carried += round.carried.size();
  totals_.bytes_in += round.bytes_in;
  totals_.bytes_out += round.bytes_out;
  if (round.version != versions_[round.fragment] + 1) {
    violate(strf("fragment {} went from version {} to {} in one commit", round.fragment,
                 versions_[round.fragment], round.version));
  }
  versions_[round.fragment] = round.version;
  check_quorum(round, now);
  check_grace(round);
}

// Whoever did not answer although the quorum was not reached must have had a reason.
void Checks::check_quorum(const TapeRound& round, Nanos now) {
  const auto accepted = static_cast<std::uint32_t>(round.responded.size());
  if (accepted == 0 && (!round.sweep || round.carried.empty())) {
    violate(strf("round {} committed without an accepted push", round.round));
  }
  if (round.sweep) {
    return;
  }
  RoundOptions options;
  options.learners = plan_.core.learners;
  options.quorum = plan_.core.quorum;
  const std::size_t fixed = plan_.core.fixed_roster.size();
  options.quorum_all = plan_.core.quorum_all || plan_.core.lockstep || fixed != 0;
  if (fixed != 0 && round.expected.size() != fixed) {
    violate(strf("round {} committed with {} of the {} seats of the fixed roster", round.round,
                 round.expected.size(), fixed));
  }
  if (accepted >= quorum_of(options, static_cast<std::uint32_t>(round.expected.size()))) {
    return;
  }
  const Nanos began = now - (round.committed_at - round.launched) - plan_.core.lease;
  for (const Seat member : round.expected) {
    const bool answered =
        std::find(round.responded.begin(), round.responded.end(), member) != round.responded.end();
    if (!answered && !names(round.dropped, member) && seat(member).touched_until < began) {
      violate(strf("round {} committed with {} of {} pushes, and seat {} was fine", round.round,
                   accepted, round.expected.size(), member));
    }
  }
}

void Checks::check_grace(const TapeRound& round) {
  if (round.grace_end == 0) {
    return;
  }
  const double grace = seconds(round.grace_end - round.quorum);
  const double room =
      plan_.core.grace_tau * slowest_step_s_ - seconds(round.quorum - round.launched);
  const double most = std::max(0.0, plan_.core.grace_gamma * room) + 1e-6;
  const bool over_cap = plan_.core.grace_cap && grace > seconds(*plan_.core.grace_cap) + 1e-6;
  if (grace > most || over_cap) {
    violate(strf("round {} had {:.3f} s of grace; the formula gives at most {:.3f} s", round.round,
                 grace, most));
  }
}

// What a seat's pushes added to a fragment is never more than what its processes trained on.
void Checks::count_tokens(const Merge& order) {
  Counted counted{order.version, {}};
  for (const PushInput& push : order.pushes) {
    SeatView& view = seat(push.seat);
    view.merged[order.fragment] += push.c_tokens;
    if (view.merged[order.fragment] > view.trained) {
      violate(strf("seat {} trained on {} tokens; fragment {} has merged {} of it", push.seat,
                   view.trained, order.fragment, view.merged[order.fragment]));
    }
    if (plan_.values == ValueKind::kReal) {
      counted.tokens.emplace_back(push.seat, push.c_tokens);
    }
  }
  if (plan_.values == ValueKind::kReal) {
    counted_[order.fragment].push_back(std::move(counted));
  }
}

void Checks::run_state(const CoreStatus& status, bool syncer_restarted) {
  const Ledger& ledger = status.ledger;
  if (ledger.pushed != ledger.merged + ledger.dropped + ledger.waiting) {
    violate(strf("the ledger does not balance: {} pushed, {} merged, {} dropped, {} waiting",
                 ledger.pushed, ledger.merged, ledger.dropped, ledger.waiting));
  }
  for (const DataRange& range : status.data.settled) {
    for (std::uint64_t i = 0; i < range.count; ++i) {
      const std::uint64_t at = range.epoch * plan_.rows + range.first + i;
      if (at >= rows_.size() || rows_[at] == 0) {
        violate(strf("position {} of epoch {} is settled; nobody trained on it", range.first + i,
                     range.epoch));
      }
    }
  }
  std::uint64_t told = 0;
  std::uint64_t trained = 0;
  for (const SeatView& view : seats_) {
    trained += view.trained;
    for (const auto& [incarnation, tokens] : view.told) {
      told += tokens;
    }
  }
  if (status.run_tokens > trained) {
    violate(strf("the run counts {} tokens, {} were trained on", status.run_tokens, trained));
  }
  if (!syncer_restarted && status.run_tokens < told) {
    violate(strf("the run counts {} tokens, its learners told {}", status.run_tokens, told));
  }
}

// ---- the islands
// ---------------------------------------------------------------------------------

void Checks::touched(Seat number, Nanos until) {
  SeatView& view = seat(number);
  view.touched_until = std::max(view.touched_until, until);
}

void Checks::applied(Seat number, std::uint64_t term, std::uint32_t fragment, std::uint64_t version,
                     const wire::Digest16& digest) {
  const auto known = digests_.find({term, fragment, version});
  if (known == digests_.end()) {
    violate(strf("seat {} applied fragment {} version {} of term {}, which was never committed",
                 number, fragment, version, term));
  } else if (known->second != digest) {
    violate(strf("seat {} holds other bytes of fragment {} version {} than the syncer", number,
                 fragment, version));
  }
}

void Checks::trained(Seat number, std::uint64_t tokens) { seat(number).trained += tokens; }

void Checks::rows_trained(const client::RowRange& rows) {
  for (std::uint64_t i = 0; i < rows.count; ++i) {
    const std::uint64_t at = rows.epoch * plan_.rows + rows.first + i * rows.stride;
    if (at >= rows_.size()) {
      rows_.resize(at + 1, 0);
    }
    ++rows_[at];
  }
}

// ---- the hash of the tape
// ------------------------------------------------------------------------

void Checks::mix(std::uint64_t value) { hash_ = mix64(hash_ ^ value) + 0x9e3779b97f4a7c15ULL; }

void Checks::mix(std::string_view text) {
  for (const char c : text) {
    hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  mix(text.size());
}

void Checks::hash_record(const TapeRecord& record, Nanos now) {
  mix(static_cast<std::uint64_t>(now));
  mix(record.index());
  if (const auto* round = std::get_if<TapeRound>(&record)) {
    mix(round->round);
    mix(round->version);
    mix(round->attempt);
    mix(static_cast<std::uint64_t>(round->committed_at));
    mix(round->reason);
    for (const SeatValue& norm : round->norms) {
      mix(norm.seat);
      mix(std::bit_cast<std::uint64_t>(norm.value));
    }
    for (const SeatReason& dropped : round->dropped) {
      mix(dropped.seat);
      mix(dropped.reason);
    }
    mix(std::string_view(reinterpret_cast<const char*>(round->digest.data()), 16));
  } else if (const auto* join = std::get_if<TapeJoin>(&record)) {
    mix(join->seat);
    mix(join->incarnation);
  } else if (const auto* late = std::get_if<TapeLate>(&record)) {
    mix(late->seat);
    mix(late->base_version);
    mix(late->reason);
  } else if (const auto* lost = std::get_if<TapeLost>(&record)) {
    mix(lost->seat);
    mix(lost->reason);
  } else if (const auto* error = std::get_if<TapeError>(&record)) {
    mix(error->text);
  }
}

}  // namespace yeto::sync::sim
