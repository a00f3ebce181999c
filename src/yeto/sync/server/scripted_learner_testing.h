// SPDX-License-Identifier: Apache-2.0
// ScriptedLearner: a learner for tests and benchmarks. Steps come from a timer, a push is a
// constant per seat, broadcasts are checked by digest. It speaks the protocol through sync/link and
// nothing else, so a test can bend single messages. All calls and callbacks on the thread that runs
// its loop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "yeto/base/clock.h"
#include "yeto/base/digest.h"
#include "yeto/base/result.h"
#include "yeto/base/rng.h"
#include "yeto/codec/codec.h"
#include "yeto/net/connection.h"
#include "yeto/net/loop.h"
#include "yeto/sync/jobs/memory_pool.h"
#include "yeto/sync/link/framed_stream.h"
#include "yeto/sync/link/link.h"
#include "yeto/sync/server/door.h"
#include "yeto/tensor/layout.h"
#include "yeto/wire/codec.h"

namespace yeto::sync {

struct ScriptedOptions {
  net::Address syncer;
  std::string run_id = "run";
  SessionKey run_token{};
  std::uint32_t seat = 0;
  std::uint16_t streams = 2;
  Layout layout;
  std::vector<wire::ContractPair> contract;
  Nanos step_time = 5 * kMillisecond;
  Nanos beat_every = 0;  // at most so often; 0: at each step
  std::uint64_t tokens_per_step = 10;
  // Value of every element of a push of this seat.
  float delta = 0.01F;
  // May change HELLO before its proof is made, or break the proof afterwards.
  std::function<void(wire::Hello&)> bend_hello;
  std::function<void(wire::Hello&)> bend_proof;
  // A broadcast is here, and right.
  std::function<void(const wire::Offer&)> on_version;
};

class ScriptedLearner final : public LinkHandler {
 public:
  struct Held {
    bool here = false;
    std::uint64_t version = 0;
    std::shared_ptr<Bytes> image;
    wire::Digest16 digest{};
  };

  ScriptedLearner(net::Loop& loop, ScriptedOptions options)
      : loop_(loop), options_(std::move(options)), incarnation_(random_u64()) {
    held_.resize(options_.layout.fragments.size());
    work_.resize(held_.size());
    key_ = session_key(options_.run_token, wire::Role::kLearner, options_.seat);
  }
  ~ScriptedLearner() override { disconnect(); }

  // Connects; the session (and its token) is asked to resume if there was one.
  void connect() {
    closed_.reset();
    connecting_ = net::connect(loop_, options_.syncer, 5 * kSecond, [this](auto connection) {
      if (!connection) {
        closed_ = connection.error().what;
        return;
      }
      control_ = std::make_unique<FramedStream>(loop_, std::move(*connection),
                                                wire::Direction::kToLearner);
      expect(*control_, [this](wire::Message message) { on_handshake(std::move(message)); });
    });
    if (step_timer_ == 0) {
      step_timer_ = loop_.after(options_.step_time, [this] { step(); });
    }
  }
  // As a process that dies: no word, all sockets closed, steps end.
  void disconnect() {
    loop_.cancel(step_timer_);
    step_timer_ = 0;
    for (const DataStream& stream : data_) {
      loop_.cancel(stream.retry_timer);
    }
    data_.clear();
    control_.reset();
    if (link_) {
      link_->close();
      link_.reset();
    }
    connecting_.reset();
  }
  // A new process of the same seat: nothing is held.
  void forget() {
    disconnect();
    incarnation_ = random_u64();
    session_ = {};
    welcome_.reset();
    refused_.reset();
    final_.reset();
    said_goodbye_ = false;
    draining_ = false;
    pulls_.clear();
    local_step_ = 0;
    tokens_ = 0;
    held_.assign(held_.size(), {});
    work_.assign(work_.size(), {});
    finals_.clear();
  }
  void leave(wire::LeaveReason reason) { link_->send(wire::Leave{reason, 0}); }
  void say_limit() { link_->send(wire::Limit{local_step_, tokens_}); }
  void send(const wire::Message& message) { link_->send(message); }
  // While held, pulls are not answered.
  void hold_pushes(bool held) {
    holding_ = held;
    answer_pulls();
  }
  void make_pushes(float value) {
    options_.delta = value;
    bodies_.clear();
  }
  Link* link() { return link_.get(); }

