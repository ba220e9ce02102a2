// What the fuzzers share: a check that ends the program, and a file for what is read from files.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>

namespace twinkle::fuzz {

inline void require(bool condition) {
  if (!condition) __builtin_trap();
}

/// The bytes as a file of this name, in a folder of this process.
inline std::string file_of(const uint8_t* data, size_t size, const std::string& name) {
  static const std::string folder = [] {
    std::string pattern = "/tmp/twinkle-fuzz-XXXXXX";
    require(::mkdtemp(pattern.data()) != nullptr);
    return pattern;
  }();
  const std::string path = folder + "/" + name;
  FILE* file = std::fopen(path.c_str(), "wb");
  require(file != nullptr);
  std::fwrite(data, 1, size, file);
  std::fclose(file);
  return path;
}

}  // namespace twinkle::fuzz
