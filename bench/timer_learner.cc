// SPDX-License-Identifier: Apache-2.0
// A learner without a model: its step is a timer, its work a number of tokens, and its tensors a
// few thousand values that drift towards a target. It takes part in a run through sync/boundary
// until the run drains, and tells what happens to it in JSON lines on stdout:
//
//   {"event": "start", "t": …, "pid": …}        t: monotonic seconds of the machine
//   {"event": "ready", "t": …, "seat": …, "term": …, "global_step": …, "joined_late": …}
//   {"event": "step", "t": …, "steps": …, "tokens": …}
//   {"event": "link", "t": …, "connected": …}   when it changes
//   {"event": "live", "t": …, "seats": […]}     when it changes: who the syncer says is there
//   {"event": "final", "t": …, "digest": …, "tokens": …, "merged": …, "dropped": …,
//    "bytes_pushed": …, "bytes_received": …}    digest: SHA-256 of the final values
//
// usage: timer_learner --syncer=HOST:PORT --run-id=ID --seat=N --token-file=FILE [--step-ms=100]
//          [--tokens=1000] [--fragments=8] [--values=4096] [--streams=1] [--retry-ms=200]
// --values: of each tensor; there are as many tensors as fragments. --retry-ms: the first wait
// between two attempts to connect; the longest is ten times that.
// Exit codes: 0 the run drained, 1 the exchange cannot go on, 64 flags.
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/base/clock.h"
#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/base/result.h"
#include "yeto/base/rng.h"
#include "yeto/sync/boundary/boundary.h"

namespace yeto::bench {
namespace {

using sync::Boundary;
using sync::BoundaryOptions;
using sync::FinalizeReason;
using sync::FinalReport;
using sync::ReadyReport;
using sync::StepReport;
using sync::TensorView;

struct Flags {
  std::string syncer;
  std::string run_id;
  std::string token_file;
  std::uint32_t seat = 0;
  std::uint32_t step_ms = 100;
  std::uint32_t tokens = 1000;
  std::uint32_t fragments = 8;
  std::uint32_t values = 4096;
  std::uint32_t streams = 1;
  std::uint32_t retry_ms = 200;
};

// Nothing if a flag is unknown or its value is not a number.
std::optional<Flags> read_flags(int count, char** arguments) {
  Flags flags;
  const std::map<std::string_view, std::string*> texts = {{"--syncer", &flags.syncer},
                                                          {"--run-id", &flags.run_id},
                                                          {"--token-file", &flags.token_file}};
  const std::map<std::string_view, std::uint32_t*> numbers = {
      {"--seat", &flags.seat},         {"--step-ms", &flags.step_ms},
      {"--tokens", &flags.tokens},     {"--fragments", &flags.fragments},
      {"--values", &flags.values},     {"--streams", &flags.streams},
      {"--retry-ms", &flags.retry_ms},
  };
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    const std::size_t cut = argument.find('=');
    const std::string_view name = argument.substr(0, cut);
    const std::string_view value =
        cut == std::string_view::npos ? std::string_view{} : argument.substr(cut + 1);
    if (const auto text = texts.find(name); text != texts.end()) {
      *text->second = value;
    } else if (const auto number = numbers.find(name); number != numbers.end()) {
      const char* const end = value.data() + value.size();
      const auto [stop, error] = std::from_chars(value.data(), end, *number->second);
      if (error != std::errc{} || stop != end) {
        return std::nullopt;
      }
    } else {
      return std::nullopt;
    }
  }
  const bool complete = !flags.syncer.empty() && !flags.run_id.empty() &&
                        !flags.token_file.empty() && flags.step_ms > 0 && flags.fragments > 0 &&
                        flags.values > 0 && flags.retry_ms > 0;
  return complete ? std::optional(flags) : std::nullopt;
}

// Each line goes out at once: the process may be killed at any moment.
void tell(std::string_view event, const std::string& fields) {
  std::puts(
      strf("{{\"event\": \"{}\", \"t\": {:.6f}, {}}}", event, seconds(monotonic_now()), fields)
          .c_str());
  std::fflush(stdout);
}

std::string list_text(const std::vector<std::uint32_t>& numbers) {
  std::string out;
  for (const std::uint32_t number : numbers) {
    out += strf("{}{}", out.empty() ? "" : ", ", number);
  }
  return "[" + out + "]";
}

class TimerLearner {
 public:
  explicit TimerLearner(const Flags& flags)
      : flags_(flags), rng_(1 + flags.seat), tensors_(flags.fragments) {
    for (auto& tensor : tensors_) {
      tensor.assign(flags.values, 0.0F);
    }
  }

