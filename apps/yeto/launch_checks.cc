// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "capture.h"
#include "cli.h"
#include "launch.h"
#include "yeto/base/clock.h"
#include "yeto/base/format.h"
#include "yeto/fleet/providers/local.h"
#include "yeto/fleet/providers/process.h"
#include "yeto/fleet/run/commands.h"
#include "yeto/fleet/run/delivery.h"
#include "yeto/fleet/run/journal.h"

namespace yeto::apps {
namespace {

namespace fs = std::filesystem;
using fleet::FlagError;
using fleet::FlagValues;

FlagError about(const FlagValues& values, std::string_view flag, ErrorCode code, std::string what) {
  FlagError error;
  error.code = code;
  error.flag = strf("--{}", flag);
  const fleet::Setting* setting = values.find(flag);
  error.value = setting == nullptr ? "" : setting->given;
  error.length = error.value.size();
  error.what = strf("{}: {}", error.flag, what);
  return error;
}

void make_absolute(FlagValues& values, std::string_view flag) {
  const fleet::Setting* setting = values.find(flag);
  std::error_code problem;
  const fs::path path = fs::absolute(setting->text, problem).lexically_normal();
  // "out/" and "out" are one place.
  const fs::path place = path.has_filename() ? path : path.parent_path();
  values.set(flag, fleet::Setting{place.string(), setting->given, setting->origin});
}

void check_file(FlagValues& values, std::string_view flag, std::vector<FlagError>& errors) {
  if (!values.has(flag)) {
    return;
  }
  make_absolute(values, flag);
  const std::string path = values.text(flag);
  std::error_code problem;
  const fs::file_status status = fs::status(path, problem);
  const char* what = nullptr;
  const char* hint = "check the path";
  if (!fs::exists(status)) {
    what = "the file does not exist";
  } else if (!fs::is_regular_file(status)) {
    what = "is no regular file";
    hint = "name one file";
  } else if (::access(path.c_str(), R_OK) != 0) {
    what = "the file cannot be read";
    hint = "change its permissions";
  }
  if (what != nullptr) {
    errors.push_back(about(values, flag, ErrorCode::kData, what));
    errors.back().why = "looked at " + path;
    errors.back().hints = {hint};
  }
}

// Hub ids are NAME or OWNER/NAME; everything else is meant as a path and must exist.
bool looks_like_path(const std::string& text) {
  return text.starts_with("/") || text.starts_with(".") || text.starts_with("~") ||
         text.ends_with("/") || std::count(text.begin(), text.end(), '/') > 1;
}

void check_model(FlagValues& values, std::vector<FlagError>& errors) {
  if (!values.has("model")) {
    return;
  }
  const std::string text = values.text("model");
  std::error_code problem;
  const fs::file_status status = fs::status(text, problem);
  if (fs::is_directory(status)) {
    make_absolute(values, "model");
  } else if (fs::exists(status) || looks_like_path(text)) {
    errors.push_back(
        about(values, "model", ErrorCode::kModel,
              fs::exists(status) ? "is a file, not a folder" : "the folder does not exist"));
    errors.back().why = "looked at " + fs::absolute(text, problem).lexically_normal().string();
    errors.back().hints = {
        "name a folder with config.json and safetensors, or a Hub id OWNER/NAME"};
  }
}

void check_output_place(FlagValues& values, std::vector<FlagError>& errors) {
  if (!values.has("output")) {
    return;
  }
  if (values.text("output").find("://") != std::string::npos) {
    errors.push_back(
        about(values, "output", ErrorCode::kNotInBuild, "object stores are not in this build"));
    errors.back().hints = {"name a folder of this machine"};
    return;
  }
  make_absolute(values, "output");
  const Status fit = fleet::check_output(values.text("output"));
  if (!fit) {
    errors.push_back(about(values, "output", fit.error().code, fit.error().what));
    errors.back().why = "looked at " + fit.error().where;
    errors.back().hints = {fit.error().hint};
  }
}

// Processes of a run whose controller wrote a terminal state are gone; the journal is asked all the
// same, because a name given out twice could lead two runs into one folder.
bool anything_alive(const fleet::RunPaths& paths) {
  const auto entries = fleet::read_journal(paths.journal());
  if (!entries) {
    return false;
  }
  const std::vector<fleet::Recorded> recorded = fleet::recorded_processes(*entries);
  return std::any_of(recorded.begin(), recorded.end(),
                     [](const fleet::Recorded& one) { return fleet::is_alive(one.handle); });
}

}  // namespace

std::optional<FlagError> busy_name(const fleet::Registry& registry, const std::string& name) {
  const std::optional<fleet::Claim> claim = registry.read_claim(name);
  if (!claim || claim->run_id.empty()) {
    return std::nullopt;
  }
  const fleet::RunPaths paths{registry.dir() / claim->folder};
  const RunLook look = look_at(paths);
  const bool launch_alive = fleet::is_alive(claim->by);
  if ((!look.record && !launch_alive) || (look.is_over() && !anything_alive(paths))) {
    return std::nullopt;
  }
  // A launch that died before it started a controller left nothing that runs.
  if (!look.state && !look.controller && !launch_alive) {
    return std::nullopt;
  }
  FlagError error;
  error.code = ErrorCode::kNameTaken;
  error.flag = "--cluster-prefix";
  error.value = name;
  error.length = name.size();
  error.what = strf("the name {} is in use", name);
  const std::string phase = look.phase_text();
  error.why =
      strf("run {} holds it: {}{}{}, started {} ago", claim->run_id, look.state_text(),
           phase.empty() ? "" : " ", phase, human_seconds(std::max(0.0, wall_now() - claim->at)));
  error.hints = {strf("end that run: yeto down {}", name),
                 "or take another name: --cluster-prefix OTHER"};
  return error;
}

std::vector<FlagError> check_places(FlagValues& values, const fleet::Registry& registry) {
  std::vector<FlagError> errors;
  check_model(values, errors);
  for (const char* flag : {"data", "val-data", "chat-template"}) {
    check_file(values, flag, errors);
  }
  check_output_place(values, errors);
  const std::string name = values.text("cluster-prefix");
  if (name == "claims") {
    errors.push_back(
        about(values, "cluster-prefix", ErrorCode::kConflict, "the name is used by yeto itself"));
    errors.back().hints = {"take another name"};
  } else if (std::optional<FlagError> busy = busy_name(registry, name)) {
    errors.push_back(std::move(*busy));
  }
  return errors;
}

LearnerCheck check_with_learner(const fleet::RunRecord& record) {
  LearnerCheck out;
  std::vector<std::string> argv = record.programs.learner;
  argv.emplace_back("--check");
  for (std::string& flag : fleet::forward_argv(record.flags, fleet::kToLearner)) {
    argv.push_back(std::move(flag));
  }
  argv.push_back(strf("--seats={}", record.islands.size()));
  const Result<Captured> ran = run_captured(argv);
  FlagError error;
  error.code = ErrorCode::kSetup;
  if (!ran) {
    error.what = ran.error().what;
    error.hints = {"set YETO_PYTHON to a Python that has yeto"};
  } else if (ran->exit == 0 && !ran->out.empty() && ran->out.front() == '{') {
    out.json = ran->out;
    return out;
  } else if (ran->err.find("error[E_") != std::string::npos) {
    // The learner's own refusal: shown as it is.
    out.text = ran->err.substr(ran->err.find("error[E_"));
    out.exit = ran->exit;
    error.code = ran->exit == 65 ? ErrorCode::kData : ErrorCode::kSetup;
    const std::size_t colon = out.text.find("]: ");
    error.what = colon == std::string::npos ? out.text : out.text.substr(colon + 3);
    if (out.text.starts_with("error[E_MODEL]")) {
      error.code = ErrorCode::kModel;
    }
    while (!error.what.empty() && error.what.back() == '\n') {
      error.what.pop_back();
    }
  } else {
    error.what = strf("the learner cannot run: {} ended with {}", record.programs.learner.front(),
                      ran->exit);
    std::string last = ran->err;
    while (!last.empty() && last.back() == '\n') {
      last.pop_back();
    }
    error.why = last.substr(last.rfind('\n') == std::string::npos ? 0 : last.rfind('\n') + 1);
    error.hints = {"install yeto with its train extra into that Python: pip install 'yeto[train]'",
                   "or set YETO_PYTHON to a Python that has it"};
  }
  out.exit = out.exit == 0 ? error_exit_code(error.code) : out.exit;
  out.errors.push_back(std::move(error));
  return out;
}

}  // namespace yeto::apps
