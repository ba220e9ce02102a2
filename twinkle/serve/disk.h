// What a server asks of the disk where its promises depend on it: the log, the folders of models and
// checkpoints, and the store's database. Each behaves as the system call, errno included; tests put faults
// here. Any thread may ask.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "twinkle/core/files.h"

namespace twinkle::serve {

struct Disk {
  std::function<int(const char* path, int flags)> open = system_open;  // for the owner only
  std::function<long(int fd, const char* data, size_t size, int64_t offset)> write = system_write;
  std::function<int(int fd, int64_t size)> truncate = system_truncate;
  std::function<int(int fd)> sync = system_sync;                // of a file's bytes
  std::function<int(int fd)> sync_folder = system_sync_folder;  // of its names
  std::function<int(const char* from, const char* to)> rename = system_rename;
  std::function<int(const char* path)> remove = system_remove;  // a file, or a folder that is empty
  std::function<int(const char* path)> make_folder = system_make_folder;
  /// A file to be read; an Error as MappedFile throws it.
  std::function<MappedFile(const std::string& path)> map = [](const std::string& path) {
    return MappedFile(path);
  };
  std::string sqlite_vfs;  // through which SQLite uses the disk; "": its own

  static int system_open(const char* path, int flags);
  static long system_write(int fd, const char* data, size_t size, int64_t offset);
  static int system_truncate(int fd, int64_t size);
  static int system_sync(int fd);
  static int system_sync_folder(int fd);
  static int system_rename(const char* from, const char* to);
  static int system_remove(const char* path);
  static int system_make_folder(const char* path);
};

/// A descriptor that is closed with the object.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { reset(-1); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release();
  void reset(int fd);

 private:
  int fd_;
};

/// Writes all, however many calls it takes. Errors begin with `what`, as those below with the path.
void write_at(const Disk& disk, int fd, std::string_view bytes, int64_t offset, const std::string& what);
/// The folder with its parents, and those in it; what it names is durable, and so is it, if its parent can be
/// read.
void make_folders(const Disk& disk, const std::string& path, std::initializer_list<const char*> names);
/// After a crash the file is the old or the new one.
void write_file(const Disk& disk, const std::string& path, std::string_view bytes);
/// A folder with all that is in it, as far as it can be removed.
void remove_tree(const Disk& disk, const std::string& path);
/// Makes what a folder names durable.
void sync_folder(const Disk& disk, const std::string& path);

}  // namespace twinkle::serve
