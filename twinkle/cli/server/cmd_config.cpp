// `twinkle-server check` and `twinkle-server print`.
#include "twinkle/cli/output.h"
#include "twinkle/cli/server/launch_options.h"
#include "twinkle/cli/server/server_command.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/serve/server_config.h"

namespace twinkle::cli {
namespace {

std::vector<ArgGroup> check_groups() {
  return {{"CheckArgs", "Check", {path_option("config", nullptr, "The YAML file.")}}};
}

// All that is wrong, not the first of it.
int check(const ParsedArgs& args) {
  if (!args.has("config")) throw invalid_argument("[twinkle-server check] needs --config: The YAML file.");
  const std::string path = args.get_string("config");
  const auto config = serve::read_server_config(read_file(path), path, launch_groups());
  for (const auto& note : config.notes) write_error("note: " + note + "\n");
  for (const auto& error : config.errors) write_error("error: " + error + "\n");
  if (!config.errors.empty()) return 2;
  write_out("ok\n");
  return 0;
}

std::vector<ArgGroup> print_groups() {
  auto groups = launch_groups();
  ArgSpec format = arg("format", ParamType::kString, "yaml", "How it is printed.");
  format.aliases = {"print_format"};
  format.param.choices = {"yaml", "json"};
  groups.push_back({"PrintArgs", "Print", {format}});
  return groups;
}

// A plain scalar of JSON is one of YAML.
int print(const ParsedArgs& args) {
  const bool json = args.get_string("format") == "json";
  Json all = Json::object();
  for (const auto& group : launch_groups()) {
    for (const auto& option : group.args) {
      const std::string& name = option.param.name;
      if (name == "config") continue;
      // A key is for its holder only.
      const Json value = name == "api_key" && args.has(name)
                             ? Json(std::vector<std::string>(args.get_strings(name).size(), "***"))
                             : args.values().at(name);
      if (json) {
        all[name] = {{"value", value}, {"source", args.source(name)}};
      } else {
        write_out(name + ": " + value.dump() + "  # " + args.source(name) + "\n");
      }
    }
  }
  if (json) write_json(all, 2);
  return 0;
}

const AddServerCommand check_command({
    .name = "check",
    .summary = "Look for mistakes in a configuration file",
    .usage = "--config server_config.yaml",
    .description = "Prints every error with its line, its key and the nearest name that is known, and 'ok' "
                   "when there is "
                   "none. Exit code 2 when there are errors.",
    .positionals = {"config"},
    .groups = check_groups,
    .run = check,
    .order = 20,
    .aliases = {"check-config"},
    // The file is the argument here, not a source of options.
    .read_config = [](const std::string&) { return std::vector<ConfigValue>(); },
});

const AddServerCommand print_command({
    .name = "print",
    .summary = "Show the options that launch would use, and where each comes from",
    .usage = "[--config server_config.yaml] [options of launch]",
    .description =
        "Defaults, then the environment (TWINKLE_PORT=8123), then the file, then the command line.",
    .groups = print_groups,
    .run = print,
    .order = 30,
    .aliases = {"print-config"},
    .read_config = read_config_file,
});

}  // namespace
}  // namespace twinkle::cli
