// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/sim/island_values.h"

#include <cmath>
#include <limits>
#include <utility>

#include "yeto/base/digest.h"
#include "yeto/base/result.h"
#include "yeto/codec/codec.h"
#include "yeto/sync/client/values.h"

namespace yeto::sync::sim {

IslandValues::IslandValues(const Layout& layout, std::uint64_t seed, Seat seat)
    : fragments_(layout.fragments.size()), rng_(mix64(seed + seat * 977)) {
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    fragments_[i].local.resize(layout.fragments[i].values);
    for (float& value : fragments_[i].local) {
      value = static_cast<float>(rng_.uniform() - 0.5);
    }
  }
}

std::vector<std::span<float>> IslandValues::local() {
  std::vector<std::span<float>> out;
  for (FragmentValues& fragment : fragments_) {
    out.emplace_back(fragment.local);
  }
  return out;
}

void IslandValues::set_local(const std::vector<std::vector<float>>& fragments) {
  for (std::size_t i = 0; i < fragments_.size(); ++i) {
    fragments_[i].local = fragments[i];
  }
}

void IslandValues::train() {
  // One draw per step and fragment keeps steps cheap; every value still moves differently.
  for (FragmentValues& fragment : fragments_) {
    float noise = static_cast<float>(rng_.uniform() - 0.5) * 0.01F;
    for (float& value : fragment.local) {
      value -= 0.001F * value + noise;
      noise = -0.9F * noise;
    }
  }
}

void IslandValues::spoil() {
  for (FragmentValues& fragment : fragments_) {
    fragment.local.front() = std::numeric_limits<float>::quiet_NaN();
  }
}

bool IslandValues::finite(std::uint32_t fragment) const {
  return client::all_finite(fragments_[fragment].local);
}

// ---- images
// ----------------------------------------------------------------------------------------

// What a q4 image changes: the anchor, or an image that was checked before.
const IslandValues::Public* IslandValues::base_of(const client::CheckImage& order) const {
  const Public& anchor = fragments_[order.fragment].anchor;
  if (!anchor.bytes.empty() && anchor.version == order.base_version) {
    return &anchor;
  }
  for (const auto& [id, image] : images_) {
    if (image.fragment == order.fragment && !image.value.bytes.empty() &&
        image.value.version == order.base_version) {
      return &image.value;
    }
  }
  return nullptr;
}

bool IslandValues::decode(const client::CheckImage& order, Image& image) const {
  const Bytes& bytes = *image.body.bytes;
  image.fragment = order.fragment;
  image.value.version = order.version;
  image.value.values.resize(order.values);
  if (order.codec != CodecId::kQ4) {
    image.value.bytes = bytes;
    return codec::decode(order.codec, bytes, image.value.values).has_value();
  }
  const Public* base = base_of(order);
  if (base == nullptr) {
    return false;
  }
  Bytes next(base->bytes.size());
  if (!codec::apply_q4(bytes, base->bytes, next)) {
    return false;
  }
  image.value.bytes = std::move(next);
  return codec::decode(CodecId::kBf16, image.value.bytes, image.value.values).has_value();
}

bool IslandValues::check(const client::CheckImage& order, bool compare) {
  const auto found = images_.find(order.image);
  if (found == images_.end() || !found->second.body.bytes) {
    return false;
  }
  Image& image = found->second;
  const bool good = decode(order, image) && client::all_finite(image.value.values);
  if (!compare) {
    image.value.bytes.back() ^= 1;  // what a damaged body could hold
    return true;
  }
  const bool same = good && codec::public_digest(image.value.bytes) == order.digest;
  if (!same) {
    image.value.bytes.clear();
  }
  return same;
}

wire::Digest16 IslandValues::apply(const client::Apply& order, bool skip_overwrite) {
  const auto found = images_.find(order.image);
  YETO_CHECK(found != images_.end(), "a checked image is kept until used");
  FragmentValues& state = fragments_[order.fragment];
  const auto alpha = static_cast<float>(order.alpha);
  state.anchor = std::move(found->second.value);
  images_.erase(found);
  const Values& theta = state.anchor.values;
  Values reference = theta;
  switch (order.mode) {
    case client::ApplyMode::kOverwrite:
      state.local = skip_overwrite ? state.local : theta;
      clear_feedback(state);
      break;
    case client::ApplyMode::kAfterPush:
      if (order.blended && alpha != 0.0F) {
        client::blended_reference(theta, state.pushed, alpha, reference);
      }
      client::apply_after_push(theta, state.pushed, alpha, state.local);
      break;
    case client::ApplyMode::kWithoutPush:
      if (order.blended && alpha != 0.0F) {
        client::blended_reference(theta, state.local, alpha, reference);
      }
      client::apply_without_push(theta, alpha, state.local);
      break;
  }
  state.reference = std::move(reference);
  state.pushed.clear();
  if (order.mode == client::ApplyMode::kOverwrite && state.local != theta) {
    return {};
  }
  return codec::public_digest(state.anchor.bytes);
}

