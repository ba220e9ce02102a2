#include "twinkle/core/files.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <utility>

#include "twinkle/core/error.h"
#include "twinkle/core/file_errors.h"
#include "twinkle/core/left_overs.h"

namespace twinkle {
namespace {

// What no regular file is (a device, a pipe) may never end: so much of it is read.
constexpr size_t kMostFromAStream = size_t{256} << 20;
// What is being written has the name NAME.tmp-PID-N.
constexpr std::string_view kTemporary = ".tmp-";

Error system_error(const std::string& what, const std::string& path, int code) {
  return file_error("[files] cannot " + what + " '" + path + "'", code);
}

// A file descriptor that closes itself.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, mode_t mode = 0)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

void write_all(const Descriptor& file, const std::string& path, std::string_view bytes) {
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t n = ::write(file.get(), bytes.data() + written, bytes.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error("write", path, errno);
    written += static_cast<size_t>(n);
  }
}

std::string parent_of(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

}  // namespace

Error file_error(const std::string& what, int code) {
  const std::string message = what + ": " + std::strerror(code);
  if (code == ENOENT) return not_found(message);
  if (code == ENOSPC || code == EDQUOT || code == EFBIG)
    return exhausted(message + "; free some disk space and try again");
  if (code == EACCES || code == EPERM) return unavailable(message + "; make it accessible, or give another");
  return unavailable(message);
}

Error file_error(const std::filesystem::filesystem_error& error) {
  const std::string& path = error.path2().empty() ? error.path1().string() : error.path2().string();
  return file_error("[files] cannot use '" + path + "'", error.code().value());
}

void copy_file(const std::string& from, const std::string& to) {
  std::error_code code;
  std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing, code);
  if (code) throw file_error("[files] cannot copy '" + from + "' to '" + to + "'", code.value());
}

std::string read_file(const std::string& path) {
  Descriptor file(path, O_RDONLY);
  if (!file.ok()) throw system_error("read", path, errno);
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) throw system_error("read", path, errno);
  if (S_ISDIR(info.st_mode)) throw system_error("read", path, EISDIR);
  std::string bytes;
  bytes.reserve(static_cast<size_t>(info.st_size > 0 ? info.st_size : 0));
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(file.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error("read", path, errno);
    if (n == 0) return bytes;
    if (!S_ISREG(info.st_mode) && bytes.size() + static_cast<size_t>(n) > kMostFromAStream) {
      throw exhausted("[files] '" + path + "' does not end: it is no regular file and more than " +
                      std::to_string(kMostFromAStream >> 20) + " MiB came out of it");
    }
    bytes.append(buffer, static_cast<size_t>(n));
  }
}

bool file_exists(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0;
}

bool is_directory(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

void make_directories(const std::string& path) {
  std::error_code code;
  std::filesystem::create_directories(path, code);
  if (code) throw system_error("create the folder", path, code.value());
}

void sync_path(const std::string& path) {
  Descriptor file(path, O_RDONLY);
  if (!file.ok()) throw system_error("open", path, errno);
  if (::fsync(file.get()) != 0 && errno != EINVAL) throw system_error("fsync", path, errno);
}

void rename_durable(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw system_error("rename to", to, errno);
  sync_path(parent_of(to));
}

void write_file_atomic(const std::string& given, std::string_view bytes) {
  static std::atomic<uint64_t> counter{0};
  struct stat info{};
  const bool exists = ::stat(given.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode)) {  // a device or pipe is written to, never replaced
    Descriptor file(given, O_WRONLY);
    if (!file.ok()) throw system_error("write", given, errno);
    return write_all(file, given, bytes);
  }
  const std::string path = exists ? std::filesystem::canonical(given).string() : given;  // links are followed
  const std::string temporary =
      path + std::string(kTemporary) + std::to_string(::getpid()) + "-" + std::to_string(counter++);
  try {
    {
      Descriptor file(temporary, O_WRONLY | O_CREAT | O_EXCL, 0644);
      if (!file.ok()) throw system_error("write", path, errno);
      write_all(file, path, bytes);
      if (::fsync(file.get()) != 0) throw system_error("fsync", path, errno);
    }
    rename_durable(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void remove_left_over_files(const std::string& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const size_t at = name.rfind(kTemporary);
    if (at == std::string::npos || at == 0) continue;
    const char *begin = name.data() + at + kTemporary.size(), *end = name.data() + name.size();
    pid_t pid = 0;
    uint64_t number = 0;
    const auto [dash, no_pid] = std::from_chars(begin, end, pid);
    if (no_pid != std::errc() || pid <= 0 || dash == end || *dash != '-') continue;
    const auto [last, no_number] = std::from_chars(dash + 1, end, number);
    if (no_number != std::errc() || last != end) continue;
    const bool runs = pid != ::getpid() && (::kill(pid, 0) == 0 || errno != ESRCH);
    if (!runs) std::filesystem::remove(entry.path(), ignored);
  }
}

FolderLock::FolderLock(const std::string& path)
    : fd_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ < 0) throw system_error("open", path, errno);
  // A file system without locks (ENOLCK, ENOTSUP) is used unguarded.
  guarded_ = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
  if (guarded_ || errno != EWOULDBLOCK) return;
  ::close(fd_);
  throw conflict("[files] another run is writing to '" + path + "'; give another folder, or wait for it");
}

FolderLock::~FolderLock() { ::close(fd_); }

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // Looked at before it is opened: opening a pipe would wait for someone to write into it.
  struct stat kind{};
  if (::stat(path.c_str(), &kind) == 0 && !S_ISREG(kind.st_mode))
    throw invalid_argument("[files] '" + path + "' is not a regular file");
  Descriptor file(path, O_RDONLY);
  if (!file.ok()) throw system_error("open", path, errno);
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) throw system_error("open", path, errno);
  if (!S_ISREG(info.st_mode)) throw invalid_argument("[files] '" + path + "' is not a regular file");
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) throw system_error("map", path, errno);
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

std::string sha256_hex(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  TW_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest, &length, EVP_sha256(), nullptr) == 1, "EVP_Digest");
  static constexpr char kHex[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * length);
  for (unsigned int i = 0; i < length; ++i) {
    hex.push_back(kHex[digest[i] >> 4]);
    hex.push_back(kHex[digest[i] & 15]);
  }
  return hex;
}

}  // namespace twinkle
