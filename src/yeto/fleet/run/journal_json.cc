// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "yeto/base/clock.h"
#include "yeto/base/digest.h"
#include "yeto/base/format.h"
#include "yeto/fleet/run/journal.h"

namespace yeto::fleet {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kCrcTail = 9;  // a blank and 8 digits

std::string to_line(const JournalEntry& entry) {
  Json json = {{"seq", entry.seq}, {"ts", entry.ts}, {"kind", entry.kind}, {"who", entry.who}};
  if (entry.attempt >= 0) {
    json["attempt"] = entry.attempt;
  }
  if (!entry.token.empty()) {
    json["token"] = entry.token;
  }
  if (entry.handle.pid != 0) {
    json["pid"] = entry.handle.pid;
    json["start_time"] = entry.handle.start_time;
  }
  if (!entry.what.empty()) {
    json["what"] = entry.what;
  }
  if (!entry.reason.empty()) {
    json["reason"] = entry.reason;
  }
  const std::string body = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  return body + strf(" {:08x}\n", crc32c(as_bytes_view(std::string_view(body))));
}

std::optional<JournalEntry> from_line(std::string_view line) {
  if (line.size() <= kCrcTail) {
    return std::nullopt;
  }
  const std::string_view body = line.substr(0, line.size() - kCrcTail);
  if (strf(" {:08x}", crc32c(as_bytes_view(body))) != line.substr(body.size())) {
    return std::nullopt;
  }
  const Json json = Json::parse(body, nullptr, false);
  if (!json.is_object()) {
    return std::nullopt;
  }
  try {
    JournalEntry out;
    out.seq = json.value("seq", std::uint64_t{0});
    out.ts = json.value("ts", 0.0);
    out.kind = json.value("kind", "");
    out.who = json.value("who", kWholeRun);
    out.attempt = json.value("attempt", -1);
    out.token = json.value("token", "");
    out.handle.pid = json.value("pid", std::int64_t{0});
    out.handle.start_time = json.value("start_time", std::uint64_t{0});
    out.what = json.value("what", "");
    out.reason = json.value("reason", "");
    return out;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

struct Scan {
  std::vector<JournalEntry> entries;
  std::size_t whole_bytes = 0;  // up to the end of the last good line
};

Result<Scan> scan(const std::filesystem::path& path) {
  Scan out;
  Result<std::string> text = read_text_file(path);
  if (!text) {
    return text.error().code == ErrorCode::kNotFound ? Result<Scan>(out) : fail(text.error());
  }
  for (std::size_t from = 0; from < text->size();) {
    const std::size_t to = text->find('\n', from);
    const bool last = to == std::string::npos || to + 1 == text->size();
    std::optional<JournalEntry> entry =
        to == std::string::npos ? std::nullopt
                                : from_line(std::string_view(*text).substr(from, to - from));
    if (!entry) {
      if (last) {
        break;
      }
      return fail(ErrorCode::kDamaged, strf("journal line {} is damaged", out.entries.size() + 1),
                  path.string(), "end the run with: yeto down");
    }
    out.entries.push_back(std::move(*entry));
    from = to + 1;
    out.whole_bytes = from;
  }
  return out;
}

}  // namespace

Result<Journal> Journal::open(const std::filesystem::path& path) {
  YETO_ASSIGN(const Scan found, scan(path));
  FileHandle file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(found.whole_bytes)) != 0 ||
      ::lseek(file.get(), 0, SEEK_END) < 0) {
    return fail(io_error("cannot open the journal", path.string(), errno));
  }
  const std::uint64_t next = found.entries.empty() ? 0 : found.entries.back().seq + 1;
  return Journal(std::move(file), path, next);
}

Status Journal::append(JournalEntry entry) {
  entry.seq = next_seq_;
  entry.ts = wall_now();
  const std::string line = to_line(entry);
  YETO_TRY(write_all(file_.get(), as_bytes_view(std::string_view(line)), path_));
  if (::fsync(file_.get()) != 0) {
    return fail(io_error("cannot sync the journal", path_.string(), errno));
  }
  next_seq_ += 1;
  return Unit{};
}

Result<std::vector<JournalEntry>> read_journal(const std::filesystem::path& path) {
  YETO_ASSIGN(Scan found, scan(path));
  return std::move(found.entries);
}

std::vector<Recorded> recorded_processes(const std::vector<JournalEntry>& entries) {
  std::vector<Recorded> out;
  for (const JournalEntry& entry : entries) {
    if (entry.kind == "intent") {
      out.push_back(Recorded{entry.who, entry.attempt, entry.token, {}});
    }
    for (std::size_t i = out.size(); i-- > 0 && entry.kind != "intent";) {
      if (out[i].token == entry.token && !entry.token.empty()) {
        if (entry.kind == "spawned") {
          out[i].handle = entry.handle;
        } else if (entry.kind == "spawn_failed") {
          out.erase(out.begin() + static_cast<std::ptrdiff_t>(i));
        }
        break;
      }
    }
  }
  return out;
}

}  // namespace yeto::fleet
