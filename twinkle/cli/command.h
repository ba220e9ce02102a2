// The commands of the `twinkle` program. A command is declared once (a CommandSpec in commands/spec_*.cpp,
// free of torch), so that `twinkle` knows every command's help and checks its options in a few milliseconds.
// What a command does is registered by one of two programs: `twinkle` itself (front/cmd_*.cpp), or
// `twinkle-engine`, its sibling that links torch and that `twinkle` turns into (engine/cmd_*.cpp).
// Registration happens before main.
//
// To add a command: commands/spec_greet.cpp
//   const AddCommand spec({.name = "greet", .summary = "Greet someone", .groups = greet_groups});
// and engine/cmd_greet.cpp (or front/):
//   int greet(const ParsedArgs& args) { ...; return 0; }
//   const AddRun run_greet("greet", greet);
// Errors are thrown as twinkle::Error; main prints them and picks the exit code.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/core/args.h"

namespace twinkle::cli {

struct CommandSpec {
  std::string name;                               // "sft"
  std::string summary;                            // one line
  std::string description;                        // what it reads and writes; with an example
  std::string usage;                              // what follows the name in the usage line, "PATH [options]"
  std::vector<std::string> positionals;           // options that bare words fill
  std::function<std::vector<ArgGroup>()> groups;  // made only when the command is looked at
  std::function<void(const ParsedArgs&)> check;   // combinations of options; throws Error
  std::function<bool(const ParsedArgs&)> needs_engine;  // null: always
  int order = 100;                                      // place in the overview
};

using RunFunction = std::function<int(const ParsedArgs&)>;

struct AddCommand {
  explicit AddCommand(CommandSpec spec);
};
struct AddRun {
  AddRun(std::string name, RunFunction run);
};

/// All commands, in the order of the overview.
std::vector<const CommandSpec*> commands();
/// invalid_argument with the nearest name when there is none.
const CommandSpec& command(std::string_view name);
/// Names of the commands this program runs itself.
std::vector<std::string> runnable_commands();

/// Where the program that runs lies.
std::string folder_of_program();
std::string version();
std::string overview();
std::string command_help(const CommandSpec& spec);

/// The whole of main() for both programs: finds the command, parses its options, prints help, runs it or
/// becomes the engine. Returns the exit code: 0, 2 for the user's mistakes, 1 for ours.
int run_program(int argc, char** argv, bool is_engine);

/// What an error means for the exit code.
int exit_code(const std::exception& error);

}  // namespace twinkle::cli
