#include "twinkle/data/preprocessor_columns.h"

#include <algorithm>

#include "twinkle/core/error.h"
#include "twinkle/data/media.h"

namespace twinkle::columns {

std::string got(const Json& value) {
  std::string out = std::string(json_type_name(value));
  if (value.is_number() || value.is_boolean()) out += " " + value.dump();
  return out;
}

std::string columns_of(const Row& row) {
  std::string names;
  for (const auto& [key, value] : row.items()) names += (names.empty() ? "" : ", ") + key;
  return names;
}

const std::string& text_column(const Row& row, const std::string& column) {
  const auto found = row.find(column);
  if (found == row.end())
    throw invalid_argument("has no column '" + column + "' (columns: " + columns_of(row) + ")");
  if (!found->is_string())
    throw invalid_argument("expected a string in '" + column + "', got " + got(*found));
  return found->get_ref<const std::string&>();
}

std::string optional_text(const Row& row, const std::string& column) {
  const auto found = row.find(column);
  if (found == row.end() || found->is_null()) return "";
  return text_column(row, column);
}

Json parsed_list(const Json& value, const std::string& column) {
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos || text[begin] != '[') return value;
  Json parsed;
  if (const auto problem = try_parse_json(text, parsed, kMaxJsonDepth, WideIntegers::kRefuse))
    throw invalid_argument("'" + column + "' is " + problem->reason);
  return parsed;
}

Json parsed_messages(const Json& value, const std::string& column) {
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos || (text[begin] != '[' && text[begin] != '{')) return value;
  const auto is_message = [](const Json& item) {
    return item.is_object() &&
           ((item.contains("role") && (item.contains("content") || item.contains("tool_calls"))) ||
            (item.contains("from") && item.contains("value")));
  };
  Json parsed;
  if (try_parse_json(text, parsed)) return value;
  const bool are_messages = parsed.is_array()
                                ? !parsed.empty() && std::all_of(parsed.begin(), parsed.end(), is_message)
                                : is_message(parsed);
  if (!are_messages) return value;
  if (const auto problem = try_parse_json(text, parsed, kMaxJsonDepth, WideIntegers::kRefuse))
    throw invalid_argument("'" + column + "' is " + problem->reason);
  return parsed;
}

Json tools_of(const Row& row) {
  const auto found = row.find("tools");
  if (found == row.end() || found->is_null()) return nullptr;
  Json tools = *found;
  if (tools.is_string()) {
    if (tools.get_ref<const std::string&>().empty()) return nullptr;
    Json parsed;
    if (const auto problem =
            try_parse_json(tools.get_ref<const std::string&>(), parsed, kMaxJsonDepth, WideIntegers::kRefuse))
      throw invalid_argument("'tools' is " + problem->reason);
    tools = std::move(parsed);
  }
  if (!tools.is_array()) throw invalid_argument("expected a list in 'tools', got " + got(tools));
  if (tools.empty()) return nullptr;
  for (auto& tool : tools) {
    if (!tool.is_object()) throw invalid_argument("expected objects in 'tools', got " + got(tool));
    if (!tool.contains("function")) tool = Json{{"type", "function"}, {"function", tool}};
  }
  return tools;
}

void refuse_tools(const Row& row) {
  if (tools_of(row).is_null()) return;
  throw invalid_argument("has 'tools', and no prompt to put them into; remove the column or the row");
}

std::optional<bool> truth_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  for (const char* text : {"true", "True", "TRUE"}) {
    if (value == text) return true;
  }
  for (const char* text : {"false", "False", "FALSE"}) {
    if (value == text) return false;
  }
  return std::nullopt;
}

void refuse_media(const Row& row) {
  for (const char* column : {"images", "image", "videos", "video", "audios", "audio"}) {
    const auto found = row.find(column);
    if (found == row.end() || found->is_null() || (found->is_array() && found->empty()) ||
        (found->is_string() && found->get_ref<const std::string&>().empty()))
      continue;
    throw invalid_argument(std::string("has '") + column +
                           "', and only text is trained on; remove the column or the row");
  }
}

void refuse_bad_answer(const Row& row) {
  for (const char* column : {"label", "kto_tag"}) {
    const auto found = row.find(column);
    if (found == row.end() || truth_of(*found).value_or(true)) continue;
    throw invalid_argument(std::string("'") + column +
                           "' is false: a bad answer, which this training would learn as a good one; such "
                           "data is for the KTO loss, --bad-rows drop leaves these rows out");
  }
}

void add_message(Json& messages, const char* role, std::string content) {
  messages.push_back(Json{{"role", role}, {"content", std::move(content)}});
}

void add_history(Json& messages, const Row& row) {
  const auto found = row.find("history");
  if (found == row.end() || found->is_null() || *found == "") return;
  const Json history = parsed_list(*found, "history");
  const auto is_pair = [](const Json& turn) {
    return turn.is_array() && turn.size() == 2 && turn[0].is_string() && turn[1].is_string();
  };
  if (!history.is_array() || !std::all_of(history.begin(), history.end(), is_pair)) {
    throw invalid_argument("expected a list of [question, answer] pairs in 'history'");
  }
  for (const auto& turn : history) {
    add_message(messages, "user", turn[0].get<std::string>());
    add_message(messages, "assistant", turn[1].get<std::string>());
  }
}

Trajectory question_and_answer(const Row& row, const std::string& system, std::string question,
                               std::string answer) {
  refuse_bad_answer(row);
  Trajectory out;
  if (!system.empty()) add_message(out.messages, "system", system);
  add_history(out.messages, row);
  add_message(out.messages, "user", std::move(question));
  add_message(out.messages, "assistant", std::move(answer));
  place_media(row, &out.messages);
  out.tools = tools_of(row);
  return out;
}

Json user_data_pair(const std::string& key, const Json& value) {
  return Json::array({key, value.dump(-1, ' ', false, Json::error_handler_t::replace)});
}

ParamSpec text_param(std::string name, std::string default_value, std::string help) {
  return {.name = std::move(name),
          .type = ParamType::kString,
          .default_value = std::move(default_value),
          .help = std::move(help)};
}

}  // namespace twinkle::columns
