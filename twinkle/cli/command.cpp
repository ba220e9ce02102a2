#include "twinkle/cli/command.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <new>

#include "twinkle/cli/output.h"
#include "twinkle/core/error.h"
#include "twinkle/core/file_errors.h"
#include "twinkle/core/suggest.h"

namespace twinkle::cli {
namespace {

struct Table {
  std::map<std::string, CommandSpec, std::less<>> specs;
  std::map<std::string, RunFunction, std::less<>> runs;
};

Table& table() {
  static Table instance;
  return instance;
}

// Becomes the program that links torch. Returns only by throwing.
void become_engine(char** argv) {
  const std::string engine = folder_of_program() + "/twinkle-engine";
  std::fflush(nullptr);
  ::execv(engine.c_str(), argv);
  throw internal_error("[twinkle] cannot start " + engine + ": " + std::strerror(errno) +
                       "; it belongs beside the program, build the target twinkle-engine");
}

// Options of every command: a variable that sets one of another command's is no mistake.
std::vector<std::string> all_option_names() {
  std::vector<std::string> names;
  for (const auto* spec : commands()) {
    for (const auto& group : spec->groups()) {
      for (const auto& arg : group.args) {
        names.push_back(arg.param.name);
        names.insert(names.end(), arg.aliases.begin(), arg.aliases.end());
      }
    }
  }
  return names;
}

bool is_help(const std::string& word) { return word == "--help" || word == "-h"; }

int run(const std::vector<std::string>& words, char** argv, bool is_engine) {
  if (words.empty() || is_help(words[0])) {
    write_out(overview());
    return 0;
  }
  if (words[0] == "--version") {
    write_out("twinkle " + version() + "\n");
    return 0;
  }
  if (words[0] == "--commands") {  // for tests and shells: what this program runs itself
    for (const auto& name : runnable_commands()) write_out(name + "\n");
    return 0;
  }
  if (words[0] == "help") {
    write_out(words.size() == 1 ? overview() : command_help(command(words[1])));
    return 0;
  }
  const CommandSpec& spec = command(words[0]);
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  const auto end_of_options = std::find(rest.begin(), rest.end(), "--");
  const std::vector<ArgGroup> groups = spec.groups();
  if (std::any_of(rest.begin(), end_of_options, is_help)) {
    if (std::find(rest.begin(), end_of_options, "--json") != end_of_options) {
      write_out(
          Json{{"command", spec.name}, {"summary", spec.summary}, {"groups", args_to_json(groups)}}.dump(2) +
          "\n");
    } else {
      write_out(command_help(spec));
    }
    return 0;
  }
  const ParsedArgs args = parse_args(groups, {.argv = rest,
                                              .environment = process_environment(),
                                              .env_file = default_env_file(),
                                              .positionals = spec.positionals,
                                              .known_elsewhere = all_option_names(),
                                              .command = "twinkle " + spec.name});
  if (spec.check) spec.check(args);
  if (!is_engine && (!spec.needs_engine || spec.needs_engine(args))) become_engine(argv);
  for (const auto& note : args.notes()) write_error("note: " + note + "\n");
  const auto found = table().runs.find(spec.name);
  if (found == table().runs.end()) throw internal_error("[twinkle] this build has no '" + spec.name + "'");
  return found->second(args);
}

}  // namespace

std::string folder_of_program() {
  char path[PATH_MAX];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof(path) - 1);
  if (length <= 0)
    throw internal_error("[twinkle] cannot read /proc/self/exe: " + std::string(std::strerror(errno)));
  const std::string_view all(path, static_cast<size_t>(length));
  return std::string(all.substr(0, all.rfind('/')));
}

AddCommand::AddCommand(CommandSpec spec) {
  TW_CHECK(spec.groups, "command '" + spec.name + "' has no options");
  const std::string name = spec.name;
  TW_CHECK(table().specs.emplace(name, std::move(spec)).second, "command '" + name + "' is declared twice");
}

