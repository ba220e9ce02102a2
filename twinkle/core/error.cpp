#include "twinkle/core/error.h"

#include <cstring>

namespace twinkle {

std::string_view error_kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return "invalid_argument";
    case ErrorKind::kNotFound:
      return "not_found";
    case ErrorKind::kExhausted:
      return "exhausted";
    case ErrorKind::kConflict:
      return "conflict";
    case ErrorKind::kUnavailable:
      return "unavailable";
    case ErrorKind::kInternal:
      return "internal";
  }
  return "internal";
}

Error invalid_argument(const std::string& message) { return {ErrorKind::kInvalidArgument, message}; }
Error not_found(const std::string& message) { return {ErrorKind::kNotFound, message}; }
Error exhausted(const std::string& message) { return {ErrorKind::kExhausted, message}; }
Error conflict(const std::string& message) { return {ErrorKind::kConflict, message}; }
Error unavailable(const std::string& message) { return {ErrorKind::kUnavailable, message}; }
Error internal_error(const std::string& message) { return {ErrorKind::kInternal, message}; }

void check_failed(const char* condition, const char* file, int line, const std::string& detail) {
  const char* slash = std::strrchr(file, '/');
  throw Error(ErrorKind::kInternal, std::string("[internal] ") + (slash ? slash + 1 : file) + ":" +
                                        std::to_string(line) + ": " + condition +
                                        " does not hold: " + detail);
}

}  // namespace twinkle
