// SPDX-License-Identifier: Apache-2.0
// sync/boundary as yeto._core.Boundary.
//
// Every call that may wait or moves tensor bytes releases the GIL; the callbacks take it again.
// While a call waits, signal handlers run ten times a second, so that they can end the wait.
#include "yeto/sync/boundary/boundary.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "yeto/base/format.h"
#include "yeto/sync/boundary/row_source.h"

namespace nb = nanobind;

namespace yeto::python {
namespace {

using sync::Boundary;
using sync::BoundaryOptions;

// Lives as long as the interpreter; the module owns another reference.
PyObject* boundary_error_type = nullptr;

[[noreturn]] void raise(const Error& error) {
  std::string text = error.text();
  text.erase(text.find_last_not_of('\n') + 1);
  const nb::object type = nb::borrow(boundary_error_type);
  nb::object instance = type(text);
  instance.attr("code") = std::string(error_name(error.code));
  instance.attr("exit_code") = error_exit_code(error.code);
  PyErr_SetObject(type.ptr(), instance.ptr());
  throw nb::python_error();
}

template <class T>
T value_or_raise(Result<T> result) {
  if (!result) {
    raise(result.error());
  }
  return std::move(*result);
}

Error usage(std::string what, std::string hint = {}) {
  return Error{ErrorCode::kUsage, std::move(what), {}, std::move(hint)};
}

Nanos nanos(double seconds, const char* name) {
  constexpr double kMost = 1e9;
  if (!(seconds >= 0.0 && seconds <= kMost)) {
    raise(Error{ErrorCode::kRange,
                strf("{} = {}: 0 to {} seconds are allowed", name, seconds, kMost),
                {},
                {}});
  }
  return from_seconds(seconds);
}

// ---- tensors
// -------------------------------------------------------------------------------------

using Array = nb::ndarray<>;

[[noreturn]] void refuse(const std::string& name, const std::string& why, const char* hint) {
  raise(Error{ErrorCode::kModel, strf("tensor {}: {}", name, why), {}, hint});
}

bool is_contiguous(const Array& array) {
  if (array.size() == 0) {
    return true;
  }
  std::int64_t expected = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != expected) {
      return false;
    }
    expected *= static_cast<std::int64_t>(array.shape(i));
  }
  return true;
}

Array import_array(const std::string& name, nb::handle object) {
  Array array;
  if (!nb::try_cast(object, array)) {
    nb::ndarray<nb::ro> fixed;
    if (nb::try_cast(object, fixed)) {
      refuse(name, "read-only memory", "give memory that may be written in place");
    }
    refuse(name, "not an array (DLPack or buffer protocol)",
           "give NumPy arrays or detached CPU tensors");
  }
  if (array.device_type() != nb::device::cpu::value) {
    refuse(name, "not in CPU memory",
           "give a CPU mirror and the callbacks before_read and after_write");
  }
  if (array.dtype() != nb::dtype<float>()) {
    refuse(name,
           strf("dtype code {} with {} bits, float32 is needed", array.dtype().code,
                array.dtype().bits),
           "trainable values are exchanged from float32");
  }
  if (!is_contiguous(array)) {
    refuse(name, "not C-contiguous", "give the tensor's own contiguous memory, not a view");
  }
  return array;
}

sync::TensorView view_of(const std::string& name, const Array& array) {
  sync::TensorView view;
  view.name = name;
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    view.shape.push_back(array.shape(i));
  }
  view.values = {static_cast<float*>(array.data()), array.size()};
  return view;
}

// ---- options
// -------------------------------------------------------------------------------------

FragmentPattern pattern_of(const std::string& text) {
  if (text == "binpack" || text == "strided") {
    return text == "binpack" ? FragmentPattern::kBinpack : FragmentPattern::kStrided;
  }
  raise(usage(strf("pattern \"{}\"", text), "binpack or strided"));
}

MergeMode merge_of(const std::string& text) {
  if (text == "rda" || text == "avg") {
    return text == "rda" ? MergeMode::kRda : MergeMode::kAvg;
  }
  raise(usage(strf("matrix_merge \"{}\"", text), "rda or avg"));
}

