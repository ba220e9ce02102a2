// Clocks that a test sets. Beside what it adds, the steady one goes as the machine's does, so that short
// waits end.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>

#include "twinkle/serve/world.h"

namespace twinkle::serve {

class HandClock {
 public:
  /// Seconds since 1970.
  explicit HandClock(double seconds)
      : begin_(seconds), wall_(std::make_shared<std::atomic<double>>(seconds)) {}
  HandClock& operator=(double seconds) {
    *wall_ = seconds;
    return *this;
  }
  void pass(double more) { *wall_ = *wall_ + more; }
  World world() const {
    const auto steady = [wall = wall_, begin = begin_] {
      return Clock::now() +
             std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*wall - begin));
    };
    return {.clocks = {.wall = [wall = wall_] { return wall->load(); },
                       .steady = steady,
                       .nap =
                           [steady](Clock::time_point until) {
                             return std::min<Clock::duration>(until - steady(),
                                                              std::chrono::milliseconds(20));
                           }}};
  }

 private:
  const double begin_;
  std::shared_ptr<std::atomic<double>> wall_;
};

}  // namespace twinkle::serve
