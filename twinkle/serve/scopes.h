// What a key may do: read, train, sample, admin. Free of state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace twinkle::serve {

enum class Scope : uint8_t {
  kAny,     // every key
  kUse,     // sessions: who may train or sample
  kRead,    // look at what one has
  kTrain,   // models, their checkpoints, and what becomes of those
  kSample,  // samplers and samples
  kAdmin,   // the server's state, and everybody's
};

/// A set of them.
class Scopes {
 public:
  static Scopes all();
  /// By name; invalid_argument with the nearest one for what is none, and for an empty list.
  static Scopes parse(const std::vector<std::string>& names);
  /// Who may train may read.
  bool has(Scope scope) const;
  std::vector<std::string> names() const;

 private:
  static uint8_t bit(Scope scope) { return static_cast<uint8_t>(1u << static_cast<uint8_t>(scope)); }
  uint8_t bits_ = 0;
};

std::string_view scope_name(Scope scope);

/// What a request for this route of an API needs: `route` without the API's prefix. What is not known here
/// needs `train` when it may change something.
Scope needed_scope(std::string_view method, std::string_view route);

}  // namespace twinkle::serve
