// SPDX-License-Identifier: Apache-2.0
#include "capture.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "yeto/base/files.h"
#include "yeto/base/format.h"
#include "yeto/base/process.h"

extern char** environ;

namespace yeto::apps {
namespace {

struct Pipe {
  FileHandle read_end;
  FileHandle write_end;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) {
    return fail(io_error("cannot make a pipe", "", errno));
  }
  for (const int end : ends) {
    ::fcntl(end, F_SETFD, FD_CLOEXEC);
  }
  return Pipe{FileHandle(ends[0]), FileHandle(ends[1])};
}

// Reads both until both are at their end; neither can fill up and stop the program.
void drain(Pipe& out, Pipe& err, Captured& into) {
  std::array<pollfd, 2> files = {pollfd{out.read_end.get(), POLLIN, 0},
                                 pollfd{err.read_end.get(), POLLIN, 0}};
  std::array<std::string*, 2> texts = {&into.out, &into.err};
  while (files[0].fd >= 0 || files[1].fd >= 0) {
    if (::poll(files.data(), files.size(), -1) < 0 && errno != EINTR) {
      return;
    }
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (files[i].fd < 0 || files[i].revents == 0) {
        continue;
      }
      std::array<char, 1 << 14> piece{};
      const ssize_t count = ::read(files[i].fd, piece.data(), piece.size());
      if (count > 0) {
        texts[i]->append(piece.data(), static_cast<std::size_t>(count));
      } else if (count == 0 || errno != EINTR) {
        files[i].fd = -1;
      }
    }
  }
}

}  // namespace

Result<Captured> run_captured(std::vector<std::string> argv) {
  YETO_ASSIGN(Pipe out, make_pipe());
  YETO_ASSIGN(Pipe err, make_pipe());
  SpawnSetup setup;
  ::posix_spawn_file_actions_addopen(&setup.files, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&setup.files, out.write_end.get(), 1);
  ::posix_spawn_file_actions_adddup2(&setup.files, err.write_end.get(), 2);
  std::vector<char*> pointers = exec_pointers(argv);
  pid_t pid = 0;
  const int problem =
      ::posix_spawnp(&pid, pointers[0], &setup.files, &setup.attributes, pointers.data(), environ);
  if (problem != 0) {
    return fail(ErrorCode::kSetup, strf("cannot start {}: {}", argv[0], std::strerror(problem)));
  }
  out.write_end.reset();
  err.write_end.reset();
  Captured captured;
  drain(out, err, captured);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  captured.exit = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return captured;
}

}  // namespace yeto::apps
