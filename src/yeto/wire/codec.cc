// SPDX-License-Identifier: Apache-2.0
#include "yeto/wire/codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/wire/fields.h"
#include "yeto/wire/utf8.h"

namespace yeto::wire {
namespace {

using std::string_view_literals::operator""sv;

// ---- sizes
// -----------------------------------------------------------------------------------------

// Bytes of a message with every text and list empty, and with every one at its bound.
struct SizeWalker {
  std::size_t least = 0;
  std::size_t most = 0;

  void fixed(std::size_t bytes) {
    least += bytes;
    most += bytes;
  }
  template <class T>
  void operator()(const char*, const T& value) {
    add(value);
  }
  void operator()(const char*, const std::string&, Max bound) {
    fixed(sizeof(std::uint16_t));
    most += bound.count;
  }
  template <class T>
  void operator()(const char*, const std::vector<T>&, Max bound) {
    SizeWalker element;
    element.add(T{});
    fixed(sizeof(std::uint32_t));
    most += bound.count * element.most;
  }
  template <class T>
  void add(const T& value) {
    if constexpr (Struct<T>) {
      T::fields(value, *this);
    } else {
      fixed(sizeof(T));
    }
  }
};

template <class M>
SizeWalker sizes() {
  static const SizeWalker walked = [] {
    SizeWalker walker;
    walker.add(M{});
    return walker;
  }();
  return walked;
}

// ---- encoder
// ---------------------------------------------------------------------------------------

class Encoder {
 public:
  explicit Encoder(Bytes& out) : writer_(out) {}

  template <class T>
  void operator()(const char*, const T& value) {
    put(value);
  }
  void operator()(const char*, const std::string& text, Max bound) {
    const bool fits = text.size() <= bound.count && is_utf8(text);
    const std::string fitted = fits ? std::string() : utf8_fit(text, bound.count);
    const std::string& sent = fits ? text : fitted;
    writer_.number(static_cast<std::uint16_t>(sent.size()));
    writer_.raw(as_bytes_view(sent));
  }
  template <class T>
  void operator()(const char*, const std::vector<T>& list, Max bound) {
    YETO_CHECK(list.size() <= bound.count, "a list of a message is longer than its bound");
    writer_.number(static_cast<std::uint32_t>(list.size()));
    if constexpr (Flat<T>) {
      writer_.raw(as_bytes_view(std::span<const T>(list)));
    } else {
      for (const T& element : list) {
        put(element);
      }
    }
  }

 private:
  template <class T>
  void put(const T& value) {
    if constexpr (Struct<T>) {
      T::fields(value, *this);
    } else if constexpr (ByteArray<T>) {
      writer_.raw(value);
    } else if constexpr (Enum<T>) {
      writer_.number(static_cast<std::underlying_type_t<T>>(value));
    } else {
      writer_.number(value);
    }
  }

  ByteWriter writer_;
};

// ---- decoder
// ---------------------------------------------------------------------------------------

// After the first error the remaining fields are left alone.
class Decoder {
 public:
  explicit Decoder(ByteView in) : reader_(in) {}
  const std::string& error() const { return error_; }

  template <class T>
  void operator()(const char* name, T& value) {
    if (error_.empty()) {
      get(name, value);
    }
  }
  void operator()(const char* name, std::string& text, Max bound) {
    std::uint16_t size = 0;
    ByteView bytes;
    if (!error_.empty() || !number(name, size) || !within(name, size, bound)) {
      return;
    }
    if (!reader_.raw(size, bytes)) {
      return missing(name);
    }
    text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!is_utf8(text)) {
      error_ = strf("field {} is not UTF-8", name);
    }
  }
  template <class T>
  void operator()(const char* name, std::vector<T>& list, Max bound) {
    std::uint32_t count = 0;
    if (!error_.empty() || !number(name, count) || !within(name, count, bound)) {
      return;
    }
    // What the payload cannot hold is refused before memory is taken for it.
    SizeWalker element;
    element.add(T{});
    if (reader_.left() / element.least < count) {
      return missing(name);
    }
    if constexpr (Flat<T>) {
      ByteView bytes;
      list.resize(count);
      if (reader_.raw(count * sizeof(T), bytes) && count > 0) {
        std::memcpy(list.data(), bytes.data(), bytes.size());
      }
    } else {
      for (std::uint32_t i = 0; i < count && error_.empty(); ++i) {
        get(name, list.emplace_back());
      }
    }
  }

