// Which files a checkpoint was written with, as its trainer_state.json lists them: sizes and, up to 64 MiB,
// SHA-256. So a folder that was cut or patched by other hands is noticed by whoever reads it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "twinkle/core/json.h"

namespace twinkle {

struct WrittenFile {
  int64_t bytes = 0;
  std::string sha256;  // "" for large files
};
using WrittenFiles = std::map<std::string, WrittenFile>;  // by name

constexpr const char* kStateFile = "trainer_state.json";
constexpr const char* kOptimizerFile = "optimizer.safetensors";

/// The file as it is now.
WrittenFile describe_file(const std::string& path);

Json written_files_to_json(const WrittenFiles& files);
/// invalid_argument naming `where` and the entry that is no description of a file.
WrittenFiles written_files_from_json(const Json& value, const std::string& where);

/// invalid_argument naming the first file of `folder` that is missing, torn or not what was written.
void check_written_files(const std::string& folder, const WrittenFiles& files);

/// For readers of weights: nothing where `folder` is no checkpoint of ours (Hugging Face's trainer writes a
/// trainer_state.json too), else check_written_files() of all but the optimizer's state, which only a resumed
/// run needs.
void check_weights_as_written(const std::string& folder);

}  // namespace twinkle
