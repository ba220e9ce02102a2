#include "twinkle/serve/downloads.h"

#include "twinkle/core/error.h"
#include "twinkle/core/files.h"
#include "twinkle/serve/tar_source.h"
#include "twinkle/serve/tinker_replies.h"

namespace twinkle::serve {
namespace {

constexpr const char* kArchive = "checkpoint.tar";

}  // namespace

std::vector<std::string> Downloads::files_of(const std::string& folder) const {
  std::vector<std::string> out;
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    if (file_exists(data_dir_ + "/" + folder + "/" + name)) out.emplace_back(name);
  }
  return out;
}

std::string Downloads::path_of(const std::string& folder, const std::string& file, double now,
                               double seconds) const {
  const std::string token = signer_.sign("file", {{"folder", folder}, {"file", file}}, now, seconds);
  return std::string(kPrefix) + token + "/" + (file.empty() ? kArchive : file);
}

HttpReply Downloads::reply(std::string_view path, double now) const {
  path.remove_prefix(kPrefix.size());
  const size_t slash = path.find('/');
  const auto token = signer_.read("file", path.substr(0, slash), now);
  const std::string file = token ? token->claims.at("file").get<std::string>() : "";
  if (!token || slash == std::string_view::npos || path.substr(slash + 1) != (file.empty() ? kArchive : file))
    return tinker::error_reply(403, "this address is not one that the server gave out");
  if (token->expired)
    return tinker::error_reply(403, "the time of this address is over; ask the server for another");
  const std::string folder = token->claims.at("folder");
  const std::vector<std::string> names = files_of(folder);
  HttpReply out{.content_type = "application/octet-stream"};
  try {
    if (!file.empty()) {
      out.source = file_source(data_dir_, folder + "/" + file);
      return out;
    }
    if (names.empty()) throw not_found("[download] it is gone");
    std::vector<TarEntry> entries;
    for (const auto& name : names) entries.push_back({name, folder + "/" + name});
    entries.push_back({"checkpoint_complete", ""});  // older clients look for it
    out.source = tar_source(data_dir_, entries);
    out.content_type = "application/x-tar";
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kNotFound) throw;
    return tinker::error_reply(404, "the checkpoint of this address is gone");
  }
  return out;
}

}  // namespace twinkle::serve
