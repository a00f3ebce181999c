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

JobResult not_checkpointed(JobId job, const Error& error) {
  return result_of(Checkpointed{job, false, in_words(error)});
}

JobResult written(JobId job, const Status& status) {
  return status ? result_of(Checkpointed{job, true, {}}) : not_checkpointed(job, status.error());
}

JobResult run(Jobs& jobs, const LoadLayout& order) {
  Result<Layout> layout = jobs.load_layout(order.buffer);
  if (!layout) {
    return result_of(LayoutLoaded{order.job, std::nullopt, in_words(layout.error())});
  }
  return result_of(LayoutLoaded{order.job, std::move(*layout), {}});
}

JobResult run(Jobs& jobs, const LoadInit& order) {
  const std::shared_ptr<const Bytes> bytes = jobs.image(order.buffer);
  if (bytes == nullptr || xxh3_128(*bytes) != order.digest) {
    return result_of(
        InitLoaded{order.job, false,
                   strf("fragment {}: the initial values do not have the digest that was announced",
                        order.fragment)});
  }
  const Status loaded = jobs.load_init(order.fragment, order.buffer);
  return result_of(
      InitLoaded{order.job, loaded.has_value(), loaded ? std::string() : in_words(loaded.error())});
}

JobResult run(Jobs& jobs, const InspectPush& order) {
  const Result<PushReport> report = jobs.inspect(order.fragment, order.buffer);
  if (!report) {
    // The core drops a push that is not finite; one that cannot be read is as useless.
    return result_of(PushInspected{order.job, order.buffer, false, 0.0},
                     strf("push of fragment {}: {}", order.fragment, in_words(report.error())));
  }
  return result_of(PushInspected{order.job, order.buffer, report->finite, report->norm});
}

JobResult run(Jobs& jobs, const Merge& order) {
  MergeReport report = jobs.merge(order);
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

JobResult run(Jobs& jobs, const MakeImages& order) {
  Result<std::vector<Image>> images = jobs.make_images(order.images);
  if (!images) {
    return result_of(ImagesMade{order.job, {}}, strf("images: {}", in_words(images.error())));
  }
  return result_of(ImagesMade{order.job, std::move(*images)});
}

JobResult run(Jobs& jobs, const Checkpoint& order) {
  Result<Snapshot> snapshot = jobs.snapshot(order.state);
  if (!snapshot) {
    return not_checkpointed(order.job, snapshot.error());
  }
  return written(order.job, jobs.write(std::move(*snapshot)));
}

JobResult run(Jobs& jobs, const MakeFinals& order) {
  Result<Finals> finals = jobs.make_finals(order.images);
  if (!finals) {
    return result_of(FinalsMade{order.job, {}, {}},
                     strf("final values: {}", in_words(finals.error())));
  }
  return result_of(FinalsMade{order.job, std::move(finals->images), std::move(finals->digests)});
}

}  // namespace

JobResult carry_out(Jobs& jobs, const JobOrder& order) {
  return std::visit([&](const auto& job) { return run(jobs, job); }, order);
}

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
  if (const auto* checkpoint = std::get_if<Checkpoint>(&order)) {
    take_snapshot(*checkpoint);
  } else {
    deliver_(sync::carry_out(jobs_, order));
  }
}

void Worker::take_snapshot(const Checkpoint& order) {
  Result<Snapshot> snapshot = jobs_.snapshot(order.state);
  if (snapshot) {
    snapshots_.push({order.job, std::move(*snapshot)});
  } else {
    deliver_(not_checkpointed(order.job, snapshot.error()));
  }
}

void Worker::write_checkpoint(Writing writing) {
  if (position_) {
    writing.snapshot.manifest.tape = position_();
  }
  deliver_(written(writing.job, jobs_.write(std::move(writing.snapshot))));
}

}  // namespace yeto::sync
