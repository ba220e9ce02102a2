// twinkle merge, twinkle export: a model or adapter as files that other programs load.
#include <filesystem>

#include "twinkle/cli/command.h"
#include "twinkle/cli/engine/engine_options.h"
#include "twinkle/cli/output.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/model/save.h"
#include "twinkle/text/tokenizer_save.h"
#include "twinkle/train/checkpoint.h"

namespace twinkle::cli {
namespace {

// An output folder that would bury files of other things is refused.
std::string output_folder(const ParsedArgs& args) {
  const std::string path = args.get_string("output_dir");
  if (file_exists(path) && (!is_directory(path) || !std::filesystem::is_empty(path))) {
    throw conflict("[" + args.source("output_dir") + "] 'output_dir': '" + path +
                   "' is there already and not an empty folder");
  }
  return path;
}

int report(const ParsedArgs& args, const std::string& path, const std::string& what) {
  if (args.get_bool("json")) {
    write_json({{"path", path}, {"kind", what}});
  } else {
    write_out("wrote the " + what + " to " + path + "\n");
  }
  return 0;
}

void write_model(const ParsedArgs& args, const CausalLM& model, const std::string& path) {
  write_directory_atomic(path, [&](const std::string& directory) {
    save_model(model, directory,
               {.dtype = args.get_string("dtype"),
                .max_shard_bytes = args.get_int("max_shard_size_mb") * 1'000'000});
    save_tokenizer_files(args.get_string(args.has("tokenizer_id") ? "tokenizer_id" : "model_id"), directory);
  });
}

int merge(const ParsedArgs& args) {
  const std::string path = output_folder(args);
  const auto model = load_model(args, apply_machine(args));
  const auto adapter = load_adapter(args, *model);
  MergedAdapter merged(*model, *adapter);
  check_merged(*model, args.get_string("adapter"));
  merged.commit();
  write_model(args, *model, path);
  return report(args, path, "merged model");
}

int export_files(const ParsedArgs& args) {
  const std::string path = output_folder(args);
  const auto model = load_model(args, apply_machine(args));
  if (const auto adapter = load_adapter(args, *model)) {
    write_directory_atomic(path, [&](const std::string& directory) { adapter->save(directory); });
    return report(args, path, "adapter");
  }
  write_model(args, *model, path);
  return report(args, path, "model");
}

const AddRun run_merge("merge", merge);
const AddRun run_export("export", export_files);

}  // namespace
}  // namespace twinkle::cli