 private:
  void missing(const char* name) { error_ = strf("the payload ends inside field {}", name); }
  bool within(const char* name, std::size_t count, Max bound) {
    if (count > bound.count) {
      error_ = strf("field {} has {} elements, more than {}", name, count, bound.count);
    }
    return error_.empty();
  }
  template <class T>
  bool number(const char* name, T& value) {
    if (!reader_.number(value)) {
      missing(name);
    }
    return error_.empty();
  }
  template <class T>
  void get(const char* name, T& value) {
    if constexpr (Struct<T>) {
      T::fields(value, *this);
    } else if constexpr (ByteArray<T>) {
      ByteView bytes;
      if (!reader_.raw(value.size(), bytes)) {
        return missing(name);
      }
      std::copy(bytes.begin(), bytes.end(), value.begin());
    } else if constexpr (Enum<T>) {
      std::underlying_type_t<T> raw{};
      if (number(name, raw) && !enum_names(T{}).holds(raw)) {
        error_ = strf("field {} has the unknown value {}", name, static_cast<unsigned>(raw));
      }
      value = static_cast<T>(raw);
    } else {
      number(name, value);
    }
  }

  ByteReader reader_;
  std::string error_;
};

// ---- printer
// ---------------------------------------------------------------------------------------

class Printer {
 public:
  explicit Printer(std::string& out) : out_(out) {}

  template <class T>
  void operator()(const char* name, const T& value) {
    begin(name);
    put(name, value);
  }
  void operator()(const char* name, const std::string& text, Max) {
    begin(name);
    out_ += '"';
    for (const char c : text) {
      // Control characters would let a peer forge log lines.
      out_ += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
    }
    out_ += '"';
  }
  template <class T>
  void operator()(const char* name, const std::vector<T>& list, Max) {
    begin(name);
    if (list.size() > kShownElements || std::is_same_v<T, std::uint8_t>) {
      out_ += strf("<{}>", list.size());
      return;
    }
    out_ += '[';
    for (const T& element : list) {
      out_ += &element == list.data() ? "" : " ";
      put(name, element);
    }
    out_ += ']';
  }

 private:
  static constexpr std::size_t kShownElements = 16;

  void begin(const char* name) {
    out_ += out_.empty() || out_.back() == '{' ? "" : " ";
    out_ += name;
    out_ += '=';
  }
  template <class T>
  void put(const char* name, const T& value) {
    if constexpr (Struct<T>) {
      out_ += '{';
      T::fields(value, *this);
      out_ += '}';
    } else if constexpr (ByteArray<T>) {
      const bool secret = name == "nonce"sv || name == "proof"sv || name == "session"sv;
      out_ += secret ? strf("<{} bytes>", value.size()) : hex(value);
    } else if constexpr (Enum<T>) {
      const EnumNames names = enum_names(T{});
      const auto raw = static_cast<std::uint16_t>(value);
      out_ += names.holds(raw) ? std::string(names.names[raw - names.first]) : strf("{}", raw);
    } else {
      out_ += strf("{}", value);
    }
  }

  std::string& out_;
};

template <class M>
Bytes with_zero_proof(const Nonce& nonce, M message) {
  message.proof = {};
  Bytes out(nonce.begin(), nonce.end());
  const Bytes encoded = encode(message);
  out.insert(out.end(), encoded.begin(), encoded.end());
  return out;
}

}  // namespace

Type type_of(const Message& message) {
  return std::visit([](const auto& m) { return std::decay_t<decltype(m)>::kType; }, message);
}

template <class M>
Bytes encode(const M& message) {
  Bytes out;
  out.reserve(sizes<M>().least + 64);
  Encoder encoder(out);
  M::fields(message, encoder);
  return out;
}

template <class M>
std::size_t min_bytes() {
  return sizes<M>().least;
}

template <class M>
std::size_t max_bytes() {
  return sizes<M>().most;
}

#define YETO_MESSAGE(M)                       \
  template Bytes encode<M>(const M& message); \
  template std::size_t min_bytes<M>();        \
  template std::size_t max_bytes<M>();
