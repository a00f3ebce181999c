// SPDX-License-Identifier: Apache-2.0
#include "yeto/fleet/spec/flags.h"

#include <algorithm>
#include <set>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/fleet/spec/nearest.h"

namespace yeto::fleet {
namespace {

constexpr FlagSpec kTable[] = {
#define YETO_FLAG(...) FlagSpec{__VA_ARGS__},
#include "yeto/fleet/spec/flags.def"
#undef YETO_FLAG
};

const std::set<std::string_view>& later_names() {
  static const std::set<std::string_view> names = {
#define YETO_LATER(name) name,
#include "yeto/fleet/spec/later_flags.def"
#undef YETO_LATER
  };
  return names;
}

std::string dashed(std::string_view name) {
  return (name.size() == 1 ? "-" : "--") + std::string(name);
}

bool takes_value(const FlagSpec& spec) { return spec.type != FlagType::kBool; }

std::vector<std::string> names_on(Verb verb) {
  std::vector<std::string> out;
  for (const FlagSpec& spec : kTable) {
    if ((spec.verbs & verb) != 0 && spec.name.size() > 1) {
      out.emplace_back(spec.name);
    }
  }
  return out;
}

std::string verbs_text(unsigned verbs) {
  std::vector<std::string> words;
  for (const Verb verb : {kLaunch, kStatus, kLogs, kStopRun, kDown, kSyncer, kSim}) {
    if ((verbs & verb) != 0) {
      words.push_back("yeto " + std::string(verb_name(verb)));
    }
  }
  return or_list(words);
}

// One pass over the arguments after the verb.
class LineReader {
 public:
  LineReader(Verb verb, std::span<const std::string> args) : verb_(verb), args_(args) {}

  ParsedLine read() {
    bool only_words = false;
    for (at_ = 0; at_ < args_.size(); ++at_) {
      const std::string& arg = args_[at_];
      if (only_words || arg.size() < 2 || arg[0] != '-') {
        out_.positionals.push_back(arg);
      } else if (arg == "--") {
        only_words = true;
      } else {
        read_flag(arg);
      }
    }
    finish();
    return std::move(out_);
  }

 private:
  FlagError& refuse(ErrorCode code, std::string_view flag, std::string what) {
    FlagError error;
    error.code = code;
    error.flag = std::string(flag);
    error.what = std::move(what);
    out_.errors.push_back(std::move(error));
    return out_.errors.back();
  }

  void read_flag(const std::string& arg) {
    const bool is_long = arg.starts_with("--");
    const std::size_t equals = is_long ? arg.find('=') : std::string::npos;
    const std::string shown = arg.substr(0, equals);
    const std::string name = shown.substr(is_long ? 2 : 1);
    const FlagSpec* spec = name.size() == 1 && is_long ? nullptr : find_flag(verb_, name);
    bool negated = false;
    if (spec == nullptr && name.starts_with("no-")) {
      spec = find_flag(verb_, name.substr(3));
      negated = spec != nullptr && spec->type == FlagType::kBool;
      spec = negated ? spec : nullptr;
    }
    // "--json" is the long way to say "-o json".
    if (spec == nullptr && name == "json" && find_flag(verb_, "o") != nullptr) {
      store(*find_flag(verb_, "o"), "--json", "json");
      return;
    }
    if (spec == nullptr) {
      unknown(shown, name);
      return;
    }
    if (!takes_value(*spec)) {
      if (equals != std::string::npos) {
        refuse(ErrorCode::kUsage, shown, strf("{} takes no value", shown)).hints = {
            strf("write {} or --no-{}", dashed(spec->name), spec->name)};
        return;
      }
      store(*spec, shown, negated ? "false" : "true");
      return;
    }
    if (equals != std::string::npos) {
      store(*spec, shown, arg.substr(equals + 1));
      return;
    }
    value_follows(*spec, shown);
  }

  // The value is the next argument. A next argument that looks like a flag means the value was
  // forgotten.
  void value_follows(const FlagSpec& spec, const std::string& shown) {
    const bool at_end = at_ + 1 >= args_.size();
    if (spec.type == FlagType::kSeconds) {
      const bool number =
          !at_end && check_value({.type = FlagType::kFloat}, args_[at_ + 1]).has_value();
      store(spec, shown, number ? args_[++at_] : "2");
      return;
    }
    if (at_end || args_[at_ + 1].starts_with("--")) {
      refuse(ErrorCode::kUsage, shown, strf("{} needs a value", shown)).hints = {
          strf("write {} {}", shown, spec.value_name.empty() ? spec.choices : spec.value_name),
          strf("write {}=VALUE if the value begins with dashes", shown)};
      return;
    }
    store(spec, shown, args_[++at_]);
  }

