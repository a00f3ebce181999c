// SPDX-License-Identifier: Apache-2.0
#include "yeto/base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "yeto/base/format.h"
#include "yeto/base/rng.h"

namespace yeto {

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void FileHandle::reset() {
  if (fd_ >= 0) {
    ::close(fd_);
    fd_ = -1;
  }
}

Status write_all(int fd, ByteView bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      return fail(io_error("cannot write file", path.string(), errno));
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return Unit{};
}

Status sync_directory(const std::filesystem::path& path) {
  FileHandle handle(::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle || ::fsync(handle.get()) != 0) {
    return fail(io_error("cannot sync directory", path.string(), errno));
  }
  return Unit{};
}

Status write_file_atomic(const std::filesystem::path& path, ByteView bytes, unsigned mode) {
  const std::filesystem::path temp =
      path.parent_path() / strf(".{}.{:016x}.tmp", path.filename().string(), random_u64());
  const auto give_up = [&](Error error) -> Status {
    ::unlink(temp.c_str());
    return fail(std::move(error));
  };
  FileHandle handle(::open(temp.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!handle) {
    return fail(io_error("cannot create file", temp.string(), errno));
  }
  if (Status written = write_all(handle.get(), bytes, temp); !written) {
    return give_up(std::move(written).error());
  }
  if (::fchmod(handle.get(), mode) != 0 || ::fsync(handle.get()) != 0) {
    return give_up(io_error("cannot sync file", temp.string(), errno));
  }
  handle.reset();
  if (::rename(temp.c_str(), path.c_str()) != 0) {
    return give_up(io_error("cannot replace file", path.string(), errno));
  }
  return sync_directory(path.parent_path());
}

Status write_file_atomic(const std::filesystem::path& path, std::string_view text, unsigned mode) {
  return write_file_atomic(path, as_bytes_view(text), mode);
}

Result<std::string> read_text_file(const std::filesystem::path& path, std::size_t max_bytes) {
  FileHandle handle(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!handle) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return fail(ErrorCode::kNotFound, "file does not exist", path.string());
    }
    return fail(io_error("cannot open file", path.string(), errno));
  }
  std::string out;
  char piece[1 << 16];
  for (;;) {
    const ssize_t count = ::read(handle.get(), piece, sizeof piece);
    if (count < 0) {
      if (errno == EINTR) {
        continue;
      }
      return fail(io_error("cannot read file", path.string(), errno));
    }
    if (count == 0) {
      return out;
    }
    out.append(piece, static_cast<std::size_t>(count));
    if (out.size() > max_bytes) {
      return fail(ErrorCode::kData, strf("file is larger than {} bytes", max_bytes), path.string());
    }
  }
}

}  // namespace yeto