  bool welcomed() const { return welcome_.has_value(); }
  std::uint64_t sessions() const { return sessions_; }  // WELCOMEs so far
  bool holds_a_pull() const { return holding_ && !pulls_.empty(); }
  const wire::Welcome& welcome() const { return *welcome_; }
  const std::optional<wire::Refused>& refused() const { return refused_; }
  const std::optional<std::string>& closed() const { return closed_; }
  bool said_goodbye() const { return said_goodbye_; }
  bool finished() const { return final_ && said_goodbye_; }
  const std::optional<wire::Final>& final() const { return final_; }
  const std::vector<Held>& held() const { return held_; }
  const std::map<std::pair<std::uint32_t, std::uint64_t>, wire::Digest16>& digests() const {
    return digests_;
  }
  const std::vector<wire::Verdict>& verdicts() const { return verdicts_; }
  std::uint64_t pushes() const { return pushes_; }
  std::uint64_t tokens() const { return tokens_; }
  std::uint64_t pushed_tokens() const { return pushed_tokens_; }
  std::uint64_t bad_digests() const { return bad_digests_; }
  const wire::SyncerBeat& last_beat() const { return last_beat_; }
  // All fragments are here (version 0 or later).
  bool ready() const {
    for (const Held& held : held_) {
      if (!held.here) {
        return false;
      }
    }
    return true;
  }

  // ---- LinkHandler
  void on_message(wire::Message message) override {
    if (const auto* pull = std::get_if<wire::Pull>(&message)) {
      on_pull(*pull);
    } else if (const auto* beat = std::get_if<wire::SyncerBeat>(&message)) {
      last_beat_ = *beat;
    } else if (auto* verdict = std::get_if<wire::Verdict>(&message)) {
      verdicts_.push_back(std::move(*verdict));
    } else if (const auto* final = std::get_if<wire::Final>(&message)) {
      final_ = *final;
      acknowledge_if_complete();
    } else if (const auto* cancel = std::get_if<wire::Cancel>(&message)) {
      std::erase_if(pulls_, [&](const auto& it) { return it.second.round == cancel->round; });
    } else if (std::holds_alternative<wire::Goodbye>(message)) {
      said_goodbye_ = true;
    }
  }
  void on_offer(const wire::Offer& offer) override {
    const std::shared_ptr<Bytes> target = memory_.take(offer.bytes);
    incoming_[offer.transfer] = {offer, target};
    link_->accept(offer.transfer, *target, target);
  }
  void on_received(std::uint64_t transfer, bool ok) override {
    const auto found = incoming_.find(transfer);
    const auto [offer, bytes] = found->second;
    incoming_.erase(found);
    if (!ok) {
      return;
    }
    const std::shared_ptr<Bytes> values = public_value(offer, bytes);
    const bool right = values != nullptr && xxh3_128(*values) == offer.digest;
    bad_digests_ += right ? 0 : 1;
    link_->finish_receive(transfer, right);
    if (right && offer.kind == wire::TransferKind::kBroadcast) {
      held_[offer.fragment] = {true, offer.version, values, offer.digest};
      digests_[{offer.fragment, offer.version}] = offer.digest;
      if (options_.on_version) {
        options_.on_version(offer);
      }
      answer_pulls();
    } else if (right && offer.kind == wire::TransferKind::kFinal) {
      finals_[offer.fragment] = sha256(*bytes);
      acknowledge_if_complete();
    }
  }
  void on_sent(std::uint64_t, bool) override {}
  void on_heard() override {}
  void on_data_stream_lost(std::uint16_t index, const std::string&) override {
    attach_later(index);
  }
  void on_closed(const std::string& reason) override {
    closed_ = reason;
    incoming_.clear();
  }

 private:
  struct Work {
    std::uint64_t steps_at_push = 0;
    std::uint64_t tokens_at_push = 0;
  };

