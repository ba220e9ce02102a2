// Files: whole reads, read-only maps, durable atomic writes. Errors name the path and the system's reason:
// not_found, exhausted for a full disk, unavailable for the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace twinkle {

/// The whole file as bytes.
std::string read_file(const std::string& path);

bool file_exists(const std::string& path);
bool is_directory(const std::string& path);

/// Makes the folder and its parents.
void make_directories(const std::string& path);

/// Writes `bytes` under a temporary name, fsyncs, renames over `path`, fsyncs the folder: after a crash the
/// file is the old or the new one, never a torn one. A link is followed; into what is no regular file (a
/// device, a pipe) the bytes are written as they are.
void write_file_atomic(const std::string& path, std::string_view bytes);

/// fsync of a file or folder by path.
void sync_path(const std::string& path);

/// Renames and fsyncs the parent folder.
void rename_durable(const std::string& from, const std::string& to);

/// Keeps other processes that ask for the same lock out of a folder; it ends with the process, however that
/// ends. conflict when another holds it.
class FolderLock {
 public:
  explicit FolderLock(const std::string& path);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  /// False where the file system has no locks: others may be there all the same.
  bool guarded() const { return guarded_; }

 private:
  int fd_;
  bool guarded_ = false;
};

/// A read-only memory map; empty files map to an empty span. Move-only.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Lower-case hex SHA-256 of bytes (OpenSSL).
std::string sha256_hex(std::string_view bytes);

}  // namespace twinkle
