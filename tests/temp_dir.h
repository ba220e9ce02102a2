// A directory for a test's files.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace twinkle::test {

/// Makes the folders in front of it too.
inline void write_text(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

/// A directory that is removed with the object.
class TempDir {
 public:
  explicit TempDir(const std::string& in = std::filesystem::temp_directory_path().string()) {
    std::string pattern = in + "/twinkle-test-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr) << pattern;
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  /// A text without this directory in front of its names, to compare with one written beforehand.
  std::string cut(std::string text) const {
    for (size_t at; (at = text.find(path_ + "/")) != std::string::npos;) text.erase(at, path_.size() + 1);
    return text;
  }

 private:
  std::string path_;
};

}  // namespace twinkle::test
