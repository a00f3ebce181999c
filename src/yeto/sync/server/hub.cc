// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/server/hub.h"

#include <utility>

#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/base/rng.h"
#include "yeto/sync/link/link.h"

namespace yeto::sync {
namespace {

constexpr Nanos kFarewellLimit = 2 * kSecond;

}  // namespace

// One admitted connection: passes on what its link tells, with the connection's number.
class Hub::Session final : public LinkHandler {
 public:
  Session(Hub& hub, const Candidate& candidate, const wire::Welcome& welcome)
      : token(welcome.session),
        key(candidate.key),
        streams(candidate.streams),
        hub_(hub),
        conn_(candidate.conn),
        link(hub.loop_, link_options(hub, candidate, welcome), this) {}

  void on_message(wire::Message message) override {
    hub_.feed_(MessageArrived{conn_, std::move(message)});
  }
  void on_offer(const wire::Offer& offer) override { hub_.feed_(OfferArrived{conn_, offer}); }
  void on_received(std::uint64_t transfer, bool ok) override {
    const auto found = receiving.find(transfer);
    if (found == receiving.end()) {
      return;
    }
    const BufferId buffer = found->second;
    receiving.erase(found);
    if (ok) {
      // Every chunk had its CRC; the digest of initial values is checked by the job that loads
      // them.
      link.finish_receive(transfer, true);
    }
    hub_.feed_(TransferArrived{conn_, transfer, buffer, ok});
  }
  void on_sent(std::uint64_t ticket, bool ok) override {
    hub_.feed_(TransferSent{conn_, ticket, ok});
  }
  void on_heard() override { hub_.feed_(Heard{conn_}); }
  void on_data_stream_lost(std::uint16_t, const std::string& reason) override {
    log(LogLevel::kInfo, "syncer", "connection {}: {}", conn_, reason);
  }
  void on_closed(const std::string& reason) override { hub_.lost(conn_, reason); }

  const wire::SessionToken token;
  const SessionKey key;
  const std::uint16_t streams;
  std::map<std::uint64_t, BufferId> receiving;

 private:
  static LinkOptions link_options(const Hub& hub, const Candidate& candidate,
                                  const wire::Welcome& welcome) {
    LinkOptions options;
    options.incoming = wire::Direction::kToSyncer;
    options.chunk_bytes = welcome.chunk_bytes;
    options.data_streams = candidate.streams;
    options.lease = static_cast<Nanos>(welcome.lease_ms) * kMillisecond;
    options.crcs = hub.crcs_;
    return options;
  }

  Hub& hub_;
  const ConnId conn_;

