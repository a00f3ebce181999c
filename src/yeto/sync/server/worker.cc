// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/server/worker.h"

#include <utility>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"

namespace yeto::sync {
namespace {

std::string in_words(const Error& error) {
  return error.where.empty() ? error.what : strf("{} ({})", error.what, error.where);
}

JobResult result_of(Event event, std::string trouble = {}) {
  JobResult result;
  result.event = std::move(event);
  result.trouble = std::move(trouble);
  return result;
}

}  // namespace

Worker::Worker(Jobs& jobs, std::function<void(JobResult)> deliver, TapePosition position)
    : jobs_(jobs),
      deliver_(std::move(deliver)),
      position_(std::move(position)),
      orders_(kMaxWaitingJobs),
      snapshots_(kMaxWaitingSnapshots) {
  thread_ = JoiningThread([this] {
    while (const std::optional<JobOrder> order = orders_.pop()) {
      carry_out(*order);
    }
  });
  writer_ = JoiningThread([this] {
    while (std::optional<Writing> writing = snapshots_.pop()) {
      write_checkpoint(std::move(*writing));
    }
  });
}

Worker::~Worker() { close(); }

void Worker::order(JobOrder order) { orders_.push(std::move(order)); }

void Worker::close() {
  while (orders_.try_pop()) {
  }
  orders_.close();
  while (snapshots_.try_pop()) {
  }
  snapshots_.close();
  thread_.join();
  writer_.join();
}

void Worker::carry_out(const JobOrder& order) {
  std::optional<JobResult> result =
      std::visit([this](const auto& job) { return std::optional<JobResult>(run(job)); }, order);
  if (result) {
    deliver_(std::move(*result));
  }
}

void Worker::write_checkpoint(Writing writing) {
  if (position_) {
    writing.snapshot.manifest.tape = position_();
  }
  const Status written = jobs_.write(std::move(writing.snapshot));
  deliver_(result_of(Checkpointed{writing.job, written.has_value(),
                                  written ? std::string() : in_words(written.error())}));
}

JobResult Worker::run(const LoadLayout& order) {
  Result<Layout> layout = jobs_.load_layout(order.buffer);
  if (!layout) {
    return result_of(LayoutLoaded{order.job, std::nullopt, in_words(layout.error())});
  }
  return result_of(LayoutLoaded{order.job, std::move(*layout), {}});
}

JobResult Worker::run(const LoadInit& order) {
  const std::shared_ptr<const Bytes> bytes = jobs_.image(order.buffer);
  if (bytes == nullptr || xxh3_128(*bytes) != order.digest) {
    return result_of(
        InitLoaded{order.job, false,
                   strf("fragment {}: the initial values do not have the digest that was announced",
                        order.fragment)});
  }
  const Status loaded = jobs_.load_init(order.fragment, order.buffer);
  return result_of(
      InitLoaded{order.job, loaded.has_value(), loaded ? std::string() : in_words(loaded.error())});
}

JobResult Worker::run(const InspectPush& order) {
  const Result<PushReport> report = jobs_.inspect(order.fragment, order.buffer);
  if (!report) {
    // The core drops a push that is not finite; one that cannot be read is as useless.
    return result_of(PushInspected{order.job, order.buffer, false, 0.0},
                     strf("push of fragment {}: {}", order.fragment, in_words(report.error())));
  }
  return result_of(PushInspected{order.job, order.buffer, report->finite, report->norm});
}

JobResult Worker::run(const Merge& order) {
  MergeReport report = jobs_.merge(order);
  JobResult result = result_of(Merged{order.job, report.ok, report.image, report.full});
  if (!report.ok) {
    result.trouble = strf("merge of fragment {} to version {}: {}", order.fragment, order.version,
                          report.reason);
  }
  result.fragment = order.fragment;
  result.version = order.version;
  result.weights = std::move(report.weights);
  return result;
}

JobResult Worker::run(const MakeImages& order) {
  Result<std::vector<Image>> images = jobs_.make_images(order.images);
  if (!images) {
    return result_of(ImagesMade{order.job, {}}, strf("images: {}", in_words(images.error())));
  }
  return result_of(ImagesMade{order.job, std::move(*images)});
}

std::optional<JobResult> Worker::run(const Checkpoint& order) {
  Result<Snapshot> snapshot = jobs_.snapshot(order.state);
  if (!snapshot) {
    return result_of(Checkpointed{order.job, false, in_words(snapshot.error())});
  }
  snapshots_.push({order.job, std::move(*snapshot)});
  return std::nullopt;
}

JobResult Worker::run(const MakeFinals& order) {
  Result<Finals> finals = jobs_.make_finals(order.images);
  if (!finals) {
    return result_of(FinalsMade{order.job, {}, {}},
                     strf("final values: {}", in_words(finals.error())));
  }
  return result_of(FinalsMade{order.job, std::move(finals->images), std::move(finals->digests)});
}

}  // namespace yeto::sync
