#include "twinkle/serve/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <filesystem>

#include "twinkle/core/crc32c.h"
#include "twinkle/core/file_errors.h"
#include "twinkle/core/files.h"
#include "twinkle/core/left_overs.h"

namespace twinkle::serve {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHeader("TWKLLOG2", 8);  // the last letter is the version
constexpr uint32_t kMagic = 0x52574c47;
constexpr int64_t kMostBytes = int64_t{1} << 30;  // of one record
constexpr std::string_view kFilePrefix = "log-", kNew = ".new";

// Little-endian, as every machine this runs on.
struct RecordHead {
  uint32_t magic, crc;
  uint64_t length, offset, durable;
};
static_assert(sizeof(RecordHead) == 32);

uint32_t crc_of(const RecordHead& head, std::string_view payload) {
  const auto fields = std::as_bytes(std::span(&head, 1)).subspan(offsetof(RecordHead, length));
  return crc32c(std::as_bytes(std::span(payload)), crc32c(fields));
}

[[noreturn]] void disk_failed(const std::string& what, int error) {
  throw file_error("[log] cannot " + what, error);
}

// The whole record at `at`, if there is one.
bool read_record(std::string_view file, size_t at, RecordHead& head, std::string_view& payload) {
  if (file.size() - at < sizeof(head)) return false;
  std::memcpy(&head, file.data() + at, sizeof(head));
  if (head.magic != kMagic || head.offset != at || head.length > file.size() - at - sizeof(head))
    return false;
  payload = file.substr(at + sizeof(head), head.length);
  return head.crc == crc_of(head, payload);
}

std::string path_of(const std::string& folder, int64_t number) {
  std::string digits = std::to_string(number);
  return folder + "/" + std::string(kFilePrefix) + std::string(8 - std::min<size_t>(8, digits.size()), '0') +
         digits;
}

int open_file(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (fd < 0) disk_failed("open its file", errno);
  return fd;
}

}  // namespace

LogDisk LogDisk::system() {
  return {.write = [](int fd, const char* data, size_t size, int64_t offset) -> long {
            return ::pwrite(fd, data, size, offset);
          },
          .sync = [](int fd) { return ::fdatasync(fd); }};
}

Log::Log(const std::string& folder, const std::function<void(std::string_view)>& on_record, LogDisk disk)
    : folder_(folder), disk_(std::move(disk)) {
  make_directories(folder_);
  open_newest(on_record);
  size_ = end_;
  thread_ = std::thread([this] { run(); });
}

Log::~Log() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  try {  // vouches for all before it
    if (!broken_ && durable_ == end_) {
      write_at(fd_, framed("", end_), end_);
      disk_.sync(fd_);
    }
  } catch (const std::exception&) {  // nothing is lost without it
  }
  ::close(fd_);
}

// Opening.

void Log::open_newest(const std::function<void(std::string_view)>& on_record) {
  remove_left_over_files(folder_);  // of a first start that was cut off
  std::vector<std::string> others;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kFilePrefix)) continue;
    int64_t number = 0;
    const char* last = name.data() + name.size();
    const auto [end, error] = std::from_chars(name.data() + kFilePrefix.size(), last, number);
    if (error != std::errc() || end != last) {
      if (name.ends_with(kNew)) others.push_back(entry.path().string());
    } else if (number > number_) {
      if (number_ > 0) others.push_back(path_of(folder_, number_));
      number_ = number;
    } else {
      others.push_back(entry.path().string());
    }
  }
  if (number_ == 0) {
    number_ = 1;
    write_file_atomic(path_of(folder_, number_), kHeader);
  }
  end_ = durable_ = read_all(path_of(folder_, number_), on_record);
  fd_ = open_file(path_of(folder_, number_), O_RDWR);
  struct stat info{};
  if (::fstat(fd_, &info) != 0) disk_failed("look at its file", errno);
  if (info.st_size > end_ && (::ftruncate(fd_, end_) != 0 || ::fsync(fd_) != 0))
    disk_failed("cut off a torn end", errno);
  for (const auto& path : others) fs::remove(path);
}

// Where the whole records end.
int64_t Log::read_all(const std::string& path, const std::function<void(std::string_view)>& on_record) {
  const MappedFile map(path);
  const std::string_view file = map.text();
  if (!file.starts_with(kHeader))
    throw unavailable("[log] '" + path + "' is not a log that this version reads");
  size_t at = kHeader.size();
  RecordHead head;
  std::string_view payload;
  for (; read_record(file, at, head, payload); at += sizeof(head) + payload.size()) {
    if (!payload.empty()) on_record(payload);
  }
  // Does anything behind the damage say that it was on the disk?
  for (size_t p = at; p + sizeof(head) <= file.size(); ++p) {
    uint32_t word = 0;
    std::memcpy(&word, file.data() + p, sizeof(word));
    if (word != kMagic || !read_record(file, p, head, payload) || head.durable <= at) continue;
    throw unavailable("[log] '" + path + "' is damaged at byte " + std::to_string(at) +
                      ", in data that was acknowledged; put back a copy of the data folder, or give the disk "
                      "another look: the server does not start over a hole");
  }
  return static_cast<int64_t>(at);
}