  void store(const FlagSpec& spec, const std::string& shown, const std::string& text) {
    if (out_.values.given(spec.name)) {
      FlagError& error = refuse(ErrorCode::kUsage, shown, strf("{} is given twice", shown));
      error.value = text;
      error.why = strf("the first value is {}", out_.values.find(spec.name)->given);
      error.hints = {"leave one of them out"};
      return;
    }
    Result<std::string> checked = check_value(spec, text);
    if (!checked) {
      FlagError& error = refuse(checked.error().code, shown,
                                strf("{}: \"{}\" {}", shown, text, checked.error().what));
      error.value = text;
      error.length = text.size();
      error.why = std::string(spec.help);
      if (!checked.error().hint.empty()) {
        error.hints.push_back(checked.error().hint);
      }
      // Taken as given, so that a second error about a missing flag does not follow.
      out_.values.set(spec.name, Setting{text, text, "argv"});
      return;
    }
    out_.values.set(spec.name, Setting{*checked, text, "argv"});
  }

  void unknown(const std::string& shown, const std::string& name) {
    const std::string bare = name.starts_with("no-") ? name.substr(3) : name;
    if ((verb_ == kLaunch || verb_ == kSyncer) &&
        (later_names().contains(name) || later_names().contains(bare))) {
      FlagError& error =
          refuse(ErrorCode::kNotInBuild, shown, strf("{} is not in this build", shown));
      error.why = "the flag belongs to a part that this version does not have";
      error.hints = {"leave it out"};
      skip_value();
      return;
    }
    FlagError& error = refuse(ErrorCode::kFlagUnknown, shown,
                              strf("yeto {} has no flag {}", verb_name(verb_), shown));
    for (const FlagSpec& spec : flag_table()) {
      if (spec.name == name || (!spec.alias.empty() && spec.alias == name)) {
        error.why = strf("it is a flag of {}", verbs_text(spec.verbs));
      }
    }
    const std::vector<std::string> near = nearest(name, names_on(verb_), 3);
    if (!near.empty() && error.why.empty()) {
      std::vector<std::string> with_dashes;
      for (const std::string& one : near) {
        with_dashes.push_back("--" + one);
      }
      error.hints = {strf("nearest: {}", or_list(with_dashes))};
    }
    error.hints.push_back(strf("yeto {} --help lists all flags", verb_name(verb_)));
    skip_value();
  }

  // Without a row it is not known whether a value follows; a word there is taken for one, so that
  // it is not reported as a stray word too.
  void skip_value() {
    if (args_[at_].find('=') == std::string::npos && at_ + 1 < args_.size() &&
        !args_[at_ + 1].starts_with("-") && verb_ == kLaunch) {
      ++at_;
    }
  }

  void finish() {
    out_.help = out_.values.on("help");
    for (const FlagSpec& spec : kTable) {
      if ((spec.verbs & verb_) == 0 || out_.values.has(spec.name)) {
        continue;
      }
      if (!spec.preset.empty()) {
        out_.values.set(spec.name, Setting{std::string(spec.preset), "", "default"});
      } else if (spec.required && !out_.help) {
        FlagError& error =
            refuse(ErrorCode::kUsage, dashed(spec.name), strf("{} is missing", dashed(spec.name)));
        error.why = std::string(spec.help);
        error.hints = {strf("add {} {}", dashed(spec.name), spec.value_name)};
      }
    }
    check_words();
  }

  void check_words() {
    const std::size_t most =
        verb_ == kLogs || verb_ == kStopRun || verb_ == kDown || verb_ == kStatus ? 1 : 0;
    for (std::size_t i = most; i < out_.positionals.size(); ++i) {
      const std::string& word = out_.positionals[i];
      FlagError& error =
          refuse(ErrorCode::kUsage, "",
                 strf("yeto {} does not know what \"{}\" is", verb_name(verb_), word));
      error.why = most == 0 ? "this verb takes flags only" : "this verb takes one run name";
      if (find_flag(verb_, word) != nullptr) {
        error.hints = {strf("did you mean --{}", word)};
      }
    }
    if (most == 1 && verb_ != kStatus && out_.positionals.empty() && !out_.help) {
      refuse(ErrorCode::kUsage, "", strf("yeto {} needs the name of a run", verb_name(verb_)))
          .hints = {"yeto status lists the runs"};
    }
  }

