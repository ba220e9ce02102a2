#include "twinkle/core/written_files.h"

#include <filesystem>

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"

namespace twinkle {
namespace {

constexpr int64_t kHashedBytes = 64 << 20;

}  // namespace

WrittenFile describe_file(const std::string& path) {
  WrittenFile file{.bytes = static_cast<int64_t>(std::filesystem::file_size(path))};
  if (file.bytes <= kHashedBytes) file.sha256 = sha256_hex(MappedFile(path).text());
  return file;
}

Json written_files_to_json(const WrittenFiles& files) {
  Json listed = Json::object();
  for (const auto& [name, file] : files) {
    listed[name] = {{"bytes", file.bytes}};
    if (!file.sha256.empty()) listed[name]["sha256"] = file.sha256;
  }
  return listed;
}

WrittenFiles written_files_from_json(const Json& value, const std::string& where) {
  if (!value.is_object())
    throw invalid_argument("[checkpoint] '" + where + "': 'files' must be an object of files");
  WrittenFiles files;
  for (const auto& [name, file] : value.items()) {
    if (!file.is_object() || !file.contains("bytes") || !file.at("bytes").is_number_integer()) {
      throw invalid_argument("[checkpoint] '" + where + "': file '" + name + "' has no size");
    }
    const auto hash = file.find("sha256");
    if (hash != file.end() && !hash->is_string())
      throw invalid_argument("[checkpoint] '" + where + "': the SHA-256 of file '" + name +
                             "' must be a string");
    files[name] = {file.at("bytes").get<int64_t>(),
                   hash == file.end() ? std::string() : hash->get<std::string>()};
  }
  return files;
}

void check_written_files(const std::string& folder, const WrittenFiles& files) {
  for (const auto& [name, file] : files) {
    const std::string at = folder + "/" + name;
    if (!file_exists(at)) throw invalid_argument("[checkpoint] '" + folder + "' lacks '" + name + "'");
    const auto bytes = static_cast<int64_t>(std::filesystem::file_size(at));
    if (bytes != file.bytes) {
      throw invalid_argument("[checkpoint] '" + at + "' is torn: it has " + std::to_string(bytes) +
                             " bytes, " + std::to_string(file.bytes) + " were written");
    }
    if (!file.sha256.empty() && describe_file(at).sha256 != file.sha256) {
      throw invalid_argument("[checkpoint] '" + at + "' is not what was written: its SHA-256 differs");
    }
  }
}

void check_weights_as_written(const std::string& folder) {
  const std::string path = folder + "/" + kStateFile;
  if (!file_exists(path)) return;
  const Json state = read_json_file(path);
  if (!state.is_object() || !state.contains("checkpoint_version") || !state.contains("files")) return;
  WrittenFiles files = written_files_from_json(state.at("files"), path);
  files.erase(kOptimizerFile);
  try {
    check_written_files(folder, files);
  } catch (const Error& e) {
    throw Error(e.kind(), std::string(e.what()) +
                              "; take another copy of it, or remove its trainer_state.json if you changed it "
                              "yourself (it can not be resumed then)");
  }
}

}  // namespace twinkle
