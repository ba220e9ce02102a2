// The options of `twinkle-server launch`, where else they are read (check, print), and what they mean.
#pragma once

#include <string>
#include <vector>

#include "twinkle/core/args.h"
#include "twinkle/serve/server.h"

namespace twinkle::cli {

/// A whole number within bounds.
ArgSpec whole_number(std::string name, int64_t value, double least, double most, std::string help);
ArgSpec path_option(std::string name, Json value, std::string help);
/// --data-dir, which several commands have.
ArgSpec data_dir_option();

std::vector<ArgGroup> launch_groups();
/// Reads a configuration file; its notes go to stderr. invalid_argument with every error, one a line.
std::vector<ConfigValue> read_config_file(const std::string& path);

struct LaunchPlan {
  serve::ServerOptions server;
  serve::EngineOptions engine;
};
/// not_found when there is no model; invalid_argument for options that do not go together.
LaunchPlan launch_plan(const ParsedArgs& args);

}  // namespace twinkle::cli
