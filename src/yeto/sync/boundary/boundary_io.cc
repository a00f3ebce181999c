// SPDX-License-Identifier: Apache-2.0
// The I/O thread's and the worker's part of the boundary.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/codec/codec.h"
#include "yeto/merge/merge.h"
#include "yeto/sync/boundary/boundary_impl.h"
#include "yeto/sync/client/values.h"

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
  auto memory = std::make_shared<Bytes>(bytes);
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
  const std::string text = why.where.empty() ? why.what : strf("{} ({})", why.what, why.where);
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

// ---- the worker's jobs
// ---------------------------------------------------------------------------

// From any thread: the event reaches the client on the I/O thread.
void Boundary::Impl::feed(client::Event event) {
  loop_.post([this, event = std::move(event)] { on_event(event); });
}

void Boundary::Impl::check_image(const client::CheckImage& order) {
  std::shared_ptr<Bytes> bytes;
  {
    MutexLock lock(mutex_);
    bytes = images_[order.image].bytes;
  }
  const bool ordered =
      bytes && jobs_.try_push([this, order, bytes] { verify_image(order, *bytes); });
  if (!ordered) {
    feed(client::ImageChecked{order.image, false});  // the syncer sends it again
  }
}

void Boundary::Impl::verify_image(const client::CheckImage& order, const Bytes& bytes) {
  auto values = std::make_shared<std::vector<float>>(order.values);
  const bool ok = codec::public_digest(bytes) == order.digest &&
                  codec::decode(order.codec, bytes, *values).has_value() &&
                  client::all_finite(*values);
  {
    MutexLock lock(mutex_);
    images_[order.image] = Image{nullptr, std::move(values)};
  }
  feed(client::ImageChecked{order.image, ok});
}

void Boundary::Impl::order_push(client::Ticket ticket, std::uint32_t fragment, CodecId codec,
                                client::DeltaSource source) {
  const bool ordered = jobs_.try_push([this, ticket, fragment, codec, source = std::move(source)] {
    encode_push(ticket, fragment, codec, source);
  });
  if (!ordered) {
    feed(client::BodySent{ticket, false});  // its work is counted in the next delta
  }
}

void Boundary::Impl::encode_push(client::Ticket ticket, std::uint32_t fragment, CodecId codec,
                                 const client::DeltaSource& source) {
  std::vector<float> delta(source.snapshot->size());
  client::outer_gradient(*source.reference, *source.snapshot, delta);
  Bytes body(codec::encoded_bytes(codec, delta.size()));
  client::PushEncoded result{ticket, false, 0.0};
  if (codec::encode(codec, delta, body)) {
    const auto measured = merge::measure(layout_.fragments[fragment], codec, body);
    if (measured && measured->finite) {
      result.finite = true;
      result.norm = measured->norm;
      keep_body(ticket, std::move(body));
    }
  }
  feed(result);
}

void Boundary::Impl::order_init(client::Ticket ticket, client::Values snapshot) {
  const bool ordered = jobs_.try_push(
      [this, ticket, snapshot = std::move(snapshot)] { encode_init(ticket, snapshot); });
  if (!ordered) {
    feed(client::BodySent{ticket, false});
  }
}

void Boundary::Impl::encode_init(client::Ticket ticket, const client::Values& snapshot) {
  const ByteView bytes = as_bytes_view(std::span<const float>(*snapshot));
  const wire::Digest16 digest = codec::public_digest(bytes);
  keep_body(ticket, Bytes(bytes.begin(), bytes.end()));
  feed(client::InitEncoded{ticket, digest});
}

void Boundary::Impl::keep_body(client::Ticket ticket, Bytes body) {
  auto kept = std::make_shared<const Bytes>(std::move(body));
  MutexLock lock(mutex_);
  bodies_[ticket] = std::move(kept);
}

}  // namespace yeto::sync
