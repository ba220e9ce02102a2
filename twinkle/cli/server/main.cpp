// The program `twinkle-server`. It links no torch, so it listens within milliseconds; the library that
// computes (libtwinkle_server_engine.so) is loaded beside, with the weights, on a thread of its own.
#include <algorithm>

#include "twinkle/cli/command.h"
#include "twinkle/cli/output.h"
#include "twinkle/cli/server/server_command.h"
#include "twinkle/core/error.h"
#include "twinkle/core/suggest.h"

namespace twinkle::cli {
namespace {

std::vector<ServerCommand>& all_commands() {
  static std::vector<ServerCommand> commands;
  return commands;
}

const ServerCommand& server_command(const std::string& name) {
  std::vector<std::string> names;
  for (const ServerCommand* command : server_commands()) {
    if (command->name == name || std::ranges::find(command->aliases, name) != command->aliases.end())
      return *command;
    names.push_back(command->name);
  }
  throw invalid_argument("[twinkle-server] unknown command '" + name + "'" + did_you_mean(name, names));
}

std::string server_overview() {
  std::string out =
      "Twinkle's server: many people train and sample on one base model, through the Tinker API.\n\n"
      "Usage: twinkle-server COMMAND [options]\n\nCommands:\n";
  for (const ServerCommand* command : server_commands())
    out += "  " + command->name + std::string(10 - command->name.size(), ' ') + command->summary + "\n";
  return out +
         "\nOptions of a command: twinkle-server COMMAND --help.\n\n"
         "First step:\n  twinkle-server launch --model-id SmolLM2.gguf\n";
}

std::string server_help(const ServerCommand& command) {
  return "Usage: twinkle-server " + command.name + " " + command.usage + "\n\n" +
         wrap_text(command.description, 0, 100) + "\n\n" + render_args_help(command.groups(), 100);
}

// Variables of other commands are nobody's mistake.
std::vector<std::string> other_options(const ServerCommand& command) {
  std::vector<std::string> out;
  for (const ServerCommand* other : server_commands()) {
    if (other == &command) continue;
    for (const auto& group : other->groups()) {
      for (const auto& arg : group.args) {
        out.push_back(arg.param.name);
        out.insert(out.end(), arg.aliases.begin(), arg.aliases.end());
      }
    }
  }
  return out;
}

int run(std::vector<std::string> words) {
  const auto is_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  if (words.empty() || is_help(words[0]) || words[0] == "help") {
    write_out(words.size() > 1 && !is_help(words[0]) ? server_help(server_command(words[1]))
                                                     : server_overview());
    return 0;
  }
  if (words[0] == "--version") {
    write_out("twinkle-server " + version() + "\n");
    return 0;
  }
  const ServerCommand& command = server_command(words[0]);
  words.erase(words.begin());
  if (std::ranges::any_of(words, is_help)) {
    write_out(server_help(command));
    return 0;
  }
  std::ranges::replace(words, "-c", "--config");
  const ParsedArgs args = parse_args(command.groups(), {.argv = words,
                                                        .environment = process_environment(),
                                                        .env_file = default_env_file(),
                                                        .positionals = command.positionals,
                                                        .known_elsewhere = other_options(command),
                                                        .command = "twinkle-server " + command.name,
                                                        .read_config = command.read_config});
  for (const auto& note : args.notes()) write_error("note: " + note + "\n");
  return command.run(args);
}

}  // namespace

AddServerCommand::AddServerCommand(ServerCommand command) { all_commands().push_back(std::move(command)); }

std::vector<const ServerCommand*> server_commands() {
  std::vector<const ServerCommand*> out;
  for (const auto& command : all_commands()) out.push_back(&command);
  std::ranges::sort(out, {}, &ServerCommand::order);
  return out;
}

}  // namespace twinkle::cli

int main(int argc, char** argv) {
  try {
    const int code = twinkle::cli::run(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
    twinkle::cli::flush_out();
    return code;
  } catch (const std::exception& e) {
    twinkle::cli::write_error(std::string("error: ") + e.what() + "\n");
    return twinkle::cli::exit_code(e);
  }
}
