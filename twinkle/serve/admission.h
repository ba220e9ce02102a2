// Limits before work: how many requests, bytes and tokens of a key are let in, looked at with the head of a
// request, before its body is read. Also the count of what each key has sent, for /metrics. Thread-safe.
//
// What is over a limit that passes with time is to be answered 429; what could never pass says so.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "twinkle/serve/http.h"
#include "twinkle/serve/keys.h"

namespace twinkle::serve {

/// What a key has sent since the server started.
struct KeyUsage {
  std::string id, name;
  int64_t requests = 0, refused = 0;  // refused: of these, for a limit
  int64_t bytes = 0;                  // of bodies that were let in
};

class Admission {
 public:
  /// `defaults`: of keys without a limit of their own. `most_body`: what a body without a length may have.
  /// `now`: seconds on any clock that does not go back.
  Admission(KeyLimits defaults, int64_t most_body, std::function<double()> now);

  KeyLimits limits_of(const KeyEntry& key) const;

  /// A request that is over a limit: the status and a sentence.
  struct Refused {
    int status = 429;
    std::string reason;
    int64_t retry_after = 1;  // seconds
  };
  /// Lets a request in by its head. What it holds of the limits is let go with `request.held`.
  std::optional<Refused> enter(const KeyEntry& key, HttpRequest& request);
  /// Takes tokens of the owner's minute. A request may have more of them than are left, as it could never
  /// pass else; the next ones wait for that.
  std::optional<Refused> take_tokens(const KeyEntry& key, int64_t tokens);
  /// Tokens that were not known before, such as those of an answer.
  void spend_tokens(const std::string& owner, int64_t tokens);

  std::vector<KeyUsage> usage() const;

 private:
  struct Bucket {
    double level = 0, filled = -1;  // filled: when
    void fill(double rate, double most, double now);
  };
  struct State {
    KeyUsage usage;
    Bucket requests;
    int64_t bytes = 0;  // in flight
  };
  struct Shared {
    std::mutex mutex;
    std::map<std::string, State> keys;      // by id
    std::map<std::string, Bucket> minutes;  // by owner
  };

  KeyLimits defaults_;
  int64_t most_body_;
  std::function<double()> now_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();  // requests may outlive this
};

}  // namespace twinkle::serve
