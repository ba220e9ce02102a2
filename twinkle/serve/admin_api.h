// What the server tells of itself: /metrics for Prometheus and /api/v1/status for people (keys with the scope
// admin), and /api/v1/live for the page at / (everybody their own; admin all). Thread-safe.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "twinkle/serve/admission.h"
#include "twinkle/serve/core.h"
#include "twinkle/serve/http.h"
#include "twinkle/serve/http_counts.h"
#include "twinkle/serve/keys.h"
#include "twinkle/serve/monitor.h"
#include "twinkle/serve/store.h"

namespace twinkle::serve {

class AdminApi {
 public:
  struct Parts {
    const Core& core;
    const Store& store;
    const Keys& keys;
    const Admission& admission;
    const Monitor& monitor;
    const HttpCounts& http;
    std::string model_name;
    std::function<int64_t()> connections;
    std::function<int64_t()> lost_log_lines;
  };
  explicit AdminApi(Parts parts);

  static constexpr std::string_view kRoutes[] = {"/metrics", "/api/v1/status", "/api/v1/live"};
  /// Its route of that path; "" when it has none. All take GET.
  static std::string_view route_of(std::string_view path);
  static Scope needed_scope(std::string_view route);
  HttpReply handle(std::string_view route, const KeyEntry& key) const;

  std::string metrics() const;
  Json status() const;
  /// `owner` "": of all.
  Json live(const std::string& owner) const;

 private:
  double now() const { return parts_.core.now(); }
  /// Names of keys, by owner; an owner with several has the oldest one's.
  std::map<std::string, std::string> owner_names() const;

  Parts parts_;
  double started_;
};

}  // namespace twinkle::serve
