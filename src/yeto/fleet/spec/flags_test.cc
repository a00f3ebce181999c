// SPDX-License-Identifier: Apache-2.0
// Goal: the flag table is sound, and a line is read by it with all its errors at once.
#include "yeto/fleet/spec/flags.h"

#include <gtest/gtest.h>

#include <set>

#include "yeto/base/format.h"
#include "yeto/fleet/spec/nearest.h"

namespace yeto::fleet {
namespace {

using Args = std::vector<std::string>;

const Args kGood = {"--gpu", "local:1xcpu", "--model", "m", "--data", "d.jsonl"};

Args plus(Args more) {
  Args out = kGood;
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

ParsedLine launch(const Args& args) { return parse_line(kLaunch, args); }

std::string codes(const ParsedLine& line) {
  std::string out;
  for (const FlagError& error : line.errors) {
    out += (out.empty() ? "" : " ") + std::string(error_name(error.code)) + error.flag;
  }
  return out;
}

TEST(Flags, DefaultsPassTheirOwnCheck) {
  for (const FlagSpec& spec : flag_table()) {
    EXPECT_FALSE(spec.help.empty()) << spec.name;
    EXPECT_NE(spec.verbs, 0u) << spec.name;
    if (!spec.preset.empty()) {
      EXPECT_TRUE(check_value(spec, spec.preset).has_value()) << spec.name;
    }
    if (!spec.range.empty()) {
      EXPECT_TRUE(spec.range.front() == '[' || spec.range.front() == '(') << spec.name;
      EXPECT_TRUE(spec.range.back() == ']' || spec.range.back() == ')') << spec.name;
      EXPECT_NE(spec.range.find(','), std::string_view::npos) << spec.name;
    }
  }
}

TEST(Flags, ANameStandsOnceOnEachVerb) {
  std::set<std::pair<unsigned, std::string>> seen;
  for (const FlagSpec& spec : flag_table()) {
    for (unsigned bit = 1; bit <= kController; bit <<= 1) {
      if ((spec.verbs & bit) != 0) {
        EXPECT_TRUE(seen.emplace(bit, std::string(spec.name)).second) << spec.name;
        EXPECT_TRUE(spec.alias.empty() || seen.emplace(bit, std::string(spec.alias)).second)
            << spec.alias;
      }
    }
  }
}

TEST(Flags, LaterNamesAreNoFlagsOfThisBuild) {
  for (const char* name : {
#define YETO_LATER(name) name,
#include "yeto/fleet/spec/later_flags.def"
#undef YETO_LATER
       }) {
    EXPECT_EQ(find_flag(kLaunch, name), nullptr) << name;
    const ParsedLine line = launch(plus({strf("--{}", name)}));
    ASSERT_EQ(line.errors.size(), 1u) << name;
    EXPECT_EQ(line.errors[0].code, ErrorCode::kNotInBuild) << name;
    EXPECT_NE(line.errors[0].what.find("is not in this build"), std::string::npos) << name;
  }
}

TEST(Flags, EveryLaunchFlagHasAReceiverOrActsAtOnce) {
  const std::set<std::string_view> at_once = {"dry-run", "yes", "o", "help"};
  for (const FlagSpec& spec : flag_table()) {
    if ((spec.verbs & kLaunch) != 0) {
      EXPECT_EQ(spec.to == 0, at_once.contains(spec.name)) << spec.name;
    }
    if ((spec.to & kToSyncer) != 0) {
      EXPECT_NE(spec.verbs & kSyncer, 0u)
          << spec.name << " is sent to a syncer that does not know it";
    }
  }
}

TEST(Flags, BothWaysToGiveAValueAreEqual) {
  EXPECT_EQ(launch(plus({"--lora-r", "8"})).values.integer("lora-r"), 8);
  EXPECT_EQ(launch(plus({"--lora-r=8"})).values.integer("lora-r"), 8);
  EXPECT_EQ(launch(kGood).values.integer("lora-r"), 16);
  EXPECT_EQ(launch(kGood).values.find("lora-r")->origin, "default");
}

TEST(Flags, NamesMatchWholeOnly) {
  const ParsedLine line = launch(plus({"--lora", "8"}));
  EXPECT_EQ(codes(line), "E_FLAG_UNKNOWN--lora");
  EXPECT_NE(line.errors[0].text().find("--lora-r"), std::string::npos) << line.errors[0].text();
}

TEST(Flags, UnknownFlagNamesThreeNearest) {
  const ParsedLine line = launch(plus({"--total-step", "8"}));
  ASSERT_EQ(line.errors.size(), 1u);
  EXPECT_NE(line.errors[0].text().find("nearest: --total-steps, "), std::string::npos)
      << line.errors[0].text();
}

TEST(Flags, ARepeatedFlagIsRefused) {
  EXPECT_EQ(codes(launch(plus({"--seed=1", "--seed", "1"}))), "E_USAGE--seed");
  EXPECT_EQ(codes(launch(plus({"--lockstep", "--no-lockstep"}))), "E_USAGE--no-lockstep");
}

TEST(Flags, BooleansHaveANoForm) {
  EXPECT_TRUE(launch(kGood).values.on("island-relaunch"));
  EXPECT_FALSE(launch(plus({"--no-island-relaunch"})).values.on("island-relaunch"));
  EXPECT_FALSE(launch(plus({"--no-lockstep"})).values.on("lockstep"));
  EXPECT_EQ(codes(launch(plus({"--lockstep=yes"}))), "E_USAGE--lockstep");
  EXPECT_EQ(codes(launch(plus({"--no-seed"}))), "E_FLAG_UNKNOWN--no-seed");
}

TEST(Flags, AllErrorsComeTogether) {
  const ParsedLine line = launch({"--gpu=local:1xcpu", "--lora-r=zero", "--seq-len=0", "--nope=1",
                                  "--tuning=full", "--overlong=keep", "stray"});
  EXPECT_EQ(codes(line),
            "E_TYPE--lora-r E_RANGE--seq-len E_FLAG_UNKNOWN--nope E_NOT_IN_BUILD--tuning "
            "E_TYPE--overlong E_USAGE--model E_USAGE--data E_USAGE");
  EXPECT_EQ(exit_code_of(line.errors), 64);
}

TEST(Flags, AForgottenValueIsNamed) {
  EXPECT_EQ(codes(launch(plus({"--seed", "--lockstep"}))), "E_USAGE--seed");
  EXPECT_EQ(codes(launch(plus({"--seed"}))), "E_USAGE--seed");
  EXPECT_EQ(launch(plus({"--sample-prompt=--x"})).values.text("sample-prompt"), "--x");
}

TEST(Flags, NumbersAreWholeAndFinite) {
  for (const char* bad : {"nan", "inf", "0x10", "1e400", "", " 1", "1 "}) {
    EXPECT_EQ(launch(plus({strf("--inner-lr={}", bad)})).errors.size(), 1u) << bad;
  }
  EXPECT_EQ(launch(plus({"--tokens", "1.5k"})).values.text("tokens"), "1500");
  EXPECT_EQ(launch(plus({"--tokens", "20M"})).values.text("tokens"), "20000000");
  EXPECT_EQ(codes(launch(plus({"--tokens", "1.0001k"}))), "E_TYPE--tokens");
  EXPECT_EQ(codes(launch(plus({"--betas", "0.9"}))), "E_TYPE--betas");
  EXPECT_EQ(codes(launch(plus({"--betas", "0.9,1"}))), "E_RANGE--betas");
  EXPECT_EQ(codes(launch(plus({"--quorum", "all", "--grace-ms", "12.5"}))), "");
  EXPECT_EQ(codes(launch(plus({"--quorum", "most"}))), "E_TYPE--quorum");
  EXPECT_EQ(codes(launch(plus({"--lora-dropout", "1"}))), "E_RANGE--lora-dropout");
}

TEST(Flags, BytesMayHaveABinaryUnit) {
  const auto size = [](const char* text) {
    const ParsedLine line = launch(plus({strf("--max-buffer={}", text)}));
    return line.errors.empty() ? line.values.text("max-buffer") : codes(line);
  };
  EXPECT_EQ(size("auto"), "auto");
  EXPECT_EQ(size("1048576"), "1048576");
  EXPECT_EQ(size("64MiB"), "67108864");
  EXPECT_EQ(size("1.5GiB"), "1610612736");
  EXPECT_EQ(size("2TiB"), "2199023255552");
  EXPECT_EQ(size("1023KiB"), "E_RANGE--max-buffer");
  for (const char* bad : {"", "lots", "64MB", "64 MiB", "MiB", "1.0000001KiB", "64mib", "-1"}) {
    EXPECT_NE(size(bad).find("--max-buffer"), std::string::npos) << bad;
  }
}

TEST(Flags, ACorrectionHasTwoNames) {
  EXPECT_EQ(launch(plus({"--delta-correction", "heloco"})).values.text("correction"), "heloco");
  EXPECT_EQ(codes(launch(plus({"--correction=none", "--delta-correction=none"}))),
            "E_USAGE--delta-correction");
}

TEST(Flags, RunNamesAreSmall) {
  EXPECT_EQ(codes(launch(plus({"--cluster-prefix=a-b-9"}))), "");
  for (const char* bad : {"A", "9a", "-a", "a_b", "abcdefghijklmnopqrstu"}) {
    EXPECT_EQ(launch(plus({strf("--cluster-prefix={}", bad)})).errors.size(), 1u) << bad;
  }
}

TEST(Flags, AFlagOfAnotherVerbSaysWhereItBelongs) {
  const ParsedLine line = launch(plus({"--follow"}));
  ASSERT_EQ(line.errors.size(), 1u);
  EXPECT_NE(line.errors[0].text().find("yeto logs"), std::string::npos) << line.errors[0].text();
}

TEST(Flags, ConflictsNameBothFlags) {
  ParsedLine line = launch(plus({"--recover-timeout=5", "--no-island-relaunch", "--quorum=3",
                                 "--start-quorum=9", "--val-data=v", "--val-rows=3"}));
  ASSERT_TRUE(line.errors.empty());
  const std::vector<FlagError> errors = launch_conflicts(line.values, 2);
  ASSERT_EQ(errors.size(), 4u);
  EXPECT_EQ(errors[0].flag, "--quorum");
  EXPECT_NE(errors[2].what.find("--no-island-relaunch"), std::string::npos);
  EXPECT_TRUE(
      launch_conflicts(launch(plus({"--no-island-relaunch", "--quorum=2"})).values, 2).empty());
}

TEST(Flags, OneEpochWithoutALimit) {
  FlagValues values = launch(kGood).values;
  EXPECT_TRUE(apply_limit_rule(values));
  EXPECT_EQ(values.find("epochs")->origin, "rule");
  FlagValues limited = launch(plus({"--total-steps=4"})).values;
  EXPECT_FALSE(apply_limit_rule(limited));
  EXPECT_FALSE(limited.has("epochs"));
}

TEST(Flags, ReceiversGetTheirFlagsAndNoOther) {
  const FlagValues values =
      launch(plus({"--total-steps=4", "--lockstep", "--seed=7", "--stall-timeout=9"})).values;
  const std::vector<std::string> syncer = forward_argv(values, kToSyncer);
  const std::vector<std::string> learner = forward_argv(values, kToLearner);
  const auto holds = [](const std::vector<std::string>& list, const char* item) {
    return std::find(list.begin(), list.end(), item) != list.end();
  };
  EXPECT_TRUE(holds(syncer, "--total-steps=4") && holds(syncer, "--lockstep"));
  EXPECT_FALSE(holds(syncer, "--seed=7") || holds(syncer, "--stall-timeout=9"));
  EXPECT_TRUE(holds(learner, "--seed=7") && holds(learner, "--model=m"));
  EXPECT_FALSE(holds(learner, "--lockstep") || holds(learner, "--gpu=local:1xcpu"));
  // What is sent to the syncer is understood by its own line.
  std::vector<std::string> line = syncer;
  for (const char* wiring : {"--run-id=r", "--learners=1", "--token-file=t", "--checkpoint=c"}) {
    line.emplace_back(wiring);
  }
  EXPECT_TRUE(parse_line(kSyncer, line).errors.empty());
}

TEST(Flags, WordsOfOtherVerbs) {
  EXPECT_TRUE(parse_line(kStatus, Args{}).errors.empty());
  EXPECT_EQ(parse_line(kStatus, Args{"a", "b"}).errors.size(), 1u);
  EXPECT_EQ(parse_line(kDown, Args{}).errors.size(), 1u);
  EXPECT_TRUE(parse_line(kDown, Args{"--help"}).errors.empty());
  EXPECT_EQ(parse_line(kStatus, Args{"--watch"}).values.number("watch"), 2);
  EXPECT_EQ(parse_line(kStatus, Args{"--watch", "0.5", "demo"}).values.number("watch"), 0.5);
  EXPECT_EQ(parse_line(kStatus, Args{"--watch", "demo"}).positionals.at(0), "demo");
  EXPECT_EQ(parse_line(kStatus, Args{"--json"}).values.text("o"), "json");
  EXPECT_EQ(parse_line(kLogs, Args{"demo", "-f", "--tail", "3"}).values.on("follow"), true);
}

TEST(Flags, HelpHasNoLongLinesAndAnExample) {
  for (const Verb verb : {kLaunch, kStatus, kLogs, kStopRun, kDown, kSyncer}) {
    const std::string text = help_text(verb);
    EXPECT_NE(text.find("example:\n"), std::string::npos);
    for (std::size_t from = 0; from < text.size();) {
      const std::size_t to = text.find('\n', from);
      ASSERT_NE(to, std::string::npos);
      EXPECT_LE(to - from, 100u) << text.substr(from, to - from);
      from = to + 1;
    }
  }
}

TEST(Flags, JsonErrorsKeepOffsets) {
  const std::string text = errors_as_json(parse_fleet("local:8cpu").errors);
  EXPECT_NE(text.find("\"schema\": \"yeto.error/1\""), std::string::npos);
  EXPECT_NE(text.find("\"offset\": 7"), std::string::npos) << text;
}

TEST(Flags, EditDistanceCountsSwaps) {
  EXPECT_EQ(edit_distance("loacl", "local"), 1u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("same", "same"), 0u);
}

}  // namespace
}  // namespace yeto::fleet
