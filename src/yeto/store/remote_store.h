// SPDX-License-Identifier: Apache-2.0
// RemoteStore: objects below a URL (s3://bucket/prefix, gs://, az://, file://, memory://), by the
// bridge. Whole payloads pass through files of a scratch folder. Credentials and endpoints come
// from the environment, as with the clouds' own tools.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "yeto/base/clock.h"
#include "yeto/bridge/bridge.h"
#include "yeto/store/object_store.h"

namespace yeto::store {

struct RemoteOptions {
  bridge::BridgeOptions bridge{"store", {}};
  std::filesystem::path scratch;  // for payloads; empty: the system's temporary folder
  Nanos timeout = 600 * kSecond;  // of one call, the largest transfer included
};

// Errors besides those of ObjectStore: kConfig (no such bucket), kPermission (credentials),
// kUnreachable, kTimeout, kSetup (no Python, or it lacks obstore), kClosed (the bridge died).
class RemoteStore final : public ObjectStore {
 public:
  // kConfig for a URL that names no store, kSetup. Nothing is asked over the network.
  static Result<std::shared_ptr<RemoteStore>> open(std::string url, RemoteOptions options = {});

  using ObjectStore::put;
  Result<bool> put(std::string_view key, std::span<const ByteView> parts, PutMode mode) override;
  Result<Bytes> get(std::string_view key, std::uint64_t max_bytes) const override;
  Result<std::vector<std::string>> list() const override;
  Status remove(std::string_view key) override;
  // Objects appear whole: nothing to remove.
  Status remove_unfinished() override;
  std::string place() const override { return url_; }
  bool is_shared() const override { return true; }
  // Uploads the source's file as it is, if it has one.
  Result<bool> copy_in(const ObjectStore& source, std::string_view source_key, std::string_view key,
                       std::uint64_t max_bytes) override;
  // Ends the call in progress and all later ones. Any thread.
  void stop() { bridge_.stop(); }

 private:
  RemoteStore(std::string url, RemoteOptions options);
  std::filesystem::path scratch_file() const;
  Result<bool> upload(std::string_view key, const std::filesystem::path& path, PutMode mode) const;

  const std::string url_;
  const RemoteOptions options_;
  mutable bridge::Bridge bridge_;
};

// "s3://…" and the like, not a path.
bool is_store_url(std::string_view text);
// What --checkpoint and --checkpoint-copy name: a folder, made if missing, or a URL. Errors of
// LocalFolder::open and RemoteStore::open.
Result<std::shared_ptr<ObjectStore>> open_checkpoint_store(std::string_view text);

}  // namespace yeto::store
