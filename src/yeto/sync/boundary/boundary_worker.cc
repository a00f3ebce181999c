// SPDX-License-Identifier: Apache-2.0
// The worker's part of the boundary: images become public values, deltas become bodies.
#include <algorithm>
#include <cmath>
#include <utility>

#include "yeto/codec/codec.h"
#include "yeto/merge/merge.h"
#include "yeto/sync/boundary/boundary_impl.h"
#include "yeto/sync/client/values.h"
#include "yeto/tensor/bf16.h"
#include "yeto/tensor/image.h"

namespace yeto::sync {

// From any thread: the event reaches the client on the I/O thread.
void Boundary::Impl::feed(client::Event event) {
  loop_.post([this, event = std::move(event)] { on_event(event); });
}

// ---- images
// --------------------------------------------------------------------------------------

// What a q4 image changes: an image that was checked and waits, or the anchor.
client::FlatValues Boundary::Impl::base_of(const client::CheckImage& order) {
  if (order.codec != CodecId::kQ4) {
    return {};
  }
  for (const auto& [id, image] : images_) {
    if (image.values && image.fragment == order.fragment && image.version == order.base_version) {
      return image.values;
    }
  }
  const Anchor& anchor = anchors_[order.fragment];
  return anchor.version == order.base_version ? anchor.values : client::FlatValues();
}

void Boundary::Impl::check_image(const client::CheckImage& order) {
  std::shared_ptr<Bytes> bytes;
  client::FlatValues base;
  {
    MutexLock lock(mutex_);
    bytes = images_[order.image].bytes;
    base = base_of(order);
  }
  const bool ordered = bytes && jobs_.try_push([this, order, bytes, base = std::move(base)] {
    verify_image(order, bytes, base);
  });
  if (!ordered) {
    feed(client::ImageChecked{order.image, false});  // the syncer sends it again
  }
}

// The image's bytes are the public value, unless it is q4.
Result<client::FlatValues> Boundary::Impl::public_value(const client::CheckImage& order,
                                                        const std::shared_ptr<Bytes>& bytes,
                                                        const client::FlatValues& base) const {
  if (order.codec != CodecId::kQ4) {
    YETO_TRY(yeto::check_image(order.codec, *bytes, order.values));
    return client::FlatValues(bytes, codec::anchor_dtype(order.codec));
  }
  if (!base || base.dtype() != DType::kBf16) {
    return fail(ErrorCode::kData, "the value that the image changes is not here");
  }
  const std::shared_ptr<Bytes> next = pool_.take(base.bytes().size());
  YETO_TRY(codec::apply_q4(*bytes, base.bytes(), *next));
  return client::FlatValues(next, DType::kBf16);
}

void Boundary::Impl::verify_image(const client::CheckImage& order,
                                  const std::shared_ptr<Bytes>& bytes,
                                  const client::FlatValues& base) {
  Result<client::FlatValues> values = public_value(order, bytes, base);
  const bool ok =
      values && codec::public_digest(values->bytes()) == order.digest && values->all_finite();
  {
    MutexLock lock(mutex_);
    images_[order.image] = Image{nullptr, ok ? std::move(*values) : client::FlatValues(),
                                 order.fragment, order.version, order.digest};
  }
  feed(client::ImageChecked{order.image, ok});
}

// ---- bodies
// --------------------------------------------------------------------------------------

void Boundary::Impl::order_push(const client::TakePush& order, client::DeltaSource source) {
  client::FlatValues residual;
  if (order.codec == CodecId::kQ4) {
    residual = residuals_.lend(order.fragment, order.ticket);
  }
  const bool ordered =
      jobs_.try_push([this, order, source = std::move(source), residual = std::move(residual)] {
        encode_push(order, source, residual);
      });
  if (!ordered) {
    feed(client::BodySent{order.ticket, false});  // its work is counted in the next delta
  }
}

void Boundary::Impl::encode_push(const client::TakePush& order, const client::DeltaSource& source,
                                 const client::FlatValues& residual) {
  const std::shared_ptr<Bytes> body = pool_.take(order.bytes);
  const bool encoded = order.codec == CodecId::kQ4 ? encode_q4(order, source, residual, *body)
                                                   : encode_plain(order, source, *body);
  client::PushEncoded result{order.ticket, false, 0.0};
  if (encoded) {
    const auto measured = merge::measure(layout_.fragments[order.fragment], order.codec, *body);
    if (measured && measured->finite) {
      result.finite = true;
      result.norm = measured->norm;
      keep_body(order.ticket, body);
    }
  }
  feed(result);
}

// A tile of the delta, reference − P.
void Boundary::Impl::delta_tile(const client::DeltaSource& source, std::uint64_t first,
                                std::span<float> delta) {
  client::Tile scratch;
  client::outer_gradient(source.reference.tile(first, delta.size(), scratch),
                         source.snapshot.f32().subspan(first, delta.size()), delta);
}

bool Boundary::Impl::encode_plain(const client::TakePush& order, const client::DeltaSource& source,
                                  Bytes& body) {
  bool ok = true;
  client::Tile delta;
  client::each_tile(source.snapshot.size(), [&](std::uint64_t first, std::size_t count) {
    const std::span<float> part = std::span(delta).first(count);
    delta_tile(source, first, part);
    const std::uint64_t from = codec::encoded_bytes(order.codec, first);
    ok =
        codec::encode(order.codec, part,
                      MutableByteView(body).subspan(from, codec::encoded_bytes(order.codec, count)))
            .has_value() &&
        ok;
  });
  return ok;
}

// With error feedback. A tile is a whole number of q4 blocks.
bool Boundary::Impl::encode_q4(const client::TakePush& order, const client::DeltaSource& source,
                               const client::FlatValues& residual, Bytes& body) {
  const std::shared_ptr<Bytes> error = pool_.take(source.snapshot.size() * sizeof(std::uint16_t));
  const std::span<std::uint16_t> lost = client::as_bf16(*error);
  bool ok = true;
  double square_norm = 0.0;
  client::Tile delta;
  client::Tile rest;
  client::each_tile(source.snapshot.size(), [&](std::uint64_t first, std::size_t count) {
    const std::span<float> part = std::span(delta).first(count);
    const std::span<float> carried = std::span(rest).first(count);
    delta_tile(source, first, part);
    std::fill(carried.begin(), carried.end(), 0.0F);
    if (residual) {
      f32_from_bf16(residual.bf16().data() + first, carried.data(), count);
    }
    const MutableByteView image = MutableByteView(body).subspan(
        codec::encoded_bytes(CodecId::kQ4, first), codec::encoded_bytes(CodecId::kQ4, count));
    ok = codec::encode_q4_feedback(part, carried, image).has_value() && ok;
    bf16_from_f32(carried.data(), lost.data() + first, count);
    square_norm += client::square_sum(carried);
  });
  residuals_.rounded(order.ticket, client::FlatValues(error, DType::kBf16), std::sqrt(square_norm));
  return ok;
}

void Boundary::Impl::order_init(client::Ticket ticket, client::FlatValues snapshot) {
  const bool ordered = jobs_.try_push(
      [this, ticket, snapshot = std::move(snapshot)] { encode_init(ticket, snapshot); });
  if (!ordered) {
    feed(client::BodySent{ticket, false});
  }
}

// The snapshot itself is the f32 body.
void Boundary::Impl::encode_init(client::Ticket ticket, const client::FlatValues& snapshot) {
  const wire::Digest16 digest = codec::public_digest(snapshot.bytes());
  keep_body(ticket, snapshot.share());
  feed(client::InitEncoded{ticket, digest});
}

void Boundary::Impl::keep_body(client::Ticket ticket, std::shared_ptr<const Bytes> body) {
  MutexLock lock(mutex_);
  bodies_[ticket] = std::move(body);
}

}  // namespace yeto::sync
