// SPDX-License-Identifier: Apache-2.0
// Help texts, made from the table. tests/golden/help_*.txt hold them.
#include <algorithm>

#include "yeto/base/format.h"
#include "yeto/fleet/spec/flags.h"

namespace yeto::fleet {
namespace {

struct VerbText {
  Verb verb;
  const char* purpose;
  const char* usage;
  const char* notes;
  const char* example;
};

constexpr VerbText kVerbs[] = {
    {kLaunch, "start a run: islands that train and a syncer that merges, on this machine",
     "yeto launch --gpu FLEET --model MODEL --data FILE [flags]",
     "Everything is checked before anything is created: flags, model, data, output folder, name.\n"
     "The run goes on by itself when this command has returned. Without a limit (--total-steps,\n"
     "--epochs, --tokens, --local-steps) each island makes one pass over its rows.\n",
     "  yeto launch --gpu local:1xcpu,local:1xcpu --model ./SmolLM2-135M-Instruct \\\n"
     "      --data rows.jsonl --val-data heldout.jsonl --output ./adapter --total-steps 32\n"
     "  yeto status yeto --watch\n"},
    {kStatus, "show one run, or all runs", "yeto status [NAME] [flags]",
     "NAME is the run's name, or its folder NAME.RUN6. Reads files only. What is not known is "
     "shown\n"
     "as \"-\" (null in JSON).\n",
     "  yeto status yeto\n"
     "  yeto status -o json | python3 -m json.tool\n"},
    {kLogs, "show what the processes of a run printed", "yeto logs NAME [flags]",
     "Works during the run and after it. Each line says which process it is from.\n",
     "  yeto logs yeto --island 0 --tail 20 -f\n"},
    {kStopRun, "end a run cleanly: last merge, adapter, delivery", "yeto stop-run NAME [flags]",
     "The request is stored in the run folder and the command waits for the controller's answer;\n"
     "exit 75 if there is none in time (the request stays stored).\n",
     "  yeto stop-run yeto\n"},
    {kDown, "end all processes of a run, in any state", "yeto down NAME [flags]",
     "May be repeated. The run folder with logs, tape and checkpoint is kept. To keep the result "
     "of\n"
     "training, use stop-run instead. Exit 5 names processes that would not end.\n",
     "  yeto down yeto\n"},
    {kSyncer, "the process that merges what islands learn (started by yeto launch)",
     "yeto syncer --run-id ID --learners N --token-file FILE --checkpoint DIR [flags]",
     "On an address that others can reach, --tls-cert, --tls-key and --tls-ca take the place of\n"
     "--token-file. TERM or INT: last checkpoint, then out within 5 s; a second one: out at once.\n"
     "Exit codes: 0 ended, 4 a final acknowledgement or the quorum was lost, 64 flags, 65 inputs,\n"
     "66 missing, 82 damaged checkpoint.\n",
     "  yeto syncer --bind 127.0.0.1:0 --run-id demo --learners 2 --token-file run.token \\\n"
     "      --checkpoint ckpt --endpoint endpoint.json --status status.json --total-steps 32\n"},
    {kSim, "try a fleet, or search for broken rules, in virtual time",
     "yeto sim --seeds A..B [--trace ROOM] | yeto sim --params X [flags]",
     "The real syncer and clients run over simulated links, clocks, disks and failures. The same\n"
     "seed gives the same run. A search ends with 1 when a rule was broken.\n",
     "  yeto sim --seeds 1..1000\n"
     "  yeto sim --learners 1000 --params 9e9 --codec q4 --link 1Gbit,80ms --step 1.2s --mtbf 2h "
     "\\\n"
     "      --hours 24 --timeline plan.html\n"},
};

std::string left_column(const FlagSpec& spec) {
  const bool single = spec.name.size() == 1;
  std::string out = single ? "-" : "--";
  if (spec.type == FlagType::kBool && spec.preset == "true") {
    out += "no-";
  }
  out += spec.name;
  if (spec.alias.size() == 1) {
    out = strf("-{}, {}", spec.alias, out);
  } else if (!spec.alias.empty()) {
    out += strf(", --{}", spec.alias);
  }
  if (spec.type == FlagType::kSeconds) {
    return out + strf(" [{}]", spec.value_name);
  }
  if (spec.type == FlagType::kChoice) {
    return out + " " + std::string(spec.choices);
  }
  if (!spec.choices.empty()) {
    return out + strf(" {}|{}", spec.choices, spec.value_name);
  }
  return spec.value_name.empty() ? out : out + " " + std::string(spec.value_name);
}

std::string right_column(const FlagSpec& spec) {
  std::string out(spec.help);
  std::string extra;
  if (spec.required) {
    extra = "required";
  } else if (spec.type != FlagType::kBool && !spec.preset.empty()) {
    extra = strf("default {}", spec.preset);
  }
  if (!spec.range.empty()) {
    extra += (extra.empty() ? "" : ", ") + std::string(spec.range);
  }
  return extra.empty() ? out : out + " (" + extra + ")";
}

constexpr std::size_t kColumn = 34;
constexpr std::size_t kWidth = 100;

// The right column, broken at blanks so that no line is longer than kWidth.
std::string flag_lines(const FlagSpec& spec) {
  std::string line = "  " + left_column(spec);
  std::string out;
  if (line.size() + 2 > kColumn) {
    out = line + "\n";
    line.clear();
  }
  line.resize(kColumn, ' ');
  const std::string text = right_column(spec);
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t to = std::min(text.find(' ', from), text.size());
    const std::string word = text.substr(from, to - from);
    const bool first = line.size() == kColumn;
    if (!first && line.size() + 1 + word.size() > kWidth) {
      out += line + "\n";
      line = std::string(kColumn, ' ') + word;
    } else {
      line += (first ? "" : " ") + word;
    }
    from = to + 1;
  }
  return out + line + "\n";
}

}  // namespace

std::string help_text(Verb verb) {
  std::string out;
  for (const VerbText& text : kVerbs) {
    if (text.verb == verb) {
      out = strf("yeto {}: {}\n\nusage: {}\n\n{}\nexample:\n{}", verb_name(verb), text.purpose,
                 text.usage, text.notes, text.example);
    }
  }
  std::vector<std::string_view> sections;
  for (const FlagSpec& spec : flag_table()) {
    if ((spec.verbs & verb) != 0 &&
        std::find(sections.begin(), sections.end(), spec.section) == sections.end()) {
      sections.push_back(spec.section);
    }
  }
  for (const std::string_view section : sections) {
    out += strf("\n{}:\n", section);
    for (const FlagSpec& spec : flag_table()) {
      if ((spec.verbs & verb) != 0 && spec.section == section) {
        out += flag_lines(spec);
      }
    }
  }
  return out;
}

std::string overview_text() {
  std::string out =
      "yeto: post-training of language models on islands that exchange weights through a syncer\n\n"
      "usage: yeto VERB [flags]\n\nverbs:\n";
  for (const VerbText& text : kVerbs) {
    out += strf("  {:<10} {}\n", verb_name(text.verb), text.purpose);
  }
  out += "  learner    one island's training process (started by yeto launch)\n";
  out += strf("\nexample:\n{}", kVerbs[0].example);
  out +=
      "\nyeto VERB --help explains a verb and its flags; yeto --version prints the version.\n"
      "Runs live in $YETO_RUNS_DIR, else $YETO_HOME/runs, else ~/.yeto/runs.\n";
  return out;
}

}  // namespace yeto::fleet
