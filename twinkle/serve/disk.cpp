#include "twinkle/serve/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "twinkle/core/file_errors.h"

namespace twinkle::serve {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot(const std::string& what, const std::string& path) {
  throw file_error("[files] cannot " + what + " '" + path + "'", errno);
}

std::string parent_of(const std::string& path) {
  const auto parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

}  // namespace

int Disk::system_open(const char* path, int flags) { return ::open(path, flags | O_CLOEXEC, 0600); }
long Disk::system_write(int fd, const char* data, size_t size, int64_t offset) {
  return ::pwrite(fd, data, size, offset);
}
int Disk::system_truncate(int fd, int64_t size) { return ::ftruncate(fd, size); }
int Disk::system_sync(int fd) { return ::fdatasync(fd); }
int Disk::system_sync_folder(int fd) { return ::fsync(fd); }
int Disk::system_rename(const char* from, const char* to) { return ::rename(from, to); }
int Disk::system_remove(const char* path) { return ::remove(path); }
int Disk::system_make_folder(const char* path) { return ::mkdir(path, 0777); }

int Descriptor::release() { return std::exchange(fd_, -1); }
void Descriptor::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

void write_at(const Disk& disk, int fd, std::string_view bytes, int64_t offset, const std::string& what) {
  while (!bytes.empty()) {
    const long n = disk.write(fd, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw file_error(what, n < 0 ? errno : ENOSPC);
    bytes.remove_prefix(static_cast<size_t>(n));
    offset += n;
  }
}

void sync_folder(const Disk& disk, const std::string& path) {
  const Descriptor folder(disk.open(path.c_str(), O_RDONLY | O_DIRECTORY));
  if (folder.get() < 0) cannot("open", path);
  if (disk.sync_folder(folder.get()) != 0 && errno != EINVAL) cannot("fsync", path);
}

void make_folders(const Disk& disk, const std::string& path, std::initializer_list<const char*> names) {
  make_directories(path);
  for (const std::string name : names) {
    const std::string folder = path + "/" + name;
    if (disk.make_folder(folder.c_str()) != 0 && errno != EEXIST) cannot("create the folder", folder);
  }
  sync_folder(disk, path);
  try {
    sync_folder(disk, parent_of(path));
  } catch (const Error&) {  // it may be one that we may not read
  }
}

void write_file(const Disk& disk, const std::string& path, std::string_view bytes) {
  const std::string fresh = path + ".new";
  const Descriptor file(disk.open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC));
  if (file.get() < 0) cannot("write", path);
  try {
    write_at(disk, file.get(), bytes, 0, "[files] cannot write '" + path + "'");
    if (disk.sync(file.get()) != 0) cannot("fsync", path);
    if (disk.rename(fresh.c_str(), path.c_str()) != 0) cannot("rename to", path);
  } catch (...) {
    disk.remove(fresh.c_str());
    throw;
  }
  sync_folder(disk, parent_of(path));
}

void remove_tree(const Disk& disk, const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(fs::symlink_status(path, ignored))) {
    for (const auto& entry : fs::directory_iterator(path, ignored)) remove_tree(disk, entry.path().string());
  }
  disk.remove(path.c_str());
}

}  // namespace twinkle::serve
