// `twinkle-server clear`.
#include <filesystem>

#include "twinkle/cli/output.h"
#include "twinkle/cli/server/launch_options.h"
#include "twinkle/cli/server/server_command.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"

namespace twinkle::cli {
namespace {

namespace fs = std::filesystem;

// What a server makes in its folder; anything else there is not ours to remove. The store comes last: a
// removal that was cut off is taken up again.
constexpr const char* kState[] = {"log",        "snapshots",    "checkpoints",  "samplers", "spill",
                                  "basis.json", "store.db-wal", "store.db-shm", "store.db"};

std::vector<ArgGroup> clear_groups() {
  ArgSpec config = path_option("config", nullptr, "A configuration file that names the folder.");
  config.aliases = {"server_config"};
  ArgSpec what = arg("what", ParamType::kString, "persistence", "What to remove; there is only one thing.");
  what.param.choices = {"persistence"};
  return {
      {"ClearArgs",
       "Clear",
       {config, data_dir_option(), what, arg("yes", ParamType::kBool, false, "Yes, remove it for good.")}}};
}

int clear(const ParsedArgs& args) {
  const std::string folder = args.get_string("data_dir");
  if (!is_directory(folder)) throw not_found("[clear] there is no folder '" + folder + "'");
  // "log" and "checkpoints" are names that others use too; every server begins with its store.
  if (!file_exists(folder + "/store.db")) {
    write_out("no server keeps its state in " + folder + ": nothing to remove\n");
    return 0;
  }
  const FolderLock lock(folder);  // no server runs on it, nor starts
  std::vector<std::string> there;
  for (const char* name : kState) {
    if (fs::exists(fs::path(folder) / name)) there.emplace_back(name);
  }
  if (!args.get_bool("yes")) {
    std::string list;
    for (const auto& name : there) list += (list.empty() ? "" : ", ") + name;
    throw invalid_argument("[clear] this removes all keys, models and checkpoints in '" + folder + "' (" +
                           list + ") for good; say --yes to do it");
  }
  for (const auto& name : there) fs::remove_all(fs::path(folder) / name);
  sync_path(folder);
  write_out("cleared " + folder + "\n");
  return 0;
}

const AddServerCommand add_clear({
    .name = "clear",
    .summary = "Remove all state of a data folder",
    .usage = "[--data-dir PATH] --yes",
    .description = "Removes keys, sessions, models and checkpoints. Refused while a server runs on the "
                   "folder. Files that "
                   "no server made stay.",
    .positionals = {"what"},
    .groups = clear_groups,
    .run = clear,
    .order = 60,
    .read_config =
        [](const std::string& path) {
          std::vector<ConfigValue> out;
          for (auto& value : read_config_file(path)) {
            if (value.option == "data_dir") out.push_back(std::move(value));
          }
          return out;
        },
});

}  // namespace
}  // namespace twinkle::cli
