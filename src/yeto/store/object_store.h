// SPDX-License-Identifier: Apache-2.0
// Object store: named blobs that are there whole or not at all. A key is one file name: letters,
// digits and "._-", not starting with a dot, at most 200 bytes (kConfig otherwise).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "yeto/base/bytes.h"
#include "yeto/base/result.h"
#include "yeto/base/thread.h"

namespace yeto::store {

enum class PutMode : std::uint8_t { kReplace, kCreate };

// Thread-safe, as are all its kinds.
class ObjectStore {
 public:
  ObjectStore() = default;
  ObjectStore(const ObjectStore&) = delete;
  ObjectStore& operator=(const ObjectStore&) = delete;
  virtual ~ObjectStore() = default;

  // The blob is the parts one after the other. When it returns, the blob is durable. False (kCreate
  // only): the key existed and stands as it was. kIo: not stored; a blob of that key stands as it
  // was.
  virtual Result<bool> put(std::string_view key, std::span<const ByteView> parts, PutMode mode) = 0;
  // kNotFound; kData if it is larger than `max_bytes`; kIo.
  virtual Result<Bytes> get(std::string_view key, std::uint64_t max_bytes) const = 0;
  // Keys in ascending order.
  virtual Result<std::vector<std::string>> list() const = 0;
  // No error if there is none of that key.
  virtual Status remove(std::string_view key) = 0;
  // Removes what broken-off puts left behind. Only the one writer of a store may call it.
  virtual Status remove_unfinished() = 0;
  // The place in words, for messages: "folder runs/a/syncer".
  virtual std::string place() const = 0;
  // Others may write to it at the same time, from other machines.
  virtual bool is_shared() const { return false; }
  // The file that holds a blob, if this kind of store has files. It may be missing.
  virtual std::optional<std::filesystem::path> file_of(std::string_view key) const;
  // A blob of another store, created if absent. False: the key existed and stands as it was.
  // kNotFound, kData (larger than `max_bytes`), kIo.
  virtual Result<bool> copy_in(const ObjectStore& source, std::string_view source_key,
                               std::string_view key, std::uint64_t max_bytes);

  Result<bool> put(std::string_view key, std::string_view text, PutMode mode);
};

// A folder of this machine; a blob is a file. Temp, fsync, link or rename, directory fsync.
class LocalFolder final : public ObjectStore {
 public:
  // Called before each file operation ("create", "write", "sync", "publish", "remove",
  // "sync-directory") with the path; an error it returns takes the operation's place. For tests of
  // crashes and full disks.
  using BeforeStep =
      std::function<Status(std::string_view step, const std::filesystem::path& path)>;

  // Makes the folder (and its parents) if missing. kIo.
  static Result<std::shared_ptr<LocalFolder>> open(std::filesystem::path folder,
                                                   BeforeStep before_step = {});

  using ObjectStore::put;
  Result<bool> put(std::string_view key, std::span<const ByteView> parts, PutMode mode) override;
  Result<Bytes> get(std::string_view key, std::uint64_t max_bytes) const override;
  Result<std::vector<std::string>> list() const override;
  Status remove(std::string_view key) override;
  Status remove_unfinished() override;
  std::string place() const override;
  std::optional<std::filesystem::path> file_of(std::string_view key) const override;
  const std::filesystem::path& folder() const { return folder_; }

 private:
  LocalFolder(std::filesystem::path folder, BeforeStep before_step)
      : folder_(std::move(folder)), before_step_(std::move(before_step)) {}
  Status step(std::string_view what, const std::filesystem::path& path) const;
  Status write_temporary(const std::filesystem::path& path, std::span<const ByteView> parts) const;
  Result<bool> publish(const std::filesystem::path& temporary, const std::filesystem::path& path,
                       PutMode mode) const;
  Status sync_folder() const;

  const std::filesystem::path folder_;
  const BeforeStep before_step_;
};

// Blobs in memory, gone with the object.
class MemoryStore final : public ObjectStore {
 public:
  using ObjectStore::put;
  Result<bool> put(std::string_view key, std::span<const ByteView> parts, PutMode mode) override;
  Result<Bytes> get(std::string_view key, std::uint64_t max_bytes) const override;
  Result<std::vector<std::string>> list() const override;
  Status remove(std::string_view key) override;
  Status remove_unfinished() override;
  std::string place() const override;

 private:
  mutable Mutex mutex_;
  std::map<std::string, Bytes, std::less<>> blobs_ YETO_GUARDED_BY(mutex_);
};

}  // namespace yeto::store
