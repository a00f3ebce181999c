// SPDX-License-Identifier: Apache-2.0
#include "yeto/fleet/run/commands.h"

#include <system_error>

#include "yeto/fleet/run/ulid.h"

namespace yeto::fleet {
namespace {

void append(std::vector<std::string>& out, std::vector<std::string> more) {
  out.insert(out.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

std::vector<std::string> syncer_argv(const RunRecord& record, const RunPaths& paths, bool resume) {
  std::vector<std::string> out = record.programs.syncer;
  append(out, {"--bind=127.0.0.1:0", "--run-id=" + record.run_id,
               strf("--learners={}", record.islands.size()),
               "--token-file=" + paths.run_token().string(),
               "--checkpoint=" + paths.checkpoint().string(),
               "--endpoint=" + paths.endpoint_json().string(),
               "--status=" + paths.status_json().string(), "--tape=" + paths.tape().string()});
  append(out, forward_argv(record.flags, kToSyncer));
  // A fixed roster waits for a lost island as long as the controller tries to bring it back.
  if (record.flags.text("roster") == "fixed") {
    out.push_back("--recover-timeout=" + record.flags.text("recover-timeout"));
  }
  if (resume) {
    out.emplace_back("--resume");
  }
  return out;
}

std::vector<std::string> island_argv(const RunRecord& record, const RunPaths& paths, int seat) {
  std::vector<std::string> out = record.programs.learner;
  append(out, forward_argv(record.flags, kToLearner));
  append(out, {"--syncer=@" + paths.endpoint_json().string(), "--run-id=" + record.run_id,
               strf("--seat={}", seat), strf("--seats={}", record.islands.size()),
               "--token-file=" + paths.seat_key(seat).string(), "--run-dir=" + paths.root.string(),
               "--out-dir=" + paths.island(seat).string(),
               strf("--threads={}", record.islands[static_cast<std::size_t>(seat)].count)});
  return out;
}

std::vector<std::string> island_env(const RunRecord& record, int seat) {
  return {strf("OMP_NUM_THREADS={}", record.islands[static_cast<std::size_t>(seat)].count),
          "PYTHONUNBUFFERED=1", "TOKENIZERS_PARALLELISM=false"};
}

std::vector<std::string> finish_argv(const RunRecord& record, const RunPaths& paths,
                                     StopMode mode) {
  std::vector<std::string> out = record.programs.finish;
  append(out, {"--endpoint=" + paths.endpoint_json().string(),
               "--token-file=" + paths.run_token().string(),
               strf("--mode={}", stop_mode_name(mode)), "--reason=stop-run"});
  return out;
}

std::vector<std::string> plot_argv(const RunRecord& record, const RunPaths& paths,
                                   const std::filesystem::path& out_dir) {
  std::vector<std::string> out = record.programs.plot;
  append(out, {"--tape", paths.tape().string(), "--metrics"});
  for (std::size_t seat = 0; seat < record.islands.size(); ++seat) {
    std::error_code problem;
    const std::filesystem::path metrics = paths.metrics(static_cast<int>(seat));
    if (std::filesystem::exists(metrics, problem)) {
      out.push_back(metrics.string());
    }
  }
  append(out, {"--out", out_dir.string()});
  return out;
}

std::string process_token(const RunRecord& record, int who, int attempt) {
  const std::string base = strf("{}-{}", record.name, run6(record.run_id));
  return who == kSyncerSeat ? strf("{}-syncer-a{}", base, attempt)
                            : strf("{}-l{}-a{}", base, who, attempt);
}

}  // namespace yeto::fleet
