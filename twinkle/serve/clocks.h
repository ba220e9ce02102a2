// The clocks of a server. A test puts others here, which jump and stand still as it likes. Any thread may
// ask.
#pragma once

#include <functional>

#include "twinkle/core/clock.h"

namespace twinkle::serve {

struct Clocks {
  /// Seconds since 1970. People set this clock, so it jumps both ways: it is for what they are told and for
  /// times that they gave, never for how long something took.
  std::function<double()> wall = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  };
  /// Never goes back.
  std::function<Clock::time_point()> steady = [] { return Clock::now(); };
  /// How long of the machine's own time to wait for a moment of `steady`. Who wakes looks at the clock again.
  std::function<Clock::duration(Clock::time_point until)> nap = [](Clock::time_point until) {
    return until - Clock::now();
  };
};

/// For how long something has been going on.
inline double seconds_since(const Clocks& clocks, Clock::time_point start) {
  return std::chrono::duration<double>(clocks.steady() - start).count();
}

}  // namespace twinkle::serve
