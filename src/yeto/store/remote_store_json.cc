// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/store/key.h"
#include "yeto/store/remote_store.h"

namespace yeto::store {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A file of the scratch folder, gone with the object. Others cannot read it.
class ScratchFile {
 public:
  explicit ScratchFile(fs::path path) : path_(std::move(path)) {}
  ~ScratchFile() { ::unlink(path_.c_str()); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const fs::path& path() const { return path_; }

  Status write(std::span<const ByteView> parts) const {
    const FileHandle file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file) {
      return fail(io_error("cannot create file", path_.string(), errno));
    }
    for (const ByteView part : parts) {
      YETO_TRY(write_all(file.get(), part, path_));
    }
    return Unit{};
  }
  Result<Bytes> read(std::uint64_t bytes) const {
    Bytes out(bytes);
    std::ifstream file(path_, std::ios::binary);
    file.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(bytes));
    if (!file || static_cast<std::uint64_t>(file.gcount()) != bytes) {
      return fail(ErrorCode::kIo, "a downloaded object cannot be read back", path_.string());
    }
    return out;
  }

 private:
  const fs::path path_;
};

// scheme://user:password@…; an account alone (abfss://container@account…) is none.
bool holds_password(const std::string& url) {
  const std::size_t begin = url.find("://") == std::string::npos ? 0 : url.find("://") + 3;
  const std::string host = url.substr(begin, url.find('/', begin) - begin);
  const std::size_t at = host.find('@');
  return at != std::string::npos && host.substr(0, at).find(':') != std::string::npos;
}

tl::unexpected<Error> odd_answer(const std::string& url) {
  return fail(ErrorCode::kProtocol, "the bridge's answer lacks what was asked for", url);
}

Json parse(const std::string& text) { return Json::parse(text, nullptr, false); }

}  // namespace

RemoteStore::RemoteStore(std::string url, RemoteOptions options)
    : url_(std::move(url)), options_(std::move(options)), bridge_(options_.bridge) {}

Result<std::shared_ptr<RemoteStore>> RemoteStore::open(std::string url, RemoteOptions options) {
  while (url.ends_with('/') && !url.ends_with("://")) {
    url.pop_back();
  }
  if (holds_password(url)) {
    return fail(ErrorCode::kConfig, "a URL of a store holds no credentials",
                url.substr(0, url.find("://")) + "://…",
                "give them by the cloud's usual variables or files");
  }
  if (options.scratch.empty()) {
    std::error_code error;
    options.scratch = fs::temp_directory_path(error);
    if (error) {
      return fail(io_error("there is no temporary folder", "TMPDIR", error.value()));
    }
  }
  std::shared_ptr<RemoteStore> store(new RemoteStore(std::move(url), std::move(options)));
  YETO_TRY(
      store->bridge_.call("check", Json{{"url", store->url_}}.dump(), store->options_.timeout));
  return store;
}

fs::path RemoteStore::scratch_file() const {
  return options_.scratch / strf("yeto-object-{}-{:016x}", ::getpid(), random_u64());
}

Result<bool> RemoteStore::upload(std::string_view key, const fs::path& path, PutMode mode) const {
  const Json params{{"url", url_},
                    {"key", key},
                    {"path", fs::absolute(path).string()},
                    {"create", mode == PutMode::kCreate}};
  YETO_ASSIGN(const std::string text, bridge_.call("put", params.dump(), options_.timeout));
  const Json created = parse(text).value("created", Json());
  if (!created.is_boolean()) {
    return odd_answer(url_);
  }
  return created.get<bool>();
}

Result<bool> RemoteStore::put(std::string_view key, std::span<const ByteView> parts, PutMode mode) {
  YETO_TRY(check_key(key));
  const ScratchFile file(scratch_file());
  YETO_TRY(file.write(parts));
  return upload(key, file.path(), mode);
}

Result<bool> RemoteStore::copy_in(const ObjectStore& source, std::string_view source_key,
                                  std::string_view key, std::uint64_t max_bytes) {
  const std::optional<fs::path> path = source.file_of(source_key);
  if (!path) {
    return ObjectStore::copy_in(source, source_key, key, max_bytes);
  }
  YETO_TRY(check_key(key));
  std::error_code error;
  const std::uint64_t size = fs::file_size(*path, error);
  if (error) {
    return fail(error == std::errc::no_such_file_or_directory
                    ? Error{ErrorCode::kNotFound, "file does not exist", path->string(), ""}
                    : io_error("cannot read file", path->string(), error.value()));
  }
  if (size > max_bytes) {
    return fail(too_large(path->string(), size, max_bytes));
  }
  return upload(key, *path, PutMode::kCreate);
}

Result<Bytes> RemoteStore::get(std::string_view key, std::uint64_t max_bytes) const {
  YETO_TRY(check_key(key));
  const ScratchFile file(scratch_file());
  YETO_TRY(file.write({}));
  const Json params{{"url", url_},
                    {"key", key},
                    {"path", file.path().string()},
                    {"max_bytes", std::min<std::uint64_t>(max_bytes, std::uint64_t{1} << 62)}};
  YETO_ASSIGN(const std::string text, bridge_.call("get", params.dump(), options_.timeout));
  const Json bytes = parse(text).value("bytes", Json());
  if (!bytes.is_number_unsigned() || bytes.get<std::uint64_t>() > max_bytes) {
    return odd_answer(url_);
  }
  return file.read(bytes.get<std::uint64_t>());
}

Result<std::vector<std::string>> RemoteStore::list() const {
  YETO_ASSIGN(const std::string text,
              bridge_.call("list", Json{{"url", url_}}.dump(), options_.timeout));
  const Json keys = parse(text).value("keys", Json());
  if (!keys.is_array()) {
    return odd_answer(url_);
  }
  std::vector<std::string> out;
  for (const Json& key : keys) {
    // What has no key of ours is not ours.
    if (key.is_string() && check_key(key.get<std::string>())) {
      out.push_back(key.get<std::string>());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

Status RemoteStore::remove(std::string_view key) {
  YETO_TRY(check_key(key));
  YETO_TRY(bridge_.call("delete", Json{{"url", url_}, {"key", key}}.dump(), options_.timeout));
  return Unit{};
}

Status RemoteStore::remove_unfinished() { return Unit{}; }

bool is_store_url(std::string_view text) {
  const std::size_t at = text.find("://");
  return at != std::string_view::npos && at > 0 &&
         std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at),
                     [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); });
}

Result<std::shared_ptr<ObjectStore>> open_checkpoint_store(std::string_view text) {
  if (is_store_url(text)) {
    YETO_ASSIGN(std::shared_ptr<RemoteStore> store, RemoteStore::open(std::string(text)));
    return std::shared_ptr<ObjectStore>(std::move(store));
  }
  YETO_ASSIGN(std::shared_ptr<LocalFolder> folder, LocalFolder::open(fs::path(text)));
  return std::shared_ptr<ObjectStore>(std::move(folder));
}

}  // namespace yeto::store
