// SPDX-License-Identifier: Apache-2.0
// The tape: one JSON object per line, appended for the whole life of a run, over all terms of its
// syncer. TapeFile is the file itself; Recorder writes it and the status file on a thread of its
// own, so that a slow disk never holds up the loop.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "yeto/base/files.h"
#include "yeto/base/result.h"
#include "yeto/base/thread.h"
#include "yeto/sync/jobs/checkpoint.h"

namespace yeto::sync {

// Not thread-safe.
class TapeFile {
 public:
  // Opens or creates. A torn last line (no line end) is cut off. kDamaged if the last whole line is
  // not one of ours, kIo.
  static Result<TapeFile> open(const std::filesystem::path& path);
  // The number the next record gets; one above the last one of the file.
  std::uint64_t next_seq() const { return next_seq_; }
  std::uint64_t bytes_cut_off() const { return bytes_cut_off_; }
  std::uint64_t bytes() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  // Calls `visit` with whole lines, the last one first, without their ends, until it says stop.
  // kIo.
  enum class Go { kOn, kStop };
  Status each_line_backwards(const std::function<Go(std::string_view line)>& visit) const;
  // Numbers go on at `seq` if they have not come as far (lines at the end of the file were lost).
  void raise_seq(std::uint64_t seq) { next_seq_ = std::max(next_seq_, seq); }
  // Writes the line and its end. After a failed write the file ends with the last whole line again.
  Status append(std::string_view line);
  // May run while another thread appends.
  Status sync() const;

 private:
  Status cut_torn_line();
  Status read_last_seq();

  std::filesystem::path path_;
  FileHandle file_;
  std::uint64_t size_ = 0;
  std::uint64_t next_seq_ = 0;
  std::uint64_t bytes_cut_off_ = 0;
};

// Replaces a file by rename without fsync: whoever reads it wants the newest state, and after a
// power cut the syncer that wrote it is gone anyway.
Status replace_file_unsynced(const std::filesystem::path& path, std::string_view text);

// Lines waiting for the disk; beyond it new lines are lost, counted, and reported in the log and in
// error().
inline constexpr std::size_t kMaxWaitingTapeLines = 65536;

// Thread-safe. Lines are written in order and at once; a second thread syncs them once a second, so
// that a line never waits for a sync (a killed process loses only what it had not written).
class Recorder {
 public:
  // No tape, or an empty path: that file is not written.
  Recorder(std::optional<TapeFile> tape, std::filesystem::path status_path);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void tape(std::string line);
  // Waits until the lines given before are written, at most a second, and says how far the file has
  // come. Nothing if there is no tape or the disk does not keep up; such a disk is not waited for
  // again until it has caught up.
  std::optional<checkpoint::TapePosition> position();
  // The newest text wins; one not yet written is replaced.
  void status(std::string text);
  // Writes and syncs what is waiting, then ends the thread. Later calls of tape() and status() do
  // nothing.
  void close();
  // Newest trouble with either file; empty: none.
  std::string error() const;

 private:
  void write_files();
  void sync_tape();
  void write_line(const std::string& line);
  void note(const std::string& text);

  const bool has_tape_;
  std::optional<TapeFile> tape_;  // appended to by the writer, synced by the syncing thread
  const std::filesystem::path status_path_;
  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::deque<std::string> lines_ YETO_GUARDED_BY(mutex_);
  std::string status_ YETO_GUARDED_BY(mutex_);
  bool has_status_ YETO_GUARDED_BY(mutex_) = false;
  bool closed_ YETO_GUARDED_BY(mutex_) = false;
  bool written_ YETO_GUARDED_BY(mutex_) = false;   // lines since the last sync
  bool finished_ YETO_GUARDED_BY(mutex_) = false;  // the writer has ended
  std::uint64_t lines_lost_ YETO_GUARDED_BY(mutex_) = 0;
  std::uint64_t next_seq_ YETO_GUARDED_BY(mutex_) = 0;    // of the next line given
  std::uint64_t given_ YETO_GUARDED_BY(mutex_) = 0;       // lines that were taken in
  std::uint64_t handled_ YETO_GUARDED_BY(mutex_) = 0;     // of them, written or failed
  std::uint64_t tape_bytes_ YETO_GUARDED_BY(mutex_) = 0;  // of the file after `handled_` lines
  bool behind_ YETO_GUARDED_BY(mutex_) = false;           // the disk did not keep up
  std::string error_ YETO_GUARDED_BY(mutex_);
  JoiningThread writer_;
  JoiningThread syncing_;
};

}  // namespace yeto::sync
