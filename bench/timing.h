// What the programs here measure time with.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "twinkle/core/clock.h"

namespace twinkle::bench {

using twinkle::Clock;
using twinkle::seconds_since;

inline double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return seconds_since(start);
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// The value that a share `q` of all does not exceed; 0 of none.
inline double percentile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

}  // namespace twinkle::bench
