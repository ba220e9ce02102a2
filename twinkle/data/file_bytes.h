// The bytes of a data file, mapped into memory; .gz and .zst are unpacked into an unnamed file first, so that
// a file larger than memory costs disk, not memory. Move-only; reading is safe from many threads.
#pragma once

#include <string>
#include <string_view>

#include "twinkle/core/files.h"

namespace twinkle {

class FileBytes {
 public:
  FileBytes() = default;
  /// invalid_argument naming the file when it is not what its extension says or is cut short; exhausted when
  /// the disk is full. Unpacked files go to TMPDIR (default /tmp).
  explicit FileBytes(const std::string& path);
  std::string_view text() const { return map_.text(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  MappedFile map_;
};

/// `path` without .gz or .zst.
std::string without_compression(const std::string& path);

}  // namespace twinkle
