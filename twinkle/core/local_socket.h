// Byte streams between processes of one machine and one user (Unix-domain sockets). A socket's reads and
// writes each belong to one thread at a time; stop() and shut_down() may come from any.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace twinkle {

class LocalSocket {
 public:
  /// not_found when there is no such socket, unavailable when nobody listens or another user does.
  static LocalSocket connect(const std::string& path);
  explicit LocalSocket(int fd) : fd_(fd) {}
  LocalSocket(LocalSocket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  LocalSocket& operator=(LocalSocket&&) = delete;
  ~LocalSocket();

  /// A read or write that makes no progress for so long is `unavailable`; <= 0: no limit.
  void set_timeout(double seconds);
  /// All of it. unavailable when the other side is gone.
  void write(std::span<const std::byte> bytes);
  /// Fills `out`; returns less only where the other side closed the stream or died.
  size_t read(std::span<std::byte> out);
  /// Ends reads and writes that wait.
  void shut_down();

 private:
  int fd_;
  double timeout_s_ = 0;
};

class LocalListener {
 public:
  /// Makes the socket, for this user only. A socket that a dead process left is replaced; conflict when
  /// somebody listens there; invalid_argument when the path is too long or something else is there.
  explicit LocalListener(const std::string& path);
  ~LocalListener();  // removes it
  LocalListener(const LocalListener&) = delete;
  LocalListener& operator=(const LocalListener&) = delete;

  /// The next connection of the same user (others are turned away); nothing once stop() was called.
  std::optional<LocalSocket> accept();
  void stop();

 private:
  std::string path_;
  int fd_ = -1, wake_ = -1;
  std::atomic<bool> stopping_ = false;
};

}  // namespace twinkle
