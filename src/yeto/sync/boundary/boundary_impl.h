// SPDX-License-Identifier: Apache-2.0
// Boundary::Impl: the client under one mutex, between the trainer's thread, the I/O thread and the
// worker. boundary.cc and boundary_rows.cc have the trainer's calls, boundary_io.cc and
// boundary_worker.cc what the two inner threads do.
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
#include "yeto/sync/boundary/residuals.h"
#include "yeto/sync/client/client.h"
#include "yeto/sync/jobs/memory_pool.h"

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
  Result<RowRange> request_rows(std::uint64_t rows, std::uint64_t count);
  Result<FinalReport> finalize(FinalizeReason reason, Nanos timeout);
  void leave(wire::LeaveReason reason);
  void close();

 private:
  // A received body: first its bytes, then the values they say.
  struct Image {
    std::shared_ptr<Bytes> bytes;
    client::FlatValues values;
    std::uint32_t fragment = 0;
    std::uint64_t version = 0;
    wire::Digest16 digest{};
  };
  // What the next q4 image of a fragment changes, unless a newer one waits.
  struct Anchor {
    std::uint64_t version = 0;
    client::FlatValues values;
    wire::Digest16 digest{};
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
  Status do_one(const client::ResetFragment& work);
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
  client::FlatValues take_image(client::ImageId image);
  Anchor take_anchor(const client::Apply& apply);
  // Granted rows, none left (count 0), or nothing yet.
  Result<std::optional<RowRange>> rows_here(std::uint64_t rows, std::uint64_t count);
  void settle_here(client::Actions& actions);
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
  void send_metrics();

  // ---- worker's jobs, boundary_worker.cc
  client::FlatValues base_of(const client::CheckImage& order) YETO_REQUIRES(mutex_);
  void check_image(const client::CheckImage& order);
  Result<client::FlatValues> public_value(const client::CheckImage& order,
                                          const std::shared_ptr<Bytes>& bytes,
                                          const client::FlatValues& base) const;
  void verify_image(const client::CheckImage& order, const std::shared_ptr<Bytes>& bytes,
                    const client::FlatValues& base);
  void order_push(const client::TakePush& order, client::DeltaSource source);
  void encode_push(const client::TakePush& order, const client::DeltaSource& source,
                   const client::FlatValues& residual);
  static void delta_tile(const client::DeltaSource& source, std::uint64_t first,
                         std::span<float> delta);
  static bool encode_plain(const client::TakePush& order, const client::DeltaSource& source,
                           Bytes& body);
  bool encode_q4(const client::TakePush& order, const client::DeltaSource& source,
                 const client::FlatValues& residual, Bytes& body);
  void order_init(client::Ticket ticket, client::FlatValues snapshot);
  void encode_init(client::Ticket ticket, const client::FlatValues& snapshot);
  void keep_body(client::Ticket ticket, std::shared_ptr<const Bytes> body);
  void feed(client::Event event);
  void changed() YETO_REQUIRES(mutex_);

  const BoundaryOptions options_;
  const Layout layout_;
  const std::shared_ptr<const Bytes> layout_bytes_;

  const MemoryPool pool_;
  client::Residuals residuals_;

  // Trainer's thread only.
  client::FragmentValues values_;
  StepReport waited_;  // what was pushed and applied since the last step, while rows were awaited
  std::uint64_t seen_ = 0;
  std::optional<Nanos> paused_since_;

  net::Loop loop_;
  BoundedQueue<std::function<void()>> jobs_;
  client::Courier courier_;  // I/O thread only; the last user of loop_

  Mutex mutex_;
  ConditionVariable changed_;
  client::Client client_ YETO_GUARDED_BY(mutex_);
  std::map<client::ImageId, Image> images_ YETO_GUARDED_BY(mutex_);
  std::vector<Anchor> anchors_ YETO_GUARDED_BY(mutex_);  // per fragment
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
