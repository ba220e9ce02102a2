// The bytes of a data file, mapped into memory; .gz and .zst are unpacked into an unnamed file first, so that
// a file larger than memory costs disk, not memory. Move-only; reading is safe from many threads.
#pragma once

#include <cstdint>
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
  /// unavailable when the file has been cut short since: reading what is gone ends the process (SIGBUS), and
  /// no check rules that out for a file that is cut while it is read. A file that was replaced or removed
  /// stays whole here. About a microsecond.
  void check_whole() const;

 private:
  std::string path_;
  MappedFile map_;
  uint64_t device_ = 0, inode_ = 0;  // of what is mapped where it lies
};

/// A file in TMPDIR (default /tmp) that what is packed in `source` goes into; its name goes away with the
/// object, which what is mapped outlives. exhausted when the disk is full.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& source);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  void write(const char* data, size_t size);
  const std::string& name() const { return name_; }

 private:
  [[noreturn]] void fail() const;
  std::string source_, name_;
  int fd_ = -1;
};

/// `path` without .gz or .zst.
std::string without_compression(const std::string& path);

}  // namespace twinkle