void IslandValues::reset(std::uint32_t fragment) {
  FragmentValues& state = fragments_[fragment];
  state.local = state.anchor.values;
  state.reference = state.anchor.values;
  state.pushed.clear();
  clear_feedback(state);
}

void IslandValues::clear_feedback(FragmentValues& state) {
  state.residual.assign(state.local.size(), 0.0F);
  ++state.joins;
}

std::vector<wire::Digest32> IslandValues::apply_final(const client::ApplyFinal& order) {
  std::vector<wire::Digest32> out;
  for (std::size_t i = 0; i < order.images.size(); ++i) {
    const auto found = images_.find(order.images[i]);
    YETO_CHECK(found != images_.end(), "a checked image is kept until used");
    fragments_[i].local = std::move(found->second.value.values);
    images_.erase(found);
    out.push_back(sha256(as_bytes_view(std::span<const float>(fragments_[i].local))));
  }
  return out;
}

// ---- bodies
// ----------------------------------------------------------------------------------------

void IslandValues::keep_body(client::Ticket ticket, Bytes bytes) {
  const std::uint64_t size = bytes.size();
  bodies_[ticket] = Body{std::make_shared<const Bytes>(std::move(bytes)), size};
}

std::optional<Body> IslandValues::take_body(client::Ticket ticket) {
  const auto found = bodies_.find(ticket);
  if (found == bodies_.end()) {
    return std::nullopt;
  }
  Body body = std::move(found->second);
  bodies_.erase(found);
  return body;
}

Bytes IslandValues::encode_push(const client::TakePush& order, const Values& delta) {
  Bytes body(codec::encoded_bytes(order.codec, delta.size()));
  if (order.codec != CodecId::kQ4) {
    YETO_CHECK(codec::encode(order.codec, delta, body).has_value(), "sizes fit");
    return body;
  }
  FragmentValues& state = fragments_[order.fragment];
  state.residual.resize(delta.size(), 0.0F);
  Lent lent{order.fragment, state.joins, state.residual, state.residual};
  YETO_CHECK(codec::encode_q4_feedback(delta, lent.error, body).has_value(), "sizes fit");
  state.residual.assign(delta.size(), 0.0F);
  lent_[order.ticket] = std::move(lent);
  return body;
}

client::PushEncoded IslandValues::take_push(const client::TakePush& order) {
  FragmentValues& state = fragments_[order.fragment];
  Values delta(state.local.size());
  if (!order.again) {
    state.pushed = state.local;
  }
  client::outer_gradient(state.reference, state.pushed, delta);
  client::PushEncoded out{order.ticket, client::all_finite(delta), 0.0};
  for (const float value : delta) {
    out.norm += static_cast<double>(value) * value;
  }
  out.norm = std::sqrt(out.norm);
  keep_body(order.ticket, encode_push(order, delta));
  return out;
}

client::InitEncoded IslandValues::take_init(const client::TakeInit& order) {
  const ByteView bytes = as_bytes_view(std::span<const float>(fragments_[order.fragment].local));
  keep_body(order.ticket, Bytes(bytes.begin(), bytes.end()));
  return client::InitEncoded{order.ticket, xxh3_128(bytes)};
}

// What became of the push: its rounding error is the residual, or what was lent to it comes back.
void IslandValues::settle(const client::SettlePush& order) {
  const auto found = lent_.find(order.ticket);
  if (found == lent_.end()) {
    return;
  }
  FragmentValues& state = fragments_[found->second.fragment];
  if (state.joins == found->second.joins) {
    const Values& back = order.kept ? found->second.error : found->second.before;
    for (std::size_t i = 0; i < back.size(); ++i) {
      state.residual[i] += back[i];
    }
  }
  lent_.erase(found);
}

}  // namespace yeto::sync::sim
