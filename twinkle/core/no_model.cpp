#include "twinkle/core/no_model.h"

#include <algorithm>
#include <filesystem>

#include "twinkle/core/file_errors.h"
#include "twinkle/core/files.h"
#include "twinkle/core/json.h"

namespace twinkle {

namespace fs = std::filesystem;

namespace {

// The last folder below `path`, or below its snapshots/ as the hub's cache has them, with a file of this
// name.
std::string folder_with(const std::string& path, const char* name) {
  std::string last;
  for (const fs::path& parent : {fs::path(path), fs::path(path) / "snapshots"}) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(parent, ignored)) {
      if (fs::exists(entry.path() / name, ignored)) last = std::max(last, entry.path().string());
    }
  }
  return last;
}

}  // namespace

Error no_model(const std::string& path) {
  const std::string what = "[model] '" + path + "' ";
  std::error_code code;
  const fs::directory_iterator readable(path, code);
  if (code) return file_error("[model] cannot read the folder '" + path + "'", code.value());
  if (const std::string file = (fs::path(path) / "adapter_config.json").string(); file_exists(file)) {
    const Json config = read_json_file(file);
    const Json base = config.is_object() ? config.value("base_model_name_or_path", Json()) : Json();
    return invalid_argument(
        what + "holds an adapter (adapter_config.json), not a model; give the model it was " + "trained on" +
        (base.is_string() ? " (" + base.dump() + ")" : "") + " here, and this folder as the adapter");
  }
  if (const std::string model = folder_with(path, "config.json"); !model.empty())
    return not_found(what + "has no config.json itself; give the folder of one model, such as '" + model +
                     "'");
  if (const std::string adapter = folder_with(path, "adapter_config.json"); !adapter.empty()) {
    return not_found(what +
                     "has no config.json; it holds adapters: give the model they were trained on here, " +
                     "and one of them, such as '" + adapter + "', as the adapter");
  }
  return not_found(
      what + "has no config.json; a model is a folder with config.json and *.safetensors, or a .gguf file");
}

}  // namespace twinkle