  void expect(FramedStream& stream, std::function<void(wire::Message)> next) {
    const auto limit = wire::max_payload(wire::Type::kRefused, wire::Direction::kToLearner);
    stream.expect_one_message(limit, 10 * kSecond,
                              [this, next = std::move(next)](Result<wire::Message> message) {
                                if (!message) {
                                  closed_ = message.error().what;
                                } else {
                                  next(std::move(*message));
                                }
                              });
  }
  void on_handshake(wire::Message message) {
    if (const auto* challenge = std::get_if<wire::Challenge>(&message)) {
      control_->send(hello_for(*challenge));
      expect(*control_, [this](wire::Message answer) { on_handshake(std::move(answer)); });
    } else if (auto* refused = std::get_if<wire::Refused>(&message)) {
      refused_ = std::move(*refused);
    } else if (auto* welcome = std::get_if<wire::Welcome>(&message)) {
      welcome_ = std::move(*welcome);
      session_ = welcome_->session;
      ++sessions_;
      LinkOptions link;
      link.incoming = wire::Direction::kToLearner;
      link.chunk_bytes = welcome_->chunk_bytes;
      link.data_streams = options_.streams;
      link.lease = static_cast<Nanos>(welcome_->lease_ms) * kMillisecond;
      link_ = std::make_unique<Link>(loop_, link, this);
      link_->start(std::move(control_));
      data_.clear();
      data_.resize(options_.streams);
      for (std::uint16_t i = 0; i < options_.streams; ++i) {
        attach(i);
      }
      beat();
    }
  }
  wire::Hello hello_for(const wire::Challenge& challenge) const {
    wire::Hello hello;
    hello.run_id = options_.run_id;
    hello.seat = options_.seat;
    hello.incarnation = incarnation_;
    hello.session = session_;
    hello.layout = options_.layout.fingerprint();
    hello.values = options_.layout.values();
    hello.contract = options_.contract;
    hello.tokens = tokens_;
    hello.local_step = local_step_;
    hello.streams = options_.streams;
    hello.device = "scripted";
    if (welcome_ && ready()) {
      for (const Held& held : held_) {
        hello.held.push_back({welcome_->term, held.version});
      }
    }
    if (options_.bend_hello) {
      options_.bend_hello(hello);
    }
    hello.proof = wire::make_proof(key_, challenge.nonce, hello);
    if (options_.bend_proof) {
      options_.bend_proof(hello);
    }
    return hello;
  }
  struct DataStream {
    std::unique_ptr<net::Connecting> connecting;
    std::unique_ptr<FramedStream> stream;  // until it is the link's
    net::TimerId retry_timer = 0;
  };
  void attach(std::uint16_t index) {
    DataStream& data = data_[index];
    data.connecting =
        net::connect(loop_, options_.syncer, 5 * kSecond, [this, index](auto connection) {
          if (!connection) {
            return attach_later(index);
          }
          data_[index].stream = std::make_unique<FramedStream>(loop_, std::move(*connection),
                                                               wire::Direction::kToLearner);
          await(index, [this, index](const wire::Message& message) { prove(index, message); });
        });
  }
  void attach_later(std::uint16_t index) {
    DataStream& data = data_[index];
    loop_.cancel(data.retry_timer);
    data.retry_timer = loop_.after(50 * kMillisecond, [this, index] {
      data_[index].retry_timer = 0;
      attach(index);
    });
  }
  // The next message of a data stream that is being attached.
  void await(std::uint16_t index, std::function<void(const wire::Message&)> next) {
    const auto limit = wire::max_payload(wire::Type::kRefused, wire::Direction::kToLearner);
    data_[index].stream->expect_one_message(
        limit, 10 * kSecond, [this, index, next = std::move(next)](Result<wire::Message> message) {
          if (message) {
            next(*message);
          } else {
            attach_later(index);
          }
        });
  }
  void prove(std::uint16_t index, const wire::Message& message) {
    const auto* challenge = std::get_if<wire::Challenge>(&message);
    if (challenge == nullptr) {
      closed_ = "a data stream got no CHALLENGE";
      return;
    }
    wire::Attach attach;
    attach.session = session_;
    attach.stream = index;
    attach.proof = wire::make_proof(key_, challenge->nonce, attach);
    data_[index].stream->send(attach);
    await(index, [this, index](const wire::Message& answer) {
      if (!std::holds_alternative<wire::Attached>(answer)) {
        closed_ = "a data stream was not attached";
      } else if (link_) {
        (void)link_->add_data_stream(std::move(data_[index].stream), index);
      }
    });
  }

