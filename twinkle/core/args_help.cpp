#include <algorithm>

#include "twinkle/core/args.h"

namespace twinkle {
namespace {

constexpr int kTextColumn = 34;

std::string choices_of(const ArgSpec& arg) {
  std::string out;
  for (const auto& choice : arg.param.choices) out += (out.empty() ? "" : "|") + choice;
  return out;
}

std::string value_name_of(const ArgSpec& arg) {
  if (!arg.value_name.empty()) return arg.value_name;
  if (!arg.param.choices.empty()) return choices_of(arg);
  switch (arg.param.type) {
    case ParamType::kBool:
      return "";
    case ParamType::kInt:
      return "N";
    case ParamType::kFloat:
      return "X";
    case ParamType::kString:
      return "TEXT";
    case ParamType::kIntList:
      return "N,N";
    case ParamType::kFloatList:
      return "X,X";
    case ParamType::kStringList:
      return "A,B";
    case ParamType::kJson:
      return "JSON";
  }
  return "VALUE";
}

std::string default_text(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty() ? "" : value.get<std::string>();
  if (value.is_array()) {
    std::string out;
    for (const auto& item : value)
      out += (out.empty() ? "" : ",") + (item.is_string() ? item.get<std::string>() : item.dump());
    return out;
  }
  return value.dump();
}

std::string label_of(const ArgSpec& arg) {
  const bool both_ways = arg.param.type == ParamType::kBool && arg.param.default_value != false;
  std::string out = (both_ways ? "--[no-]" : "--") + dashed(arg.param.name);
  for (const auto& alias : arg.aliases) {
    // Short names are worth showing; the long ones are there for files written for other programs.
    if (alias.size() <= 6) out += (both_ways ? ", --[no-]" : ", --") + dashed(alias);
  }
  if (const std::string value = value_name_of(arg); !value.empty()) out += " " + value;
  return out;
}

std::string help_of(const ArgSpec& arg) {
  std::string out = arg.param.help;
  if (arg.param.required) return out + " [required]";
  if (arg.param.type == ParamType::kBool)
    return arg.param.default_value == true ? out + " [default: on]" : out;
  if (const auto& value = arg.param.default_value; !value.is_null() && !(value.is_array() && value.empty())) {
    if (const std::string text = default_text(value); !text.empty()) out += " [default: " + text + "]";
  }
  return out;
}

}  // namespace

std::string dashed(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

std::string wrap_text(std::string_view text, int indent, int columns) {
  std::string out;
  int used = indent;
  for (size_t start = 0; start < text.size();) {
    // What stands in brackets stays together.
    const size_t from = text[start] == '[' ? std::min(text.find(']', start), text.size()) : start;
    const size_t end = std::min(text.find_first_of(" \n", from), text.size());
    const auto word = text.substr(start, end - start);
    const auto width = static_cast<int>(word.size());
    if (used > indent && used + 1 + width > columns) {
      out += "\n" + std::string(static_cast<size_t>(indent), ' ');
      used = indent;
    } else if (used > indent) {
      out += ' ';
      ++used;
    }
    out += word;
    used += width;
    if (end < text.size() && text[end] == '\n') {
      out += "\n" + std::string(static_cast<size_t>(indent), ' ');
      used = indent;
    }
    start = end + 1;
  }
  return out;
}

std::string render_args_help(const std::vector<ArgGroup>& groups, int columns) {
  std::string out;
  for (const auto& group : groups) {
    std::string lines;
    for (const auto& arg : group.args) {
      if (arg.no_effect) continue;
      std::string line = "  " + label_of(arg);
      if (static_cast<int>(line.size()) + 2 > kTextColumn) {
        line += "\n" + std::string(kTextColumn, ' ');
      } else {
        line.resize(kTextColumn, ' ');
      }
      lines += line + wrap_text(help_of(arg), kTextColumn, columns) + "\n";
    }
    if (!lines.empty()) out += (out.empty() ? "" : "\n") + group.title + ":\n" + lines;
  }
  return out;
}

Json args_to_json(const std::vector<ArgGroup>& groups) {
  static constexpr std::string_view kTypes[] = {"bool",     "int",        "float",       "string",
                                                "int_list", "float_list", "string_list", "json"};
  Json out = Json::array();
  for (const auto& group : groups) {
    Json options = Json::array();
    for (const auto& arg : group.args) {
      Json option = {{"name", arg.param.name},
                     {"type", kTypes[static_cast<size_t>(arg.param.type)]},
                     {"default", arg.param.default_value},
                     {"help", arg.param.help}};
      if (arg.param.required) option["required"] = true;
      if (!arg.aliases.empty()) option["aliases"] = arg.aliases;
      if (!arg.param.choices.empty()) option["choices"] = arg.param.choices;
      if (arg.param.min) option["min"] = *arg.param.min;
      if (arg.param.max) option["max"] = *arg.param.max;
      if (arg.no_effect) option["no_effect"] = true;
      options.push_back(std::move(option));
    }
    out.push_back(Json{{"group", group.name}, {"title", group.title}, {"options", std::move(options)}});
  }
  return out;
}

}  // namespace twinkle
