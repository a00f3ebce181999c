// SPDX-License-Identifier: Apache-2.0
// Any bytes as each file of a run folder that this program reads: damaged in words, or values that
// can be used and are the same when they are written again. The first byte says which file it is.
#include <filesystem>

#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/base/fuzz_testing.h"
#include "yeto/fleet/run/delivery.h"
#include "yeto/fleet/run/journal.h"
#include "yeto/fleet/run/observed.h"
#include "yeto/fleet/run/registry.h"
#include "yeto/fleet/run/run_record.h"

namespace {

using namespace yeto;
using namespace yeto::fleet;

constexpr std::uint8_t kFiles = 9;

RunRecord a_record() {
  RunRecord record;
  record.name = "demo";
  record.run_id = "01ARZ3NDEKTSV4RRFFQ69G5FAV";
  record.version = "0.1.0";
  record.created_at = 1.5;
  record.flags.set("quorum", {"2", "2", "argv"});
  record.flags.set("seed", {"0", "", "default"});
  record.islands = {Slot{}, Slot{}};
  record.programs = {{"yeto", "syncer"}, {"python", "-m", "x"}, {"yeto", "_finish"}, {"python"}};
  record.check_json = R"({"rows":10})";
  return record;
}

std::string journal_line(std::string_view body) {
  return strf("{} {:08x}\n", body, crc32c(as_bytes_view(body)));
}

std::string example_text(std::uint64_t file) {
  switch (file) {
    case 0:
      return run_record_json(a_record());
    case 1:
      return R"({"schema":"yeto.state/1","name":"demo","run_id":"r","state":"RUNNING","phase":"TRAINING",)"
             R"("exit":null,"error":"","islands":[{"id":0,"state":"RUNNING","attempt":1,"pid":7,)"
             R"("start_time":9,"exit":3,"restarts":2}],"syncer":{"pid":6,"start_time":8,)"
             R"("restarts":1},"artifact":"","updated_at":2.5,"seq":4})";
    case 2:
      return R"({"schema":"yeto.controller/1","pid":7,"start_time":9})";
    case 3:
      return R"({"schema":"yeto.stop/1","id":"a","mode":"now","by":"me","reason":"enough"})";
    case 4:
      return journal_line(R"({"seq":0,"ts":1.5,"kind":"intent","who":0,"attempt":0,"token":"t"})") +
             journal_line(R"({"seq":1,"ts":2,"kind":"spawned","who":0,"attempt":0,"token":"t",)"
                          R"("pid":7,"start_time":9})");
    case 5:
      return R"({"phase":"training","global_step":3,"total_steps":9,"run_tokens":7,"pid":5,)"
             R"("updated_at":1.5,"exit":0,"seats":[{"seat":0,"state":"live","incarnation":"12",)"
             R"("phase":"train","local_step":4,"tokens":9,"participation":0.5,"pushes":1}]})";
    case 6:
      return "{\"step\":1,\"loss\":2.5,\"tok_s\":10,\"tokens\":5,\"targets\":4,\"ts\":1}\n"
             "{\"event\":\"eval\",\"loss\":2}\n{\"step\":2";
    case 7:
      return R"({"run_id":"r","folder":"demo-abc","pid":7,"start_time":9,"at":1.5})";
    default:
      return R"({"schema":1,"files":{"adapter_model.safetensors":{"bytes":0,"sha256":"00"},)"
             R"("../x":{"bytes":1,"sha256":""}}})";
  }
}

Bytes example(Rng& rng) {
  const std::uint64_t file = rng.below(kFiles);
  Bytes out{static_cast<std::uint8_t>(file)};
  const Bytes text = fuzz::bytes_of(example_text(file));
  out.insert(out.end(), text.begin(), text.end());
  return out;
}

void read_run_json(const RunPaths& paths) {
  const auto record = read_run_record(paths);
  if (!record) {
    return;
  }
  static_cast<void>(core_config(*record));
  YETO_CHECK(write_run_record(paths, *record), "a record that was read");
  const auto again = read_run_record(paths);
  YETO_CHECK(again && run_record_json(*again) == run_record_json(*record),
             "a record that changes when it is written");
}

// Lines are cut at the first that is torn, and the next one goes after the last whole one.
void read_a_journal(const std::filesystem::path& path) {
  const auto entries = read_journal(path);
  if (!entries) {
    return;
  }
  static_cast<void>(recorded_processes(*entries));
  auto journal = Journal::open(path);
  YETO_CHECK(journal && journal->append({.kind = "decision", .what = "x"}), "a journal to go on");
  const auto again = read_journal(path);
  YETO_CHECK(again && again->size() == entries->size() + 1, "a journal that loses lines");
}

void read_file(std::uint8_t what, const RunPaths& paths, ByteView bytes,
               const fuzz::Folder& folder) {
  switch (what % kFiles) {
    case 0:
      folder.write("run.json", bytes);
      return read_run_json(paths);
    case 1:
      folder.write("state.json", bytes);
      if (const auto state = read_state(paths)) {
        YETO_CHECK(write_state(paths, *state) && read_state(paths), "a state that was read");
      }
      return;
    case 2:
      folder.write("controller.json", bytes);
      return static_cast<void>(read_controller(paths));
    case 3:
      folder.write("STOP", bytes);
      return static_cast<void>(read_stop(paths));
    case 4:
      return read_a_journal(folder.write("journal.jsonl", bytes));
    case 5:
      if (const auto status = read_syncer_status(folder.write("status.json", bytes))) {
        static_cast<void>(report_of(*status));
      }
      return;
    case 6:
      return static_cast<void>(read_last_metrics(folder.write("metrics.jsonl", bytes)));
    case 7: {
      std::error_code ignored;
      std::filesystem::create_directories(paths.root / "claims", ignored);
      folder.write("claims/demo", bytes);
      return static_cast<void>(Registry(paths.root).read_claim("demo"));
    }
    default:
      folder.write("yeto_manifest.json", bytes);
      return static_cast<void>(verify_artifact(paths.root));
  }
}

}  // namespace

YETO_FUZZ_EXAMPLES(example)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  fuzz::Input in(data, size);
  const std::uint8_t what = in.byte();
  read_file(what, RunPaths{folder.path()}, in.rest(), folder);
  return 0;
}
