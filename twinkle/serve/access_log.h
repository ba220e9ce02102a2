// The access log: one JSON line a request, of method, route, status, sizes, time and the id of the key. Never
// a key, a body, a query, an id of somebody's, or a file's path. Lines are written by a thread of its own: a
// slow disk costs lines, which are counted, and no request. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "twinkle/serve/http.h"

namespace twinkle::serve {

class AccessLog {
 public:
  /// `path`: a file, which becomes PATH.1 when it is larger than `most_bytes`, or "-" for stderr. unavailable
  /// when it can not be opened.
  explicit AccessLog(std::string path, int64_t most_bytes = 64 << 20);
  /// Writes what is left.
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  /// `route`: the request's path with '*' for what varies; `now`: seconds since 1970.
  void write(const HttpDone& done, std::string_view route, double now);
  /// Lines that could not be written.
  int64_t lost() const;

 private:
  void run();
  void put(const std::string& text);
  void open();

  std::string path_;
  int64_t most_bytes_;
  int fd_ = -1;
  int64_t size_ = 0;

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::deque<std::string> lines_;
  int64_t lost_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

/// "2026-11-30T13:50:39.123Z".
std::string iso_milliseconds(double seconds);

}  // namespace twinkle::serve