YETO_MESSAGE(Challenge)
YETO_MESSAGE(Hello)
YETO_MESSAGE(Welcome)
YETO_MESSAGE(Refused)
YETO_MESSAGE(Attach)
YETO_MESSAGE(Attached)
YETO_MESSAGE(Pull)
YETO_MESSAGE(Cancel)
YETO_MESSAGE(Verdict)
YETO_MESSAGE(LearnerBeat)
YETO_MESSAGE(SyncerBeat)
YETO_MESSAGE(Leave)
YETO_MESSAGE(Finish)
YETO_MESSAGE(Limit)
YETO_MESSAGE(Final)
YETO_MESSAGE(FinalAck)
YETO_MESSAGE(Goodbye)
YETO_MESSAGE(Offer)
YETO_MESSAGE(Have)
YETO_MESSAGE(Done)
YETO_MESSAGE(Data)
YETO_MESSAGE(Metric)
YETO_MESSAGE(Chunk)
#undef YETO_MESSAGE

Bytes encode_message(const Message& message) {
  return std::visit([](const auto& m) { return encode(m); }, message);
}

Result<Message> decode(Type type, Direction direction, ByteView payload) {
  const bool to_syncer = direction == Direction::kToSyncer;
  if (!type_allowed(type, direction)) {
    return fail(ErrorCode::kProtocol,
                strf("message type {} may not be sent {}", static_cast<unsigned>(type),
                     to_syncer ? "to the syncer" : "to a learner"));
  }
  return with_type(type, to_syncer, [&]<class M>() -> Result<Message> {
    M message;
    Decoder decoder(payload);
    M::fields(message, decoder);
    if (!decoder.error().empty()) {
      return fail(ErrorCode::kProtocol, strf("{}: {}", type_name(type), decoder.error()));
    }
    return Message(std::move(message));
  });
}

std::string to_text(const Message& message) {
  std::string fields;
  Printer printer(fields);
  std::visit([&](const auto& m) { std::decay_t<decltype(m)>::fields(m, printer); }, message);
  return strf("{}{{{}}}", type_name(type_of(message)), fields);
}

Bytes proof_input(const Nonce& nonce, const Hello& message) {
  return with_zero_proof(nonce, message);
}
Bytes proof_input(const Nonce& nonce, const Attach& message) {
  return with_zero_proof(nonce, message);
}
Proof make_proof(ByteView key, const Nonce& nonce, const Hello& message) {
  return hmac_sha256(key, proof_input(nonce, message));
}
Proof make_proof(ByteView key, const Nonce& nonce, const Attach& message) {
  return hmac_sha256(key, proof_input(nonce, message));
}
bool proof_ok(ByteView key, const Nonce& nonce, const Hello& message) {
  return equal_constant_time(make_proof(key, nonce, message), message.proof);
}
bool proof_ok(ByteView key, const Nonce& nonce, const Attach& message) {
  return equal_constant_time(make_proof(key, nonce, message), message.proof);
}

EnumNames enum_names(Role) {
  static constexpr std::string_view kNames[] = {"learner", "controller", "observer"};
  return {0, kNames};
}
EnumNames enum_names(Phase) {
  static constexpr std::string_view kNames[] = {"load", "train", "eval", "snapshot", "paused"};
  return {0, kNames};
}
EnumNames enum_names(CodecId) {
  static constexpr std::string_view kNames[] = {"f32", "bf16", "q4"};
  return {0, kNames};
}
EnumNames enum_names(TransferKind) {
  static constexpr std::string_view kNames[] = {"LAYOUT", "INIT", "PUSH", "BCAST", "FINAL"};
  return {0, kNames};
}
EnumNames enum_names(Outcome) {
  static constexpr std::string_view kNames[] = {"merged", "carried", "dropped"};
  return {0, kNames};
}
EnumNames enum_names(LeaveReason) {
  static constexpr std::string_view kNames[] = {"done", "preempted", "error"};
  return {0, kNames};
}
EnumNames enum_names(FinishMode) {
  static constexpr std::string_view kNames[] = {"finish", "now"};
  return {0, kNames};
}
EnumNames enum_names(DataAction) {
  static constexpr std::string_view kNames[] = {"request", "grant", "complete", "return"};
  return {0, kNames};
}
EnumNames enum_names(RefuseCode) {
  static constexpr std::string_view kNames[] = {"protocol", "run",       "proof", "seat", "layout",
                                                "contract", "busy_seat", "ended", "full", "role"};
  return {1, kNames};
}

}  // namespace yeto::wire
