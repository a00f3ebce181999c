// SPDX-License-Identifier: Apache-2.0
// Delivery: an island's adapter becomes artifacts/ of the run and, where asked for, the user's
// output folder. Both appear by rename of a sibling, whole or not at all, with every file checked
// against the digests in yeto_manifest.json. All steps may be repeated after a crash.
#pragma once

#include <filesystem>
#include <string>

#include "yeto/base/result.h"
#include "yeto/fleet/run/run_record.h"

namespace yeto::fleet {

// Checks the files of a folder against its yeto_manifest.json: names, sizes, SHA-256.
// kDamaged with the first file that differs.
Status verify_artifact(const std::filesystem::path& folder);

// Refuses a place that cannot become the output: a file, a folder with something in it, or a parent
// that cannot be made or written. Creates nothing.
Status check_output(const std::filesystem::path& output);

// Copies the seat's adapter to a working folder beside artifacts/ and verifies the copy. Returns
// the folder.
Result<std::filesystem::path> stage_artifact(const RunPaths& paths, int seat);

// Makes the working folder artifacts/ and copies that to `output` (if not empty). Returns the final
// place.
Result<std::filesystem::path> publish_artifact(const RunPaths& paths,
                                               const std::filesystem::path& staged,
                                               const std::filesystem::path& output);

// The text of summary.json, from tape, metrics and status.json; unknown values are null.
std::string summary_json(const RunPaths& paths, const RunRecord& record, const RunView& view);

}  // namespace yeto::fleet
