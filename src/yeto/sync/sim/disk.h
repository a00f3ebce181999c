// SPDX-License-Identifier: Apache-2.0
// Disk: the object store of the simulated syncer. Writes are seen at once by the process and become
// durable when the world says so; a crash keeps any first part of what was under way, because each
// write is whole or not at all. Not for threads.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "yeto/base/rng.h"
#include "yeto/store/object_store.h"

namespace yeto::sync::sim {

class Disk final : public store::ObjectStore {
 public:
  using ObjectStore::put;
  Result<bool> put(std::string_view key, std::span<const ByteView> parts,
                   store::PutMode mode) override;
  Result<Bytes> get(std::string_view key, std::uint64_t max_bytes) const override;
  Result<std::vector<std::string>> list() const override;
  Status remove(std::string_view key) override;
  Status remove_unfinished() override { return Unit{}; }
  std::string place() const override { return "the simulated disk"; }

  void fail_writes(bool fails) { fails_ = fails; }
  bool fails() const { return fails_; }
  // Everything written so far is durable.
  void sync();
  // The machine or the process died: the first writes since sync(), how many is drawn, are there.
  // `torn` (a purposely broken disk): half of the next one too.
  void crash(Rng& rng, bool torn);
  // A purposely broken disk: the content before the last sync() comes back.
  void step_back();
  std::uint64_t bytes_since_sync() const { return bytes_; }
  std::size_t writes_since_sync() const { return journal_.size(); }

 private:
  struct Write {
    std::string key;
    std::optional<Bytes> blob;  // nothing: removed
  };
  using Blobs = std::map<std::string, Bytes, std::less<>>;
  static void apply(Blobs& blobs, const Write& write);

  Blobs now_;
  Blobs durable_;
  Blobs before_;  // the last sync()
  std::vector<Write> journal_;
  std::uint64_t bytes_ = 0;
  bool fails_ = false;
};

}  // namespace yeto::sync::sim
