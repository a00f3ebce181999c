// SPDX-License-Identifier: Apache-2.0
// random_message(): walks the field lists and draws every value.
#include <algorithm>
#include <bit>

#include "yeto/wire/codec.h"
#include "yeto/wire/fields.h"

namespace yeto::wire {
namespace {

constexpr std::size_t kLongList = 4096;

class Generator {
 public:
  explicit Generator(Rng& rng) : rng_(rng) {}

  template <class T>
  void operator()(const char*, T& value) {
    draw(value);
  }
  void operator()(const char*, std::string& text, Max bound) {
    static constexpr std::string_view kCharacters[] = {"a",  "Z", "0", " ", "\"",
                                                       "\n", "é", "→", "𝛉"};
    const std::size_t size = length(bound);
    while (text.size() < size) {
      const std::string_view next = kCharacters[rng_.below(std::size(kCharacters))];
      text += text.size() + next.size() <= bound.count ? next : std::string_view("x");
    }
  }
  template <class T>
  void operator()(const char*, std::vector<T>& list, Max bound) {
    list.resize(length(bound));
    for (T& element : list) {
      draw(element);
    }
  }

 private:
  // Mostly short, one in eight at the bound (capped), one in eight empty.
  std::size_t length(Max bound) {
    const std::size_t most = std::min(bound.count, kLongList);
    switch (rng_.below(8)) {
      case 0:
        return 0;
      case 1:
        return most;
      default:
        return rng_.below(std::min<std::size_t>(most, 12) + 1);
    }
  }
  template <class T>
  void draw(T& value) {
    if constexpr (Struct<T>) {
      T::fields(value, *this);
    } else if constexpr (ByteArray<T>) {
      for (auto& byte : value) {
        byte = static_cast<std::uint8_t>(rng_.next());
      }
    } else if constexpr (Enum<T>) {
      const EnumNames names = enum_names(T{});
      value = static_cast<T>(names.first + rng_.below(names.names.size()));
    } else if constexpr (std::is_floating_point_v<T>) {
      // Finite, so that messages compare equal to themselves.
      value = static_cast<T>((rng_.uniform() - 0.5) * 1e9);
    } else {
      value = static_cast<T>(rng_.next() >> rng_.below(64));
    }
  }

  Rng& rng_;
};

}  // namespace

Message random_message(Rng& rng, Type type, Direction direction) {
  YETO_CHECK(type_allowed(type, direction),
             "random_message of a type that may not travel this way");
  return with_type(type, direction == Direction::kToSyncer, [&]<class M>() -> Message {
    M message;
    Generator generator(rng);
    M::fields(message, generator);
    return message;
  });
}

}  // namespace yeto::wire
