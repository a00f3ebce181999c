// SPDX-License-Identifier: Apache-2.0
#include "yeto/sync/server/tape.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "yeto/base/clock.h"
#include "yeto/base/format.h"
#include "yeto/base/log.h"
#include "yeto/sync/server/records.h"

namespace yeto::sync {
namespace {

constexpr std::uint64_t kWindow = 64 << 10;
// How long a checkpoint waits for the lines before it.
constexpr Nanos kPositionLimit = 1 * kSecond;

// The last `count` bytes before `end`.
Result<std::string> read_before(int fd, std::uint64_t end, std::uint64_t count,
                                const std::filesystem::path& path) {
  std::string text(count, '\0');
  std::uint64_t done = 0;
  while (done < count) {
    const ssize_t got =
        ::pread(fd, text.data() + done, count - done, static_cast<off_t>(end - count + done));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return fail(io_error("cannot read the tape", path.string(), got < 0 ? errno : EIO));
    }
    done += static_cast<std::uint64_t>(got);
  }
  return text;
}

}  // namespace

Result<TapeFile> TapeFile::open(const std::filesystem::path& path) {
  TapeFile tape;
  tape.path_ = path;
  std::error_code ignored;  // the open below reports what is wrong
  if (path.has_parent_path()) {
    std::filesystem::create_directories(path.parent_path(), ignored);
  }
  tape.file_ = FileHandle(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  struct stat info{};
  if (!tape.file_ || ::fstat(tape.file_.get(), &info) != 0) {
    return fail(io_error("cannot open the tape", path.string(), errno));
  }
  tape.size_ = static_cast<std::uint64_t>(info.st_size);
  YETO_TRY(tape.cut_torn_line());
  YETO_TRY(tape.read_last_seq());
  return tape;
}

Status TapeFile::cut_torn_line() {
  std::uint64_t end = size_;
  while (end > 0) {
    const std::uint64_t count = std::min(end, kWindow);
    YETO_ASSIGN(const std::string text, read_before(file_.get(), end, count, path_));
    const std::size_t at = text.rfind('\n');
    if (at != std::string::npos) {
      end = end - count + at + 1;
      break;
    }
    end -= count;
  }
  bytes_cut_off_ = size_ - end;
  if (bytes_cut_off_ > 0 && ::ftruncate(file_.get(), static_cast<off_t>(end)) != 0) {
    return fail(io_error("cannot cut off the torn last line of the tape", path_.string(), errno));
  }
  size_ = end;
  return Unit{};
}

Status TapeFile::read_last_seq() {
  if (size_ == 0) {
    return Unit{};
  }
  for (std::uint64_t count = std::min(size_, kWindow);; count = std::min(size_, count * 4)) {
    YETO_ASSIGN(std::string text, read_before(file_.get(), size_, count, path_));
    text.pop_back();
    const std::size_t at = text.rfind('\n');
    if (at == std::string::npos && count < size_) {
      continue;
    }
    const std::string line = at == std::string::npos ? text : text.substr(at + 1);
    const std::optional<std::uint64_t> seq = seq_of_tape_line(line);
    if (!seq) {
      return fail(ErrorCode::kDamaged, "the last line of the tape is not a tape record",
                  strf("{}, byte {}", path_.string(), size_ - line.size() - 1),
                  "move the file away, or remove its damaged end, and start again");
    }
    next_seq_ = *seq + 1;
    return Unit{};
  }
}

Status TapeFile::each_line_backwards(const std::function<Go(std::string_view line)>& visit) const {
  std::string rest;  // the beginning of the line that the last window cut
  for (std::uint64_t end = size_; end > 0;) {
    const std::uint64_t count = std::min(end, kWindow);
    YETO_ASSIGN(std::string text, read_before(file_.get(), end, count, path_));
    end -= count;
    text += rest;
    if (text.back() == '\n') {
      text.pop_back();
    }
    for (std::size_t at = text.rfind('\n'); at != std::string::npos; at = text.rfind('\n')) {
      if (visit(std::string_view(text).substr(at + 1)) == Go::kStop) {
        return Unit{};
      }
      text.resize(at);
    }
    rest = std::move(text) + "\n";
    if (end == 0 && visit(std::string_view(rest).substr(0, rest.size() - 1)) == Go::kStop) {
      return Unit{};
    }
  }
  return Unit{};
}

Status TapeFile::append(std::string_view line) {
  std::string text(line);
  text += '\n';
  if (Status written = write_all(file_.get(), as_bytes_view(text), path_); !written) {
    // Half a line must not stay in the middle of the file. If this fails too, open() repairs it.
    if (::ftruncate(file_.get(), static_cast<off_t>(size_)) != 0) {
      log(LogLevel::kWarn, "syncer", "cannot take back half a line of the tape {}", path_.string());
    }
    return written;
  }
  size_ += text.size();
  return Unit{};
}

Status TapeFile::sync() const {
  if (::fdatasync(file_.get()) != 0) {
    return fail(io_error("cannot sync the tape", path_.string(), errno));
  }
  return Unit{};
}

Status replace_file_unsynced(const std::filesystem::path& path, std::string_view text) {
  const std::filesystem::path temp =
      path.parent_path() / strf(".{}.{}.tmp", path.filename().string(), ::getpid());
  {
    FileHandle file(::open(temp.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file) {
      return fail(io_error("cannot create file", temp.string(), errno));
    }
    if (Status written = write_all(file.get(), as_bytes_view(text), temp); !written) {
      ::unlink(temp.c_str());
      return written;
    }
  }
  if (::rename(temp.c_str(), path.c_str()) != 0) {
    const int error_number = errno;
    ::unlink(temp.c_str());
    return fail(io_error("cannot replace file", path.string(), error_number));
  }
  return Unit{};
}

Recorder::Recorder(std::optional<TapeFile> tape, std::filesystem::path status_path)
    : has_tape_(tape.has_value()), tape_(std::move(tape)), status_path_(std::move(status_path)) {
  if (has_tape_) {
    MutexLock lock(mutex_);
    next_seq_ = tape_->next_seq();
    tape_bytes_ = tape_->bytes();
  }
  writer_ = JoiningThread([this] { write_files(); });
  if (has_tape_) {
    syncing_ = JoiningThread([this] { sync_tape(); });
  }
}

Recorder::~Recorder() { close(); }

void Recorder::tape(std::string line) {
  MutexLock lock(mutex_);
  if (closed_ || !has_tape_) {
    return;
  }
  ++next_seq_;
  if (lines_.size() >= kMaxWaitingTapeLines) {
    ++lines_lost_;
    return;
  }
  ++given_;
  lines_.push_back(std::move(line));
  changed_.notify_all();
}

std::optional<checkpoint::TapePosition> Recorder::position() {
  const Nanos end = monotonic_now() + kPositionLimit;
  MutexLock lock(mutex_);
  if (!has_tape_) {
    return std::nullopt;
  }
  const std::uint64_t given = given_;
  const std::uint64_t seq = next_seq_;
  while (handled_ < given && !finished_) {
    const Nanos left = behind_ ? 0 : end - monotonic_now();
    if (left <= 0) {
      behind_ = true;
      return std::nullopt;
    }
    changed_.wait_for(mutex_, std::chrono::nanoseconds(left));
  }
  behind_ = false;
  return checkpoint::TapePosition{tape_bytes_, seq};
}

void Recorder::status(std::string text) {
  MutexLock lock(mutex_);
  if (closed_ || status_path_.empty()) {
    return;
  }
  status_ = std::move(text);
  has_status_ = true;
  changed_.notify_all();
}

void Recorder::close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  writer_.join();
  syncing_.join();
}

std::string Recorder::error() const {
  MutexLock lock(mutex_);
  return error_;
}

void Recorder::note(const std::string& text) {
  log_line(LogLevel::kWarn, "syncer", text);
  MutexLock lock(mutex_);
  error_ = text;
}

void Recorder::write_line(const std::string& line) {
  if (const Status written = tape_->append(line); !written) {
    note(strf("tape: {} ({})", written.error().what, written.error().where));
  }
}

void Recorder::write_files() {
  for (bool closed = false; !closed;) {
    std::deque<std::string> lines;
    std::string status;
    bool has_status = false;
    std::uint64_t lost = 0;
    {
      MutexLock lock(mutex_);
      while (lines_.empty() && !has_status_ && !closed_) {
        changed_.wait(mutex_);
      }
      lines.swap(lines_);
      status.swap(status_);
      has_status = std::exchange(has_status_, false);
      closed = closed_;
      lost = std::exchange(lines_lost_, 0);
    }
    for (const std::string& line : lines) {
      write_line(line);
    }
    if (lost > 0) {
      note(strf("tape: {} records were lost because the disk is too slow", lost));
    }
    if (has_status) {
      if (const Status replaced = replace_file_unsynced(status_path_, status); !replaced) {
        note(strf("status file: {} ({})", replaced.error().what, replaced.error().where));
      }
    }
    MutexLock lock(mutex_);
    handled_ += lines.size();
    tape_bytes_ = tape_ ? tape_->bytes() : 0;
    written_ = written_ || !lines.empty();
    finished_ = closed;
    changed_.notify_all();
  }
}

void Recorder::sync_tape() {
  for (bool finished = false; !finished;) {
    {
      MutexLock lock(mutex_);
      while (!written_ && !finished_) {
        changed_.wait(mutex_);
      }
      written_ = false;
      finished = finished_;
    }
    if (const Status done = tape_->sync(); !done) {
      note(strf("tape: {} ({})", done.error().what, done.error().where));
    }
    const Nanos next = monotonic_now() + kSecond;
    MutexLock lock(mutex_);
    while (!finished && !finished_ && monotonic_now() < next) {
      changed_.wait_for(mutex_, std::chrono::nanoseconds(next - monotonic_now()));
    }
  }
}

}  // namespace yeto::sync
