// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/base/rng.h"
#include "yeto/store/key.h"
#include "yeto/store/object_store.h"

namespace yeto::store {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporaryEnd = ".tmp";

bool is_temporary(std::string_view name) {
  return name.starts_with('.') && name.ends_with(kTemporaryEnd);
}

// Names of the regular files of a folder.
Result<std::vector<std::string>> file_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code type_error;
    if (at->is_regular_file(type_error)) {
      names.push_back(at->path().filename().string());
    }
  }
  if (error) {
    return fail(io_error("cannot list folder", folder.string(), error.value()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Result<std::shared_ptr<LocalFolder>> LocalFolder::open(fs::path folder, BeforeStep before_step) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return fail(io_error("cannot make folder", folder.string(), error.value()));
  }
  return std::shared_ptr<LocalFolder>(new LocalFolder(std::move(folder), std::move(before_step)));
}

Status LocalFolder::step(std::string_view what, const fs::path& path) const {
  return before_step_ ? before_step_(what, path) : Status(Unit{});
}

Status LocalFolder::write_temporary(const fs::path& path, std::span<const ByteView> parts) const {
  YETO_TRY(step("create", path));
  FileHandle file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) {
    return fail(io_error("cannot create file", path.string(), errno));
  }
  for (const ByteView part : parts) {
    YETO_TRY(step("write", path));
    YETO_TRY(write_all(file.get(), part, path));
  }
  YETO_TRY(step("sync", path));
  if (::fsync(file.get()) != 0) {
    return fail(io_error("cannot sync file", path.string(), errno));
  }
  return Unit{};
}

Result<bool> LocalFolder::publish(const fs::path& temporary, const fs::path& path,
                                  PutMode mode) const {
  YETO_TRY(step("publish", path));
  if (mode == PutMode::kReplace) {
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      return fail(io_error("cannot replace file", path.string(), errno));
    }
  } else {
    // A link fails where a rename would replace.
    const bool linked = ::link(temporary.c_str(), path.c_str()) == 0;
    const int link_error = errno;
    ::unlink(temporary.c_str());
    if (!linked) {
      if (link_error == EEXIST) {
        return false;
      }
      return fail(io_error("cannot create file", path.string(), link_error));
    }
  }
  YETO_TRY(sync_folder());
  return true;
}

Status LocalFolder::sync_folder() const {
  YETO_TRY(step("sync-directory", folder_));
  return sync_directory(folder_);
}

Result<bool> LocalFolder::put(std::string_view key, std::span<const ByteView> parts, PutMode mode) {
  YETO_TRY(check_key(key));
  const fs::path path = folder_ / key;
  const fs::path temporary = folder_ / strf(".{}.{:016x}{}", key, random_u64(), kTemporaryEnd);
  if (Status written = write_temporary(temporary, parts); !written) {
    ::unlink(temporary.c_str());
    return fail(std::move(written).error());
  }
  Result<bool> stored = publish(temporary, path, mode);
  if (!stored) {
    ::unlink(temporary.c_str());
  }
  return stored;
}

Result<Bytes> LocalFolder::get(std::string_view key, std::uint64_t max_bytes) const {
  YETO_TRY(check_key(key));
  const fs::path path = folder_ / key;
  FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    if (errno == ENOENT) {
      return fail(ErrorCode::kNotFound, "file does not exist", path.string());
    }
    return fail(io_error("cannot open file", path.string(), errno));
  }
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) {
    return fail(io_error("cannot read file", path.string(), errno));
  }
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size > max_bytes) {
    return fail(too_large(path.string(), size, max_bytes));
  }
  Bytes bytes(size);
  std::size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t count = ::read(file.get(), bytes.data() + got, bytes.size() - got);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return fail(io_error("cannot read file", path.string(), errno));
    }
    if (count == 0) {
      return fail(ErrorCode::kIo, "the file became shorter while it was read", path.string());
    }
    got += static_cast<std::size_t>(count);
  }
  return bytes;
}

Result<std::vector<std::string>> LocalFolder::list() const {
  YETO_ASSIGN(std::vector<std::string> names, file_names(folder_));
  std::erase_if(names, [](const std::string& name) { return !check_key(name); });
  return names;
}

Status LocalFolder::remove(std::string_view key) {
  YETO_TRY(check_key(key));
  const fs::path path = folder_ / key;
  YETO_TRY(step("remove", path));
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return fail(io_error("cannot remove file", path.string(), errno));
  }
  return Unit{};
}

Status LocalFolder::remove_unfinished() {
  YETO_ASSIGN(const std::vector<std::string> names, file_names(folder_));
  for (const std::string& name : names) {
    if (is_temporary(name)) {
      const fs::path path = folder_ / name;
      YETO_TRY(step("remove", path));
      if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
        return fail(io_error("cannot remove file", path.string(), errno));
      }
    }
  }
  return Unit{};
}

std::optional<fs::path> LocalFolder::file_of(std::string_view key) const {
  return check_key(key) ? std::optional(folder_ / key) : std::nullopt;
}

std::string LocalFolder::place() const { return strf("folder {}", folder_.string()); }

}  // namespace yeto::store
