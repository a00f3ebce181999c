// SPDX-License-Identifier: Apache-2.0
// IslandValues: the small real tensors of one simulated island, one flat f32 vector per fragment:
// local values, anchor, the snapshot of the last delta, images that were checked, bodies that wait.
// It does the client's value work with the arithmetic of sync/client/values.h and the codecs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "yeto/base/rng.h"
#include "yeto/sync/client/protocol.h"
#include "yeto/sync/sim/network.h"
#include "yeto/tensor/layout.h"

namespace yeto::sync::sim {

class IslandValues {
 public:
  // Initial values by seed and seat: islands that have not joined differ.
  IslandValues(const Layout& layout, std::uint64_t seed, Seat seat);

  // The local values, one span per fragment.
  std::vector<std::span<float>> local();
  void set_local(const std::vector<std::vector<float>>& fragments);
  // One optimizer step: the local values move by a small made-up amount.
  void train();
  // The next delta will hold a value that is not finite.
  void spoil();

  void receive(client::ImageId image, const Body& body) { images_[image].body = body; }
  // `compare` false: the digest is not looked at.
  bool check(const client::CheckImage& order, bool compare);
  void drop_image(client::ImageId image) { images_.erase(image); }
  void drop_body(client::Ticket ticket) { bodies_.erase(ticket); }
  void settle(const client::SettlePush& order);

  client::PushEncoded take_push(const client::TakePush& order);
  client::InitEncoded take_init(const client::TakeInit& order);
  // The XXH3-128 of the new anchor in its dtype.
  // zeros if an overwrite did not make the local values equal to it. `skip_overwrite`: a broken
  // one.
  wire::Digest16 apply(const client::Apply& order, bool skip_overwrite);
  // The local values become those of the anchor.
  void reset(std::uint32_t fragment);
  std::vector<wire::Digest32> apply_final(const client::ApplyFinal& order);
  // The body of a ticket, given away.
  std::optional<Body> take_body(client::Ticket ticket);
  bool finite(std::uint32_t fragment) const;

 private:
  using Values = std::vector<float>;
  // A public value: its bytes in the anchor dtype and what they decode to.
  struct Public {
    std::uint64_t version = 0;
    Bytes bytes;
    Values values;
  };
  struct FragmentValues {
    Values local;
    Public anchor;
    Values reference;
    Values pushed;
    Values residual;          // of q4 pushes
    std::uint64_t joins = 0;  // overwrites and resets: what was lent before is void
  };
  struct Image {
    Body body;
    std::uint32_t fragment = 0;
    Public value;  // once checked
  };
  // Error feedback of a push whose fate is not known.
  struct Lent {
    std::uint32_t fragment = 0;
    std::uint64_t joins = 0;
    Values before;
    Values error;
  };

  void keep_body(client::Ticket ticket, Bytes bytes);
  bool decode(const client::CheckImage& order, Image& image) const;
  static void clear_feedback(FragmentValues& state);
  const Public* base_of(const client::CheckImage& order) const;
  Bytes encode_push(const client::TakePush& order, const Values& delta);

  std::vector<FragmentValues> fragments_;
  std::map<client::ImageId, Image> images_;
  std::map<client::Ticket, Body> bodies_;
  std::map<client::Ticket, Lent> lent_;
  Rng rng_;
};

}  // namespace yeto::sync::sim
