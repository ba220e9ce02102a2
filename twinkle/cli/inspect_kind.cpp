#include <filesystem>

#include "twinkle/cli/inspect.h"
#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/text/tokenizer_kind.h"

namespace twinkle::cli {

std::string inspect_kind(const std::string& path, const std::string& kind) {
  if (!file_exists(path)) {
    const bool rows = kind == "auto" || kind == "dataset";
    if (rows && path.find_first_of("*?[") != std::string::npos) return "dataset";
    throw not_found("[inspect] no file or folder '" + path + "'");
  }
  if (kind != "auto") return kind;
  const auto has = [&](const char* name) { return file_exists(path + "/" + name); };
  if (is_directory(path)) {
    if (has("trainer_state.json") || has("manifest.json")) return "checkpoint";
    if (has("adapter_config.json")) return "adapter";
    if (has("config.json")) return "model";
    if (!tokenizer_file_of(path).empty() || has("tokenizer_config.json")) return "tokenizer";
    return "dataset";
  }
  const std::filesystem::path file(path);
  std::string extension = file.extension().string();
  for (char& c : extension) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (extension == ".gguf") return "gguf";
  if (extension == ".safetensors") return "safetensors";
  const std::string name = file.filename().string();
  if (is_tokenizer_file(name)) return "tokenizer";
  for (const char* part : {"config.json", "adapter_config.json", "tokenizer_config.json", "vocab.json",
                           "merges.txt", "trainer_state.json", "manifest.json"}) {
    if (name == part) throw invalid_argument("[inspect] '" + path + "': give the folder it is in");
  }
  static constexpr const char* kRows[] = {".jsonl", ".ndjson",  ".json",  ".txt",     ".csv", ".tsv",
                                          ".gz",    ".parquet", ".arrow", ".feather", ".ipc", ".zst"};
  for (const char* rows : kRows) {
    if (extension == rows) return "dataset";
  }
  throw invalid_argument("[inspect] '" + path +
                         "': not a kind of file we know (.gguf, .safetensors, tokenizer.json, "
                         "tokenizer.model, .tiktoken, .jsonl, .json, .txt, .csv, .parquet, .arrow, or a "
                         "folder)");
}

void check_inspect_options(const ParsedArgs& args, const std::string& kind) {
  const bool weights = kind == "gguf" || kind == "safetensors" || kind == "model" || kind == "adapter";
  const auto only = [&](const char* name, bool fits, const char* what) {
    if (!args.given(name) || fits) return;
    throw invalid_argument("[" + args.source(name) + "] '" + name + "': is for " + what + ", '" +
                           args.get_string("path") + "' is a " + kind);
  };
  only("rows", kind == "dataset", "data sets");
  only("text_split", kind == "dataset", "data sets");
  only("tensors", weights, "weights (a model, an adapter, a .gguf or .safetensors file)");
}

bool kind_needs_engine(const std::string& kind) {
  return kind == "model" || kind == "adapter" || kind == "checkpoint";
}

}  // namespace twinkle::cli