  Status run() {
    tell("start", strf("\"pid\": {}", ::getpid()));
    YETO_ASSIGN(boundary_, Boundary::open(options(), views()));
    YETO_ASSIGN(const ReadyReport ready, boundary_->wait_ready(0));
    tell("ready", strf("\"seat\": {}, \"term\": {}, \"global_step\": {}, \"joined_late\": {}",
                       ready.seat, ready.term, ready.global_step, ready.joined_late));
    YETO_TRY(train());
    YETO_ASSIGN(const FinalReport final, boundary_->finalize(FinalizeReason::kDrain, 0));
    tell("final", strf("\"digest\": \"{}\", \"tokens\": {}, \"merged\": {}, \"dropped\": {}, "
                       "\"bytes_pushed\": {}, \"bytes_received\": {}",
                       hex(digest()), tokens_, last_.merged, last_.dropped, last_.bytes_pushed,
                       last_.bytes_received));
    return Unit{};
  }

 private:
  BoundaryOptions options() const {
    BoundaryOptions out;
    out.syncer = flags_.syncer;
    out.run_id = flags_.run_id;
    out.seat = flags_.seat;
    out.token_file = flags_.token_file;
    out.layout.fragments = flags_.fragments;
    out.streams = static_cast<std::uint16_t>(flags_.streams);
    out.device = "timer";
    out.retry_first = from_millis(flags_.retry_ms);
    out.retry_most = 10 * out.retry_first;
    return out;
  }

  std::vector<TensorView> views() {
    std::vector<TensorView> out;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      out.push_back({strf("layers.{}.weight", i), {tensors_[i].size()}, tensors_[i]});
    }
    return out;
  }

  Status train() {
    const Nanos step = from_millis(flags_.step_ms);
    Nanos due = monotonic_now() + step;
    for (std::uint64_t steps = 1;; ++steps) {
      if (const Nanos now = monotonic_now(); now < due) {
        std::this_thread::sleep_for(std::chrono::nanoseconds(due - now));
      }
      // A step that comes late is made up for, but not the time in which the process stood still.
      due = monotonic_now() - due > step ? monotonic_now() + step : due + step;
      learn();
      tokens_ += flags_.tokens;
      YETO_ASSIGN(StepReport report, boundary_->step(flags_.tokens));
      tell("step", strf("\"steps\": {}, \"tokens\": {}", steps, tokens_));
      tell_changes(report);
      last_ = std::move(report);
      if (last_.draining) {
        return Unit{};
      }
    }
  }

  // A step of noisy gradient descent towards 1, so that deltas of islands agree and differ.
  void learn() {
    for (auto& tensor : tensors_) {
      for (float& value : tensor) {
        value += 0.01F * (1.0F - value) + 0.001F * static_cast<float>(rng_.uniform() - 0.5);
      }
    }
  }

  void tell_changes(const StepReport& report) const {
    if (report.connected != last_.connected) {
      tell("link", strf("\"connected\": {}", report.connected));
    }
    if (report.live != last_.live) {
      tell("live", strf("\"seats\": {}", list_text(report.live)));
    }
  }

  Sha256 digest() const {
    Sha256Stream stream;
    for (const auto& tensor : tensors_) {
      stream.update(as_bytes_view(std::span<const float>(tensor)));
    }
    return stream.finish();
  }

  const Flags flags_;
  Rng rng_;
  std::vector<std::vector<float>> tensors_;
  std::unique_ptr<Boundary> boundary_;
  StepReport last_;
  std::uint64_t tokens_ = 0;
};

}  // namespace
}  // namespace yeto::bench

int main(int count, char** arguments) {
  const auto flags = yeto::bench::read_flags(count, arguments);
  if (!flags) {
    std::fputs(
        "timer_learner: unknown flag, bad value, or one of --syncer --run-id --token-file "
        "is missing; the head of bench/timer_learner.cc has them\n",
        stderr);
    return 64;
  }
  if (const auto done = yeto::bench::TimerLearner(*flags).run(); !done) {
    std::fputs(done.error().text().c_str(), stderr);
    return 1;
  }
  return 0;
}
