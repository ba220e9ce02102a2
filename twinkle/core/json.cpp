#include "twinkle/core/json.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"

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

// A number that no double holds.
struct TooLarge {
  size_t end = 0;  // bytes up to its end
  std::string number;
};

// A whole number that 64 bits do not hold.
struct TooWide {
  std::string number;
};

// Where byte `at` lies.
JsonProblem problem_at(std::string_view text, size_t at, std::string reason) {
  at = std::min(text.size(), at);
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  const size_t previous = at == 0 ? std::string_view::npos : text.rfind('\n', at - 1);
  const size_t column = at - (previous == std::string_view::npos ? 0 : previous + 1) + 1;
  return {line, static_cast<int64_t>(column), std::move(reason)};
}

// Builds the value itself: nlohmann's own builder searches every earlier key of an object for each new one,
// and a tokenizer's vocabulary is one object of 150,000 keys. As there, the last of two equal keys wins.
class JsonBuilder {
 public:
  JsonBuilder(Json* root, WideIntegers wide) : root_(root), wide_(wide) {}

  bool null() { return put(Json()); }
  bool boolean(bool value) { return put(Json(value)); }
  bool number_integer(Json::number_integer_t value) { return put(Json(value)); }
  bool number_unsigned(Json::number_unsigned_t value) { return put(Json(value)); }
  bool number_float(Json::number_float_t value, const std::string& text) {
    if (wide_ == WideIntegers::kRefuse && text.find_first_of(".eE") == std::string::npos) throw TooWide{text};
    return put(Json(value));
  }
  bool string(std::string& value) { return put(Json(std::move(value))); }
  bool binary(Json::binary_t& value) { return put(Json(std::move(value))); }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    Level& level = levels_.back();
    auto& members = static_cast<std::vector<std::pair<const std::string, Json>>&>(
        level.value->get_ref<Json::object_t&>());
    if (members.size() == kSmall) {
      for (size_t i = 0; i < kSmall; ++i) level.index.emplace(members[i].first, i);
    }
    size_t at = members.size();
    if (members.size() < kSmall) {
      for (size_t i = 0; i < members.size(); ++i) {
        if (members[i].first == name) at = i;
      }
    } else {
      at = level.index.try_emplace(name, at).first->second;
    }
    if (at == members.size()) members.emplace_back(std::move(name), Json());
    slot_ = &members[at].second;
    return true;
  }

  template <class Exception>
  bool parse_error(size_t end, const std::string& token, const Exception& e) {
    if (const auto* parse = dynamic_cast<const nlohmann::json::parse_error*>(&e)) throw *parse;
    throw TooLarge{end, token};
  }

 private:
  static constexpr size_t kSmall = 32;
  struct Level {
    Json* value;
    std::unordered_map<std::string, size_t> index;  // of objects with more than kSmall keys
  };

  Json* place(Json value) {
    if (levels_.empty()) {
      *root_ = std::move(value);
      return root_;
    }
    Json* top = levels_.back().value;
    if (top->is_array()) {
      auto& list = top->get_ref<Json::array_t&>();
      list.push_back(std::move(value));
      return &list.back();
    }
    *slot_ = std::move(value);
    return slot_;
  }
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  // A container's address holds while it is open: its parent grows only after it is closed.
  bool open(Json value) {
    levels_.push_back({place(std::move(value)), {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  Json* root_;
  WideIntegers wide_;
  Json* slot_ = nullptr;
  std::vector<Level> levels_;
};

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
  } catch (const TooLarge& e) {
    return problem_at(text, e.end - std::min(e.end, e.number.size()),
                      "the number " + e.number.substr(0, 40) + " is too large");
  } catch (const TooWide& e) {
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
