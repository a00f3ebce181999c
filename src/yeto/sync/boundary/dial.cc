// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/boundary/dial.h"

#include <algorithm>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/wire/frame.h"

namespace yeto::sync::client {
namespace {

constexpr auto kIncoming = wire::Direction::kToLearner;

// The largest answer is a REFUSED with the hash of every tensor of the run.
std::uint32_t max_answer_bytes() {
  return std::max(wire::max_payload(wire::Type::kWelcome, kIncoming),
                  wire::max_payload(wire::Type::kRefused, kIncoming));
}

}  // namespace

Dial::Dial(net::Loop& loop, To to, Speak speak, Done done)
    : loop_(loop), to_(std::move(to)), speak_(std::move(speak)), done_(std::move(done)) {
  connecting_ = net::connect(
      loop, to_.address, to_.timeout,
      [this](Result<std::unique_ptr<net::Connection>> connection) {
        on_connected(std::move(connection));
      },
      to_.tls);
}

Dial::~Dial() = default;

void Dial::on_connected(Result<std::unique_ptr<net::Connection>> connection) {
  if (!connection) {
    return finish(fail(connection.error()));
  }
  if (const Status known = check_peer(**connection); !known) {
    return finish(fail(known.error()));
  }
  stream_ = std::make_unique<FramedStream>(loop_, std::move(*connection), kIncoming);
  stream_->expect_one_message(
      wire::max_payload(wire::Type::kChallenge, kIncoming), to_.timeout,
      [this](Result<wire::Message> message) { on_challenge(std::move(message)); });
}

// A certificate of the same CA is not enough: a learner's would do to play the syncer.
Status Dial::check_peer(const net::Connection& connection) const {
  const std::vector<std::string> uris = connection.peer_uris();
  if (!to_.tls || std::find(uris.begin(), uris.end(), to_.syncer_uri) != uris.end()) {
    return Unit{};
  }
  return fail(ErrorCode::kPermission,
              strf("the peer's certificate is of {}, not of {}",
                   uris.empty() ? "nobody" : uris.front(), to_.syncer_uri),
              to_.address.text(), "check the address and the run id");
}

void Dial::on_challenge(Result<wire::Message> message) {
  if (!message) {
    Error error = message.error();
    if (!to_.tls && error.code == ErrorCode::kTimeout) {
      error.hint = "a syncer with TLS does not speak to a learner without it";
    }
    return finish(fail(std::move(error)));
  }
  const auto* challenge = std::get_if<wire::Challenge>(&*message);
  if (challenge == nullptr) {
    return finish(fail(ErrorCode::kProtocol, "the first frame of the syncer is not CHALLENGE"));
  }
  stream_->send(speak_(*challenge));
  stream_->expect_one_message(
      max_answer_bytes(), to_.timeout,
      [this](Result<wire::Message> answer) { on_answer(std::move(answer)); });
}

void Dial::on_answer(Result<wire::Message> message) {
  if (!message) {
    return finish(fail(message.error()));
  }
  finish(DialAnswer{std::move(stream_), std::move(*message)});
}

void Dial::finish(Result<DialAnswer> result) {
  // The callback may destroy this object.
  const Done done = std::move(done_);
  done(std::move(result));
}

}  // namespace yeto::sync::client
