// SPDX-License-Identifier: Apache-2.0
// include/yeto.h over Boundary. No exception leaves a function of it.
#include <yeto.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "yeto/base/format.h"
#include "yeto/sync/boundary/boundary.h"
#include "yeto/sync/boundary/row_source.h"

struct yeto_boundary {
  std::unique_ptr<yeto::sync::Boundary> boundary;
  yeto::sync::StepReport report;  // of the last step
  bool callback_failed = false;   // in the call of the trainer in progress
};

namespace {

using yeto::Error;
using yeto::ErrorCode;
using yeto::fail;
using yeto::Nanos;
using yeto::Result;
using yeto::Status;
using yeto::strf;
using yeto::Unit;
namespace sync = yeto::sync;

constexpr double kMostSeconds = 1e9;

thread_local std::string last_error;

// Where the members of version 1 end.
constexpr std::size_t kOptionsV1 = sizeof(yeto_options);
constexpr std::size_t kReadyV1 = sizeof(yeto_ready);
constexpr std::size_t kReportV1 = sizeof(yeto_report);
constexpr std::size_t kRowsV1 = sizeof(yeto_rows);
constexpr std::size_t kFinalV1 = sizeof(yeto_final);

yeto_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
    case ErrorCode::kType:
    case ErrorCode::kConflict:
    case ErrorCode::kFlagUnknown:
    case ErrorCode::kNotInBuild:
      return YETO_ERROR_USAGE;
    case ErrorCode::kRange:
      return YETO_ERROR_RANGE;
    case ErrorCode::kModel:
      return YETO_ERROR_TENSOR;
    case ErrorCode::kData:
    case ErrorCode::kConfig:
      return YETO_ERROR_DATA;
    case ErrorCode::kNotFound:
      return YETO_ERROR_NOT_FOUND;
    case ErrorCode::kPermission:
      return YETO_ERROR_CREDENTIALS;
    case ErrorCode::kRefused:
      return YETO_ERROR_REFUSED;
    case ErrorCode::kClosed:
      return YETO_ERROR_CLOSED;
    case ErrorCode::kUnreachable:
      return YETO_ERROR_UNREACHABLE;
    case ErrorCode::kTimeout:
      return YETO_ERROR_TIMEOUT;
    case ErrorCode::kDamaged:
      return YETO_ERROR_DAMAGED;
    case ErrorCode::kIo:
      return YETO_ERROR_IO;
    default:
      return YETO_ERROR_INTERNAL;
  }
}

yeto_status report_error(const Error& error) {
  last_error = error.text();
  last_error.erase(last_error.find_last_not_of('\n') + 1);
  return status_of(error.code);
}

// Runs the body of a function: its error or exception becomes a status and a text.
template <class Body>
yeto_status guarded(Body&& body) noexcept {
  try {
    last_error.clear();
    const Status done = body();
    return done ? YETO_OK : report_error(done.error());
  } catch (const std::exception& error) {
    try {
      return report_error(Error{ErrorCode::kInternal, error.what(), {}, {}});
    } catch (...) {
      return YETO_ERROR_INTERNAL;  // no memory for the text
    }
  } catch (...) {
    return YETO_ERROR_INTERNAL;
  }
}

// The same for a call of the trainer, in which callbacks may fail.
template <class Body>
yeto_status guarded_call(yeto_boundary* handle, Body&& body) noexcept {
  if (handle != nullptr) {
    handle->callback_failed = false;
  }
  const yeto_status status = guarded([&]() -> Status {
    if (handle == nullptr) {
      return fail(ErrorCode::kUsage, "the boundary is NULL");
    }
    return body(*handle->boundary);
  });
  return handle != nullptr && handle->callback_failed ? YETO_ERROR_CALLBACK : status;
}

Result<Nanos> nanos_of(double value, const char* name) {
  if (!(value >= 0.0 && value <= kMostSeconds)) {
    return fail(ErrorCode::kRange,
                strf("{} = {}: 0 to {} seconds are allowed", name, value, kMostSeconds));
  }
  return yeto::from_seconds(value);
}