wire::Phase phase_of(const std::string& text) {
  static const std::map<std::string, wire::Phase> kPhases = {{"load", wire::Phase::kLoad},
                                                             {"train", wire::Phase::kTrain},
                                                             {"eval", wire::Phase::kEval},
                                                             {"snapshot", wire::Phase::kSnapshot},
                                                             {"paused", wire::Phase::kPaused}};
  const auto found = kPhases.find(text);
  if (found == kPhases.end()) {
    raise(usage(strf("phase \"{}\"", text), "load, train, eval, snapshot or paused"));
  }
  return found->second;
}

wire::LeaveReason leave_reason_of(const std::string& text) {
  static const std::map<std::string, wire::LeaveReason> kReasons = {
      {"done", wire::LeaveReason::kDone},
      {"preempted", wire::LeaveReason::kPreempted},
      {"error", wire::LeaveReason::kError}};
  const auto found = kReasons.find(text);
  if (found == kReasons.end()) {
    raise(usage(strf("leave reason \"{}\"", text), "done, preempted or error"));
  }
  return found->second;
}

sync::FinalizeReason finalize_reason_of(const std::string& text) {
  if (text == "drain" || text == "limit") {
    return text == "drain" ? sync::FinalizeReason::kDrain : sync::FinalizeReason::kLimit;
  }
  raise(usage(strf("finalize reason \"{}\"", text), "drain or limit"));
}

// ---- the class
// -----------------------------------------------------------------------------------

// Keeps what the boundary borrows: the arrays, and the exception of a callback on its way out.
class PyBoundary {
 public:
  PyBoundary(const std::vector<std::string>& names, const nb::list& tensors) {
    if (names.size() != nb::len(tensors)) {
      raise(usage(strf("{} names for {} tensors", names.size(), nb::len(tensors))));
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
      arrays_.push_back(import_array(names[i], tensors[i]));
      views_.push_back(view_of(names[i], arrays_.back()));
    }
  }

  void open(BoundaryOptions options) {
    options.keep_waiting = [this] { return keep_waiting(); };
    Result<std::unique_ptr<Boundary>> opened = Boundary::open(std::move(options), views_);
    if (!opened) {
      raise(opened.error());
    }
    boundary_ = std::move(*opened);
  }

  // An exception of Python becomes an error inside, and comes out again in run().
  sync::TensorCallback callback(nb::object function) {
    if (function.is_none()) {
      return {};
    }
    return [this, function = std::move(function)](std::span<const std::uint32_t> list) -> Status {
      const nb::gil_scoped_acquire gil;
      try {
        function(std::vector<std::uint32_t>(list.begin(), list.end()));
      } catch (nb::python_error& error) {
        raised_.emplace(std::move(error));
        return fail(ErrorCode::kInternal, "a callback raised an exception");
      }
      return Unit{};
    };
  }

  // Runs a call of the trainer without the GIL.
  template <class Call>
  auto run(Call&& call) {
    auto result = [&] {
      const nb::gil_scoped_release released;
      return call(*boundary_);
    }();
    if (raised_) {
      nb::python_error error = std::move(*raised_);
      raised_.reset();
      throw error;
    }
    return value_or_raise(std::move(result));
  }

  Boundary& native() { return *boundary_; }

 private:
  bool keep_waiting() {
    const nb::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() == 0) {
      return true;
    }
    raised_.emplace();  // takes the exception that is set
    return false;
  }

  std::vector<Array> arrays_;
  std::vector<sync::TensorView> views_;
  std::optional<nb::python_error> raised_;
  std::unique_ptr<Boundary> boundary_;
};

std::vector<std::uint32_t> numbers(const std::vector<std::uint32_t>& list) { return list; }

nb::dict ready_dict(const sync::ReadyReport& report) {
  nb::dict out;
  out["seat"] = report.seat;
  out["term"] = report.term;
  out["global_step"] = report.global_step;
  out["live"] = numbers(report.live);
  out["joined_late"] = report.joined_late;
  out["data_leases"] = report.data_leases;
  return out;
}

