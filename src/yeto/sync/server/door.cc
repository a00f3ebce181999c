// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/server/door.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/base/rng.h"
#include "yeto/wire/codec.h"
#include "yeto/wire/identity.h"

namespace yeto::sync {
namespace {

std::string names_text(const std::vector<std::string>& uris) {
  std::string text;
  for (const std::string& uri : uris) {
    text += (text.empty() ? "" : ", ") + uri;
  }
  // A certificate may name more than a REFUSED can hold.
  constexpr std::size_t kMost = 300;
  return text.empty() ? "nobody (it names no URI)" : text.substr(0, kMost);
}

}  // namespace

SessionKey session_key(ByteView run_token, wire::Role role, std::uint32_t seat) {
  std::string info;
  switch (role) {
    case wire::Role::kLearner:
      info = seat == wire::kNoSeat ? "yeto-seat-any" : strf("yeto-seat-{}", seat);
      break;
    case wire::Role::kController:
      info = "yeto-controller";
      break;
    case wire::Role::kObserver:
      info = "yeto-observer";
      break;
  }
  return hkdf_sha256(run_token, as_bytes_view(info));
}

Door::Door(net::Loop& loop, const DoorOptions& options, DoorHandler* handler)
    : loop_(loop),
      options_(options),
      handler_(handler),
      farewells_(std::make_shared<Farewells>(Farewells{this, 0})) {}

Door::~Door() {
  farewells_->door = nullptr;
  close();
}

Status Door::open(const net::Address& address) {
  YETO_ASSIGN(listener_, net::Listener::open(
                             loop_, address,
                             [this](std::unique_ptr<net::Connection> connection) {
                               on_accept(std::move(connection));
                             },
                             options_.tls));
  return Unit{};
}

net::Address Door::address() const { return listener_ ? listener_->address() : net::Address{}; }

void Door::close() {
  listener_.reset();
  visitors_.clear();
}

DoorCounters Door::counters() const {
  return {accepted_, turned_away_, visitors_.size() + farewells_->count};
}

void Door::on_accept(std::unique_ptr<net::Connection> connection) {
  ++accepted_;
  const ConnId conn = next_conn_++;
  Visitor& visitor = visitors_[conn];
  random_bytes(visitor.nonce);
  visitor.stream =
      std::make_unique<FramedStream>(loop_, std::move(connection), wire::Direction::kToSyncer);
  visitor.stream->send(wire::Challenge{visitor.nonce, options_.term, wire::kMinor});
  visitor.stream->expect_one_message(
      wire::kMaxUnadmittedBytes, options_.first_frame_timeout,
      [this, conn](Result<wire::Message> message) { on_first_frame(conn, std::move(message)); });
  count_changed();
}

void Door::count_changed() {
  if (!listener_) {
    return;
  }
  const bool full = counters().unadmitted >= options_.max_unadmitted;
  if (full && !listener_->paused()) {
    log(LogLevel::kWarn, "syncer", "{} connections wait for admission; accepting waits",
        counters().unadmitted);
    listener_->pause();
  } else if (!full && listener_->paused()) {
    listener_->resume();
  }
}

void Door::on_first_frame(ConnId conn, Result<wire::Message> message) {
  if (!message) {
    const Error& error = message.error();
    if (error.code == ErrorCode::kProtocol || error.code == ErrorCode::kTimeout) {
      turn_away(conn, wire::RefuseCode::kProtocol, error.code == ErrorCode::kTimeout, error.what);
    } else {
      // A certificate that is refused is worth a line; a peer that goes away is not.
      if (error.code == ErrorCode::kPermission) {
        log(LogLevel::kWarn, "syncer", "refused {}: {}", error.where, error.what);
      }
      ++turned_away_;
      leave(conn);
    }
    return;
  }
  if (const auto* hello = std::get_if<wire::Hello>(&*message)) {
    on_hello(conn, *hello);
  } else if (const auto* attach = std::get_if<wire::Attach>(&*message)) {
    on_attach(conn, *attach);
  } else {
    turn_away(conn, wire::RefuseCode::kProtocol, false,
              strf("the first frame must be HELLO or ATTACH, not {}",
                   wire::type_name(wire::type_of(*message))));
  }
}

void Door::on_hello(ConnId conn, const wire::Hello& hello) {
  const Visitor& visitor = visitors_.at(conn);
  bool ok = false;
  if (options_.tls) {
    const std::vector<std::string> uris = visitor.stream->peer_uris();
    const std::string said = wire::identity_of(hello.run_id, hello.role, hello.seat);
    ok = std::find(uris.begin(), uris.end(), said) != uris.end();
    if (!ok) {
      turn_away(conn, wire::RefuseCode::kProof, false,
                strf("HELLO says {}, but the certificate is of {}", said, names_text(uris)));
      return;
    }
  } else {
    const SessionKey key = session_key(options_.run_token, hello.role, hello.seat);
    ok = wire::proof_ok(key, visitor.nonce, hello);
  }
  handler_->on_hello(conn, hello, ok);
  if (visitors_.count(conn) != 0) {
    // The owner is closing and answered nothing.
    leave(conn);
  }
}

void Door::on_attach(ConnId conn, const wire::Attach& attach) {
  Visitor& visitor = visitors_.at(conn);
  const std::optional<SessionKey> key = handler_->key_of_session(attach.session);
  if (!key) {
    turn_away(conn, wire::RefuseCode::kSeat, true,
              "no session has this token; connect again by HELLO");
    return;
  }
  if (!attach_ok(visitor, attach, *key)) {
    turn_away(conn, wire::RefuseCode::kProof, false,
              options_.tls
                  ? "ATTACH: the session belongs to another certificate"
                  : "the proof of ATTACH is wrong: it was not made with the session's key");
    return;
  }
  if (const Status attached = handler_->on_attach(attach, visitor.stream); !attached) {
    turn_away(conn, wire::RefuseCode::kProtocol, false, attached.error().what);
    return;
  }
  leave(conn);
}

// With TLS the key of a session is a mark of its run, role and seat only; the certificate proves.
bool Door::attach_ok(const Visitor& visitor, const wire::Attach& attach,
                     const SessionKey& key) const {
  if (!options_.tls) {
    return wire::proof_ok(key, visitor.nonce, attach);
  }
  const std::vector<std::string> uris = visitor.stream->peer_uris();
  return std::any_of(uris.begin(), uris.end(), [&](const std::string& uri) {
    const std::optional<wire::Identity> identity = wire::parse_identity(uri);
    return identity && identity->run_id == options_.run_id &&
           session_key(options_.run_token, identity->role, identity->seat) == key;
  });
}

std::unique_ptr<FramedStream> Door::admit(ConnId conn) {
  const auto found = visitors_.find(conn);
  if (found == visitors_.end()) {
    return nullptr;
  }
  std::unique_ptr<FramedStream> stream = std::move(found->second.stream);
  leave(conn);
  return stream;
}

void Door::turn_away(ConnId conn, wire::RefuseCode code, bool retryable, std::string text) {
  wire::Refused refused;
  refused.code = code;
  refused.retryable = retryable ? 1 : 0;
  refused.text = std::move(text);
  refuse(conn, refused);
}

void Door::refuse(ConnId conn, const wire::Refused& refused) {
  const auto found = visitors_.find(conn);
  if (found == visitors_.end()) {
    return;
  }
  ++turned_away_;
  FramedStream& stream = *found->second.stream;
  log(LogLevel::kWarn, "syncer", "refused {}: {}", stream.peer().text(), refused.text);
  stream.send(refused);
  ++farewells_->count;
  stream.close_gracefully(options_.farewell_timeout, [farewells = farewells_] {
    --farewells->count;
    if (farewells->door != nullptr) {
      farewells->door->count_changed();
    }
  });
  leave(conn);
}

void Door::leave(ConnId conn) {
  visitors_.erase(conn);
  count_changed();
}

}  // namespace yeto::sync
