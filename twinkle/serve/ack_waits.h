// Replies that wait until the disk has what they acknowledge, but no longer than a deadline: a disk that does
// not answer must not hold connections for ever. Who was told that it took too long may send again; the
// operation keeps its number. Thread-safe.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>

#include "twinkle/serve/clocks.h"
#include "twinkle/serve/http.h"

namespace twinkle::serve {

class AckWaits {
 public:
  using After = std::function<void(std::chrono::milliseconds, std::function<void()>)>;
  /// `after` runs a function later; what it runs must not outlive this.
  AckWaits(After after, const Clocks& clocks, std::chrono::milliseconds deadline)
      : after_(std::move(after)), clocks_(clocks), deadline_(deadline) {}

  uint64_t add(HttpServer::Respond respond);
  /// The reply to be made now; null when it has been made.
  HttpServer::Respond take(uint64_t ticket);

 private:
  struct Waiting {
    Clock::time_point until;
    HttpServer::Respond respond;
  };
  void answer_late();

  After after_;
  Clocks clocks_;
  std::chrono::milliseconds deadline_;
  std::mutex mutex_;
  std::map<uint64_t, Waiting> waiting_;  // the oldest first
  uint64_t next_ = 1;
  bool watched_ = false;
};

}  // namespace twinkle::serve