  const Verb verb_;
  const std::span<const std::string> args_;
  std::size_t at_ = 0;
  ParsedLine out_;
};

FlagError conflict(ErrorCode code, const FlagValues& values, std::string_view flag,
                   std::string what) {
  FlagError error;
  error.code = code;
  error.flag = dashed(flag);
  error.value = values.text(flag);
  error.length = error.value.size();
  error.what = std::move(what);
  return error;
}

}  // namespace

std::span<const FlagSpec> flag_table() { return kTable; }

const FlagSpec* find_flag(Verb verb, std::string_view name) {
  for (const FlagSpec& spec : kTable) {
    if ((spec.verbs & verb) != 0 &&
        (spec.name == name || (!spec.alias.empty() && spec.alias == name))) {
      return &spec;
    }
  }
  return nullptr;
}

std::string_view verb_name(Verb verb) {
  switch (verb) {
    case kLaunch:
      return "launch";
    case kStatus:
      return "status";
    case kLogs:
      return "logs";
    case kStopRun:
      return "stop-run";
    case kDown:
      return "down";
    case kSyncer:
      return "syncer";
    case kLearner:
      return "learner";
    case kController:
      return "_controller";
    case kSim:
      return "sim";
  }
  return "";
}

ParsedLine parse_line(Verb verb, std::span<const std::string> args) {
  return LineReader(verb, args).read();
}

std::vector<FlagError> launch_conflicts(const FlagValues& values, std::size_t islands) {
  std::vector<FlagError> out;
  const auto refuse = [&](std::string_view flag, std::string what, std::string why,
                          std::string hint) {
    FlagError error = conflict(ErrorCode::kConflict, values, flag, std::move(what));
    error.why = std::move(why);
    error.hints.push_back(std::move(hint));
    out.push_back(std::move(error));
  };
  for (const char* flag : {"quorum", "start-quorum"}) {
    if (islands > 0 && values.integer(flag) > static_cast<std::int64_t>(islands)) {
      refuse(flag, strf("--{} {} is above the number of islands", flag, values.text(flag)),
             strf("--gpu names {} island{}", islands, islands == 1 ? "" : "s"),
             strf("give 1 to {}, or leave it out", islands));
      out.back().code = ErrorCode::kRange;
    }
  }
  if (values.given("recover-timeout") && values.number("recover-timeout") > 0 &&
      values.given("island-relaunch") && !values.on("island-relaunch")) {
    refuse("recover-timeout", "--recover-timeout and --no-island-relaunch exclude each other",
           "one asks for restarts, the other forbids them", "leave one of them out");
  }
  if (values.has("val-data") && values.integer("val-rows") > 0) {
    refuse("val-rows", "--val-data and --val-rows exclude each other",
           "held-out rows come from one place",
           "leave one of them out; --eval-rows limits how many rows of --val-data are used");
  }
  const std::string quorum = values.text("quorum", "auto");
  if (values.on("lockstep") && quorum != "all" && quorum != "auto") {
    refuse("quorum", strf("--lockstep and --quorum {} exclude each other", quorum),
           "in lockstep every merge waits for every island",
           "leave --quorum out, or give --quorum all");
  }
  const std::string outer = values.text("outer");
  if (outer == "direct" && values.has("outer-lr")) {
    refuse("outer-lr", "--outer direct and --outer-lr exclude each other",
           "direct takes the merged delta as it is", "leave --outer-lr out, or give --outer sgd");
  }
  if (outer != "nesterov" && values.has("outer-momentum")) {
    refuse("outer-momentum", strf("--outer {} and --outer-momentum exclude each other", outer),
           "only nesterov takes a momentum", "add --outer nesterov, or leave --outer-momentum out");
  }
  return out;
}

bool apply_limit_rule(FlagValues& values) {
  for (const char* limit : {"total-steps", "epochs", "tokens", "local-steps"}) {
    if (values.has(limit)) {
      return false;
    }
  }
  values.set("epochs", Setting{"1", "", "rule"});
  return true;
}

std::vector<std::string> forward_argv(const FlagValues& values, Receiver receiver) {
  std::vector<std::string> out;
  for (const FlagSpec& spec : kTable) {
    const Setting* setting = values.find(spec.name);
    if ((spec.to & receiver) == 0 || setting == nullptr) {
      continue;
    }
    if (spec.type != FlagType::kBool) {
      out.push_back(strf("--{}={}", spec.name, setting->text));
    } else if (setting->text == "true") {
      out.push_back(strf("--{}", spec.name));
    }
  }
  return out;
}

}  // namespace yeto::fleet
