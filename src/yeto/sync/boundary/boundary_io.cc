// SPDX-License-Identifier: Apache-2.0
// The I/O thread's part of the boundary. See boundary_worker.cc for what it gives to the worker.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/sync/boundary/boundary_impl.h"

namespace yeto::sync {

namespace {

constexpr const char* kWho = "boundary";

}  // namespace

// ---- what the courier asks
// -----------------------------------------------------------------------

wire::Hello Boundary::Impl::hello() {
  MutexLock lock(mutex_);
  return client_.hello();
}

wire::LearnerBeat Boundary::Impl::beat() {
  MutexLock lock(mutex_);
  return client_.beat();
}

std::shared_ptr<Bytes> Boundary::Impl::new_image(client::ImageId image, std::uint64_t bytes) {
  auto memory = pool_.take(bytes);
  MutexLock lock(mutex_);
  images_[image].bytes = memory;
  return memory;
}

std::shared_ptr<const Bytes> Boundary::Impl::take_body(client::Ticket ticket) {
  MutexLock lock(mutex_);
  const auto found = bodies_.find(ticket);
  if (found == bodies_.end()) {
    return nullptr;
  }
  std::shared_ptr<const Bytes> body = std::move(found->second);
  bodies_.erase(found);
  return body;
}

std::string Boundary::Impl::layout_difference(
    const std::vector<std::array<std::uint8_t, 8>>& tensors) {
  const auto own = tensor_hashes(layout_);
  for (std::size_t i = 0; i < std::min(own.size(), tensors.size()); ++i) {
    if (own[i] != tensors[i]) {
      return strf("the first tensor that differs is number {}, here {}", i,
                  layout_.tensors[i].name);
    }
  }
  if (own.size() != tensors.size()) {
    return strf("the run has {} tensors, here are {}", tensors.size(), own.size());
  }
  return {};
}

// ---- what the courier tells
// ----------------------------------------------------------------------

void Boundary::Impl::on_event(const client::Event& event) {
  client::Actions actions;
  {
    MutexLock lock(mutex_);
    actions = client_.on(event);
    note(event);
    changed();
  }
  for (const client::Action& action : actions) {
    carry(action);
  }
  if (std::holds_alternative<client::Admitted>(event)) {
    send_metrics();
  }
}

void Boundary::Impl::note(const client::Event& event) {
  if (const auto* admitted = std::get_if<client::Admitted>(&event)) {
    ++session_;
    if (client_.connected()) {
      alone_since_.reset();
      failed_attempts_ = 0;
      log(LogLevel::kInfo, kWho, "seat {} has {} session in term {}, global step {}",
          admitted->welcome.seat, admitted->welcome.resumed != 0 ? "resumed its" : "a new",
          admitted->welcome.term, admitted->welcome.global_step);
    }
  } else if (const auto* lost = std::get_if<client::SessionLost>(&event)) {
    last_trouble_ = lost->reason;
    if (!alone_since_) {
      alone_since_ = monotonic_now();
    }
    if (!client_.ended()) {
      log(LogLevel::kWarn, kWho, "the session was lost: {}", lost->reason);
    }
  }
}

void Boundary::Impl::on_attempt_failed(const Error& why) {
  MutexLock lock(mutex_);
  const std::string hint = why.hint.empty() ? "" : "; " + why.hint;
  const std::string text =
      why.where.empty() ? why.what + hint : strf("{} ({}){}", why.what, why.where, hint);
  if (text != last_trouble_) {
    log(LogLevel::kInfo, kWho, "no session yet: {}", text);
  }
  last_trouble_ = text;
  ++failed_attempts_;
  changed();
}

void Boundary::Impl::on_refused(const Error& why) {
  MutexLock lock(mutex_);
  refused_ = why;
  changed();
}

void Boundary::Impl::changed() {
  ++changes_;
  changed_.notify_all();
}

void Boundary::Impl::carry(const client::Action& action) {
  if (const auto* check = std::get_if<client::CheckImage>(&action)) {
    check_image(*check);
  } else if (const auto* image = std::get_if<client::DropImage>(&action)) {
    MutexLock lock(mutex_);
    images_.erase(image->image);
  } else if (const auto* body = std::get_if<client::DropBody>(&action)) {
    MutexLock lock(mutex_);
    bodies_.erase(body->ticket);
  } else if (const auto* settled = std::get_if<client::SettlePush>(&action)) {
    residuals_.settle(settled->ticket, settled->kept);
  } else {
    courier_.carry(action);
  }
}

void Boundary::Impl::send_metrics() {
  std::deque<std::string> waiting;
  {
    MutexLock lock(mutex_);
    if (!client_.connected()) {
      return;
    }
    waiting.swap(metrics_);
    if (metrics_lost_ > 0) {
      waiting.push_back(strf(R"({{"event":"metrics_lost","count":{}}})", metrics_lost_));
      metrics_lost_ = 0;
    }
  }
  for (std::string& text : waiting) {
    courier_.send(wire::Metric{std::move(text)});
  }
}

}  // namespace yeto::sync
