// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/server/metrics_text.h"

#include <cmath>
#include <map>
#include <string_view>

#include "yeto/base/format.h"

namespace yeto::sync {
namespace {

std::string label_value(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') {
      out += '\\';
    }
    out += c == '\n' ? std::string_view("\\n") : std::string_view(&c, 1);
  }
  return out;
}

class Page {
 public:
  void family(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    out_ += strf("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  // Exact as long as the number is: tokens and bytes go beyond what a float shows.
  void sample(std::uint64_t value, std::string_view labels = {}) {
    line(strf("{}", value), labels);
  }
  void sample(double value, std::string_view labels = {}) {
    if (std::isfinite(value)) {
      line(strf("{:g}", value), labels);
    }
  }
  void counter(std::string_view name, std::string_view help, std::uint64_t value) {
    family(name, "counter", help);
    sample(value);
  }
  template <class T>
  void gauge(std::string_view name, std::string_view help, T value) {
    family(name, "gauge", help);
    sample(value);
  }
  std::string take() { return std::move(out_); }

 private:
  void line(const std::string& value, std::string_view labels) {
    out_ += labels.empty() ? strf("{} {}\n", name_, value)
                           : strf("{}{{{}}} {}\n", name_, labels, value);
  }
  std::string out_;
  std::string name_;
};

void write_run(Page& page, const StatusRecord& status) {
  const CoreStatus& core = status.core;
  page.family("yeto_run_info", "gauge", "The run that this syncer serves; always 1.");
  page.sample(std::uint64_t{1}, strf("run_id=\"{}\",phase=\"{}\"", label_value(status.run_id),
                                     phase_name(core.phase)));
  page.counter("yeto_syncer_terms_total", "Lives of the run's syncer, this one included.",
               core.term);
  page.counter("yeto_run_rounds_total", "Rounds committed: the global step.", core.global_step);
  page.counter("yeto_run_durable_rounds_total", "Rounds that are durable in the checkpoint.",
               core.durable_step);
  if (core.total_steps) {
    page.gauge("yeto_run_planned_rounds", "Rounds after which the run ends.", *core.total_steps);
  }
  page.counter("yeto_run_tokens_total", "Tokens trained by all seats.", core.run_tokens);
  page.gauge("yeto_run_trouble_count", "1 while there is trouble that did not end the run, else 0.",
             static_cast<std::uint64_t>(!status.error.empty() || !core.error.empty()));
  page.counter("yeto_ledger_pushed_fragment_tokens_total", "Fragment-tokens pushed.",
               core.ledger.pushed);
  page.counter("yeto_ledger_merged_fragment_tokens_total", "Fragment-tokens merged.",
               core.ledger.merged);
  page.counter("yeto_ledger_dropped_fragment_tokens_total", "Fragment-tokens dropped.",
               core.ledger.dropped);
  page.gauge("yeto_ledger_waiting_fragment_tokens", "Fragment-tokens carried or in flight.",
             core.ledger.waiting);
  page.gauge("yeto_run_carried_pushes", "Late pushes that wait for a merge.", core.carried_pushes);
}

void write_fragments(Page& page, const StatusRecord& status) {
  page.family("yeto_fragment_commits_total", "counter", "Merges of the fragment: its version.");
  for (std::size_t i = 0; i < status.core.versions.size(); ++i) {
    page.sample(status.core.versions[i], strf("fragment=\"{}\"", i));
  }
  page.family("yeto_fragment_size_values", "gauge", "Values of the fragment.");
  for (std::size_t i = 0; i < status.fragment_values.size(); ++i) {
    page.sample(status.fragment_values[i], strf("fragment=\"{}\"", i));
  }
}

// One family with a sample per seat; a sample is left out where `value` gives nothing.
template <class Value>
void write_seats(Page& page, const std::vector<SeatStatus>& seats, std::string_view name,
                 std::string_view type, std::string_view help, const Value& value) {
  page.family(name, type, help);
  for (const SeatStatus& seat : seats) {
    if (const auto known = value(seat)) {
      page.sample(*known, strf("seat=\"{}\"", seat.seat));
    }
  }
}

void write_seat_counters(Page& page, const std::vector<SeatStatus>& seats) {
  struct Row {
    std::string_view name;
    std::string_view help;
    std::uint64_t SeatStatus::* field;
  };
  static constexpr Row kRows[] = {
      {"yeto_seat_tokens_total", "Tokens trained by the seat.", &SeatStatus::tokens},
      {"yeto_seat_local_steps_total", "Steps of the seat's present process.",
       &SeatStatus::local_step},
      {"yeto_seat_pushes_total", "Pushes received from the seat.", &SeatStatus::pushes},
      {"yeto_seat_merged_pushes_total", "Of them merged.", &SeatStatus::merged},
      {"yeto_seat_carried_pushes_total", "Of them late and carried.", &SeatStatus::carried},
      {"yeto_seat_dropped_pushes_total", "Of them dropped.", &SeatStatus::dropped},
      {"yeto_seat_pushed_bytes_total", "Bytes of the seat's pushes.", &SeatStatus::bytes_pushed},
      {"yeto_seat_received_bytes_total", "Bytes of broadcasts the seat received.",
       &SeatStatus::bytes_received},
  };
  for (const Row& row : kRows) {
    write_seats(page, seats, row.name, "counter", row.help,
                [&](const SeatStatus& seat) { return std::optional(seat.*row.field); });
  }
}

void write_seat_gauges(Page& page, const std::vector<SeatStatus>& seats) {
  std::map<std::string, std::uint64_t> states;
  for (const SeatStatus& seat : seats) {
    ++states[seat.state];
  }
  page.family("yeto_run_seats", "gauge", "Seats by state.");
  for (const auto& [state, count] : states) {
    page.sample(count, strf("state=\"{}\"", label_value(state)));
  }
  write_seats(page, seats, "yeto_seat_step_time_seconds", "gauge",
              "Time of a step, waits excluded, smoothed.",
              [](const SeatStatus& seat) { return seat.step_time_s; });
  write_seats(page, seats, "yeto_seat_heartbeat_age_seconds", "gauge",
              "Since the seat was last heard.",
              [](const SeatStatus& seat) { return seat.heartbeat_age_s; });
  write_seats(page, seats, "yeto_seat_participation_ratio", "gauge",
              "Rounds answered of the rounds that asked the seat.",
              [](const SeatStatus& seat) { return seat.participation; });
  write_seats(page, seats, "yeto_seat_lag_versions", "gauge",
              "How far the seat's oldest fragment is behind.",
              [](const SeatStatus& seat) { return seat.version_lag; });
}

void write_process(Page& page, const MetricsRecord& record) {
  page.counter("yeto_door_connections_total", "Connections accepted.", record.door.accepted);
  page.counter("yeto_door_refused_connections_total", "Connections turned away.",
               record.door.turned_away);
  page.gauge("yeto_door_waiting_connections", "Connections not admitted yet.",
             static_cast<std::uint64_t>(record.door.unadmitted));
  page.gauge("yeto_syncer_buffer_bytes", "Buffers of pushes and images.", record.memory_bytes);
  page.gauge("yeto_syncer_budget_used_bytes", "Of --max-buffer, in use.",
             record.status.core.buffer_bytes);
  if (record.status.core.effective) {
    page.gauge("yeto_syncer_budget_bytes", "--max-buffer as it works out.",
               record.status.core.effective->max_buffer);
  }
  page.gauge("yeto_syncer_loop_silence_seconds", "Since the syncer's loop last came round.",
             record.loop_silence_s);
}

}  // namespace

std::string metrics_text(const MetricsRecord& record) {
  Page page;
  write_run(page, record.status);
  write_fragments(page, record.status);
  write_seat_counters(page, record.status.core.seats);
  write_seat_gauges(page, record.status.core.seats);
  write_process(page, record);
  return page.take();
}

}  // namespace yeto::sync