 public:
  Link link;
};

// Links that still send their last frames. Shared with callbacks that may outlive the hub.
struct Hub::Farewells {
  std::size_t count = 0;
  std::function<void()> none_left;  // set by close_all
};

Hub::Hub(net::Loop& loop, const DoorOptions& door, Jobs& jobs, std::function<void(Event)> feed)
    : loop_(loop),
      run_token_(door.run_token),
      jobs_(jobs),
      feed_(std::move(feed)),
      crcs_(std::make_shared<ChunkCrcs>()),
      farewells_(std::make_shared<Farewells>()),
      door_(loop, door, this) {}

Hub::~Hub() { farewells_->none_left = nullptr; }

Hub::Session* Hub::find(ConnId conn) {
  const auto found = sessions_.find(conn);
  return found == sessions_.end() ? nullptr : found->second.get();
}

std::unique_ptr<Hub::Session> Hub::take(ConnId conn) {
  const auto found = sessions_.find(conn);
  if (found == sessions_.end()) {
    return nullptr;
  }
  std::unique_ptr<Session> session = std::move(found->second);
  sessions_.erase(found);
  const auto token = tokens_.find(session->token);
  if (token != tokens_.end() && token->second == conn) {
    tokens_.erase(token);
  }
  return session;
}

void Hub::retire(std::unique_ptr<Session> session) {
  if (retired_.empty()) {
    loop_.post([this] { retired_.clear(); });
  }
  retired_.push_back(std::move(session));
}

void Hub::lost(ConnId conn, const std::string& reason) {
  if (std::unique_ptr<Session> session = take(conn)) {
    retire(std::move(session));
    feed_(ConnClosed{conn, reason});
  }
}

void Hub::on_hello(ConnId conn, const wire::Hello& hello, bool proof_ok) {
  if (hello.streams > kMaxDataStreams) {
    wire::Refused refused;
    refused.code = wire::RefuseCode::kProtocol;
    refused.text =
        strf("HELLO wants {} data streams; the limit is {}", hello.streams, kMaxDataStreams);
    door_.refuse(conn, refused);
    return;
  }
  candidate_ = {conn, session_key(run_token_, hello.role, hello.seat), hello.streams};
  HelloArrived event{conn, hello, proof_ok, {}};
  random_bytes(event.fresh_session);
  feed_(std::move(event));
  candidate_ = {};
}

std::optional<SessionKey> Hub::key_of_session(const wire::SessionToken& token) {
  const auto found = tokens_.find(token);
  if (found == tokens_.end()) {
    return std::nullopt;
  }
  return sessions_.at(found->second)->key;
}

Status Hub::on_attach(const wire::Attach& attach, std::unique_ptr<FramedStream>& stream) {
  Session& session = *sessions_.at(tokens_.at(attach.session));
  if (attach.stream >= session.streams) {
    return fail(ErrorCode::kProtocol, strf("ATTACH of data stream {}, but HELLO announced {}",
                                           attach.stream, session.streams));
  }
  stream->send(wire::Attached{attach.stream});
  return session.link.add_data_stream(std::move(stream), attach.stream);
}

void Hub::carry_out(const Admit& action) {
  std::unique_ptr<FramedStream> stream = door_.admit(action.conn);
  if (stream == nullptr || candidate_.conn != action.conn) {
    feed_(ConnClosed{action.conn, "lost before it was admitted"});
    return;
  }
  stream->send(action.welcome);
  auto session = std::make_unique<Session>(*this, candidate_, action.welcome);
  Session& admitted = *session;
  if (action.welcome.session != wire::SessionToken{}) {
    tokens_[action.welcome.session] = action.conn;
  }
  sessions_[action.conn] = std::move(session);
  admitted.link.start(std::move(stream));
}

void Hub::carry_out(const Refuse& action) {
  if (Session* session = find(action.conn)) {
    session->link.send(action.refused);
    say_farewell(take(action.conn), kFarewellLimit);
    feed_(ConnClosed{action.conn, action.refused.text});
    return;
  }
  door_.refuse(action.conn, action.refused);
}

void Hub::carry_out(const Send& action) {
  if (Session* session = find(action.conn)) {
    session->link.send(action.message);
  }
}

void Hub::carry_out(const Close& action) {
  if (std::unique_ptr<Session> session = take(action.conn)) {
    log(LogLevel::kDebug, "syncer", "closing connection {}: {}", action.conn, action.reason);
    say_farewell(std::move(session), kFarewellLimit);
    feed_(ConnClosed{action.conn, action.reason});
  }
}

void Hub::carry_out(const AcceptTransfer& action) {
  Session* session = find(action.conn);
  if (session == nullptr) {
    feed_(TransferArrived{action.conn, action.transfer, action.buffer, false});
    return;
  }
  const Result<MutableByteView> target = jobs_.allocate(action.buffer, action.bytes);
  if (!target) {
    log_line(LogLevel::kError, "syncer", target.error().text());
    session->link.refuse(action.transfer, target.error().what);
    feed_(TransferArrived{action.conn, action.transfer, action.buffer, false});
    return;
  }
  session->receiving[action.transfer] = action.buffer;
  session->link.accept(action.transfer, *target,
                       std::const_pointer_cast<Bytes>(jobs_.image(action.buffer)));
}

void Hub::carry_out(const RefuseTransfer& action) {
  if (Session* session = find(action.conn)) {
    session->link.refuse(action.transfer, action.reason);
  }
}

void Hub::carry_out(const SendTransfer& action) {
  Session* session = find(action.conn);
  std::shared_ptr<const Bytes> body = jobs_.image(action.buffer);
  if (session == nullptr || body == nullptr) {
    feed_(TransferSent{action.conn, action.ticket, false});
    return;
  }
  session->link.send_transfer(action.ticket, action.offer, std::move(body));
}

void Hub::carry_out(const AbortTransfer& action) {
  if (Session* session = find(action.conn)) {
    session->link.abort_transfer(action.ticket);
  }
}

void Hub::say_farewell(std::unique_ptr<Session> session, Nanos limit) {
  ++farewells_->count;
  session->link.close_gracefully(limit, [farewells = farewells_] {
    --farewells->count;
    if (farewells->count == 0 && farewells->none_left) {
      std::exchange(farewells->none_left, nullptr)();
    }
  });
  retire(std::move(session));
}

void Hub::close_all(Nanos limit, std::function<void()> done) {
  door_.close();
  while (!sessions_.empty()) {
    say_farewell(take(sessions_.begin()->first), limit);
  }
  if (farewells_->count == 0) {
    loop_.post(std::move(done));
  } else {
    farewells_->none_left = std::move(done);
  }
}

}  // namespace yeto::sync
