#include "twinkle/data/table_file.h"

#include <dlfcn.h>

#include <filesystem>

#include "twinkle/core/error.h"

namespace twinkle {
namespace {

// Found beside the library that this code is part of.
const ArrowPlugin& plugin() {
  static const ArrowPlugin* const loaded = [] {
    Dl_info here{};
    std::string folder = ".";
    if (dladdr(reinterpret_cast<const void*>(&open_table_file), &here) != 0 && here.dli_fname != nullptr)
      folder = std::filesystem::path(here.dli_fname).parent_path().string();
    const std::string path = folder + "/libtwinkle_arrow.so";
    if (!std::filesystem::exists(path)) {
      throw unavailable(
          "[dataset] Parquet and Arrow files need the Arrow library, and this program was built without it; "
          "run "
          "scripts/setup and build again, or convert the file to .jsonl or .csv");
    }
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr)
      throw unavailable(std::string("[dataset] cannot load the Arrow library: ") + dlerror());
    const void* symbol = dlsym(handle, "twinkle_arrow_plugin");
    if (symbol == nullptr) throw unavailable("[dataset] '" + path + "' is not this program's Arrow library");
    return static_cast<const ArrowPlugin*>(symbol);
  }();
  return *loaded;
}

}  // namespace

std::shared_ptr<const TableFile> open_table_file(const std::string& path) { return plugin().open(path); }

void write_parquet_file(const std::string& path, std::span<const Row> rows) {
  plugin().write_parquet(path, rows);
}

}  // namespace twinkle