// Writing.

std::string Log::framed(std::string_view payload, int64_t offset) const {
  RecordHead head{.magic = kMagic,
                  .crc = 0,
                  .length = payload.size(),
                  .offset = static_cast<uint64_t>(offset),
                  .durable = static_cast<uint64_t>(durable_)};
  head.crc = crc_of(head, payload);
  std::string out(reinterpret_cast<const char*>(&head), sizeof(head));
  return out.append(payload);
}

void Log::write_at(int fd, std::string_view bytes, int64_t offset) {
  while (!bytes.empty()) {
    const long n = disk_.write(fd, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) disk_failed("write", n < 0 ? errno : ENOSPC);
    bytes.remove_prefix(static_cast<size_t>(n));
    offset += n;
  }
}

void Log::append(std::string payload, OnDurable on_durable, bool must) {
  if (payload.empty() || static_cast<int64_t>(payload.size()) > kMostBytes)
    throw internal_error("[log] a record of " + std::to_string(payload.size()) + " bytes");
  const std::lock_guard lock(mutex_);
  pending_.push_back({std::move(payload), std::move(on_durable), must});
  ++appended_;
  changed_.notify_all();
}

void Log::flush() {
  std::unique_lock lock(mutex_);
  const uint64_t until = appended_;
  changed_.wait(lock, [&] { return answered_ >= until; });
}

int64_t Log::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return size_;
}

int64_t Log::pending() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(appended_ - answered_);
}

void Log::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !pending_.empty(); });
    if (pending_.empty()) return;
    std::vector<Pending> batch = std::move(pending_);
    pending_.clear();
    lock.unlock();
    write_batch(batch);
    lock.lock();
    answered_ += batch.size();
    changed_.notify_all();
  }
}

void Log::write_batch(std::vector<Pending>& batch) {
  std::vector<std::exception_ptr> errors(batch.size());
  {
    const std::lock_guard file(file_mutex_);
    const int64_t begin = end_;
    for (size_t i = 0; i < batch.size(); ++i) {
      if ((errors[i] = broken_)) continue;
      try {
        write_at(fd_, framed(batch[i].payload, end_), end_);
        end_ += static_cast<int64_t>(sizeof(RecordHead) + batch[i].payload.size());
      } catch (...) {
        errors[i] = std::current_exception();
        if (::ftruncate(fd_, end_) != 0 || batch[i].must) broken_ = errors[i];
      }
    }
    if (end_ > begin) {
      if (disk_.sync(fd_) == 0) {
        durable_ = end_;
      } else {
        try {
          disk_failed("make records durable", errno);
        } catch (...) {
          broken_ = std::current_exception();
        }
        for (auto& error : errors) error = broken_;
      }
    }
    const std::lock_guard lock(mutex_);
    size_ = end_;
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    if (batch[i].on_durable) batch[i].on_durable(errors[i]);
  }
}

void Log::replace(const std::vector<std::string>& payloads) {
  const std::lock_guard file(file_mutex_);
  if (broken_) std::rethrow_exception(broken_);
  const std::string path = path_of(folder_, number_ + 1), fresh = path + std::string(kNew);
  const int fd = open_file(fresh, O_RDWR | O_CREAT | O_TRUNC);
  auto end = static_cast<int64_t>(kHeader.size());
  const int64_t before = durable_;
  durable_ = end;  // what the new records vouch for
  int folder = -1;
  bool renamed = false;
  try {
    folder = open_file(folder_, O_RDONLY | O_DIRECTORY);  // what can fail comes before the new name
    write_at(fd, kHeader, 0);
    for (const auto& payload : payloads) {
      write_at(fd, framed(payload, end), end);
      end += static_cast<int64_t>(sizeof(RecordHead) + payload.size());
    }
    if (disk_.sync(fd) != 0) disk_failed("make the new file durable", errno);
    if (::rename(fresh.c_str(), path.c_str()) != 0) disk_failed("name the new file", errno);
    renamed = true;
    if (::fsync(folder) != 0) disk_failed("make the new file durable", errno);
    ::close(folder);
  } catch (...) {
    if (renamed)
      broken_ = std::current_exception();  // a start takes the new file: nothing may go to the old one
    if (folder >= 0) ::close(folder);
    durable_ = before;
    ::close(fd);
    ::unlink(fresh.c_str());
    throw;
  }
  ::close(fd_);
  ::unlink(path_of(folder_, number_).c_str());
  fd_ = fd;
  ++number_;
  end_ = durable_ = end;
  const std::lock_guard lock(mutex_);
  size_ = end_;
}

}  // namespace twinkle::serve
