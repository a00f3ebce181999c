// SPDX-License-Identifier: Apache-2.0
// The two ends of a transfer under a script: chunks with any index and size, streams that are lost,
// HAVE with any bitmap, CHUNK prefixes of any bytes. What a receiver is told to write lies in its
// buffer, no byte is written twice, and once everything was handed out and arrived both ends agree
// that it is whole.
#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "yeto/base/fuzz_testing.h"
#include "yeto/wire/transfer.h"

namespace {

using namespace yeto;
using namespace yeto::wire;

class Ends {
 public:
  explicit Ends(fuzz::Input& in)
      : in_(in),
        chunk_bytes_(static_cast<std::uint32_t>(1 + in.below(64))),
        body_(in.below(1024)),
        sender_(body_.size(), chunk_bytes_),
        receiver_(body_, chunk_bytes_),
        count_(ChunkPlan{body_.size(), chunk_bytes_}.count()) {}

  void step() {
    switch (in_.below(7)) {
      case 0:
        return send();
      case 1:
        return arrive();
      case 2:
        return lose();
      case 3:
        return tell_any_bitmap();
      case 4:
        return place_any();
      case 5:
        static_cast<void>(sender_.skip(receiver_.held_chunks()));
        return;
      default:
        return parse_any_prefix();
    }
  }

  // The rest goes over one stream: then all of it is there.
  void finish() {
    std::vector<std::uint32_t> lost = on_the_way_;
    for (const std::uint32_t index : lost) {
      receiver_.unplace(index);
    }
    on_the_way_.clear();
    YETO_CHECK(sender_.skip(receiver_.held_chunks()).has_value(), "a receiver's own bitmap");
    sender_.reclaim([](Carrier) { return true; });
    while (const auto index = sender_.next(kCarriers)) {
      if (const auto place = receiver_.place(*index, bytes_of(*index)); place && *place) {
        receiver_.mark(*index);
      }
    }
    if (!bitmap_was_wrong_) {
      YETO_CHECK(receiver_.complete(), "everything was sent, and something is missing");
      YETO_CHECK(sender_.may_be_complete(), "everything arrived, and the sender does not know");
    }
  }

 private:
  static constexpr Carrier kCarriers = 4;

  std::uint32_t bytes_of(std::uint32_t index) const {
    return ChunkPlan{body_.size(), chunk_bytes_}.range(index).bytes;
  }
  void send() {
    const auto index = sender_.next(static_cast<Carrier>(in_.below(kCarriers)));
    if (!index) {
      return;
    }
    YETO_CHECK(*index < count_, "a chunk beyond the body");
    if (in_.below(8) == 0) {
      return sender_.give_back(*index);
    }
    place(*index, bytes_of(*index));
  }
  void place(std::uint32_t index, std::uint32_t bytes) {
    const auto place = receiver_.place(index, bytes);
    if (!place || !*place) {
      return;
    }
    const MutableByteView target = **place;
    YETO_CHECK(index < count_ && target.size() == bytes && bytes == bytes_of(index),
               "a chunk of another size");
    YETO_CHECK(target.data() >= body_.data() &&
                   target.data() + target.size() <= body_.data() + body_.size(),
               "a chunk outside its buffer");
    YETO_CHECK(receiver_.arriving(index), "a chunk that has a place is arriving");
    std::fill(target.begin(), target.end(), std::uint8_t{1});
    on_the_way_.push_back(index);
  }
  void place_any() {
    place(in_.number<std::uint16_t>() % (count_ + 2), in_.number<std::uint16_t>());
  }
  void arrive() {
    if (on_the_way_.empty()) {
      return;
    }
    const auto at =
        on_the_way_.begin() + static_cast<std::ptrdiff_t>(in_.below(on_the_way_.size()));
    receiver_.mark(*at);
    on_the_way_.erase(at);
  }
  void lose() {
    const std::uint64_t lost = in_.below(kCarriers);
    if (!on_the_way_.empty()) {
      receiver_.unplace(on_the_way_.back());
      on_the_way_.pop_back();
    }
    static_cast<void>(sender_.skip(receiver_.held_chunks()));
    sender_.reclaim([&](Carrier carrier) { return carrier == lost; });
    static_cast<void>(sender_.carried_by(static_cast<Carrier>(lost)));
  }
  void tell_any_bitmap() {
    const ByteView bitmap = in_.take(in_.below(20));
    if (sender_.skip(bitmap) && !bitmap.empty()) {
      bitmap_was_wrong_ = true;  // it may say that chunks are there which are not
    }
  }
  void parse_any_prefix() {
    std::array<std::uint8_t, kChunkPrefixBytes> bytes{};
    const ByteView from = in_.take(bytes.size());
    std::copy(from.begin(), from.end(), bytes.begin());
    const auto payload = in_.number<std::uint32_t>();
    if (const auto prefix = parse_chunk_prefix(bytes, payload)) {
      YETO_CHECK(prefix->bytes <= kMaxChunkBytes && kChunkPrefixBytes + prefix->bytes <= payload,
                 "a chunk larger than its frame");
      std::array<std::uint8_t, kChunkPrefixBytes> again{};
      encode_chunk_prefix(*prefix, again);
      YETO_CHECK(again == bytes, "a prefix with two encodings");
      place(prefix->index, prefix->bytes);
    }
  }

  fuzz::Input& in_;
  const std::uint32_t chunk_bytes_;
  Bytes body_;
  OutgoingTransfer sender_;
  IncomingTransfer receiver_;
  const std::uint32_t count_;
  std::vector<std::uint32_t> on_the_way_;
  bool bitmap_was_wrong_ = false;
};

}  // namespace

YETO_FUZZ_EXAMPLES(fuzz::any_script)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input in(data, size);
  Ends ends(in);
  while (!in.empty()) {
    ends.step();
  }
  ends.finish();
  return 0;
}
