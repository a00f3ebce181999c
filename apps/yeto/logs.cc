// SPDX-License-Identifier: Apache-2.0
// `yeto logs`: the log files of a run, each line with the process it is from. Works while and after
// it runs.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "cli.h"
#include "verbs.h"
#include "yeto/base/files.h"
#include "yeto/base/format.h"

namespace yeto::apps {
namespace {

namespace fs = std::filesystem;

constexpr double kPollS = 0.2;

// One log file and how far it was printed.
struct Source {
  std::string label;
  off_t printed = 0;
  std::string partial;  // a line whose end has not been written
};

struct Choice {
  bool controller = true;
  bool syncer = true;
  bool learner = true;
  std::optional<std::int64_t> island;
  std::optional<std::size_t> tail;
};

// "<seat>-a<attempt>.log"
struct LearnerFile {
  int seat = 0;
  int attempt = 0;
  fs::path path;
};

std::vector<LearnerFile> learner_files(const fs::path& folder) {
  std::vector<LearnerFile> out;
  std::error_code problem;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, problem)) {
    LearnerFile file;
    file.path = entry.path();
    if (std::sscanf(entry.path().filename().c_str(), "%d-a%d.log", &file.seat, &file.attempt) ==
        2) {
      out.push_back(file);
    }
  }
  std::sort(out.begin(), out.end(), [](const LearnerFile& a, const LearnerFile& b) {
    return std::pair(a.seat, a.attempt) < std::pair(b.seat, b.attempt);
  });
  return out;
}

class Printer {
 public:
  Printer(fleet::RunPaths paths, Choice choice) : paths_(std::move(paths)), choice_(choice) {}

  // Prints what is new in all chosen files, new attempts of islands included.
  void pass() {
    if (choice_.controller) {
      print(paths_.controller_log(), "controller");
    }
    if (choice_.syncer) {
      print(paths_.syncer_log(), "syncer");
    }
    if (choice_.learner) {
      for (const LearnerFile& file : learner_files(paths_.logs() / "learner")) {
        if (!choice_.island || *choice_.island == file.seat) {
          print(file.path, strf("island {} a{}", file.seat, file.attempt));
        }
      }
    }
    first_ = false;
    std::fflush(stdout);
  }
  // The last line of a file may lack its end.
  void finish() {
    for (auto& [path, source] : sources_) {
      if (!source.partial.empty()) {
        emit(source, source.partial);
        source.partial.clear();
      }
    }
    std::fflush(stdout);
  }
  bool printed_nothing() const { return lines_ == 0; }

 private:
  void print(const fs::path& path, const std::string& label) {
    FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file) {
      return;
    }
    const auto [found, fresh] = sources_.try_emplace(path.string(), Source{label, 0, {}});
    Source& source = found->second;
    if (fresh && first_ && choice_.tail) {
      source.printed = start_of_tail(file.get(), *choice_.tail);
    }
    std::array<char, 1 << 16> piece{};
    for (ssize_t count = 0;
         (count = ::pread(file.get(), piece.data(), piece.size(), source.printed)) > 0;) {
      source.printed += count;
      source.partial.append(piece.data(), static_cast<std::size_t>(count));
      std::size_t from = 0;
      for (std::size_t to = 0; (to = source.partial.find('\n', from)) != std::string::npos;
           from = to + 1) {
        emit(source, source.partial.substr(from, to - from));
      }
      source.partial.erase(0, from);
    }
  }
  void emit(const Source& source, const std::string& line) {
    lines_ += 1;
    std::printf("%s | %s\n", source.label.c_str(), line.c_str());
  }
  // Where the last `count` lines of the file begin.
  static off_t start_of_tail(int fd, std::size_t count) {
    off_t at = ::lseek(fd, 0, SEEK_END);
    const off_t size = at;
    std::size_t seen = 0;
    std::array<char, 1 << 14> piece{};
    while (at > 0) {
      const auto want =
          static_cast<std::size_t>(std::min<off_t>(at, static_cast<off_t>(piece.size())));
      at -= static_cast<off_t>(want);
      if (::pread(fd, piece.data(), want, at) != static_cast<ssize_t>(want)) {
        return 0;
      }
      for (std::size_t i = want; i-- > 0;) {
        const bool last_byte = at + static_cast<off_t>(i) + 1 == size;
        if (piece[i] == '\n' && !last_byte && ++seen == count) {
          return at + static_cast<off_t>(i) + 1;
        }
      }
    }
    return count == 0 ? size : 0;
  }

  const fleet::RunPaths paths_;
  const Choice choice_;
  std::map<std::string, Source> sources_;
  bool first_ = true;
  std::size_t lines_ = 0;
};

Result<Choice> read_choice(const VerbLine& line, const fleet::RunPaths& paths) {
  Choice out;
  const std::string stream = line.values.text("stream");
  if (line.values.has("island")) {
    out.island = line.values.integer("island");
    if (stream != "all" && stream != "learner") {
      return fail(ErrorCode::kConflict, strf("--island and --stream {} exclude each other", stream),
                  "", "leave one of them out");
    }
    const RunLook look = look_at(paths);
    const std::size_t islands = look.record ? look.record->islands.size() : 0;
    if (islands > 0 && static_cast<std::size_t>(*out.island) >= islands) {
      return fail(ErrorCode::kRange, strf("the run has no island {}", *out.island),
                  paths.root.string(), strf("its islands are 0 to {}", islands - 1));
    }
  }
  out.controller = !out.island && (stream == "all" || stream == "controller");
  out.syncer = !out.island && (stream == "all" || stream == "syncer");
  out.learner = stream == "all" || stream == "learner";
  if (line.values.has("tail")) {
    out.tail = static_cast<std::size_t>(line.values.integer("tail"));
  }
  return out;
}

}  // namespace

int run_logs(int argc, char** argv) {
  const VerbLine line = read_verb_line(fleet::kLogs, argc, argv);
  if (line.exit) {
    return *line.exit;
  }
  const Result<fleet::RunPaths> paths = open_registry().find(line.name);
  if (!paths) {
    return report(paths.error(), false);
  }
  const Result<Choice> choice = read_choice(line, *paths);
  if (!choice) {
    return report(choice.error(), false);
  }
  Printer printer(*paths, *choice);
  if (!line.values.on("follow")) {
    printer.pass();
    printer.finish();
    if (printer.printed_nothing()) {
      std::fprintf(stderr, "nothing has been logged yet in %s\n", paths->logs().c_str());
    }
    return 0;
  }
  catch_interrupt();
  while (!interrupted()) {
    // Looked at before the pass, so that lines written just before the end are printed by it.
    const RunLook look = look_at(*paths);
    const bool over = look.is_over();
    printer.pass();
    if (over && !look.controller_alive) {
      printer.finish();
      std::fprintf(stderr, "the run is over: %s\n", look.state_text().c_str());
      return 0;
    }
    wait_seconds(kPollS);
  }
  std::fputs("detached; the run goes on\n", stderr);
  return 0;
}

}  // namespace yeto::apps