AddRun::AddRun(std::string name, RunFunction run) { table().runs.emplace(std::move(name), std::move(run)); }

std::vector<const CommandSpec*> commands() {
  std::vector<const CommandSpec*> out;
  for (const auto& [name, spec] : table().specs) out.push_back(&spec);
  std::stable_sort(out.begin(), out.end(), [](const auto* a, const auto* b) { return a->order < b->order; });
  return out;
}

const CommandSpec& command(std::string_view name) {
  if (const auto found = table().specs.find(name); found != table().specs.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, spec] : table().specs) names.push_back(known);
  throw invalid_argument("[twinkle] unknown command '" + std::string(name) + "'" + did_you_mean(name, names));
}

std::vector<std::string> runnable_commands() {
  std::vector<std::string> out;
  for (const auto& [name, run] : table().runs) out.push_back(name);
  return out;
}

std::string version() { return TWINKLE_VERSION; }

std::string overview() {
  std::string out = "Twinkle trains language models.\n\nUsage: twinkle COMMAND [options]\n\nCommands:\n";
  size_t width = 0;
  for (const auto* spec : commands()) width = std::max(width, spec->name.size());
  for (const auto* spec : commands()) {
    out += "  " + spec->name + std::string(width + 3 - spec->name.size(), ' ') + spec->summary + "\n";
  }
  out +=
      "\nOptions of a command: twinkle COMMAND --help. They may also come from a file (--config run.yaml), "
      "from\n"
      "TWINKLE_* variables and from .env; the command line is the strongest.\n\n"
      "First steps:\n"
      "  twinkle sample --model-id MODEL --prompt \"Who are you?\"\n"
      "  twinkle sft --model-id MODEL --dataset-id cookbook/data/self_cognition.jsonl --model-name Nova --lr "
      "1e-3\n";
  return out;
}

std::string command_help(const CommandSpec& spec) {
  std::string out =
      "Usage: twinkle " + spec.name + " " + (spec.usage.empty() ? "[options]" : spec.usage) + "\n\n";
  out += wrap_text(spec.description.empty() ? spec.summary + "." : spec.description, 0, 100) + "\n\n";
  const std::vector<ArgGroup> groups = spec.groups();
  out += render_args_help(groups, 100);
  bool has_no_effect = false;
  for (const auto& group : groups) {
    for (const auto& arg : group.args) has_no_effect = has_no_effect || arg.no_effect;
  }
  if (has_no_effect) {
    out += "\n" +
           wrap_text(
               "Other options of upstream are accepted while their value changes nothing here and refused "
               "with a reason "
               "otherwise (--help --json lists them).",
               0, 100) +
           "\n";
  }
  return out;
}

int exit_code(const std::exception& error) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return ours != nullptr && ours->kind() != ErrorKind::kInternal ? 2 : 1;
}

int run_program(int argc, char** argv, bool is_engine) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error with a reason, not the end
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const bool json = std::find(words.begin(), words.end(), "--json") != words.end();
  const auto report = [&](const std::string& kind, const std::string& message) {
    write_error("error: " + message + "\n");
    if (json)
      write_out(Json{{"error", {{"kind", kind}, {"message", message}}}}.dump(-1, ' ', false,
                                                                             Json::error_handler_t::replace) +
                "\n");
  };
  int code = 0;
  try {
    code = run(words, argv, is_engine);
    flush_out();
  } catch (const Error& e) {
    report(std::string(error_kind_name(e.kind())), e.what());
    code = exit_code(e);
  } catch (const std::filesystem::filesystem_error& e) {
    const Error error = file_error(e);
    report(std::string(error_kind_name(error.kind())), error.what());
    code = exit_code(error);
  } catch (const std::bad_alloc&) {
    report("exhausted", "out of memory");
    code = 1;
  } catch (const std::exception& e) {
    report("internal", std::string("[internal] ") + e.what());
    code = 1;
  }
  return code;
}

}  // namespace twinkle::cli
