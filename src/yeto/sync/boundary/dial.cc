// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/boundary/dial.h"

#include <algorithm>
#include <utility>

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

Dial::Dial(net::Loop& loop, const net::Address& address, Nanos timeout, Speak speak, Done done)
    : loop_(loop), timeout_(timeout), speak_(std::move(speak)), done_(std::move(done)) {
  connecting_ = net::connect(loop, address, timeout,
                             [this](Result<std::unique_ptr<net::Connection>> connection) {
                               on_connected(std::move(connection));
                             });
}

Dial::~Dial() = default;

void Dial::on_connected(Result<std::unique_ptr<net::Connection>> connection) {
  if (!connection) {
    return finish(fail(connection.error()));
  }
  stream_ = std::make_unique<FramedStream>(loop_, std::move(*connection), kIncoming);
  stream_->expect_one_message(
      wire::max_payload(wire::Type::kChallenge, kIncoming), timeout_,
      [this](Result<wire::Message> message) { on_challenge(std::move(message)); });
}

void Dial::on_challenge(Result<wire::Message> message) {
  if (!message) {
    return finish(fail(message.error()));
  }
  const auto* challenge = std::get_if<wire::Challenge>(&*message);
  if (challenge == nullptr) {
    return finish(fail(ErrorCode::kProtocol, "the first frame of the syncer is not CHALLENGE"));
  }
  stream_->send(speak_(*challenge));
  stream_->expect_one_message(max_answer_bytes(), timeout_, [this](Result<wire::Message> answer) {
    on_answer(std::move(answer));
  });
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