// Copies as much of `from` as the caller's struct has room for; keeps its struct_size.
template <class T>
Status give(T from, T* to, std::size_t least) {
  if (to == nullptr) {
    return Unit{};
  }
  if (to->struct_size < least) {
    return fail(ErrorCode::kUsage,
                strf("struct_size is {}, at least {} is needed", to->struct_size, least), {},
                "set struct_size to sizeof the struct before the call");
  }
  from.struct_size = to->struct_size;
  std::memcpy(to, &from, std::min(to->struct_size, sizeof(T)));
  return Unit{};
}

// Before a call that cannot be taken back.
template <class T>
Status check_size(const T* to, std::size_t least) {
  T none{};
  if (to == nullptr) {
    return Unit{};
  }
  none.struct_size = to->struct_size;
  return give(none, &none, least);
}

template <class T>
std::size_t copy_out(const std::vector<T>& from, T* out, std::size_t capacity) {
  if (out != nullptr) {
    std::copy_n(from.begin(), std::min(capacity, from.size()), out);
  }
  return from.size();
}

std::string text_of(const char* text) { return text == nullptr ? std::string() : text; }

// ---- options
// -------------------------------------------------------------------------------------

sync::TensorCallback callback_of(yeto_boundary* handle, yeto_tensor_callback function, void* user,
                                 const char* name) {
  if (function == nullptr) {
    return {};
  }
  return [=](std::span<const std::uint32_t> tensors) -> Status {
    const int result = function(user, tensors.data(), tensors.size());
    if (result != 0) {
      handle->callback_failed = true;
      return fail(ErrorCode::kInternal, strf("the callback {} returned {}", name, result));
    }
    return Unit{};
  };
}

Status check_enums(const yeto_options& options) {
  if (options.pattern != YETO_PATTERN_BINPACK && options.pattern != YETO_PATTERN_STRIDED) {
    return fail(ErrorCode::kRange, strf("pattern {}", static_cast<int>(options.pattern)));
  }
  if (options.matrix_merge != YETO_MERGE_RDA && options.matrix_merge != YETO_MERGE_AVG) {
    return fail(ErrorCode::kRange, strf("matrix_merge {}", static_cast<int>(options.matrix_merge)));
  }
  if (options.seat < -1 || options.seat > std::numeric_limits<std::uint32_t>::max()) {
    return fail(ErrorCode::kRange, strf("seat {}", options.seat));
  }
  if (options.streams > 64) {
    return fail(ErrorCode::kRange, strf("{} data streams; 0 to 64 are allowed", options.streams));
  }
  return Unit{};
}

Result<sync::BoundaryOptions> options_of(const yeto_options& from, yeto_boundary* handle) {
  YETO_TRY(check_enums(from));
  sync::BoundaryOptions to;
  to.syncer = text_of(from.syncer);
  to.run_id = text_of(from.run_id);
  to.token_file = text_of(from.token_file);
  to.tls = {text_of(from.tls_cert), text_of(from.tls_key), text_of(from.tls_ca)};
  to.insecure = from.insecure != 0;
  if (from.seat >= 0) {
    to.seat = static_cast<std::uint32_t>(from.seat);
  }
  to.layout.fragments = from.fragments;
  to.layout.pattern = from.pattern == YETO_PATTERN_BINPACK ? yeto::FragmentPattern::kBinpack
                                                           : yeto::FragmentPattern::kStrided;
  to.layout.matrix_merge =
      from.matrix_merge == YETO_MERGE_RDA ? yeto::MergeMode::kRda : yeto::MergeMode::kAvg;
  if (from.contract_count > 0 && from.contract == nullptr) {
    return fail(ErrorCode::kUsage, "the contract is NULL");
  }
  for (std::size_t i = 0; i < from.contract_count; ++i) {
    to.contract.emplace_back(text_of(from.contract[i].name), text_of(from.contract[i].text));
  }
  to.streams = static_cast<std::uint16_t>(from.streams);
  YETO_ASSIGN(to.max_alone, nanos_of(from.max_alone_s, "max_alone_s"));
  to.device = text_of(from.device_text);
  to.before_read = callback_of(handle, from.before_read, from.user, "before_read");
  to.after_write = callback_of(handle, from.after_write, from.user, "after_write");
  if (from.keep_waiting != nullptr) {
    to.keep_waiting = [ask = from.keep_waiting, user = from.user] { return ask(user) != 0; };
  }
  return to;
}

