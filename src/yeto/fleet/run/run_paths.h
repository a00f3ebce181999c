// SPDX-License-Identifier: Apache-2.0
// Names of the files in a run's folder. The one place that spells them.
#pragma once

#include <filesystem>
#include <string>

#include "yeto/base/format.h"

namespace yeto::fleet {

struct RunPaths {
  std::filesystem::path root;

  std::filesystem::path run_json() const { return root / "run.json"; }
  std::filesystem::path state_json() const { return root / "state.json"; }
  std::filesystem::path journal() const { return root / "journal.jsonl"; }
  std::filesystem::path lock() const { return root / "lock"; }
  std::filesystem::path controller_json() const { return root / "controller.json"; }
  std::filesystem::path stop() const { return root / "STOP"; }
  std::filesystem::path security() const { return root / "security"; }
  std::filesystem::path run_token() const { return security() / "run.token"; }
  std::filesystem::path seat_key(int seat) const { return security() / strf("seat-{}.key", seat); }
  std::filesystem::path endpoint_json() const { return root / "endpoint.json"; }
  std::filesystem::path status_json() const { return root / "status.json"; }
  std::filesystem::path tape() const { return root / "events" / "syncer.jsonl"; }
  std::filesystem::path checkpoint() const { return root / "syncer"; }
  std::filesystem::path logs() const { return root / "logs"; }
  std::filesystem::path controller_log() const { return logs() / "controller.log"; }
  std::filesystem::path syncer_log() const { return logs() / "syncer.log"; }
  std::filesystem::path learner_log(int seat, int attempt) const {
    return logs() / "learner" / strf("{}-a{}.log", seat, attempt);
  }
  std::filesystem::path island(int seat) const { return root / "islands" / strf("{}", seat); }
  std::filesystem::path metrics(int seat) const { return island(seat) / "metrics.jsonl"; }
  std::filesystem::path adapter(int seat) const { return island(seat) / "adapter"; }
  std::filesystem::path artifacts() const { return root / "artifacts"; }
};

}  // namespace yeto::fleet
