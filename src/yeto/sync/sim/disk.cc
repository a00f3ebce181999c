// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/sim/disk.h"

#include <utility>

#include "yeto/base/format.h"

namespace yeto::sync::sim {

void Disk::apply(Blobs& blobs, const Write& write) {
  if (write.blob) {
    blobs[write.key] = *write.blob;
  } else {
    blobs.erase(write.key);
  }
}

Result<bool> Disk::put(std::string_view key, std::span<const ByteView> parts, store::PutMode mode) {
  if (fails_) {
    return fail(ErrorCode::kIo, "no space left on device", std::string(key));
  }
  if (mode == store::PutMode::kCreate && now_.contains(key)) {
    return false;
  }
  Write write{std::string(key), Bytes{}};
  for (const ByteView part : parts) {
    write.blob->insert(write.blob->end(), part.begin(), part.end());
  }
  bytes_ += write.blob->size();
  apply(now_, write);
  journal_.push_back(std::move(write));
  return true;
}

Result<Bytes> Disk::get(std::string_view key, std::uint64_t max_bytes) const {
  const auto found = now_.find(key);
  if (found == now_.end()) {
    return fail(ErrorCode::kNotFound, "no such blob", std::string(key));
  }
  if (found->second.size() > max_bytes) {
    return fail(ErrorCode::kData, strf("more than {} bytes", max_bytes), std::string(key));
  }
  return found->second;
}

Result<std::vector<std::string>> Disk::list() const {
  std::vector<std::string> keys;
  for (const auto& [key, blob] : now_) {
    keys.push_back(key);
  }
  return keys;
}

Status Disk::remove(std::string_view key) {
  if (fails_) {
    return fail(ErrorCode::kIo, "input/output error", std::string(key));
  }
  if (now_.contains(key)) {
    Write write{std::string(key), std::nullopt};
    apply(now_, write);
    journal_.push_back(std::move(write));
  }
  return Unit{};
}

void Disk::sync() {
  before_ = durable_;
  for (const Write& write : journal_) {
    apply(durable_, write);
  }
  journal_.clear();
  bytes_ = 0;
}

void Disk::crash(Rng& rng, bool torn) {
  const std::size_t kept = rng.below(journal_.size() + 1);
  for (std::size_t i = 0; i < kept; ++i) {
    apply(durable_, journal_[i]);
  }
  if (torn && kept < journal_.size() && journal_[kept].blob) {
    const Bytes& whole = *journal_[kept].blob;
    durable_[journal_[kept].key] =
        Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(whole.size() / 2));
  }
  journal_.clear();
  bytes_ = 0;
  now_ = durable_;
}

void Disk::step_back() {
  // The term stands: a syncer that came back under an old term would be refused for that alone.
  const auto term = durable_.find("TERM");
  Blobs back = before_;
  if (term != durable_.end()) {
    back[term->first] = term->second;
  }
  durable_ = std::move(back);
  now_ = durable_;
}

}  // namespace yeto::sync::sim
