// The one exception type of the project. Bad input throws it at the edge, before any state changes;
// `internal` means a bug of ours. Thread-safe: values only.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace twinkle {

enum class ErrorKind { kInvalidArgument, kNotFound, kExhausted, kConflict, kUnavailable, kInternal };

/// Name of a kind as it appears in replies and logs: "invalid_argument", "not_found", ...
std::string_view error_kind_name(ErrorKind kind);

/// An error that a person reads: `message` names the place, what was got, what was needed and, where it is
/// known, what to do about it. Example: "[dataset] row 17: expected a string in 'query', got null".
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

/// Shorthands: throw invalid_argument("[config] ...").
Error invalid_argument(const std::string& message);
Error not_found(const std::string& message);
Error exhausted(const std::string& message);
Error conflict(const std::string& message);
Error unavailable(const std::string& message);
Error internal_error(const std::string& message);

[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& detail);

}  // namespace twinkle

/// For our own bugs only; no input may reach it. `detail` is any std::string expression.
#define TW_CHECK(condition, detail)                                                    \
  do {                                                                                 \
    if (!(condition)) ::twinkle::check_failed(#condition, __FILE__, __LINE__, detail); \
  } while (false)
