// A small request every few milliseconds while something else goes on, and how long each took. While one is
// not answered the next can not be sent; those that were due meanwhile count too, as what their clients would
// have waited. The probe has a thread of its own, which goes before others where the machine allows it, as a
// client on another machine would.
#pragma once

#include <sys/resource.h>

#include <atomic>
#include <thread>
#include <vector>

#include "bench/http_load.h"

namespace twinkle::bench {

/// Every how often.
inline constexpr std::chrono::milliseconds kProbePeriod{10};

class Probe {
 public:
  struct Seen {
    std::vector<double> ms;
    int64_t failed = 0;  // without status 200
  };

  Probe(int port, Outgoing request)
      : thread_([this, port, request = std::move(request)] { run(port, request); }) {}
  ~Probe() {
    if (thread_.joinable()) stop();
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  Seen stop() {
    stopping_ = true;
    thread_.join();
    return std::move(seen_);
  }

 private:
  void run(int port, const Outgoing& request) {
    ::setpriority(PRIO_PROCESS, 0, -10);  // of this thread; without the right to it, it is as all are
    auto due = Clock::now();
    HttpLoad(port, 1).run(
        [&](size_t) -> std::optional<Outgoing> {
          if (stopping_) return std::nullopt;
          due = std::max(due + kProbePeriod, Clock::now());
          std::this_thread::sleep_until(due);
          return request;
        },
        [&](size_t, const Incoming& reply) {
          constexpr double kPeriodMs = std::chrono::duration<double, std::milli>(kProbePeriod).count();
          for (double ms = 1000 * reply.seconds; ms > 0; ms -= kPeriodMs) seen_.ms.push_back(ms);
          seen_.failed += reply.status == 200 ? 0 : 1;
        });
  }

  std::atomic<bool> stopping_{false};
  Seen seen_;
  std::thread thread_;
};

inline Probe::Seen probe_for(int port, Outgoing request, std::chrono::milliseconds time) {
  Probe probe(port, std::move(request));
  std::this_thread::sleep_for(time);
  return probe.stop();
}

}  // namespace twinkle::bench
