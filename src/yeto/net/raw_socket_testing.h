// SPDX-License-Identifier: Apache-2.0
// A TCP socket of this machine that a test or a fuzz target writes to byte by byte, on the thread
// of the loop at the other end: nothing here waits. Closing it resets the connection, so that
// thousands of them a second leave no port waiting.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "yeto/base/bytes.h"
#include "yeto/base/files.h"
#include "yeto/base/result.h"

namespace yeto::net {

class RawSocket {
 public:
  RawSocket() = default;
  // 127.0.0.1; the listener's backlog takes it at once.
  static RawSocket connect(std::uint16_t port) {
    RawSocket out(FileHandle(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
    sockaddr_in to = loopback(port);
    if (::connect(out.file_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
      out.file_.reset();
      return out;
    }
    out.set_up();
    return out;
  }
  // Listens on a free port of 127.0.0.1.
  static RawSocket listen() {
    RawSocket out(FileHandle(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
    sockaddr_in at = loopback(0);
    YETO_CHECK(::bind(out.file_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0 &&
                   ::listen(out.file_.get(), 64) == 0,
               "a listening socket");
    return out;
  }
  std::uint16_t port() const {
    sockaddr_in at{};
    socklen_t size = sizeof(at);
    ::getsockname(file_.get(), reinterpret_cast<sockaddr*>(&at), &size);
    return ntohs(at.sin_port);
  }
  // Whoever waits in the backlog; not open if nobody does.
  RawSocket accept() const {
    RawSocket out(FileHandle(::accept4(file_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
    if (out.open()) {
      out.set_up();
    }
    return out;
  }

  bool open() const { return static_cast<bool>(file_); }
  // What the kernel does not take at once is lost, and so is the connection then.
  void send(ByteView bytes) {
    if (!open() || bytes.empty()) {
      return;
    }
    const ssize_t sent = ::send(file_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent != static_cast<ssize_t>(bytes.size())) {
      close();
    }
  }
  // Appends what is here to `out`; false once the peer has closed.
  bool receive(Bytes& out) {
    std::uint8_t piece[16384];
    while (open()) {
      const ssize_t got = ::recv(file_.get(), piece, sizeof(piece), 0);
      if (got > 0) {
        out.insert(out.end(), piece, piece + got);
      } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        return false;
      } else if (errno == EAGAIN) {
        return true;
      }
    }
    return false;
  }
  void shut_down_writing() {
    if (open()) {
      ::shutdown(file_.get(), SHUT_WR);
    }
  }
  void close() { file_.reset(); }

 private:
  explicit RawSocket(FileHandle file) : file_(std::move(file)) {}
  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_port = htons(port);
    out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return out;
  }
  void set_up() {
    const linger reset{1, 0};
    ::setsockopt(file_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    ::fcntl(file_.get(), F_SETFL, ::fcntl(file_.get(), F_GETFL) | O_NONBLOCK);
  }

  FileHandle file_;
};

}  // namespace yeto::net
