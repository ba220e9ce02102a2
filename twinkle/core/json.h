// The JSON value used for rows, configs and template contexts: nlohmann's, with the order of keys kept.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace twinkle {

using Json = nlohmann::ordered_json;

/// What becomes of whole numbers past 64 bits: real configs have them where any large number would do
/// (model_max_length), so they are rounded to a double; in what is shown to a model that would be another
/// number.
enum class WideIntegers { kRound, kRefuse };

/// Levels of nesting that are read where nothing else is said.
inline constexpr int kMaxJsonDepth = 256;

/// Parses text; errors are invalid_argument and begin with "[`where`]", with line and column.
/// Nesting deeper than `max_depth` is refused.
Json parse_json(std::string_view text, std::string_view where, int max_depth = kMaxJsonDepth,
                WideIntegers wide = WideIntegers::kRound);

/// Where and why a text is not JSON; `line` 0 when the fault has no single place.
struct JsonProblem {
  int64_t line = 0, column = 0;
  std::string reason;
};
/// Parses into `out`; a problem instead of an exception, for callers that know more about the place.
std::optional<JsonProblem> try_parse_json(std::string_view text, Json& out, int max_depth = kMaxJsonDepth,
                                          WideIntegers wide = WideIntegers::kRound);

/// Reads and parses a file (not_found when it is not there).
Json read_json_file(const std::string& path);

/// Name of a value's type as people write it: "null", "boolean", "number", "string", "list", "object".
std::string_view json_type_name(const Json& value);

}  // namespace twinkle
