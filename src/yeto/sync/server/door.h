// SPDX-License-Identifier: Apache-2.0
// Door: everything between accept() and admission. A connection that comes in gets a CHALLENGE and
// may send one frame of at most 16 KiB within a time limit: HELLO (a control stream, the owner
// decides) or ATTACH (a data stream of a session that exists). At the limit of unadmitted
// connections accepting waits. With TLS the handshake belongs to that one frame's time limit, and
// it has 16 KiB of its own. All calls and callbacks on the loop thread. Nothing a stranger sends is
// kept after he is turned away.
//
// Who somebody is: with TLS what his certificate says, which must be the run, role and seat of his
// HELLO; without it a proof made with the key of that seat. A data stream must come from the same
// identity as its session.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "yeto/base/digest.h"
#include "yeto/net/connection.h"
#include "yeto/net/loop.h"
#include "yeto/net/tls.h"
#include "yeto/sync/core/events.h"
#include "yeto/sync/link/framed_stream.h"
#include "yeto/wire/messages.h"

namespace yeto::sync {

using SessionKey = Sha256;

// The key a peer proves to have: HKDF-SHA256(run token, "yeto-seat-<n>"), "yeto-seat-any" without a
// seat, "yeto-controller", "yeto-observer".
SessionKey session_key(ByteView run_token, wire::Role role, std::uint32_t seat);

class DoorHandler {
 public:
  virtual ~DoorHandler() = default;
  // First frame of a control stream. Answer in this call: Door::admit() or Door::refuse().
  virtual void on_hello(ConnId conn, const wire::Hello& hello, bool proof_ok) = 0;
  // The key of the session with that token; nothing if there is none.
  virtual std::optional<SessionKey> key_of_session(const wire::SessionToken& token) = 0;
  // A data stream that proved to belong to the session: take it, after sending ATTACHED. On an
  // error it must still be there; the text is sent to the peer.
  virtual Status on_attach(const wire::Attach& attach, std::unique_ptr<FramedStream>& stream) = 0;
};

struct DoorOptions {
  std::string run_id;
  SessionKey run_token{};               // without TLS
  std::shared_ptr<const net::Tls> tls;  // null: plain TCP
  std::uint64_t term = 0;
  Nanos first_frame_timeout = 10 * kSecond;
  Nanos farewell_timeout = 2 * kSecond;  // for a REFUSED to leave
  std::size_t max_unadmitted = 64;
};

struct DoorCounters {
  std::uint64_t accepted = 0;
  std::uint64_t turned_away = 0;  // by an error of the peer, or refused
  std::size_t unadmitted = 0;     // now, farewells included
};

class Door {
 public:
  // `handler` must outlive the door.
  Door(net::Loop& loop, const DoorOptions& options, DoorHandler* handler);
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  Status open(const net::Address& address);
  net::Address address() const;

  // Hands the control stream over; null if the connection is gone.
  std::unique_ptr<FramedStream> admit(ConnId conn);
  // Sends REFUSED and closes.
  void refuse(ConnId conn, const wire::Refused& refused);
  // No new connections; those in the door are closed.
  void close();
  DoorCounters counters() const;

 private:
  struct Visitor {
    std::unique_ptr<FramedStream> stream;
    wire::Nonce nonce{};
  };

  void on_accept(std::unique_ptr<net::Connection> connection);
  void on_first_frame(ConnId conn, Result<wire::Message> message);
  void on_hello(ConnId conn, const wire::Hello& hello);
  void on_attach(ConnId conn, const wire::Attach& attach);
  bool attach_ok(const Visitor& visitor, const wire::Attach& attach, const SessionKey& key) const;
  void turn_away(ConnId conn, wire::RefuseCode code, bool retryable, std::string text);
  void leave(ConnId conn);
  void count_changed();

  net::Loop& loop_;
  const DoorOptions options_;
  DoorHandler* const handler_;
  std::unique_ptr<net::Listener> listener_;
  std::map<ConnId, Visitor> visitors_;
  // Outlives the door in the callbacks of farewells that are still being sent.
  struct Farewells {
    Door* door = nullptr;
    std::size_t count = 0;
  };
  std::shared_ptr<Farewells> farewells_;
  ConnId next_conn_ = 1;
  std::uint64_t accepted_ = 0;
  std::uint64_t turned_away_ = 0;
};

}  // namespace yeto::sync
