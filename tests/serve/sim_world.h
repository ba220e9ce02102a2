// Clocks that jump and a network without a port, for a server that runs within a test. With SimDisk they are
// its world.
#pragma once

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>

#include "twinkle/serve/world.h"

namespace twinkle::serve {

/// They go as the machine's do, and further when they are told so.
class SimClocks {
 public:
  Clocks clocks() {
    return {
        .wall = [this] { return 1.7e9 + jumped_ + std::chrono::duration<double>(now() - started_).count(); },
        .steady = [this] { return now(); },
        .nap =
            [this](Clock::time_point until) {
              // A pause that comes meanwhile is to be seen.
              return std::min<Clock::duration>(until - now(), std::chrono::milliseconds(2));
            }};
  }
  /// The machine stands still for some seconds: all clocks go on.
  void pause(double seconds) { paused_ += static_cast<int64_t>(seconds * 1e9); }
  /// Somebody sets the wall clock.
  void jump(double seconds) { jumped_ = jumped_ + seconds; }

 private:
  Clock::time_point now() const {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::nanoseconds(paused_));
  }
  const Clock::time_point started_ = Clock::now();
  std::atomic<int64_t> paused_{0};
  std::atomic<double> jumped_{0};
};

/// Connections are pairs of sockets. One server listens at a time.
class SimNetwork {
 public:
  ~SimNetwork() { down(); }
  Sockets sockets() {
    return {.listen = [this](const std::string&, int) { return listen(); },
            .accept = [this](int listener) { return accept(listener); }};
  }
  /// The client's end.
  int connect() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return -1;
    const timeval patience{.tv_sec = 30, .tv_usec = 0};
    ::setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
    const std::lock_guard lock(mutex_);
    waiting_.push_back(ends[1]);
    const uint64_t one = 1;
    if (::write(listener_, &one, sizeof(one)) < 0) std::perror("eventfd");
    return ends[0];
  }
  /// So many connections find no descriptor at the server at first.
  void no_descriptors(int times) { failures_ = times; }
  /// Before the server goes: who waits sees the end of the connection.
  void down() {
    const std::lock_guard lock(mutex_);
    for (const int fd : waiting_) ::close(fd);
    waiting_.clear();
    listener_ = -1;
  }

 private:
  int listen() {
    const std::lock_guard lock(mutex_);
    return listener_ = ::eventfd(0, EFD_SEMAPHORE | EFD_NONBLOCK | EFD_CLOEXEC);
  }
  int accept(int listener) {
    const std::lock_guard lock(mutex_);
    uint64_t one = 0;
    if (waiting_.empty()) {
      errno = EAGAIN;
      return -1;
    }
    if (failures_ > 0) {
      --failures_;
      errno = EMFILE;
      return -1;
    }
    if (::read(listener, &one, sizeof(one)) < 0) return -1;
    const int fd = waiting_.front();
    waiting_.pop_front();
    return fd;
  }

  std::mutex mutex_;  // guards the rest
  std::deque<int> waiting_;
  int listener_ = -1;
  std::atomic<int> failures_{0};
};

struct SimReply {
  int status = 0;  // 0: the connection ended before a whole reply came
  bool late = false;
  std::string body;
};

/// The next reply of a connection; `most`: after so many bytes of it the client goes away.
inline SimReply read_reply(int fd, size_t most = std::string::npos) {
  std::string got;
  char piece[65536];
  for (;;) {
    const size_t head = got.find("\r\n\r\n");
    if (head != std::string::npos) {
      const size_t at = got.find("Content-Length: ");
      const size_t size = at < head ? std::stoul(got.substr(at + 16)) : 0;
      if (got.size() >= head + 4 + size)
        return {.status = std::stoi(got.substr(9, 3)), .body = got.substr(head + 4, size)};
    }
    if (got.size() >= most) return {};
    const ssize_t n = ::recv(fd, piece, std::min(sizeof(piece), most - got.size()), 0);
    if (n <= 0) return {.late = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)};
    got.append(piece, static_cast<size_t>(n));
  }
}

/// False when the other side has gone.
inline bool send_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace twinkle::serve
