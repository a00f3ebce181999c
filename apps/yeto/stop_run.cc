// SPDX-License-Identifier: Apache-2.0
// `yeto stop-run`: stores the request in the run folder and waits until the controller has
// acknowledged it.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "cli.h"
#include "verbs.h"
#include "yeto/base/clock.h"
#include "yeto/base/format.h"
#include "yeto/fleet/run/journal.h"
#include "yeto/fleet/run/ulid.h"

namespace yeto::apps {
namespace {

bool acknowledged(const fleet::RunPaths& paths, const std::string& id) {
  const auto entries = fleet::read_journal(paths.journal());
  return entries &&
         std::any_of(entries->begin(), entries->end(), [&](const fleet::JournalEntry& entry) {
           return entry.kind == "stop" && entry.what == id;
         });
}

int answer(const RunLook& run, bool json, const std::string& text) {
  if (json) {
    std::printf(
        "{\"schema\": \"yeto.stop-run/1\", \"name\": \"%s\", \"state\": \"%s\", \"warnings\": "
        "[]}\n",
        run.name.c_str(), run.state_text().c_str());
  } else {
    std::printf("%s\n", text.c_str());
  }
  return 0;
}

std::string user() {
  const char* name = std::getenv("USER");
  return name != nullptr && *name != '\0' ? name : strf("uid {}", ::getuid());
}

}  // namespace

int run_stop_run(int argc, char** argv) {
  const VerbLine line = read_verb_line(fleet::kStopRun, argc, argv);
  if (line.exit) {
    return *line.exit;
  }
  const Result<fleet::RunPaths> paths = open_registry().find(line.name);
  if (!paths) {
    return report(paths.error(), line.json);
  }
  const RunLook before = look_at(*paths);
  if (before.is_over()) {
    return answer(before, line.json,
                  strf("run {} is over already: {}", before.name, before.state_text()));
  }
  fleet::StopRequest request;
  request.id = fleet::make_ulid();
  request.mode =
      line.values.text("mode") == "now" ? fleet::StopMode::kNow : fleet::StopMode::kFinish;
  request.by = user();
  request.reason = "yeto stop-run";
  if (const Status written = fleet::write_stop(*paths, request); !written) {
    return report(written.error(), line.json);
  }
  const Nanos end = monotonic_now() + from_seconds(line.values.number("timeout"));
  while (true) {
    if (acknowledged(*paths, request.id)) {
      return answer(
          look_at(*paths), line.json,
          strf("run {} is stopping; follow it: yeto status {} --watch", before.name, before.name));
    }
    const RunLook now = look_at(*paths);
    if (now.is_over()) {
      return answer(now, line.json, strf("run {} is over: {}", now.name, now.state_text()));
    }
    if (monotonic_now() >= end) {
      const bool lost = now.phase_text() == "CONTROL_LOST";
      return report(
          Error{ErrorCode::kNoAck,
                lost ? "the request is stored, but the controller is gone"
                     : "the request is stored, but the controller did not answer in time",
                paths->stop().string(),
                lost ? strf("take the run over: yeto _controller {}; or end it: yeto down {}",
                            paths->root.string(), now.name)
                     : strf("it acts when it can; look with: yeto status {}", now.name)},
          line.json);
    }
    wait_seconds(0.1);
  }
}

}  // namespace yeto::apps
