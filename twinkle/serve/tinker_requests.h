// What several routes of the Tinker API read from a request in the same way. What is wrong is
// invalid_argument.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "twinkle/core/error.h"
#include "twinkle/core/json.h"
#include "twinkle/serve/operation.h"

namespace twinkle::serve::tinker {

/// The number that a session gives to what it makes.
int64_t need_number(const Json& body, const char* name);

/// What a client says of its things is kept and shown as it is, up to 64 KiB.
void check_metadata(const Json& metadata);

/// Names of checkpoints never become paths, yet they are kept plain.
void check_name(const std::string& name);

/// `optimizer_config` of what makes a model.
void check_optimizer(const Json& body);

/// The arguments of a save: kind, checked name, ttl, metadata; nothing is overwritten.
Json save_arguments(const Json& body, const char* kind, const std::string& name);

/// A value of the query, percent-decoded; nothing when it is not there.
std::optional<std::string> query_text(std::string_view target, std::string_view name);
/// A whole number of the query; `otherwise` when it is not there.
int64_t query_number(std::string_view target, std::string_view name, int64_t otherwise, int64_t most);

/// "2026-01-31T23:59:59Z" of seconds since 1970.
std::string iso_time(double seconds);
/// The seconds of a time as clients write them: a day, or with hours, fractions and a zone.
double seconds_of(const std::string& time);

/// The error of `work`, to be told through the operation's future; not what the server can not do now, which
/// is no fault of the operation and may pass.
template <class Work>
std::string refusal_of(Work&& work) {
  try {
    work();
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kUnavailable || e.kind() == ErrorKind::kInternal) throw;
    return e.what();
  } catch (const Json::exception&) {
    return "the request is not as the API describes it";
  }
  return "";
}

/// Refuses an operation for the error of `work`, unless it is refused already.
template <class Work>
void check(Operation& op, Work&& work) {
  const std::string refused = refusal_of(std::forward<Work>(work));
  if (op.refused.empty()) op.refused = refused;
}

}  // namespace twinkle::serve::tinker