  void beat() {
    if (link_ && link_->is_open()) {
      link_->send(wire::LearnerBeat{local_step_, tokens_,
                                    ready() ? wire::Phase::kTrain : wire::Phase::kLoad,
                                    seconds(options_.step_time)});
    }
  }
  void step() {
    step_timer_ = loop_.after(options_.step_time, [this] { step(); });
    if (ready() && !draining_) {
      ++local_step_;
      tokens_ += options_.tokens_per_step;
      answer_pulls();
    }
    const Nanos now = monotonic_now();
    if (now - beat_at_ >= options_.beat_every) {
      beat_at_ = now;
      beat();
    }
  }
  void on_pull(const wire::Pull& pull) {
    if (pull.fragment == wire::kLayoutFragment) {
      wire::Offer offer;
      offer.kind = wire::TransferKind::kLayout;
      send_transfer(offer, std::make_shared<const Bytes>(options_.layout.encode()));
    } else if (pull.round == 0) {
      auto zeros = std::make_shared<const Bytes>(options_.layout.fragments[pull.fragment].values *
                                                 sizeof(float));
      wire::Offer offer;
      offer.kind = wire::TransferKind::kInit;
      offer.term = pull.term;
      offer.fragment = pull.fragment;
      offer.attempt = pull.attempt;
      offer.digest = xxh3_128(*zeros);
      send_transfer(offer, std::move(zeros));
    } else {
      draining_ = draining_ || pull.sweep != 0;
      pulls_[pull.fragment] = pull;
      answer_pulls();
    }
  }
  void answer_pulls() {
    for (auto at = pulls_.begin(); !holding_ && at != pulls_.end();) {
      const wire::Pull pull = at->second;
      Work& work = work_[pull.fragment];
      const bool has_base =
          held_[pull.fragment].here && held_[pull.fragment].version == pull.base_version;
      const bool stepped = local_step_ > work.steps_at_push;
      if (!has_base || (!stepped && pull.sweep == 0)) {
        ++at;
        continue;
      }
      at = pulls_.erase(at);
      push(pull, work, stepped);
    }
  }
  void push(const wire::Pull& pull, Work& work, bool stepped) {
    wire::Offer offer;
    offer.kind = wire::TransferKind::kPush;
    offer.term = pull.term;
    offer.fragment = pull.fragment;
    offer.base_version = pull.base_version;
    offer.codec = welcome_->push_codec;
    offer.round = pull.round;
    offer.attempt = pull.attempt;
    auto body = std::make_shared<const Bytes>();
    if (stepped) {
      offer.c_steps = local_step_ - work.steps_at_push;
      offer.c_tokens = tokens_ - work.tokens_at_push;
      offer.norm = 1.0;
      body = constant(options_.layout.fragments[pull.fragment].values);
      work = {local_step_, tokens_};
    }
    ++pushes_;
    pushed_tokens_ += offer.c_tokens;
    send_transfer(offer, std::move(body));
  }
  // What the bytes of a transfer stand for; null for a q4 image that cannot be applied.
  std::shared_ptr<Bytes> public_value(const wire::Offer& offer, std::shared_ptr<Bytes> bytes) {
    if (offer.kind != wire::TransferKind::kBroadcast || offer.codec != CodecId::kQ4) {
      return bytes;
    }
    const Held& base = held_[offer.fragment];
    const std::shared_ptr<Bytes> values = memory_.take(
        codec::encoded_bytes(CodecId::kBf16, options_.layout.fragments[offer.fragment].values));
    const bool applied = base.here && base.version == offer.base_version &&
                         codec::apply_q4(*bytes, *base.image, *values).has_value();
    return applied ? values : nullptr;
  }
  // Made once per size: a benchmark of the syncer must not measure this.
  std::shared_ptr<const Bytes> constant(std::uint64_t values) {
    std::shared_ptr<const Bytes>& kept = bodies_[values];
    if (kept != nullptr) {
      return kept;
    }
    const CodecId codec = welcome_->push_codec;
    Bytes body(codec::encoded_bytes(codec, values));
    const std::vector<float> delta(values, options_.delta);
    YETO_CHECK(codec::encode(codec, delta, body).has_value(), "a push cannot be encoded");
    return kept = std::make_shared<const Bytes>(std::move(body));
  }
  void send_transfer(const wire::Offer& offer, std::shared_ptr<const Bytes> body) {
    link_->send_transfer(++ticket_, offer, std::move(body));
  }
  void acknowledge_if_complete() {
    if (!final_ || finals_.size() != held_.size()) {
      return;
    }
    wire::FinalAck ack;
    ack.global_step = final_->global_step;
    ack.versions = final_->versions;
    for (const auto& [fragment, digest] : finals_) {
      ack.digests.push_back(digest);
    }
    link_->send(ack);
  }

  net::Loop& loop_;
  ScriptedOptions options_;
  MemoryPool memory_{4};
  SessionKey key_{};
  std::uint64_t incarnation_;
  wire::SessionToken session_{};
  std::unique_ptr<net::Connecting> connecting_;
  std::unique_ptr<FramedStream> control_;
  std::unique_ptr<Link> link_;
  std::vector<DataStream> data_;
  std::optional<wire::Welcome> welcome_;
  std::optional<wire::Refused> refused_;
  std::optional<std::string> closed_;
  std::optional<wire::Final> final_;
  bool said_goodbye_ = false;
  bool draining_ = false;
  bool holding_ = false;
  std::uint64_t sessions_ = 0;
  net::TimerId step_timer_ = 0;
  Nanos beat_at_ = 0;
  std::uint64_t local_step_ = 0;
  std::uint64_t tokens_ = 0;
  std::uint64_t ticket_ = 0;
  std::uint64_t pushes_ = 0;
  std::uint64_t pushed_tokens_ = 0;
  std::uint64_t bad_digests_ = 0;
  std::vector<Held> held_;
  std::vector<Work> work_;
  std::map<std::uint32_t, wire::Pull> pulls_;  // newest per fragment
  std::map<std::uint64_t, std::pair<wire::Offer, std::shared_ptr<Bytes>>> incoming_;
  std::map<std::uint32_t, Sha256> finals_;
  std::map<std::uint64_t, std::shared_ptr<const Bytes>> bodies_;  // by number of values
  std::map<std::pair<std::uint32_t, std::uint64_t>, wire::Digest16> digests_;
  std::vector<wire::Verdict> verdicts_;
  wire::SyncerBeat last_beat_;
};

}  // namespace yeto::sync
