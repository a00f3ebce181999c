// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/server/status_pages.h"

#include <utility>

#include "yeto/base/format.h"

namespace yeto::sync {
namespace {

constexpr const char* kJsonType = "application/json";

}  // namespace

Result<std::unique_ptr<StatusPages>> StatusPages::open(const net::Address& address,
                                                       const Watchdog& watchdog) {
  std::unique_ptr<StatusPages> pages(new StatusPages(watchdog));
  YETO_ASSIGN(pages->http_,
              net::HttpServer::open(address, [self = pages.get()](const net::HttpRequest& request) {
                return self->answer(request);
              }));
  return pages;
}

void StatusPages::update(std::string json, MetricsRecord record) {
  auto shared = std::make_shared<const MetricsRecord>(std::move(record));
  MutexLock lock(mutex_);
  json_ = std::move(json);
  record_ = std::move(shared);
}

net::HttpResponse StatusPages::answer(const net::HttpRequest& request) const {
  if (request.path == "/healthz") {
    return health();
  }
  if (request.path != "/status" && request.path != "/metrics") {
    return {404, "text/plain; charset=utf-8", "pages: /healthz, /status, /metrics\n"};
  }
  std::string json;
  std::shared_ptr<const MetricsRecord> record;
  {
    MutexLock lock(mutex_);
    json = json_;
    record = record_;
  }
  if (!record) {
    return {503, "text/plain; charset=utf-8", "the syncer is starting\n"};
  }
  if (request.path == "/status") {
    return {200, kJsonType, json + "\n"};
  }
  MetricsRecord now = *record;
  now.loop_silence_s = seconds(watchdog_.silence());
  return {200, kMetricsType, metrics_text(now)};
}

net::HttpResponse StatusPages::health() const {
  const Nanos silence = watchdog_.silence();
  const bool ok = silence < watchdog_.limit();
  return {ok ? 200 : 503, kJsonType,
          strf("{{\"ok\":{},\"loop_silence_s\":{:.3f},\"limit_s\":{:g}}}\n", ok, seconds(silence),
               seconds(watchdog_.limit()))};
}

}  // namespace yeto::sync