// A C caller may hand over any number; as an enumeration it must not be read before it is judged.
template <class Enum>
int number_of(const Enum& value) {
  int number = 0;
  static_assert(sizeof number == sizeof value);
  std::memcpy(&number, &value, sizeof number);
  return number;
}

Result<sync::TensorView> view_of(const yeto_tensor& tensor) {
  sync::TensorView view;
  view.name = text_of(tensor.name);
  if (number_of(tensor.dtype) != YETO_F32) {
    return fail(ErrorCode::kModel,
                strf("tensor {}: dtype {}, YETO_F32 is needed", view.name, number_of(tensor.dtype)),
                {}, "give f32 mirrors and the callbacks before_read and after_write");
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr) {
    return fail(ErrorCode::kModel, strf("tensor {}: its shape is NULL", view.name));
  }
  std::uint64_t values = 1;
  for (std::size_t i = 0; i < tensor.ndim; ++i) {
    view.shape.push_back(tensor.shape[i]);
    if (tensor.shape[i] != 0 && values > (std::uint64_t{1} << 48) / tensor.shape[i]) {
      return fail(ErrorCode::kModel, strf("tensor {}: more than 2^48 values", view.name));
    }
    values *= tensor.shape[i];
  }
  if (values > 0 && tensor.data == nullptr) {
    return fail(ErrorCode::kModel, strf("tensor {}: its data is NULL", view.name));
  }
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % alignof(float) != 0) {
    return fail(ErrorCode::kModel,
                strf("tensor {}: its data is not aligned to 4 bytes", view.name));
  }
  view.values = {static_cast<float*>(tensor.data), static_cast<std::size_t>(values)};
  return view;
}

Status open_handle(const yeto_options& options, const yeto_tensor* tensors, std::size_t count,
                   yeto_boundary& handle) {
  if (count > 0 && tensors == nullptr) {
    return fail(ErrorCode::kUsage, "the tensors are NULL");
  }
  std::vector<sync::TensorView> views;
  for (std::size_t i = 0; i < count; ++i) {
    YETO_ASSIGN(sync::TensorView view, view_of(tensors[i]));
    views.push_back(std::move(view));
  }
  YETO_ASSIGN(sync::BoundaryOptions opened, options_of(options, &handle));
  YETO_ASSIGN(handle.boundary, sync::Boundary::open(std::move(opened), std::move(views)));
  return Unit{};
}

// ---- reports
// -------------------------------------------------------------------------------------

yeto_report report_of(const sync::StepReport& from) {
  yeto_report to{};
  to.draining = from.draining ? 1 : 0;
  to.connected = from.connected ? 1 : 0;
  to.global_step = from.global_step;
  to.run_tokens = from.run_tokens;
  to.staleness_max = from.staleness_max;
  to.pulls_waiting = from.pulls_waiting;
  to.blocked_ms = from.blocked_ms;
  to.applied = from.applied.size();
  to.pushed = from.pushed.size();
  to.live = from.live.size();
  to.bytes_pushed = from.bytes_pushed;
  to.bytes_received = from.bytes_received;
  to.merged = from.merged;
  to.carried = from.carried;
  to.dropped = from.dropped;
  to.nonfinite_pushes = from.nonfinite_pushes;
  to.late_offers = from.late_offers;
  to.discarded_tokens = from.discarded_tokens;
  to.residual_norm = from.residual_norm;
  to.resets = from.resets;
  return to;
}

yeto_rows rows_of(const sync::RowRange& range) {
  yeto_rows rows{};
  rows.epoch = range.epoch;
  rows.first = range.first;
  rows.count = range.count;
  rows.stride = range.stride;
  return rows;
}

}  // namespace

// ---- the library
// ---------------------------------------------------------------------------------

const char* yeto_version(void) { return YETO_VERSION; }

uint32_t yeto_abi_version(void) { return YETO_ABI_VERSION; }

