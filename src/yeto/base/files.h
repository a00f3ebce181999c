// SPDX-License-Identifier: Apache-2.0
// Files that are either the old or the new, never half of both: temp, fsync, rename, directory
// fsync.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "yeto/base/bytes.h"
#include "yeto/base/result.h"

namespace yeto {

// Replaces the file at `path` (mode bits `mode`). On an error the old file stands untouched.
Status write_file_atomic(const std::filesystem::path& path, ByteView bytes, unsigned mode = 0644);
Status write_file_atomic(const std::filesystem::path& path, std::string_view text,
                         unsigned mode = 0644);
// The whole file; kNotFound if there is none, kData if it is larger than `max_bytes`.
Result<std::string> read_text_file(const std::filesystem::path& path,
                                   std::size_t max_bytes = std::size_t{1} << 30);
// fsync of a directory, so that a rename in it survives a power cut.
Status sync_directory(const std::filesystem::path& path);

// An open file descriptor, closed at the end. Movable, not copyable.
class FileHandle {
 public:
  FileHandle() = default;
  explicit FileHandle(int fd) : fd_(fd) {}
  ~FileHandle() { reset(); }
  FileHandle(FileHandle&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileHandle& operator=(FileHandle&& other) noexcept;
  FileHandle(const FileHandle&) = delete;
  FileHandle& operator=(const FileHandle&) = delete;
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

// Writes all bytes at the descriptor's position. kIo with the path on failure (disk full included).
Status write_all(int fd, ByteView bytes, const std::filesystem::path& path);

}  // namespace yeto