nb::dict step_dict(const sync::StepReport& report) {
  nb::list applied;
  for (const sync::AppliedFragment& item : report.applied) {
    applied.append(nb::make_tuple(item.fragment, item.version, item.overwritten));
  }
  nb::list pushed;
  for (const sync::PushedFragment& item : report.pushed) {
    pushed.append(nb::make_tuple(item.fragment, item.version, item.bytes));
  }
  nb::dict out;
  out["applied"] = applied;
  out["pushed"] = pushed;
  out["global_step"] = report.global_step;
  out["run_tokens"] = report.run_tokens;
  out["live"] = numbers(report.live);
  out["versions"] = report.versions;
  out["staleness_max"] = report.staleness_max;
  out["draining"] = report.draining;
  out["connected"] = report.connected;
  out["blocked_ms"] = report.blocked_ms;
  out["bytes_pushed"] = report.bytes_pushed;
  out["bytes_received"] = report.bytes_received;
  out["merged"] = report.merged;
  out["carried"] = report.carried;
  out["dropped"] = report.dropped;
  out["nonfinite_pushes"] = report.nonfinite_pushes;
  out["resets"] = report.resets;
  out["late_offers"] = report.late_offers;
  out["discarded_tokens"] = report.discarded_tokens;
  out["residual_norm"] = report.residual_norm;
  out["pulls_waiting"] = report.pulls_waiting;
  return out;
}

nb::tuple row_tuple(const sync::RowRange& range) {
  return nb::make_tuple(range.epoch, range.first, range.count, range.stride);
}

// Rows by data leases. Python keeps the boundary alive.
struct PyLeasedRows {
  PyBoundary* boundary;
  std::uint64_t rows;
};

nb::dict final_dict(const sync::FinalReport& report) {
  nb::dict out;
  out["global_step"] = report.global_step;
  out["versions"] = report.versions;
  out["live"] = numbers(report.live);
  out["lowest"] = report.lowest;
  return out;
}

// tls_cert, tls_key, tls_ca and insecure.
struct TlsArguments {
  std::optional<std::string> cert;
  std::optional<std::string> key;
  std::optional<std::string> ca;
  bool insecure = false;
};

// The keyword arguments of Boundary(...), in order.
struct Arguments {
  std::string syncer;
  std::string run_id;
  std::optional<std::uint32_t> seat;
  std::optional<std::string> token_file;
  std::uint32_t fragments = 8;
  std::string pattern;
  std::string matrix_merge;
  std::map<std::string, std::string> contract;
  std::uint32_t streams = 4;
  double max_alone_s = 600.0;
  std::string device_text;
  TlsArguments tls;
};

BoundaryOptions options_of(Arguments arguments) {
  BoundaryOptions options;
  options.syncer = std::move(arguments.syncer);
  options.run_id = std::move(arguments.run_id);
  options.seat = arguments.seat;
  options.token_file = arguments.token_file.value_or("");
  options.tls = {arguments.tls.cert.value_or(""), arguments.tls.key.value_or(""),
                 arguments.tls.ca.value_or("")};
  options.insecure = arguments.tls.insecure;
  options.layout = {arguments.fragments, pattern_of(arguments.pattern),
                    merge_of(arguments.matrix_merge)};
  options.contract.assign(arguments.contract.begin(), arguments.contract.end());
  options.streams = static_cast<std::uint16_t>(std::min<std::uint32_t>(arguments.streams, 0xffff));
  options.max_alone = nanos(arguments.max_alone_s, "max_alone_s");
  options.device = std::move(arguments.device_text);
  return options;
}

void construct(PyBoundary* self, std::string syncer, std::string run_id,
               std::optional<std::uint32_t> seat, std::optional<std::string> token_file,
               const std::vector<std::string>& names, const nb::list& tensors,
               std::uint32_t fragments, std::string pattern, std::string matrix_merge,
               std::map<std::string, std::string> contract, nb::object before_read,
               nb::object after_write, std::uint32_t streams, double max_alone_s,
               std::string device_text, std::optional<std::string> tls_cert,
               std::optional<std::string> tls_key, std::optional<std::string> tls_ca,
               bool insecure) {
  BoundaryOptions options = options_of(
      {std::move(syncer), std::move(run_id), seat, std::move(token_file), fragments,
       std::move(pattern), std::move(matrix_merge), std::move(contract), streams, max_alone_s,
       std::move(device_text),
       TlsArguments{std::move(tls_cert), std::move(tls_key), std::move(tls_ca), insecure}});
  new (self) PyBoundary(names, tensors);
  try {
    options.before_read = self->callback(std::move(before_read));
    options.after_write = self->callback(std::move(after_write));
    self->open(std::move(options));
  } catch (...) {
    self->~PyBoundary();
    throw;
  }
}

