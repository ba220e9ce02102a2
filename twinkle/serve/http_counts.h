// Requests by route: how many of each status, and how long they took. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

namespace twinkle::serve {

class HttpCounts {
 public:
  /// Upper bounds in seconds; all are counted beside.
  static constexpr std::array<double, 6> kBounds = {0.001, 0.01, 0.1, 1, 10, 60};
  struct Times {
    std::array<int64_t, kBounds.size()> within{};  // at most as long
    int64_t count = 0;
    double sum = 0;
  };
  struct View {
    std::map<std::tuple<std::string, std::string, int>, int64_t> requests;  // method, route, status
    std::map<std::string, Times> times;                                     // by route
  };

  /// `route` "": what is no route.
  void note(std::string_view method, std::string_view route, int status, double seconds);
  View view() const;

 private:
  mutable std::mutex mutex_;
  View view_;
};

}  // namespace twinkle::serve
