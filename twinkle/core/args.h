// Options of a program: declared once in groups, read from defaults < .env < TWINKLE_* environment < YAML
// (--config) < command line, checked against their types, and shown by --help. Free functions over values;
// thread-safe.
//
// Names are typed with dashes or underscores in any case: --lora-r 8, --lora_r=8. A bare --flag is true and
// --no-flag false. A later mention of an option on the command line wins (lists that repeat add up). `--`
// ends the options. YAML may nest: the names of the levels are joined with '_', and a group's name may stand
// before its options (lora: {r: 8}, training: {seed: 1}).
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "twinkle/core/registry.h"

namespace twinkle {

struct YamlNode;

/// One option.
struct ArgSpec {
  ParamSpec param;
  std::vector<std::string> aliases;  // other names, snake_case
  std::string value_name;            // shown in help: "PATH"; "" picks one by type
  bool repeats = false;              // a list: mentions on the command line add up
  bool keep_space = false;           // a list: blanks and line ends around an item are part of it
  /// Options of upstream that mean nothing here. `accepted`: values that change nothing and are let pass (the
  /// default is always one); every other value is refused with `refusal`. Not shown in help.
  bool no_effect = false;
  bool accept_any = false;
  std::vector<Json> accepted;
  std::string refusal;
};

/// Shorthands for the tables in cli/.
ArgSpec arg(std::string name, ParamType type, Json default_value, std::string help);
/// A string shown as PATH, not set by default.
ArgSpec path_arg(std::string name, std::string help);
ArgSpec required_arg(std::string name, ParamType type, std::string help);
/// An upstream option whose value can never change a result here.
ArgSpec harmless_arg(std::string name, ParamType type, Json default_value);
/// An upstream option of which only the default makes sense here; other values are refused with `why`.
ArgSpec refused_arg(std::string name, ParamType type, Json default_value, std::string why);

struct ArgGroup {
  std::string name;   // "LoraArgs"
  std::string title;  // "LoRA"
  std::vector<ArgSpec> args;

  /// Changes for one command, in place: a default, a required mark, an option left out. Unknown names are our
  /// bug.
  ArgGroup& set_default(std::string_view arg, Json value);
  ArgGroup& require(std::string_view arg);
  ArgGroup& remove(std::string_view arg);
};

/// Checked values and where each came from.
class ParsedArgs : public Options {
 public:
  ParsedArgs() = default;
  ParsedArgs(Json values, std::map<std::string, std::string, std::less<>> sources,
             std::vector<std::string> notes)
      : Options(std::move(values)), sources_(std::move(sources)), notes_(std::move(notes)) {}
  /// Whether someone set it, that is, it is not the default.
  bool given(std::string_view name) const;
  /// "default", "command line", "environment TWINKLE_SEED", ".env line 3", "run.yaml line 7".
  std::string source(std::string_view name) const;
  std::vector<std::string> get_strings(std::string_view name) const;
  /// What the user should know (an environment variable that nothing reads).
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  std::map<std::string, std::string, std::less<>> sources_;
  std::vector<std::string> notes_;
};

/// A value of a configuration file that has a form of its own.
struct ConfigValue {
  std::string option;
  Json value;
  std::string where;  // "server_config.yaml line 7"
};

struct ArgInput {
  std::vector<std::string> argv;                                 // without program and command
  std::vector<std::pair<std::string, std::string>> environment;  // NAME, value
  std::string env_file;                                          // path of a .env, "" for none
  std::vector<std::string> positionals;                          // options that bare words fill, in order
  std::vector<std::string> known_elsewhere;  // options of other commands: their variables pass
  std::string command;                       // "twinkle sft", for messages
  /// Reads the --config file in place of the plain form; null: the plain form.
  std::function<std::vector<ConfigValue>(const std::string& path)> read_config;
};

/// Reads all sources. Every error is invalid_argument (a missing --config file: not_found) that begins with
/// the source in brackets and names the option, with the nearest known one for an unknown name. A "config"
/// option among the groups names the YAML file.
ParsedArgs parse_args(const std::vector<ArgGroup>& groups, const ArgInput& input);

/// A value of YAML as the option reads it, checked; `where` begins the error.
Json checked_yaml(const ArgSpec& arg, const YamlNode& node, const std::string& where);
/// The option of that name or alias, in any case and with dashes or underscores; null when there is none.
const ArgSpec* find_arg(const std::vector<ArgGroup>& groups, std::string_view typed);

/// The process's environment, and the .env (else .env.local) of the working directory ("" when there is
/// none).
std::vector<std::pair<std::string, std::string>> process_environment();
std::string default_env_file();

/// A name as it is shown: learning_rate -> "learning-rate".
std::string dashed(std::string_view name);

/// A text as the option's type reads it: true/yes/on/1, numbers, comma lists or JSON lists; none/null/~ unset
/// what has no default. invalid_argument beginning with "[`where`]".
Json cast_text(const ParamSpec& spec, std::string_view text, std::string_view where);

/// The options by group: names, help, types, defaults; aligned, at most `columns` wide.
std::string render_args_help(const std::vector<ArgGroup>& groups, int columns = 100);
/// The same for programs: [{group, title, options: [{name, type, default, help, ...}]}].
Json args_to_json(const std::vector<ArgGroup>& groups);
/// Text wrapped at `columns`, every line after the first indented.
std::string wrap_text(std::string_view text, int indent, int columns);

}  // namespace twinkle