void bind_rows(nb::module_& module) {
  nb::class_<sync::StaticSplit>(module, "StaticSplit")
      .def(
          "__init__",
          [](sync::StaticSplit* self, std::uint64_t rows, std::uint32_t seat, std::uint32_t seats,
             std::uint64_t epochs, std::uint64_t done) {
            new (self) sync::StaticSplit(
                value_or_raise(sync::StaticSplit::make(rows, seat, seats, epochs, done)));
          },
          nb::arg("rows"), nb::arg("seat"), nb::arg("seats"), nb::arg("epochs") = 0,
          nb::arg("done") = 0)
      .def(
          "next",
          [](sync::StaticSplit& self, std::uint64_t most) {
            return row_tuple(value_or_raise(self.next(most)));
          },
          nb::arg("most"));
  nb::class_<PyLeasedRows>(module, "LeasedRows")
      .def(
          "__init__",
          [](PyLeasedRows* self, PyBoundary& boundary, std::uint64_t rows) {
            new (self) PyLeasedRows{&boundary, rows};
          },
          nb::arg("boundary"), nb::arg("rows"), nb::keep_alive<1, 2>())
      .def(
          "next",
          [](PyLeasedRows& self, std::uint64_t most) {
            return row_tuple(self.boundary->run(
                [&](Boundary& b) { return sync::LeasedRows(&b, self.rows).next(most); }));
          },
          nb::arg("most"));
}

}  // namespace

void bind_boundary(nb::module_& module) {
  boundary_error_type = PyErr_NewExceptionWithDoc(
      "yeto._core.BoundaryError",
      "The exchange cannot go on. `code` is like \"E_REFUSED\", `exit_code` the process exit code.",
      PyExc_RuntimeError, nullptr);
  module.attr("BoundaryError") = nb::borrow(boundary_error_type);

  nb::class_<PyBoundary>(module, "Boundary")
      .def("__init__", &construct, nb::kw_only(), nb::arg("syncer"), nb::arg("run_id"),
           nb::arg("seat").none(), nb::arg("token_file").none(), nb::arg("names"),
           nb::arg("tensors"), nb::arg("fragments"), nb::arg("pattern") = "binpack",
           nb::arg("matrix_merge") = "rda",
           nb::arg("contract") = std::map<std::string, std::string>(),
           nb::arg("before_read").none() = nb::none(), nb::arg("after_write").none() = nb::none(),
           nb::arg("streams") = 4, nb::arg("max_alone_s") = 600.0, nb::arg("device_text") = "",
           nb::arg("tls_cert").none() = nb::none(), nb::arg("tls_key").none() = nb::none(),
           nb::arg("tls_ca").none() = nb::none(), nb::arg("insecure") = false)
      .def(
          "wait_ready",
          [](PyBoundary& self, double timeout_s) {
            const Nanos timeout = nanos(timeout_s, "timeout_s");
            return ready_dict(self.run([&](Boundary& b) { return b.wait_ready(timeout); }));
          },
          nb::arg("timeout_s") = 0.0)
      .def(
          "step",
          [](PyBoundary& self, std::uint64_t tokens) {
            return step_dict(self.run([&](Boundary& b) { return b.step(tokens); }));
          },
          nb::arg("tokens"))
      .def(
          "set_phase",
          [](PyBoundary& self, const std::string& phase) {
            self.native().set_phase(phase_of(phase));
          },
          nb::arg("phase"))
      .def(
          "metric",
          [](PyBoundary& self, const std::string& text) {
            value_or_raise(self.native().metric(text));
          },
          nb::arg("text"))
      .def(
          "request_rows",
          [](PyBoundary& self, std::uint64_t rows, std::uint64_t count) {
            return row_tuple(self.run([&](Boundary& b) { return b.request_rows(rows, count); }));
          },
          nb::arg("rows"), nb::arg("count"))
      .def(
          "finalize",
          [](PyBoundary& self, const std::string& reason, double timeout_s) {
            const sync::FinalizeReason why = finalize_reason_of(reason);
            const Nanos timeout = nanos(timeout_s, "timeout_s");
            return final_dict(self.run([&](Boundary& b) { return b.finalize(why, timeout); }));
          },
          nb::arg("reason") = "drain", nb::arg("timeout_s") = 0.0)
      .def(
          "leave",
          [](PyBoundary& self, const std::string& reason) {
            const wire::LeaveReason why = leave_reason_of(reason);
            const nb::gil_scoped_release released;
            self.native().leave(why);
          },
          nb::arg("reason"))
      .def("close", [](PyBoundary& self) {
        const nb::gil_scoped_release released;
        self.native().close();
      });
  bind_rows(module);
}

}  // namespace yeto::python