const char* yeto_status_name(yeto_status status) {
  static constexpr const char* kNames[] = {
      "YETO_OK",           "YETO_ERROR_USAGE",       "YETO_ERROR_RANGE",       "YETO_ERROR_TENSOR",
      "YETO_ERROR_DATA",   "YETO_ERROR_NOT_FOUND",   "YETO_ERROR_CREDENTIALS", "YETO_ERROR_REFUSED",
      "YETO_ERROR_CLOSED", "YETO_ERROR_UNREACHABLE", "YETO_ERROR_TIMEOUT",     "YETO_ERROR_DAMAGED",
      "YETO_ERROR_IO",     "YETO_ERROR_CALLBACK",    "YETO_ERROR_INTERNAL"};
  const auto index = static_cast<std::size_t>(status);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

const char* yeto_last_error(void) { return last_error.c_str(); }

// ---- the life of a boundary
// ----------------------------------------------------------------------

void yeto_options_init(yeto_options* options) {
  if (options == nullptr) {
    return;
  }
  const sync::BoundaryOptions defaults;
  *options = yeto_options{};
  options->struct_size = sizeof(yeto_options);
  options->seat = -1;
  options->fragments = defaults.layout.fragments;
  options->streams = defaults.streams;
  options->max_alone_s = yeto::seconds(defaults.max_alone);
}

yeto_status yeto_open(const yeto_options* options, const yeto_tensor* tensors, size_t count,
                      yeto_boundary** out) {
  return guarded([&]() -> Status {
    if (options == nullptr || out == nullptr) {
      return fail(ErrorCode::kUsage, options == nullptr ? "the options are NULL" : "out is NULL");
    }
    *out = nullptr;
    if (options->struct_size < kOptionsV1) {
      return fail(
          ErrorCode::kUsage,
          strf("struct_size is {}, at least {} is needed", options->struct_size, kOptionsV1), {},
          "call yeto_options_init() first");
    }
    yeto_options known;
    yeto_options_init(&known);
    std::memcpy(&known, options, std::min(options->struct_size, sizeof(known)));
    auto handle = std::make_unique<yeto_boundary>();
    YETO_TRY(open_handle(known, tensors, count, *handle));
    *out = handle.release();
    return Unit{};
  });
}

yeto_status yeto_wait_ready(yeto_boundary* boundary, double timeout_s, yeto_ready* out) {
  return guarded_call(boundary, [&](sync::Boundary& native) -> Status {
    YETO_TRY(check_size(out, kReadyV1));
    YETO_ASSIGN(const Nanos timeout, nanos_of(timeout_s, "timeout_s"));
    YETO_ASSIGN(const sync::ReadyReport report, native.wait_ready(timeout));
    yeto_ready ready{};
    ready.seat = report.seat;
    ready.joined_late = report.joined_late ? 1 : 0;
    ready.data_leases = report.data_leases ? 1 : 0;
    ready.term = report.term;
    ready.global_step = report.global_step;
    return give(ready, out, kReadyV1);
  });
}

yeto_status yeto_step(yeto_boundary* boundary, uint64_t tokens, yeto_report* out) {
  return guarded_call(boundary, [&](sync::Boundary& native) -> Status {
    YETO_TRY(check_size(out, kReportV1));
    YETO_ASSIGN(boundary->report, native.step(tokens));
    return give(report_of(boundary->report), out, kReportV1);
  });
}

yeto_status yeto_set_phase(yeto_boundary* boundary, yeto_phase phase) {
  return guarded_call(boundary, [&](sync::Boundary& native) -> Status {
    if (number_of(phase) < 0 || number_of(phase) > YETO_PHASE_PAUSED) {
      return fail(ErrorCode::kRange, strf("phase {}", number_of(phase)));
    }
    native.set_phase(static_cast<yeto::wire::Phase>(number_of(phase)));
    return Unit{};
  });
}

yeto_status yeto_finalize(yeto_boundary* boundary, yeto_finalize_reason reason, double timeout_s,
                          yeto_final* out) {
  return guarded_call(boundary, [&](sync::Boundary& native) -> Status {
    YETO_TRY(check_size(out, kFinalV1));
    const int number = number_of(reason);
    if (number != YETO_FINALIZE_DRAIN && number != YETO_FINALIZE_LIMIT) {
      return fail(ErrorCode::kRange, strf("finalize reason {}", number));
    }
    YETO_ASSIGN(const Nanos timeout, nanos_of(timeout_s, "timeout_s"));
    YETO_ASSIGN(const sync::FinalReport report,
                native.finalize(number == YETO_FINALIZE_DRAIN ? sync::FinalizeReason::kDrain
                                                              : sync::FinalizeReason::kLimit,
                                timeout));
    yeto_final final{};
    final.global_step = report.global_step;
    final.lowest = report.lowest ? 1 : 0;
    return give(final, out, kFinalV1);
  });
}

// The two that any thread may call leave the trainer's flag alone.
yeto_status yeto_metric(yeto_boundary* boundary, const char* json) {
  return guarded([&]() -> Status {
    if (boundary == nullptr || json == nullptr) {
      return fail(ErrorCode::kUsage, boundary == nullptr ? "the boundary is NULL" : "json is NULL");
    }
    return boundary->boundary->metric(json);
  });
}

yeto_status yeto_leave(yeto_boundary* boundary, yeto_leave_reason reason) {
  return guarded([&]() -> Status {
    if (boundary == nullptr) {
      return fail(ErrorCode::kUsage, "the boundary is NULL");
    }
    const int number = number_of(reason);
    if (number < 0 || number > YETO_LEAVE_ERROR) {
      return fail(ErrorCode::kRange, strf("leave reason {}", number));
    }
    boundary->boundary->leave(static_cast<yeto::wire::LeaveReason>(number));
    return Unit{};
  });
}

void yeto_close(yeto_boundary* boundary) { delete boundary; }

// ---- what the last call has done
// -----------------------------------------------------------------

size_t yeto_fragments(const yeto_boundary* boundary) {
  return boundary == nullptr ? 0 : boundary->boundary->layout().fragments.size();
}

size_t yeto_versions(const yeto_boundary* boundary, uint64_t* out, size_t capacity) {
  return boundary == nullptr ? 0 : copy_out(boundary->report.versions, out, capacity);
}

size_t yeto_live_seats(const yeto_boundary* boundary, uint32_t* out, size_t capacity) {
  return boundary == nullptr ? 0 : copy_out(boundary->report.live, out, capacity);
}

size_t yeto_applied_fragments(const yeto_boundary* boundary, yeto_applied_fragment* out,
                              size_t capacity) {
  if (boundary == nullptr) {
    return 0;
  }
  const auto& applied = boundary->report.applied;
  for (std::size_t i = 0; out != nullptr && i < std::min(capacity, applied.size()); ++i) {
    out[i] = {applied[i].fragment, applied[i].overwritten ? 1U : 0U, applied[i].version};
  }
  return applied.size();
}

size_t yeto_pushed_fragments(const yeto_boundary* boundary, yeto_pushed_fragment* out,
                             size_t capacity) {
  if (boundary == nullptr) {
    return 0;
  }
  const auto& pushed = boundary->report.pushed;
  for (std::size_t i = 0; out != nullptr && i < std::min(capacity, pushed.size()); ++i) {
    out[i] = {pushed[i].fragment, 0, pushed[i].version, pushed[i].bytes};
  }
  return pushed.size();
}

// ---- data leases
// ---------------------------------------------------------------------------------

yeto_status yeto_request_rows(yeto_boundary* boundary, uint64_t rows, uint64_t most,
                              yeto_rows* out) {
  return guarded_call(boundary, [&](sync::Boundary& native) -> Status {
    YETO_TRY(check_size(out, kRowsV1));
    YETO_ASSIGN(const sync::RowRange range, native.request_rows(rows, most));
    return give(rows_of(range), out, kRowsV1);
  });
}

yeto_status yeto_static_rows(uint64_t rows, uint32_t seat, uint32_t seats, uint64_t epochs,
                             uint64_t done, uint64_t most, yeto_rows* out) {
  return guarded([&]() -> Status {
    YETO_ASSIGN(sync::StaticSplit split, sync::StaticSplit::make(rows, seat, seats, epochs, done));
    YETO_ASSIGN(const sync::RowRange range, split.next(most));
    return give(rows_of(range), out, kRowsV1);
  });
}
