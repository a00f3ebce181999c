// SPDX-License-Identifier: Apache-2.0
// StatusPages: /healthz, /status and /metrics of a syncer over HTTP. They show the newest snapshot
// the loop has given, so a stalled loop is seen as such and is never waited for.
//
//   /healthz  200 {"ok":true,…} while the loop has come round within the watchdog's limit, else 503
//   /status   the status file's JSON
//   /metrics  Prometheus text (metrics_text.h)
//
// update() may be called from any thread. `watchdog` must outlive the pages.
#pragma once

#include <memory>
#include <string>

#include "yeto/base/thread.h"
#include "yeto/net/http_server.h"
#include "yeto/sync/server/metrics_text.h"
#include "yeto/sync/server/watchdog.h"

namespace yeto::sync {

class StatusPages {
 public:
  // Errors as HttpServer::open.
  static Result<std::unique_ptr<StatusPages>> open(const net::Address& address,
                                                   const Watchdog& watchdog);
  StatusPages(const StatusPages&) = delete;
  StatusPages& operator=(const StatusPages&) = delete;

  net::Address address() const { return http_->address(); }
  // `json` is the text of the status file.
  void update(std::string json, MetricsRecord record);

 private:
  explicit StatusPages(const Watchdog& watchdog) : watchdog_(watchdog) {}
  net::HttpResponse answer(const net::HttpRequest& request) const;
  net::HttpResponse health() const;

  const Watchdog& watchdog_;
  mutable Mutex mutex_;
  std::string json_ YETO_GUARDED_BY(mutex_);
  std::shared_ptr<const MetricsRecord> record_ YETO_GUARDED_BY(mutex_);
  std::unique_ptr<net::HttpServer> http_;  // ends first: its thread reads the rest
};

}  // namespace yeto::sync
