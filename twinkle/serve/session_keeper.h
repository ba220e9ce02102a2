// Which sessions are alive. A session ends when its client has finished it, or nothing was heard of it for
// `timeout` seconds, no heartbeat and no request, and none of its operations waits or runs. What it saved
// stays; its models leave the memory for good, and so do the samplers that nothing but the session names.
// Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/serve/core.h"
#include "twinkle/serve/store.h"

namespace twinkle::serve {

class SessionKeeper {
 public:
  /// Every session that has not ended was heard of just now. `timeout` 0: silence ends none.
  SessionKeeper(Core& core, Store& store, double timeout);

  /// Something is heard of a session: from now on it does not end for a while. False when it has ended.
  bool touch(const std::string& session);
  /// Ends those whose time is over; which. By one thread, that may wait for the store's file.
  std::vector<std::string> sweep();
  double timeout() const { return timeout_; }

 private:
  Core& core_;
  Store& store_;
  double timeout_;
  std::mutex mutex_;
  std::map<std::string, Clock::time_point> heard_;  // of each that is alive, when
  std::set<std::string> ending_;                    // for good, though the store does not have it yet
};

/// What a client is told.
std::string ended_text(double timeout);

}  // namespace twinkle::serve
