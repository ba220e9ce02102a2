#include "twinkle/core/json.h"

#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/json_builder.h"

namespace twinkle {
namespace {

// The parser of nlohmann keeps its own stack, but destroying a deep value recurses: refuse depth first.
bool deeper_than(std::string_view text, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

// Where byte `at` lies.
JsonProblem problem_at(std::string_view text, size_t at, std::string reason) {
  at = std::min(text.size(), at);
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  const size_t previous = at == 0 ? std::string_view::npos : text.rfind('\n', at - 1);
  const size_t column = at - (previous == std::string_view::npos ? 0 : previous + 1) + 1;
  return {line, static_cast<int64_t>(column), std::move(reason)};
}

}  // namespace

std::optional<JsonProblem> try_parse_json(std::string_view text, Json& out, int max_depth,
                                          WideIntegers wide) {
  if (deeper_than(text, max_depth)) {
    return JsonProblem{0, 0, "JSON is nested deeper than " + std::to_string(max_depth) + " levels"};
  }
  try {
    Json value;
    JsonBuilder builder(&value, wide);
    Json::sax_parse(text.begin(), text.end(), &builder);
    out = std::move(value);
    return std::nullopt;
  } catch (const nlohmann::json::parse_error& e) {
    std::string reason = e.what();
    if (const size_t colon = reason.rfind("; last read"); colon != std::string::npos) reason.resize(colon);
    if (const size_t dash = reason.find(": syntax error"); dash != std::string::npos)
      reason = reason.substr(dash + 2);
    return problem_at(text, e.byte == 0 ? 0 : e.byte - 1, "not valid JSON: " + reason);
  } catch (const JsonNumberTooLarge& e) {
    return problem_at(text, e.end - std::min(e.end, e.number.size()),
                      "the number " + e.number.substr(0, 40) + " is too large");
  } catch (const JsonNumberTooWide& e) {
    return JsonProblem{
        0, 0, "the whole number " + e.number.substr(0, 40) + " has more than 64 bits: give it as a string"};
  } catch (const nlohmann::json::exception& e) {
    return JsonProblem{0, 0, std::string("not valid JSON: ") + e.what()};
  }
}

Json parse_json(std::string_view text, std::string_view where, int max_depth, WideIntegers wide) {
  Json value;
  if (const auto problem = try_parse_json(text, value, max_depth, wide)) {
    std::string place = "[" + std::string(where) + "] ";
    if (problem->line > 0) {
      place += "line " + std::to_string(problem->line) + ", column " + std::to_string(problem->column) + ": ";
    }
    throw invalid_argument(place + problem->reason);
  }
  return value;
}

Json read_json_file(const std::string& path) { return parse_json(read_file(path), path); }

std::string_view json_type_name(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return "boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float:
      return "number";
    case Json::value_t::string:
      return "string";
    case Json::value_t::array:
      return "list";
    case Json::value_t::object:
      return "object";
    default:
      return "binary";
  }
}

}  // namespace twinkle
