// Helpers of this folder's tests: temporary directories, messages of errors, the real test model and its
// data.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include "twinkle/core/error.h"

namespace twinkle::testing {

/// A directory that is removed with the object.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "twinkle-train-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string message_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.what();
  }
  return "(no error)";
}

inline std::string test_data() {
  const char* given = std::getenv("TWINKLE_TEST_DATA");
  return given != nullptr ? given : TWINKLE_SOURCE_DIR "/../shared/data";
}

}  // namespace twinkle::testing
