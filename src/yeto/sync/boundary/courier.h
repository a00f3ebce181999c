// SPDX-License-Identifier: Apache-2.0
// Courier: the boundary's I/O. It keeps one session with the syncer (connect, prove, attach data
// streams, heartbeat, connect again after a loss), tells its owner what happens and carries out the
// client's wire actions. All calls and callbacks on the loop thread.
//
// After a loss it tries again for ever, 0.2 s apart at first and 2 s at most, each wait drawn from
// half to one and a half of that; the endpoint file is read anew each time. It stops for good when
// the syncer refuses the learner, says GOODBYE, or the owner closes it. A data stream that is lost,
// or cannot be attached, is tried again in the same way while the session goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/base/result.h"
#include "yeto/net/loop.h"
#include "yeto/sync/boundary/dial.h"
#include "yeto/sync/boundary/endpoint.h"
#include "yeto/sync/client/protocol.h"
#include "yeto/sync/link/link.h"

namespace yeto::sync::client {

class CourierOwner {
 public:
  virtual ~CourierOwner() = default;
  // The HELLO of the next session, with a zero proof.
  virtual wire::Hello hello() = 0;
  virtual wire::LearnerBeat beat() = 0;
  // The owner feeds its client and gives the wire actions back through carry().
  virtual void on_event(const Event& event) = 0;
  // No session came about this time; it will be tried again.
  virtual void on_attempt_failed(const Error& why) = 0;
  // The syncer, or the configuration, excludes this learner for good.
  virtual void on_refused(const Error& why) = 0;
  // Memory for an image of that many bytes.
  virtual std::shared_ptr<Bytes> new_image(ImageId image, std::uint64_t bytes) = 0;
  // The encoded body of a ticket, given away; null if there is none any more.
  virtual std::shared_ptr<const Bytes> take_body(Ticket ticket) = 0;
  virtual std::shared_ptr<const Bytes> layout_body() = 0;
  // What differs between the run's layout and ours, in words; may be empty.
  virtual std::string layout_difference(
      const std::vector<std::array<std::uint8_t, 8>>& tensors) = 0;
};

struct CourierOptions {
  Endpoint endpoint;
  SeatKey key{};                        // without TLS
  std::shared_ptr<const net::Tls> tls;  // null: plain TCP
  std::string syncer_uri;               // with TLS: what the syncer's certificate must name
  Nanos dial_timeout = 10 * kSecond;
  Nanos retry_first = from_millis(200);
  Nanos retry_most = 2 * kSecond;
};

class Courier final : public LinkHandler {
 public:
  // `owner` must outlive the courier.
  Courier(net::Loop& loop, CourierOptions options, CourierOwner* owner);
  ~Courier() override;
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  void start() { attempt(); }
  // A wire action (see protocol.h). Without a session nothing happens.
  void carry(const Action& action);
  void send(const wire::Message& message);
  void send_beat();
  bool connected() const { return link_ != nullptr; }
  // Sends LEAVE, closes, and stops for good; `done` is called once, perhaps inside this call.
  void leave(wire::LeaveReason reason, Nanos limit, std::function<void()> done);
  void close();

 private:
  // How one data stream comes about; its frames are the link's business.
  struct DataStream {
    std::unique_ptr<Dial> dial;
    net::TimerId retry_timer = 0;
    std::uint32_t failures = 0;  // in a row
    Nanos attached_at = 0;
  };

  void attempt();
  void attempt_failed(const Error& why);
  void stop_for_good(const Error& why);
  void try_later();
  Dial::To to_syncer() const;
  wire::Message prove(const wire::Challenge& challenge, wire::Hello hello) const;
  void on_answer(Result<DialAnswer> answer);
  void on_refusal(const wire::Refused& refused);
  void admit(DialAnswer answer, const wire::Welcome& welcome);
  void attach(std::uint16_t index);
  void on_attach_answer(std::uint16_t index, Result<DialAnswer> answer);
  void attach_later(std::uint16_t index, const std::string& why);
  void lose(const std::string& reason);
  void close_link();
  void beat_later();
  void watch();

  void on_message(wire::Message message) override;
  void on_offer(const wire::Offer& offer) override;
  void on_received(std::uint64_t transfer, bool ok) override;
  void on_sent(std::uint64_t ticket, bool ok) override;
  void on_heard() override;
  void on_data_stream_lost(std::uint16_t index, const std::string& reason) override;
  void on_closed(const std::string& reason) override;

  void carry_out(const Send& action);
  void carry_out(const EndSession& action);
  void carry_out(const Accept& action);
  void carry_out(const Refuse& action);
  void carry_out(const FinishReceive& action);
  void carry_out(const SendLayout& action);
  void carry_out(const SendBody& action);

  net::Loop& loop_;
  const CourierOptions options_;
  CourierOwner* const owner_;

  bool stopped_ = false;
  net::Address address_;  // of the attempt or session in progress
  std::unique_ptr<Dial> dial_;
  std::unique_ptr<Link> link_;
  std::vector<DataStream> streams_;             // of the session in progress
  std::map<std::uint64_t, ImageId> receiving_;  // transfer → image
  wire::Welcome welcome_;                       // of the session in progress
  std::uint32_t failures_ = 0;                  // in a row
  net::TimerId retry_timer_ = 0;
  net::TimerId watch_timer_ = 0;
  Nanos heard_at_ = 0;
};

}  // namespace yeto::sync::client
