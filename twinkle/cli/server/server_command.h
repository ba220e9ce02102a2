// The commands of `twinkle-server`. Each registers itself, in its own file, before main.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "twinkle/core/args.h"

namespace twinkle::cli {

struct ServerCommand {
  std::string name;                      // "launch"
  std::string summary;                   // one line
  std::string usage;                     // what follows the name in the usage line
  std::string description;               // what it does; with an example
  std::vector<std::string> positionals;  // options that bare words fill
  std::function<std::vector<ArgGroup>()> groups;
  std::function<int(const ParsedArgs&)> run;
  int order = 100;                   // place in the overview
  std::vector<std::string> aliases;  // the Python Twinkle's names
  /// Reads the file that --config names; null: there is no such option.
  std::function<std::vector<ConfigValue>(const std::string& path)> read_config;
};

struct AddServerCommand {
  explicit AddServerCommand(ServerCommand command);
};

/// In the order of the overview.
std::vector<const ServerCommand*> server_commands();

}  // namespace twinkle::cli
