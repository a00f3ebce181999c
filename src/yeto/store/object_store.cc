// SPDX-License-Identifier: Apache-2.0
#include "yeto/store/object_store.h"

#include "yeto/base/format.h"
#include "yeto/store/key.h"

namespace yeto::store {

Status check_key(std::string_view key) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  bool good = !key.empty() && key.size() <= kMaxKeyBytes && key.front() != '.';
  for (const char c : key) {
    good = good && allowed(c);
  }
  if (!good) {
    return fail(ErrorCode::kConfig, "a key of an object store is a plain file name",
                strf("key \"{}\"", key.substr(0, kMaxKeyBytes)),
                "use letters, digits and ._- and no leading dot");
  }
  return Unit{};
}

Error too_large(std::string_view key, std::uint64_t bytes, std::uint64_t max_bytes) {
  return Error{ErrorCode::kData, strf("it has {} bytes, at most {} are expected", bytes, max_bytes),
               std::string(key), ""};
}

Result<bool> ObjectStore::put(std::string_view key, std::string_view text, PutMode mode) {
  const ByteView part = as_bytes_view(text);
  return put(key, {&part, 1}, mode);
}

std::optional<std::filesystem::path> ObjectStore::file_of(std::string_view) const {
  return std::nullopt;
}

Result<bool> ObjectStore::copy_in(const ObjectStore& source, std::string_view source_key,
                                  std::string_view key, std::uint64_t max_bytes) {
  YETO_ASSIGN(const Bytes bytes, source.get(source_key, max_bytes));
  const ByteView part = bytes;
  return put(key, {&part, 1}, PutMode::kCreate);
}

Result<bool> MemoryStore::put(std::string_view key, std::span<const ByteView> parts, PutMode mode) {
  YETO_TRY(check_key(key));
  Bytes blob;
  for (const ByteView part : parts) {
    blob.insert(blob.end(), part.begin(), part.end());
  }
  MutexLock lock(mutex_);
  if (mode == PutMode::kCreate && blobs_.contains(key)) {
    return false;
  }
  blobs_.insert_or_assign(std::string(key), std::move(blob));
  return true;
}

Result<Bytes> MemoryStore::get(std::string_view key, std::uint64_t max_bytes) const {
  YETO_TRY(check_key(key));
  MutexLock lock(mutex_);
  const auto found = blobs_.find(key);
  if (found == blobs_.end()) {
    return fail(ErrorCode::kNotFound, "there is no such blob", std::string(key));
  }
  if (found->second.size() > max_bytes) {
    return fail(too_large(key, found->second.size(), max_bytes));
  }
  return found->second;
}

Result<std::vector<std::string>> MemoryStore::list() const {
  MutexLock lock(mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, blob] : blobs_) {
    keys.push_back(key);
  }
  return keys;
}

Status MemoryStore::remove(std::string_view key) {
  YETO_TRY(check_key(key));
  MutexLock lock(mutex_);
  const auto found = blobs_.find(key);
  if (found != blobs_.end()) {
    blobs_.erase(found);
  }
  return Unit{};
}

Status MemoryStore::remove_unfinished() { return Unit{}; }

std::string MemoryStore::place() const { return "memory"; }

}  // namespace yeto::store
