#include "twinkle/serve/scopes.h"

#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"

namespace twinkle::serve {
namespace {

constexpr Scope kScopes[] = {Scope::kRead, Scope::kTrain, Scope::kSample, Scope::kAdmin};

// What every client does, whatever it is there for. A result belongs to whoever's key asked for it.
constexpr std::string_view kAnybody[] = {
    "client/config", "auth/apikey/me", "client/dynamic_config", "get_server_capabilities",
    "auth/token",    "telemetry",      "retrieve_future",       "retrieve_futures"};
constexpr std::string_view kUses[] = {"create_session", "session_heartbeat", "cancel_future",
                                      "cancel_futures"};
constexpr std::string_view kReads[] = {"get_info", "weights_info", "sessions/search"};
constexpr std::string_view kSamples[] = {"create_sampling_session", "join_sampling_session", "asample",
                                         "sample"};

}  // namespace

std::string_view scope_name(Scope scope) {
  switch (scope) {
    case Scope::kRead:
      return "read";
    case Scope::kTrain:
      return "train";
    case Scope::kSample:
      return "sample";
    case Scope::kAdmin:
      return "admin";
    case Scope::kUse:
      return "train' or 'sample";
    case Scope::kAny:
      break;
  }
  return "any";
}

Scopes Scopes::all() {
  Scopes out;
  for (const Scope scope : kScopes) out.bits_ |= bit(scope);
  return out;
}

Scopes Scopes::parse(const std::vector<std::string>& names) {
  Scopes out;
  for (const auto& name : names) {
    const auto found = std::ranges::find(kScopes, name, scope_name);
    if (found == std::end(kScopes)) {
      throw invalid_argument(
          "[keys] unknown scope '" + name + "'" +
          did_you_mean(name, std::vector<std::string>{"read", "train", "sample", "admin"}));
    }
    out.bits_ |= bit(*found);
  }
  if (out.bits_ == 0)
    throw invalid_argument("[keys] a key needs one of the scopes read, train, sample, admin");
  return out;
}

bool Scopes::has(Scope scope) const {
  const auto bits = [](auto... scopes) { return static_cast<uint8_t>((... | bit(scopes))); };
  switch (scope) {
    case Scope::kAny:
      return true;
    case Scope::kUse:
      return (bits_ & bits(Scope::kTrain, Scope::kSample)) != 0;
    case Scope::kRead:
      return (bits_ & bits(Scope::kRead, Scope::kTrain)) != 0;
    default:
      return (bits_ & bit(scope)) != 0;
  }
}

std::vector<std::string> Scopes::names() const {
  std::vector<std::string> out;
  for (const Scope scope : kScopes) {
    if ((bits_ & bit(scope)) != 0) out.emplace_back(scope_name(scope));
  }
  return out;
}

Scope needed_scope(std::string_view method, std::string_view route) {
  const auto among = [&](const auto& routes) { return std::ranges::find(routes, route) != std::end(routes); };
  if (among(kAnybody)) return Scope::kAny;
  if (among(kUses) || (route.starts_with("sessions/") && route.ends_with("/finish"))) return Scope::kUse;
  if (route.starts_with("samplers/")) return Scope::kAny;  // a client that samples asks for its base model
  if (among(kSamples)) return Scope::kSample;
  if (among(kReads) || method == "GET" || method == "HEAD") return Scope::kRead;
  return Scope::kTrain;
}

}  // namespace twinkle::serve
