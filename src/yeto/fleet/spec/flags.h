// SPDX-License-Identifier: Apache-2.0
// The flag table and what follows from it: parsing, help, forwarding to syncer and learner.
// A row of flags.def is the only place that knows a flag's name, type, default, range, receivers
// and help.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "yeto/fleet/spec/flag_error.h"
#include "yeto/fleet/spec/gpu.h"

namespace yeto::fleet {

enum class FlagType {
  kText,
  kInt,
  kCount,  // a whole number that may end in k, M, B or T (powers of 1000)
  kFloat,
  kBool,  // has a --no- form
  kChoice,
  kIntOr,    // one of the choices, or a whole number
  kFloatOr,  // one of the choices, or a number
  kPair,     // two numbers joined by a comma
  kName,     // a run's name
  kSeconds,  // a number of seconds; the value may be left out
  kBytesOr,  // one of the choices, or bytes: a whole number, alone or with KiB, MiB, GiB, TiB
};

// Bits: which process receives the value.
enum Receiver : unsigned { kToController = 1, kToLearner = 2, kToSyncer = 4 };
// Bits: on which verbs the flag stands.
enum Verb : unsigned {
  kLaunch = 1,
  kStatus = 2,
  kLogs = 4,
  kStopRun = 8,
  kDown = 16,
  kSyncer = 32,
  kLearner = 64,
  kController = 128,
  kSim = 256,
};

struct FlagSpec {
  std::string_view name = {};   // without dashes; one letter for a short flag
  std::string_view alias = {};  // another full name, or one letter
  FlagType type = FlagType::kText;
  std::string_view preset = {};      // default as text; empty: no value unless given
  std::string_view range = {};       // "[1,64]", "(0,1]"; empty: any
  std::string_view choices = {};     // "auto|all"
  std::string_view value_name = {};  // "N" in help
  std::string_view section = {};
  unsigned to = 0;
  unsigned verbs = 0;
  bool required = false;
  std::string_view help = {};
};

// All rows, in the order of help.
std::span<const FlagSpec> flag_table();
// The row of a name or alias on a verb, or null.
const FlagSpec* find_flag(Verb verb, std::string_view name);

// "launch" of kLaunch.
std::string_view verb_name(Verb verb);

// One value and where it came from.
struct Setting {
  std::string text;    // canonical: counts expanded, booleans "true" or "false"
  std::string given;   // as written; empty unless origin is "argv"
  std::string origin;  // "argv", "default" or "rule"
};

class FlagValues {
 public:
  // Null if the flag has no value.
  const Setting* find(std::string_view name) const;
  bool given(std::string_view name) const;  // by the user
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // The value; `fallback` if the flag has none.
  std::string text(std::string_view name, std::string_view fallback = {}) const;
  std::int64_t integer(std::string_view name, std::int64_t fallback = 0) const;
  double number(std::string_view name, double fallback = 0) const;
  bool on(std::string_view name) const { return text(name) == "true"; }
  void set(std::string_view name, Setting setting);
  const std::map<std::string, Setting, std::less<>>& all() const { return values_; }

 private:
  std::map<std::string, Setting, std::less<>> values_;
};

struct ParsedLine {
  FlagValues values;  // flags given and defaults of the rest
  std::vector<std::string> positionals;
  bool help = false;
  std::vector<FlagError> errors;  // all that is wrong with the line
};

// Reads the arguments after the verb. Touches nothing outside its arguments.
ParsedLine parse_line(Verb verb, std::span<const std::string> args);

// Checks one text against a row; the canonical text, or the refusal.
Result<std::string> check_value(const FlagSpec& spec, std::string_view text);

// Refusals that need more than one flag or the number of islands, for `yeto launch`.
std::vector<FlagError> launch_conflicts(const FlagValues& values, std::size_t islands);

// A run ends by something: without --total-steps, --epochs, --tokens and --local-steps one epoch is
// set, with origin "rule". True if it was.
bool apply_limit_rule(FlagValues& values);

// "--name=value" for every flag of the receiver that has a value (booleans: "--name" where true).
std::vector<std::string> forward_argv(const FlagValues& values, Receiver receiver);

// The text of `yeto VERB --help`.
std::string help_text(Verb verb);
// The text of `yeto --help`.
std::string overview_text();

}  // namespace yeto::fleet
