// What the fuzzers share: checks that end the program, and files for what is read from files.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>

#include "twinkle/core/error.h"

namespace twinkle::fuzz {

inline void require(bool condition) {
  if (!condition) __builtin_trap();
}

/// Whether `work` came to its end; not when it threw an Error of one of these kinds. Whatever else it throws
/// ends the program.
template <class Work>
bool is_taken(Work&& work, std::initializer_list<ErrorKind> kinds = {ErrorKind::kInvalidArgument}) {
  try {
    work();
    return true;
  } catch (const Error& e) {
    if (std::find(kinds.begin(), kinds.end(), e.kind()) == kinds.end()) {
      std::fprintf(stderr, "%s: %s\n", std::string(error_kind_name(e.kind())).c_str(), e.what());
      __builtin_trap();
    }
    return false;
  }
}

/// A folder of this process; it goes with it. Under TMPDIR: what asks the disk often is faster in memory.
inline const std::string& folder_of_process() {
  struct Folder {
    Folder() {
      path = std::filesystem::temp_directory_path().string() + "/twinkle-fuzz-XXXXXX";
      require(::mkdtemp(path.data()) != nullptr);
    }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
    std::string path;
  };
  static const Folder folder;
  return folder.path;
}

/// An empty folder of that name in it.
inline std::string empty_folder(const std::string& name) {
  const std::string path = folder_of_process() + "/" + name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

inline void write_bytes(const std::string& path, std::string_view bytes) {
  FILE* file = std::fopen(path.c_str(), "wb");
  require(file != nullptr);
  std::fwrite(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
}

/// The bytes as a file of this name, in the folder of this process.
inline std::string file_of(const uint8_t* data, size_t size, const std::string& name) {
  const std::string path = folder_of_process() + "/" + name;
  write_bytes(path, {reinterpret_cast<const char*>(data), size});
  return path;
}

/// Takes an input apart, from its beginning.
class Pieces {
 public:
  Pieces(const uint8_t* data, size_t size) : left_(reinterpret_cast<const char*>(data), size) {}
  bool empty() const { return left_.empty(); }
  /// 0 behind the end.
  uint8_t byte() {
    if (left_.empty()) return 0;
    const auto out = static_cast<uint8_t>(left_.front());
    left_.remove_prefix(1);
    return out;
  }
  std::string_view text(size_t most) {
    const std::string_view out = left_.substr(0, most);
    left_.remove_prefix(out.size());
    return out;
  }
  std::string_view rest() { return text(left_.size()); }

 private:
  std::string_view left_;
};

}  // namespace twinkle::fuzz
