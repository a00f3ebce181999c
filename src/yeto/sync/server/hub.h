// SPDX-License-Identifier: Apache-2.0
// Hub: the sessions of the syncer. It owns the door and one Link per admitted connection, turns
// what they tell into events, and carries out the core's actions on connections and transfers. All
// calls on the loop thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "yeto/net/loop.h"
#include "yeto/sync/core/events.h"
#include "yeto/sync/jobs/jobs.h"
#include "yeto/sync/link/chunk_crcs.h"
#include "yeto/sync/server/door.h"

namespace yeto::sync {

class Hub final : public DoorHandler {
 public:
  // `feed` gets the events; it may be called inside any method below and must cope with that.
  // `jobs` holds the buffers transfers are received into and sent from; it must outlive the hub.
  Hub(net::Loop& loop, const DoorOptions& door, Jobs& jobs, std::function<void(Event)> feed);
  ~Hub() override;
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  Status open(const net::Address& address) { return door_.open(address); }
  net::Address address() const { return door_.address(); }
  DoorCounters door_counters() const { return door_.counters(); }
  std::size_t sessions() const { return sessions_.size(); }

  // Every session ends in one ConnClosed, also one that the core closed or refused. Actions on a
  // connection that is gone do nothing: its end has been told or is on its way.
  void carry_out(const Admit& action);
  void carry_out(const Refuse& action);
  void carry_out(const Send& action);
  void carry_out(const Close& action);
  void carry_out(const AcceptTransfer& action);
  void carry_out(const RefuseTransfer& action);
  void carry_out(const SendTransfer& action);
  void carry_out(const AbortTransfer& action);

  // Closes door and sessions without further events; queued control frames get `limit` to leave.
  // `done` is called once, never inside this call.
  void close_all(Nanos limit, std::function<void()> done);

 private:
  class Session;
  // What HELLO said, until the core has answered.
  struct Candidate {
    ConnId conn = 0;
    SessionKey key{};
    std::uint16_t streams = 0;
  };
  struct Farewells;

  void on_hello(ConnId conn, const wire::Hello& hello, bool proof_ok) override;
  std::optional<SessionKey> key_of_session(const wire::SessionToken& token) override;
  Status on_attach(const wire::Attach& attach, std::unique_ptr<FramedStream>& stream) override;

  Session* find(ConnId conn);
  void lost(ConnId conn, const std::string& reason);
  // Takes the session out; it is destroyed at the next turn of the loop, since its own callback may
  // be running.
  std::unique_ptr<Session> take(ConnId conn);
  void retire(std::unique_ptr<Session> session);
  void say_farewell(std::unique_ptr<Session> session, Nanos limit);

  net::Loop& loop_;
  const SessionKey run_token_;
  Jobs& jobs_;
  const std::function<void(Event)> feed_;
  std::map<ConnId, std::unique_ptr<Session>> sessions_;
  std::map<wire::SessionToken, ConnId> tokens_;
  std::vector<std::unique_ptr<Session>> retired_;
  const std::shared_ptr<ChunkCrcs> crcs_;  // of the images all sessions send
  std::shared_ptr<Farewells> farewells_;
  Candidate candidate_;
  Door door_;
};

}  // namespace yeto::sync
