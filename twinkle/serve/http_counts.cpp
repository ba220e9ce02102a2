#include "twinkle/serve/http_counts.h"

namespace twinkle::serve {

void HttpCounts::note(std::string_view method, std::string_view route, int status, double seconds) {
  // A client may invent methods; the figures must not grow with them.
  const bool known = !route.empty() && (method == "GET" || method == "POST" || method == "PUT" ||
                                        method == "DELETE" || method == "HEAD");
  const std::string name(known ? route : "other");
  const std::lock_guard lock(mutex_);
  ++view_.requests[{std::string(known ? method : "other"), name, status}];
  Times& times = view_.times[name];
  ++times.count;
  times.sum += seconds;
  for (size_t i = 0; i < kBounds.size(); ++i) times.within[i] += seconds <= kBounds[i] ? 1 : 0;
}

HttpCounts::View HttpCounts::view() const {
  const std::lock_guard lock(mutex_);
  return view_;
}

}  // namespace twinkle::serve
