// SPDX-License-Identifier: Apache-2.0
// Dial: opens one connection to a syncer: connect → CHALLENGE → our first message, which proves who
// we are → the answer. Used for the control stream (HELLO) and the data streams (ATTACH).
// All calls and callbacks on the loop thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "yeto/base/result.h"
#include "yeto/net/address.h"
#include "yeto/net/connection.h"
#include "yeto/net/loop.h"
#include "yeto/net/tls.h"
#include "yeto/sync/link/framed_stream.h"
#include "yeto/wire/messages.h"

namespace yeto::sync::client {

struct DialAnswer {
  std::unique_ptr<FramedStream> stream;  // not started
  wire::Message message;
};

class Dial {
 public:
  using Speak = std::function<wire::Message(const wire::Challenge&)>;
  using Done = std::function<void(Result<DialAnswer>)>;

  struct To {
    net::Address address;
    Nanos timeout = 0;                    // of each of the three waits
    std::shared_ptr<const net::Tls> tls;  // null: plain TCP
    std::string syncer_uri;               // with TLS: what the syncer's certificate must name
  };

  // `speak` makes the first message, with its proof. kPermission when the peer is not that syncer.
  // `done` is called once, never inside this call; not after the Dial is destroyed. It may destroy
  // the Dial.
  Dial(net::Loop& loop, To to, Speak speak, Done done);
  ~Dial();
  Dial(const Dial&) = delete;
  Dial& operator=(const Dial&) = delete;

 private:
  void on_connected(Result<std::unique_ptr<net::Connection>> connection);
  void on_challenge(Result<wire::Message> message);
  void on_answer(Result<wire::Message> message);
  Status check_peer(const net::Connection& connection) const;
  void finish(Result<DialAnswer> result);

  net::Loop& loop_;
  const To to_;
  const Speak speak_;
  Done done_;
  std::unique_ptr<net::Connecting> connecting_;
  std::unique_ptr<FramedStream> stream_;
};

}  // namespace yeto::sync::client
