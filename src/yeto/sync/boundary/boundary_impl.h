// SPDX-License-Identifier: Apache-2.0
// Boundary::Impl: the client under one mutex, between the trainer's thread, the I/O thread and the
// worker. boundary.cc has the trainer's calls, boundary_io.cc what the two inner threads do.
//
// Lock order: only mutex_; no callback, no courier call and no job runs under it.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "yeto/base/queue.h"
#include "yeto/base/thread.h"
#include "yeto/net/loop.h"
#include "yeto/sync/boundary/boundary.h"
#include "yeto/sync/boundary/courier.h"
#include "yeto/sync/boundary/fragment_values.h"
#include "yeto/sync/client/client.h"

namespace yeto::sync {

// What open() has made of the options.
struct BoundaryParts {
  BoundaryOptions options;
  Layout layout;
  client::ClientOptions client;
  client::CourierOptions courier;
};

class Boundary::Impl final : public client::CourierOwner {
 public:
  Impl(BoundaryParts parts, std::vector<TensorView> tensors);
  ~Impl() override;

  const Layout& layout() const { return layout_; }
  Result<ReadyReport> wait_ready(Nanos timeout);
  Result<StepReport> step(std::uint64_t tokens);
  void set_phase(wire::Phase phase);
  Status metric(std::string_view text);
  Result<FinalReport> finalize(FinalizeReason reason, Nanos timeout);
  void leave(wire::LeaveReason reason);
  void close();

 private:
  // A received body: first its bytes, then what they decode to.
  struct Image {
    std::shared_ptr<Bytes> bytes;
    client::Values values;
  };
  // A wait of the trainer's thread.
  struct Wait {
    Nanos deadline = 0;  // 0: none
    const char* what = "";
    bool gives_up_alone = false;
  };

  // ---- trainer's thread, boundary.cc
  Status usable();
  // What is due now. `report` may be null. Remembers what it has seen for rest().
  Status turn(StepReport* report);
  Status do_value_work(const client::Actions& work, StepReport* report);
  Status do_one(const client::TakePush& work, StepReport* report);
  Status do_one(const client::TakeInit& work);
  Status do_one(const client::Apply& work, StepReport* report);
  Status apply_final(const client::ApplyFinal& work);
  Status check_final(const std::vector<wire::Digest32>& own);
  Status call(const TensorCallback& callback, const std::set<std::uint32_t>& tensors);
  // Waits until something has changed since the last turn, at most 100 ms.
  Status rest(const Wait& wait);
  Status wait_at_boundary(StepReport* report);
  bool must_wait();
  void begin_pause();
  void end_pause();
  bool alone_too_long() YETO_REQUIRES(mutex_);
  Error unreachable(const char* what) YETO_REQUIRES(mutex_);
  void fill(StepReport& report) YETO_REQUIRES(mutex_);
  std::vector<std::uint32_t> live_seats() YETO_REQUIRES(mutex_);
  Result<std::optional<FinalReport>> final_report();
  client::Values take_image(client::ImageId image);
  void post(client::Actions actions);

  // ---- I/O thread, boundary_io.cc
  wire::Hello hello() override;
  wire::LearnerBeat beat() override;
  void on_event(const client::Event& event) override;
  void on_attempt_failed(const Error& why) override;
  void on_refused(const Error& why) override;
  std::shared_ptr<Bytes> new_image(client::ImageId image, std::uint64_t bytes) override;
  std::shared_ptr<const Bytes> take_body(client::Ticket ticket) override;
  std::shared_ptr<const Bytes> layout_body() override { return layout_bytes_; }
  std::string layout_difference(const std::vector<std::array<std::uint8_t, 8>>& tensors) override;
  void note(const client::Event& event) YETO_REQUIRES(mutex_);
  void carry(const client::Action& action);
  void check_image(const client::CheckImage& order);
  void send_metrics();

  // ---- worker's jobs, boundary_io.cc
  void order_push(client::Ticket ticket, std::uint32_t fragment, CodecId codec,
                  client::DeltaSource source);
  void order_init(client::Ticket ticket, client::Values snapshot);
  void encode_push(client::Ticket ticket, std::uint32_t fragment, CodecId codec,
                   const client::DeltaSource& source);
  void encode_init(client::Ticket ticket, const client::Values& snapshot);
  void verify_image(const client::CheckImage& order, const Bytes& bytes);
  void keep_body(client::Ticket ticket, Bytes body);
  void feed(client::Event event);
  void changed() YETO_REQUIRES(mutex_);

  const BoundaryOptions options_;
  const Layout layout_;
  const std::shared_ptr<const Bytes> layout_bytes_;

  // Trainer's thread only.
  client::FragmentValues values_;
  std::uint64_t seen_ = 0;
  std::optional<Nanos> paused_since_;

  net::Loop loop_;
  BoundedQueue<std::function<void()>> jobs_;
  client::Courier courier_;  // I/O thread only; the last user of loop_

  Mutex mutex_;
  ConditionVariable changed_;
  client::Client client_ YETO_GUARDED_BY(mutex_);
  std::map<client::ImageId, Image> images_ YETO_GUARDED_BY(mutex_);
  std::map<client::Ticket, std::shared_ptr<const Bytes>> bodies_ YETO_GUARDED_BY(mutex_);
  std::deque<std::string> metrics_ YETO_GUARDED_BY(mutex_);
  std::uint64_t metrics_lost_ YETO_GUARDED_BY(mutex_) = 0;
  std::uint64_t changes_ YETO_GUARDED_BY(mutex_) = 0;
  std::uint64_t session_ YETO_GUARDED_BY(mutex_) = 0;  // counts sessions
  std::optional<Nanos> alone_since_ YETO_GUARDED_BY(mutex_);
  std::uint32_t failed_attempts_ YETO_GUARDED_BY(mutex_) = 0;  // since the last session
  std::string last_trouble_ YETO_GUARDED_BY(mutex_);
  std::optional<Error> refused_ YETO_GUARDED_BY(mutex_);
  std::optional<Error> failed_ YETO_GUARDED_BY(mutex_);  // a call of the trainer broke off
  std::optional<FinalReport> final_ YETO_GUARDED_BY(mutex_);
  bool closed_ YETO_GUARDED_BY(mutex_) = false;   // no call of the trainer goes on
  bool joining_ YETO_GUARDED_BY(mutex_) = false;  // the threads are being ended

  JoiningThread io_thread_;
  JoiningThread worker_thread_;
};

}  // namespace yeto::sync
