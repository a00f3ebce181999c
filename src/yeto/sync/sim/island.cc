// SPDX-License-Identifier: Apache-2.0
// The process of an island, and what its client orders.
#include "yeto/sync/sim/island.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/sync/sim/world.h"

namespace yeto::sync::sim {
namespace {

constexpr Nanos kWorkerBase = 50 * kMicrosecond;
constexpr double kWorkerBytesPerS = 2e9;
constexpr Nanos kForever = Nanos{1} << 62;

}  // namespace

Island::Island(World& world, std::uint32_t index)
    : world_(world),
      index_(index),
      shape_(world.plan().islands[index]),
      clock_(shape_.clock),
      rng_(mix64(world.plan().seed * 1009 + index + 1)) {}

Nanos Island::local_now() const { return local_time(clock_, world_.now()); }

// ---- the process
// -----------------------------------------------------------------------------------

void Island::start() {
  if (state_ != State::kDown) {
    return;
  }
  machine_up_ = true;
  standing_until_ = 0;
  ++processes_;
  incarnation_ = (std::uint64_t{index_ + 1} << 32) | processes_;
  client::ClientOptions options;
  options.run_id = shape_.run_id.empty() ? world_.plan().core.run_id : shape_.run_id;
  options.seat = shape_.seat;
  options.incarnation = incarnation_;
  client_ = std::make_unique<client::Client>(std::move(options), world_.plan().layout);
  if (world_.plan().values == ValueKind::kReal) {
    values_.emplace(world_.plan().layout, world_.plan().seed, shape_.seat + 64 * processes_);
    if (!world_.plan().initial.empty()) {
      values_->set_local(world_.plan().initial);
    }
  }
  state_ = State::kJoining;
  started_at_ = world_.now();
  worker_free_at_ = world_.now();
  alone_since_ = world_.now();
  courier_ = Courier::kIdle;
  failures_ = 0;
  failed_since_session_ = 0;
  refused_for_good_ = false;
  spoiled_ = false;
  boundary_at_ = 0;
  world_.checks().touched(shape_.seat, world_.now());
  world_.trace("client", [&] { return strf("island {} starts, process {}", index_, processes_); });
  attempt();
}

void Island::kill(bool machine) {
  if (state_ == State::kDown || state_ == State::kOver) {
    return;
  }
  catch_up();
  world_.trace("client",
               [&] { return strf("island {} {}", index_, machine ? "crashes" : "dies"); });
  state_ = State::kDown;
  machine_up_ = !machine;
  if (conn_ != 0) {
    if (machine) {
      world_.network().vanish(conn_, End::kIsland);
    } else {
      world_.network().close(conn_, End::kIsland);
    }
  }
  conn_ = 0;
  client_.reset();
  values_.reset();
  receiving_.clear();
  encoded_.clear();
  init_encoded_.clear();
  world_.checks().touched(shape_.seat, world_.now());
}

void Island::hang(Nanos until) {
  if (state_ == State::kTraining) {
    catch_up();
    const Nanos by = until - world_.now();
    if (world_.plan().breakage == Breakage::kHungCountsAsLive) {
      standing_until_ = 0;
    }
    step_ends_ += by;
    if (boundary_at_ != 0) {
      boundary_at_ = 0;
      plan_boundary();
    }
  }
}

void Island::pause(Nanos until) {
  hang(until);
  standing_until_ = std::max(standing_until_, until);
}

void Island::spoil() {
  if (state_ != State::kTraining) {
    return;  // values that no step has touched yet
  }
  spoiled_ = true;
  if (values_) {
    values_->spoil();
  }
}

void Island::cut(const std::string& reason) {
  if (conn_ != 0) {
    world_.network().cut(conn_, reason);
  }
}

void Island::cut_data() {
  if (conn_ != 0) {
    world_.network().cut_data(conn_);
  }
}

void Island::later(Nanos at, Later run, std::uint64_t c) {
  world_.queue().at(
      at,
      [](World& world, std::uint64_t who, std::uint64_t what, std::uint64_t argument) {
        Island& island = world.island(static_cast<std::uint32_t>(who));
        if (island.processes_ != who >> 32 || island.state_ == State::kDown ||
            island.state_ == State::kOver) {
          return;
        }
        const auto call = reinterpret_cast<Later>(what);
        if (island.standing_until_ > world.now()) {
          return island.later(island.standing_until_, call, argument);
        }
        call(island, argument);
      },
      (std::uint64_t{processes_} << 32) | index_, reinterpret_cast<std::uint64_t>(run), c);
}

void Island::end(std::string reason) {
  if (state_ == State::kOver) {
    return;
  }
  world_.trace("client", [&] { return strf("island {} ends: {}", index_, reason); });
  end_reason_ = std::move(reason);
  counters_ = client_->counters();
  state_ = State::kOver;
  courier_ = Courier::kStopped;
  close_link();
  world_.checks().touched(shape_.seat, kForever);
}

// ---- the client
// ------------------------------------------------------------------------------------

void Island::on_event(const client::Event& event) {
  catch_up();
  client::Actions actions = client_->on(event);
  carry(actions);
  if (state_ != State::kDown && state_ != State::kOver) {
    look();
  }
}

void Island::carry(client::Actions& actions) {
  for (client::Action& action : actions) {
    carry_out(action);
  }
}

void Island::carry_out(client::Action& action) {
  Network& network = world_.network();
  std::visit(
      [&](auto& it) {
        using A = std::decay_t<decltype(it)>;
        if constexpr (std::is_same_v<A, client::Send>) {
          network.send(conn_, End::kIsland, std::move(it.message));
        } else if constexpr (std::is_same_v<A, client::EndSession>) {
          lose(it.reason);
        } else if constexpr (std::is_same_v<A, client::Accept>) {
          receiving_[it.transfer] = it.image;
          network.accept(conn_, End::kIsland, it.transfer);
        } else if constexpr (std::is_same_v<A, client::Refuse>) {
          network.refuse(conn_, End::kIsland, it.transfer, std::move(it.reason));
        } else if constexpr (std::is_same_v<A, client::FinishReceive>) {
          network.finish_receive(conn_, End::kIsland, it.transfer, it.ok);
        } else if constexpr (std::is_same_v<A, client::CheckImage>) {
          check_image(it);
        } else if constexpr (std::is_same_v<A, client::DropImage>) {
          if (values_) {
            values_->drop_image(it.image);
          }
        } else if constexpr (std::is_same_v<A, client::SendLayout>) {
          auto bytes = world_.layout_bytes();
          const std::uint64_t size = bytes->size();
          network.send_transfer(conn_, End::kIsland, it.ticket, std::move(it.offer),
                                Body{std::move(bytes), size});
        } else if constexpr (std::is_same_v<A, client::SendBody>) {
          send_body(it.ticket, it.offer);
        } else if constexpr (std::is_same_v<A, client::DropBody>) {
          if (values_) {
            values_->drop_body(it.ticket);
          }
        } else if constexpr (std::is_same_v<A, client::SettlePush>) {
          if (values_) {
            values_->settle(it);
          }
        }
      },
      action);
}

void Island::send_body(client::Ticket ticket, const wire::Offer& offer) {
  std::optional<Body> body = Body{nullptr, offer.bytes};
  if (offer.bytes == 0) {
    // It has nothing to give: no reason to wait for it.
    world_.checks().touched(shape_.seat, world_.now() + kSecond);
    body->bytes = std::make_shared<const Bytes>();
  } else if (values_) {
    body = values_->take_body(ticket);
  }
  if (body) {
    world_.network().send_transfer(conn_, End::kIsland, ticket, offer, std::move(*body));
  }
}

void Island::check_image(const client::CheckImage& order) {
  const bool refuses = world_.plan().breakage == Breakage::kRefuseQ4 && order.codec == CodecId::kQ4;
  bool ok = !refuses;
  if (values_ && ok) {
    ok = values_->check(order, world_.plan().breakage != Breakage::kDigestNotCompared);
  }
  worker_free_at_ = std::max(worker_free_at_, world_.now()) + kWorkerBase +
                    from_seconds(static_cast<double>(order.values) * 4.0 / kWorkerBytesPerS);
  later(
      worker_free_at_,
      [](Island& island, std::uint64_t c) {
        island.on_event(client::ImageChecked{c / 2, c % 2 != 0});
      },
      order.image * 2 + (ok ? 1 : 0));
}

// ---- value work of the trainer
// ---------------------------------------------------------------------

void Island::do_value_work(const client::Action& action) {
  if (const auto* push = std::get_if<client::TakePush>(&action)) {
    client::PushEncoded encoded{push->ticket, !spoiled_, 1.0};
    if (values_) {
      encoded = values_->take_push(*push);
    }
    if (world_.plan().breakage == Breakage::kNanPasses) {
      encoded.finite = true;
      encoded.norm = 1.0;
    }
    spoiled_ = false;
    encoded_[push->ticket] = encoded;
    worker_free_at_ = std::max(worker_free_at_, world_.now()) + kWorkerBase +
                      from_seconds(static_cast<double>(push->bytes) / kWorkerBytesPerS);
    later(
        worker_free_at_,
        [](Island& island, std::uint64_t ticket) {
          island.on_event(island.encoded_.extract(ticket).mapped());
        },
        push->ticket);
  } else if (const auto* init = std::get_if<client::TakeInit>(&action)) {
    init_encoded_[init->ticket] =
        values_ ? values_->take_init(*init) : client::InitEncoded{init->ticket, {}};
    worker_free_at_ = std::max(worker_free_at_, world_.now()) + kWorkerBase;
    later(
        worker_free_at_,
        [](Island& island, std::uint64_t ticket) {
          island.on_event(island.init_encoded_.extract(ticket).mapped());
        },
        init->ticket);
  } else if (const auto* apply = std::get_if<client::Apply>(&action)) {
    if (!values_) {
      return;
    }
    const wire::Digest16 digest =
        values_->apply(*apply, world_.plan().breakage == Breakage::kOverwriteSkipped);
    world_.checks().applied(shape_.seat, client_->fragment(apply->fragment).anchor.term,
                            apply->fragment, apply->version, digest);
  } else if (const auto* reset = std::get_if<client::ResetFragment>(&action)) {
    if (values_ && world_.plan().breakage != Breakage::kResetSkipped) {
      values_->reset(reset->fragment);
    }
  } else if (const auto* final = std::get_if<client::ApplyFinal>(&action)) {
    const wire::Final& announced = client_->final_message();
    std::vector<wire::Digest32> digests =
        values_ ? values_->apply_final(*final) : announced.digests;
    if (!announced.digests.empty() && digests != announced.digests) {
      world_.checks().violate(
          strf("seat {} holds other final values than the syncer announced", shape_.seat));
    }
    client::Actions actions = client_->final_applied(std::move(digests));
    carry(actions);
  }
}

}  // namespace yeto::sync::sim
