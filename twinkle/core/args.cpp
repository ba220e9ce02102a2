#include "twinkle/core/args.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/core/suggest.h"
#include "twinkle/core/yaml.h"

extern "C" char** environ;

namespace twinkle {
namespace {

// TWINKLE_* variables that are no options: the kernels', the threads', the scripts' and the tests'.
constexpr std::string_view kProcessVariables[] = {"isa",          "num_threads", "deps",         "test_data",
                                                  "test_require", "inside_test", "parity_python"};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

std::string folded(std::string_view name) {
  std::string out = lower(name);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::string_view trimmed(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

bool is_true(std::string_view word) {
  const std::string w = lower(word);
  return w == "true" || w == "yes" || w == "on" || w == "1";
}
bool is_false(std::string_view word) {
  const std::string w = lower(word);
  return w == "false" || w == "no" || w == "off" || w == "0";
}
bool is_none(std::string_view word) {
  const std::string w = lower(word);
  return w == "none" || w == "null" || w == "~";
}

[[noreturn]] void not_a(const ParamSpec& spec, ParamType type, std::string_view text,
                        std::string_view where) {
  throw invalid_argument("[" + std::string(where) + "] '" + spec.name + "': expected " +
                         std::string(param_type_name(type)) + ", got '" + std::string(text) + "'");
}

Json cast_number(const ParamSpec& spec, ParamType type, std::string_view text, std::string_view where) {
  std::string_view digits = trimmed(text);
  if (digits.starts_with('+')) digits.remove_prefix(1);
  const char *begin = digits.data(), *end = begin + digits.size();
  int64_t whole = 0;
  const auto [after, outcome] = std::from_chars(begin, end, whole);
  if (outcome == std::errc() && after == end) return whole;
  if (outcome == std::errc::result_out_of_range && after == end && type == ParamType::kInt) {
    throw invalid_argument("[" + std::string(where) + "] '" + spec.name + "': " + std::string(digits) +
                           " is too " + (digits.starts_with('-') ? "small" : "large"));
  }
  double number = 0;
  const auto [stop, code] = std::from_chars(begin, end, number);
  if (code != std::errc() || stop != end || digits.empty()) not_a(spec, type, text, where);
  return number;
}

// What stands between commas.
Json string_items(const ParamSpec& spec, std::string_view text, std::string_view where, bool keep_space) {
  Json out = Json::array();
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const std::string_view part = text.substr(start, end - start), item = keep_space ? part : trimmed(part);
    if (item.empty() && !text.empty()) {
      throw invalid_argument("[" + std::string(where) + "] '" + spec.name + "': an empty item in '" +
                             std::string(text) +
                             "'; a list whose items hold commas is given as JSON: [\"a, b\"]");
    }
    out.push_back(std::string(item));
    start = end + 1;
  }
  return out;
}

// As cast_text; items of a list whose blanks mean something stay as they are.
Json cast_for(const ArgSpec& arg, std::string_view text, std::string_view where) {
  Json list;
  const bool is_json = trimmed(text).starts_with('[') && !try_parse_json(text, list);
  if (!arg.keep_space || is_json) return cast_text(arg.param, text, where);
  return string_items(arg.param, text, where, true);
}

// Checks a value; those of upstream that mean nothing here pass only when they change nothing.
Json checked(const ArgSpec& arg, const Json& value, const std::string& where) {
  if (value.is_null() && !arg.param.default_value.is_null()) {
    throw invalid_argument("[" + where + "] '" + arg.param.name + "': expected " +
                           std::string(param_type_name(arg.param.type)) + ", got null");
  }
  Json out = check_param(arg.param, value, where);
  if (!arg.no_effect || arg.accept_any || out == arg.param.default_value) return out;
  if (std::find(arg.accepted.begin(), arg.accepted.end(), out) != arg.accepted.end()) return out;
  throw invalid_argument("[" + where + "] '" + arg.param.name + "': " + out.dump() +
                         " is not supported: " + arg.refusal);
}

Json yaml_value(const ArgSpec& arg, const YamlNode& node, const std::string& where) {
  const ParamType type = arg.param.type;
  if (type == ParamType::kJson) return yaml_to_json(node);
  if (node.kind == YamlNode::Kind::kNull) return nullptr;
  if (node.kind == YamlNode::Kind::kScalar) {
    if (node.quoted && type != ParamType::kString && type != ParamType::kStringList)
      not_a(arg.param, type, node.scalar, where);
    return cast_for(arg, node.scalar, where);
  }
  ParamSpec item = arg.param;
  if (type == ParamType::kIntList || type == ParamType::kFloatList) {
    item.type = type == ParamType::kIntList ? ParamType::kInt : ParamType::kFloat;
  } else if (type == ParamType::kStringList) {
    item.type = ParamType::kString;
  }
  const bool is_map = node.kind == YamlNode::Kind::kMap;
  if (is_map || item.type == type) {
    throw invalid_argument("[" + where + "] '" + arg.param.name + "': expected " +
                           std::string(param_type_name(type)) + ", got " + (is_map ? "map" : "list"));
  }
  Json out = Json::array();
  for (const auto& entry : node.list) {
    if (entry.kind != YamlNode::Kind::kScalar)
      throw invalid_argument("[" + where + "] '" + arg.param.name + "': expected plain values in the list");
    out.push_back(cast_text(item, entry.scalar, where));
  }
  return out;
}

// Every name an option answers to, and the group that may stand before it.
class Index {
 public:
  explicit Index(const std::vector<ArgGroup>& groups) : groups_(groups) {
    for (const auto& group : groups) {
      for (const auto& arg : group.args) {
        names_.push_back(arg.param.name);
        add(arg.param.name, arg);
        for (const auto& alias : arg.aliases) add(alias, arg);
      }
    }
  }

  const ArgSpec* find(std::string_view typed) const {
    const std::string key = folded(typed);
    if (const auto found = by_name_.find(key); found != by_name_.end()) return found->second;
    for (const auto& group : groups_) {
      const std::string prefix = prefix_of(group);
      if (!key.starts_with(prefix)) continue;
      const std::string rest = key.substr(prefix.size());
      for (const auto& arg : group.args) {
        if (arg.param.name == rest ||
            std::find(arg.aliases.begin(), arg.aliases.end(), rest) != arg.aliases.end())
          return &arg;
      }
    }
    return nullptr;
  }

  const std::vector<std::string>& names() const { return names_; }

 private:
  static std::string prefix_of(const ArgGroup& group) {
    std::string_view name = group.name;
    if (name.ends_with("Args")) name.remove_suffix(4);
    return lower(name) + "_";
  }
  void add(const std::string& name, const ArgSpec& arg) {
    TW_CHECK(by_name_.emplace(name, &arg).second, "option '" + name + "' is declared twice");
  }

  const std::vector<ArgGroup>& groups_;
  std::map<std::string, const ArgSpec*, std::less<>> by_name_;
  std::vector<std::string> names_;
};

class ArgsReader {
 public:
  ArgsReader(const std::vector<ArgGroup>& groups, const ArgInput& input) : index_(groups), input_(input) {
    for (const auto& group : groups) {
      for (const auto& arg : group.args) values_[arg.param.name] = arg.param.default_value;
    }
  }

  ParsedArgs read(const std::vector<ArgGroup>& groups) {
    if (!input_.env_file.empty()) read_env_file(input_.env_file);
    read_environment();
    // The command line may name the YAML file, and is still stronger than it.
    Values from_argv = read_argv();
    std::string config;
    if (const auto found = values_.find("config"); found != values_.end()) {
      if (found->is_string()) config = found->get<std::string>();
      if (const auto given = from_argv.find("config");
          given != from_argv.end() && given->second.first.is_string()) {
        config = given->second.first.get<std::string>();
      }
    }
    if (!config.empty()) input_.read_config ? read_own_form(config) : read_yaml(config);
    merge(from_argv);
    for (const auto& group : groups) {
      for (const auto& arg : group.args) {
        if (!arg.param.required || !values_.at(arg.param.name).is_null()) continue;
        throw invalid_argument("[" + input_.command + "] needs --" + dashed(arg.param.name) + ": " +
                               arg.param.help);
      }
    }
    return {values_, sources_, notes_};
  }

 private:
  using Values = std::map<std::string, std::pair<Json, std::string>, std::less<>>;

  [[noreturn]] void unknown(const std::string& where, const std::string& what) const {
    throw invalid_argument("[" + where + "] unknown " + what + suggestion(what));
  }
  std::string suggestion(std::string_view what) const {
    const size_t quote = what.find('\'');
    std::string name(what.substr(quote + 1, what.rfind('\'') - quote - 1));
    const bool flag = name.starts_with("--");
    if (flag) name = name.substr(2);
    std::string near = nearest_name(folded(name), index_.names());
    if (near.empty() && flag && folded(name).starts_with("no_")) {
      near = nearest_name(folded(name).substr(3), index_.names());
      if (!near.empty()) near = "no_" + near;
    }
    if (near.empty()) return "; see " + input_.command + " --help";
    return " (did you mean '" + (flag ? "--" + dashed(near) : near) + "'?)";
  }

  static void set(Values& into, const ArgSpec& arg, Json value, const std::string& where) {
    const auto [at, added] = into.emplace(arg.param.name, std::pair{value, where});
    if (!added)
      throw invalid_argument("[" + where + "] '" + arg.param.name +
                             "' is given twice (also: " + at->second.second + ")");
  }

  void merge(const Values& given) {
    for (const auto& [name, value] : given) {
      values_[name] = value.first;
      sources_[name] = value.second;
    }
  }

  // A TWINKLE_* variable; `where` says which. Other programs' names are not ours to judge.
  void variable(Values& into, std::string_view name, const std::string& value, const std::string& where) {
    if (!name.starts_with("TWINKLE_") || value.empty()) return;
    const std::string key = folded(name.substr(8));
    if (const ArgSpec* arg = index_.find(key)) {
      set(into, *arg, checked(*arg, cast_for(*arg, value, where), where), where);
      return;
    }
    std::vector<std::string> others = input_.known_elsewhere;
    others.insert(others.end(), std::begin(kProcessVariables), std::end(kProcessVariables));
    if (std::find(others.begin(), others.end(), key) != others.end()) return;
    const auto did_you_mean = [](const std::string& near) {
      std::string variable = "TWINKLE_" + near;
      for (char& c : variable) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
      return near.empty() ? "" : " (did you mean '" + variable + "'?)";
    };
    if (const std::string near = nearest_name(key, index_.names()); !near.empty()) {
      throw invalid_argument("[" + where + "] unknown variable '" + std::string(name) + "'" +
                             did_you_mean(near));
    }
    notes_.push_back(where + ": nothing reads " + std::string(name) +
                     did_you_mean(nearest_name(key, others)));
  }

  void read_environment() {
    auto sorted = input_.environment;
    std::sort(sorted.begin(), sorted.end());
    Values given;
    for (const auto& [name, value] : sorted) variable(given, name, value, "environment " + name);
    merge(given);
  }

  void read_env_file(const std::string& path) {
    const std::string text = read_file(path);
    Values given;
    int64_t number = 0;
    for (size_t start = 0; start <= text.size();) {
      const size_t end = std::min(text.find('\n', start), text.size());
      std::string_view line = trimmed(std::string_view(text).substr(start, end - start));
      start = end + 1;
      const std::string where = path + " line " + std::to_string(++number);
      if (line.empty() || line.starts_with('#')) continue;
      if (line.starts_with("export ")) line = trimmed(line.substr(7));
      const size_t equals = line.find('=');
      if (equals == std::string_view::npos) throw invalid_argument("[" + where + "] expected NAME=value");
      const std::string_view name = trimmed(line.substr(0, equals));
      std::string_view value = trimmed(line.substr(equals + 1));
      if (value.size() >= 2 && (value.front() == '"' || value.front() == '\'')) {
        const size_t close = value.find(value.front(), 1);
        if (close == std::string_view::npos)
          throw invalid_argument("[" + where + "] the quote is never closed");
        value = value.substr(1, close - 1);
      } else if (const size_t comment = value.find(" #"); comment != std::string_view::npos) {
        value = trimmed(value.substr(0, comment));
      }
      variable(given, name, std::string(value), where);
    }
    merge(given);
  }

  void read_own_form(const std::string& path) {
    Values given;
    for (const ConfigValue& value : input_.read_config(path)) {
      const ArgSpec* arg = index_.find(value.option);
      TW_CHECK(arg != nullptr, "a configuration file sets '" + value.option + "', which is no option");
      set(given, *arg, checked(*arg, value.value, value.where), value.where);
    }
    merge(given);
  }

  void read_yaml(const std::string& path) {
    const YamlNode root = parse_yaml(read_file(path), path);
    if (root.kind == YamlNode::Kind::kNull) return;
    if (root.kind != YamlNode::Kind::kMap)
      throw invalid_argument("[" + path + " line " + std::to_string(root.line) +
                             "] expected options as 'name: value'");
    Values given;
    flatten(given, root, "", path);
    merge(given);
  }

  void flatten(Values& given, const YamlNode& map, const std::string& prefix, const std::string& path) {
    for (const auto& [key, node] : map.map) {
      const std::string name = prefix.empty() ? key : prefix + "_" + key;
      const std::string where = path + " line " + std::to_string(node.line);
      const ArgSpec* arg = index_.find(name);
      if (node.kind == YamlNode::Kind::kMap && !(arg != nullptr && arg->param.type == ParamType::kJson)) {
        flatten(given, node, name, path);
        continue;
      }
      if (arg == nullptr) unknown(where, "key '" + name + "'");
      if (arg->param.name == "config")
        throw invalid_argument("[" + where + "] a configuration file cannot name another");
      set(given, *arg, checked(*arg, yaml_value(*arg, node, where), where), where);
    }
  }

  Values read_argv() {
    static const std::string where = "command line";
    Values given;
    std::vector<std::string> bare;
    bool only_bare = false;
    for (size_t i = 0; i < input_.argv.size(); ++i) {
      const std::string& word = input_.argv[i];
      if (only_bare || word.size() < 2 || word[0] != '-' || is_number(word)) {
        bare.push_back(word);
        continue;
      }
      if (word == "--") {
        only_bare = true;
        continue;
      }
      if (word[1] != '-')
        throw invalid_argument("[command line] unknown option '" + word + "': options begin with two dashes");
      const size_t equals = word.find('=');
      const std::string name = word.substr(2, equals == std::string::npos ? std::string::npos : equals - 2);
      const ArgSpec* arg = index_.find(name);
      if (arg == nullptr && folded(name).starts_with("no_")) {
        const ArgSpec* positive = index_.find(name.substr(3));
        if (positive != nullptr && positive->param.type != ParamType::kBool) {
          throw invalid_argument("[command line] '--" + name +
                                 "': only options that are true or false have a --no- form");
        }
        if (positive != nullptr && equals != std::string::npos) {
          throw invalid_argument("[command line] '--" + name + "' takes no value, got '" +
                                 word.substr(equals + 1) + "'; write --" + name + " alone, or --" +
                                 name.substr(3) + "=true or =false");
        }
        if (positive != nullptr) {
          given.insert_or_assign(positive->param.name, std::pair{checked(*positive, false, where), where});
          continue;
        }
      }
      if (arg == nullptr) unknown(where, "option '--" + name + "'");
      Json value;
      if (equals != std::string::npos) {
        value = cast_for(*arg, word.substr(equals + 1), where);
      } else if (arg->param.type == ParamType::kBool) {
        const bool next_is_word =
            i + 1 < input_.argv.size() && (is_true(input_.argv[i + 1]) || is_false(input_.argv[i + 1]));
        value = next_is_word ? is_true(input_.argv[++i]) : true;
      } else {
        if (i + 1 == input_.argv.size() ||
            (input_.argv[i + 1].starts_with("--") && input_.argv[i + 1].size() > 2)) {
          throw invalid_argument("[command line] '--" + name +
                                 "' needs a value: " + std::string(param_type_name(arg->param.type)));
        }
        value = cast_for(*arg, input_.argv[++i], where);
      }
      Json now = checked(*arg, value, where);
      if (const auto before = given.find(arg->param.name); arg->repeats && before != given.end()) {
        Json both = before->second.first;
        for (auto& item : now) both.push_back(std::move(item));
        now = std::move(both);
      }
      given.insert_or_assign(arg->param.name, std::pair{std::move(now), where});
    }
    for (size_t i = 0; i < bare.size(); ++i) {
      if (i >= input_.positionals.size()) {
        throw invalid_argument("[command line] unexpected '" + bare[i] +
                               "'; options begin with two dashes, see " + input_.command + " --help");
      }
      const ArgSpec* arg = index_.find(input_.positionals[i]);
      TW_CHECK(arg != nullptr, "positional '" + input_.positionals[i] + "' is not declared");
      if (given.contains(arg->param.name))
        throw invalid_argument("[command line] '" + arg->param.name + "' is given twice");
      given.emplace(arg->param.name, std::pair{checked(*arg, cast_for(*arg, bare[i], where), where), where});
    }
    return given;
  }

  static bool is_number(const std::string& word) {
    double number = 0;
    const auto [stop, code] = std::from_chars(word.data(), word.data() + word.size(), number);
    return code == std::errc() && stop == word.data() + word.size();
  }

  Index index_;
  const ArgInput& input_;
  Json values_ = Json::object();
  std::map<std::string, std::string, std::less<>> sources_;
  std::vector<std::string> notes_;
};

}  // namespace

ArgSpec arg(std::string name, ParamType type, Json default_value, std::string help) {
  return {.param = {.name = std::move(name),
                    .type = type,
                    .default_value = std::move(default_value),
                    .help = std::move(help)}};
}

ArgSpec path_arg(std::string name, std::string help) {
  ArgSpec out = arg(std::move(name), ParamType::kString, nullptr, std::move(help));
  out.value_name = "PATH";
  return out;
}

ArgSpec required_arg(std::string name, ParamType type, std::string help) {
  return {.param = {.name = std::move(name), .type = type, .help = std::move(help), .required = true}};
}

ArgSpec harmless_arg(std::string name, ParamType type, Json default_value) {
  ArgSpec out = arg(std::move(name), type, std::move(default_value), "");
  out.no_effect = out.accept_any = true;
  return out;
}

ArgSpec refused_arg(std::string name, ParamType type, Json default_value, std::string why) {
  ArgSpec out = arg(std::move(name), type, std::move(default_value), "");
  out.no_effect = true;
  out.refusal = std::move(why);
  return out;
}

namespace {
ArgSpec& find_in(ArgGroup& group, std::string_view name) {
  const auto at = std::find_if(group.args.begin(), group.args.end(),
                               [&](const ArgSpec& a) { return a.param.name == name; });
  TW_CHECK(at != group.args.end(), group.name + " has no option '" + std::string(name) + "'");
  return *at;
}
}  // namespace

ArgGroup& ArgGroup::set_default(std::string_view arg, Json value) {
  find_in(*this, arg).param.default_value = std::move(value);
  return *this;
}

ArgGroup& ArgGroup::require(std::string_view arg) {
  find_in(*this, arg).param.required = true;
  return *this;
}

ArgGroup& ArgGroup::remove(std::string_view arg) {
  find_in(*this, arg);
  std::erase_if(args, [&](const ArgSpec& a) { return a.param.name == arg; });
  return *this;
}

bool ParsedArgs::given(std::string_view name) const { return sources_.find(name) != sources_.end(); }

std::string ParsedArgs::source(std::string_view name) const {
  const auto found = sources_.find(name);
  return found == sources_.end() ? "default" : found->second;
}

std::vector<std::string> ParsedArgs::get_strings(std::string_view name) const {
  if (!has(name)) return {};
  return get(name).get<std::vector<std::string>>();
}

Json checked_yaml(const ArgSpec& arg, const YamlNode& node, const std::string& where) {
  return checked(arg, yaml_value(arg, node, where), where);
}

const ArgSpec* find_arg(const std::vector<ArgGroup>& groups, std::string_view typed) {
  return Index(groups).find(typed);
}

ParsedArgs parse_args(const std::vector<ArgGroup>& groups, const ArgInput& input) {
  return ArgsReader(groups, input).read(groups);
}

std::vector<std::pair<std::string, std::string>> process_environment() {
  std::vector<std::pair<std::string, std::string>> out;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos && text.starts_with("TWINKLE_"))
      out.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return out;
}

std::string default_env_file() {
  for (const char* name : {".env", ".env.local"}) {
    if (file_exists(name) && !is_directory(name)) return name;
  }
  return "";
}

Json cast_text(const ParamSpec& spec, std::string_view text, std::string_view where) {
  if (spec.type != ParamType::kString && spec.type != ParamType::kStringList &&
      spec.default_value.is_null() && is_none(text))
    return nullptr;
  switch (spec.type) {
    case ParamType::kBool:
      if (is_true(text)) return true;
      if (is_false(text)) return false;
      not_a(spec, spec.type, text, where);
    case ParamType::kInt:
    case ParamType::kFloat:
      return cast_number(spec, spec.type, text, where);
    case ParamType::kString:
      return std::string(text);
    case ParamType::kIntList:
    case ParamType::kFloatList:
    case ParamType::kStringList: {
      if (trimmed(text).starts_with('[')) {
        Json out;
        if (!try_parse_json(text, out)) return out;
        if (spec.type != ParamType::kStringList) not_a(spec, spec.type, text, where);
      }
      Json out = Json::array();
      if (trimmed(text).empty()) return out;
      if (spec.type == ParamType::kStringList) return string_items(spec, text, where, false);
      for (size_t start = 0; start <= text.size();) {
        const size_t end = std::min(text.find(',', start), text.size());
        out.push_back(cast_number(spec, spec.type, trimmed(text.substr(start, end - start)), where));
        start = end + 1;
      }
      return out;
    }
    case ParamType::kJson: {
      Json out;
      if (const auto problem = try_parse_json(text, out)) {
        throw invalid_argument("[" + std::string(where) + "] '" + spec.name + "': " + problem->reason);
      }
      return out;
    }
  }
  return nullptr;
}

}  // namespace twinkle
