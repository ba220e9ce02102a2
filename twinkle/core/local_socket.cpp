#include "twinkle/core/local_socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>

#include "twinkle/core/error.h"

namespace twinkle {
namespace {

constexpr int kWaiting = 8;  // connections that may wait for accept()

Error failure(const std::string& what, int code) {
  return unavailable("[socket] " + what + ": " + std::strerror(code));
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path) || path.find('\0') != std::string::npos) {
    throw invalid_argument("[socket] '" + path + "': the path of a socket has 1 to " +
                           std::to_string(sizeof(address.sun_path) - 1) + " bytes, this one has " +
                           std::to_string(path.size()));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

int make_socket() {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw failure("cannot make a socket", errno);
  return fd;
}

Error silent(const char* what, double seconds) {
  char text[64];
  std::snprintf(text, sizeof(text), "%s for %g s", what, seconds);
  return unavailable(std::string("[socket] the other side ") + text);
}

// 0, or why not.
int try_connect(int fd, const sockaddr_un& address) {
  while (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

bool same_user(int fd) {
  ucred other{};
  socklen_t size = sizeof(other);
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == ::geteuid();
}

}  // namespace

LocalSocket LocalSocket::connect(const std::string& path) {
  const sockaddr_un address = address_of(path);
  LocalSocket out(make_socket());
  if (const int code = try_connect(out.fd_, address); code == ENOENT) {
    throw not_found("[socket] there is no '" + path + "'");
  } else if (code != 0) {
    throw failure("nobody answers at '" + path + "'", code);
  }
  if (!same_user(out.fd_)) throw unavailable("[socket] another user listens at '" + path + "'");
  return out;
}

LocalSocket::~LocalSocket() {
  if (fd_ >= 0) ::close(fd_);
}

void LocalSocket::set_timeout(double seconds) {
  timeout_s_ = seconds > 0 ? seconds : 0;
  timeval limit{};
  limit.tv_sec = static_cast<time_t>(timeout_s_);
  limit.tv_usec = static_cast<suseconds_t>((timeout_s_ - std::floor(timeout_s_)) * 1e6);
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

void LocalSocket::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) throw silent("took nothing", timeout_s_);
    if (n < 0) throw failure("the other side is gone", errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

size_t LocalSocket::read(std::span<std::byte> out) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::recv(fd_, out.data() + done, out.size() - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) throw silent("said nothing", timeout_s_);
    if (n <= 0) break;  // closed, or reset because it died
    done += static_cast<size_t>(n);
  }
  return done;
}

void LocalSocket::shut_down() { ::shutdown(fd_, SHUT_RDWR); }

LocalListener::LocalListener(const std::string& path) : path_(path) {
  const sockaddr_un address = address_of(path);
  struct stat there{};
  if (::lstat(path.c_str(), &there) == 0) {
    if (!S_ISSOCK(there.st_mode))
      throw invalid_argument("[socket] '" + path + "' is there already and is no socket");
    const int fd = make_socket();
    const int code = try_connect(fd, address);
    ::close(fd);
    if (code != ECONNREFUSED) throw conflict("[socket] somebody listens at '" + path + "' already");
    ::unlink(path.c_str());
  }
  fd_ = make_socket();
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  // Nobody can connect before listen(), and then only this user.
  if (wake_ < 0 || ::bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::chmod(path.c_str(), 0600) != 0 || ::listen(fd_, kWaiting) != 0) {
    const int code = errno;
    ::close(fd_);
    if (wake_ >= 0) ::close(wake_);
    throw failure("cannot listen at '" + path + "'", code);
  }
}

LocalListener::~LocalListener() {
  ::close(fd_);
  ::close(wake_);
  ::unlink(path_.c_str());
}

std::optional<LocalSocket> LocalListener::accept() {
  for (;;) {
    pollfd ready[2] = {{fd_, POLLIN, 0}, {wake_, POLLIN, 0}};
    if (::poll(ready, 2, -1) < 0 && errno != EINTR) throw failure("cannot wait at '" + path_ + "'", errno);
    if (stopping_) return std::nullopt;
    if ((ready[0].revents & POLLIN) == 0) continue;
    const int fd = ::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) {  // it went away again, or there are no descriptors left
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    LocalSocket out(fd);
    if (same_user(fd)) return out;
  }
}

void LocalListener::stop() {
  stopping_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_, &one, sizeof(one));
}

}  // namespace twinkle
