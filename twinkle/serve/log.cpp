#include "twinkle/serve/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "twinkle/core/crc32c.h"
#include "twinkle/core/file_errors.h"
#include "twinkle/core/files.h"
#include "twinkle/core/left_overs.h"

namespace twinkle::serve {
namespace {

namespace fs = std::filesystem;

// The last letter is the version. Records of version 3 may hold shortened lists, which version 2 does not
// know.
constexpr std::string_view kHeader("TWKLLOG3", 8), kHeader2("TWKLLOG2", 8);
constexpr uint32_t kMagic = 0x52574c47;
constexpr int64_t kMostRecordBytes = int64_t{1} << 30;  // of one record
constexpr std::string_view kFilePrefix = "log-", kNew = ".new";
// Of a new log: what is copied while nobody may append, if the disk is faster than those who do; how often
// that is tried; and what is written at once.
constexpr int64_t kLastPiece = 256 << 10, kRounds = 20, kWriteBytes = 1 << 20;
// After so long what is held is tried again.
constexpr std::chrono::milliseconds kHoldFor{50};

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

std::string framed(std::string_view payload, int64_t offset, int64_t durable) {
  RecordHead head{.magic = kMagic,
                  .crc = 0,
                  .length = payload.size(),
                  .offset = static_cast<uint64_t>(offset),
                  .durable = static_cast<uint64_t>(durable)};
  head.crc = crc_of(head, payload);
  std::string out(reinterpret_cast<const char*>(&head), sizeof(head));
  return out.append(payload);
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

int open_file(const Disk& disk, const std::string& path, int flags) {
  const int fd = disk.open(path.c_str(), flags);
  if (fd < 0) disk_failed("open its file", errno);
  return fd;
}

void write_at(const Disk& disk, int fd, std::string_view bytes, int64_t offset) {
  serve::write_at(disk, fd, bytes, offset, "[log] cannot write");
}

// A new file that nobody has heard of. It gets its name when all of it is durable, so each record vouches for
// what is before it.
class NewFile {
 public:
  NewFile(const Disk& disk, std::string path, std::string old)
      : disk_(disk),
        path_(std::move(path)),
        old_(std::move(old)),
        buffer_(kHeader),
        fd_(open_file(disk_, path_, O_RDWR | O_CREAT | O_TRUNC)) {}
  ~NewFile() {
    if (fd_.get() >= 0) disk_.remove(path_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void add(std::string_view payload) {
    buffer_ += framed(payload, end(), end());
    if (static_cast<int64_t>(buffer_.size()) >= kWriteBytes) write();
  }
  // The records of the old file up to `until`.
  void take(int64_t until, const Log::Keep& keep) {
    if (read_ >= until) return;
    const MappedFile map = disk_.map(old_);
    const std::string_view file = map.text().substr(0, static_cast<size_t>(until));
    RecordHead head;
    std::string_view payload;
    while (read_ < until) {
      if (!read_record(file, static_cast<size_t>(read_), head, payload))
        throw unavailable("[log] '" + old_ + "' is damaged at byte " + std::to_string(read_) +
                          ", so it is not written anew");
      read_ += static_cast<int64_t>(sizeof(head) + payload.size());
      if (payload.empty()) continue;
      if (!keep) {
        add(payload);
      } else if (const auto kept = keep(payload)) {
        add(*kept);
      }
    }
  }
  void sync() {
    write();
    if (disk_.sync(fd_.get()) != 0) disk_failed("make the new file durable", errno);
  }
  int64_t read() const { return read_; }
  int64_t end() const { return written_ + static_cast<int64_t>(buffer_.size()); }
  int release() { return fd_.release(); }

 private:
  void write() {
    write_at(disk_, fd_.get(), buffer_, written_);
    written_ = end();
    buffer_.clear();
  }

  const Disk& disk_;
  std::string path_, old_, buffer_;
  Descriptor fd_;
  int64_t written_ = 0, read_ = static_cast<int64_t>(kHeader.size());
};

}  // namespace

Log::Log(const std::string& folder, const std::function<void(std::string_view)>& on_record, Disk disk)
    : folder_(folder), disk_(std::move(disk)) {
  make_folders(disk_, folder_, {});
  open_newest(on_record);
  size_ = end_;
  thread_ = std::thread([this] { run(); });
}

Log::~Log() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = giving_up_ = true;
  }
  changed_.notify_all();
  thread_.join();
  try {  // vouches for all before it
    if (!broken_ && durable_ == end_) {
      write_at(disk_, fd_, framed("", end_, durable_), end_);
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
    write_file(disk_, path(), kHeader);
  }
  int64_t size = 0;
  bool earlier = false;
  {
    const MappedFile map = disk_.map(path());
    size = static_cast<int64_t>(map.bytes().size());
    end_ = durable_ = read_all(map.text(), on_record);
    earlier = !map.text().starts_with(kHeader);
  }
  fd_ = open_file(disk_, path(), O_RDWR);
  if (size > end_ && (disk_.truncate(fd_, end_) != 0 || disk_.sync(fd_) != 0))
    disk_failed("cut off a torn end", errno);
  if (earlier) {  // before the first record that only this version reads
    write_at(disk_, fd_, kHeader, 0);
    if (disk_.sync(fd_) != 0) disk_failed("write its version", errno);
  }
  for (const auto& other : others) disk_.remove(other.c_str());
}

std::string Log::path() const { return path_of(folder_, number_); }

// Where the whole records end.
int64_t Log::read_all(std::string_view file, const std::function<void(std::string_view)>& on_record) const {
  if (!file.starts_with(kHeader) && !file.starts_with(kHeader2))
    throw unavailable("[log] '" + path() + "' is not a log that this version reads");
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
    throw unavailable("[log] '" + path() + "' is damaged at byte " + std::to_string(at) +
                      ", in data that was acknowledged; put back a copy of the data folder, or give the disk "
                      "another look: the server does not start over a hole");
  }
  return static_cast<int64_t>(at);
}

// Writing.

void Log::append(std::string payload, OnDurable on_durable, bool must) {
  if (payload.empty() || static_cast<int64_t>(payload.size()) > kMostRecordBytes)
    throw internal_error("[log] a record of " + std::to_string(payload.size()) + " bytes");
  const std::lock_guard lock(mutex_);
  pending_.push_back({std::move(payload), std::move(on_durable), must});
  ++appended_;
  changed_.notify_all();
}

void Log::flush() {
  std::unique_lock lock(mutex_);
  const uint64_t until = appended_;
  changed_.wait(lock, [&] { return answered_ + held_.size() >= until; });
}

void Log::give_up() {
  const std::lock_guard lock(mutex_);
  giving_up_ = true;
  changed_.notify_all();
}

bool Log::holds() const {
  const std::lock_guard lock(mutex_);
  return trouble_ != nullptr;
}

int64_t Log::size_bytes() const {
  const std::lock_guard lock(mutex_);
  return size_;
}

bool Log::broken() const {
  {
    const std::lock_guard lock(mutex_);
    if (giving_up_) return true;
  }
  const std::lock_guard file(file_mutex_);
  return broken_ != nullptr;
}

int64_t Log::pending() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(appended_ - answered_);
}

void Log::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto any = [&] { return stopping_ || !pending_.empty() || (giving_up_ && !held_.empty()); };
    held_.empty() ? changed_.wait(lock, any) : static_cast<void>(changed_.wait_for(lock, kHoldFor, any));
    if (stopping_ && pending_.empty() && held_.empty()) return;
    std::vector<Pending> batch = std::exchange(held_, {});
    for (auto& record : pending_) {
      // It has not been near the disk, so it is certain that nothing of it is there.
      if (trouble_ && !record.must) record.refuse(trouble_);
      batch.push_back(std::move(record));
    }
    pending_.clear();
    const bool last = giving_up_;
    lock.unlock();
    write_batch(batch);
    std::vector<Pending> held;
    size_t answered = 0;
    for (auto& record : batch) {
      if (record.state == Pending::State::kHeld && !last) {
        held.push_back(std::move(record));
        continue;
      }
      if (record.on_durable) record.on_durable(record.error);
      ++answered;
    }
    lock.lock();
    answered_ += answered;
    held_ = std::move(held);
    say_whether(held_.empty() ? nullptr : held_.front().error);
    changed_.notify_all();
  }
}

// To the server's own log, when it begins and when it is over.
void Log::say_whether(std::exception_ptr trouble) {
  if (trouble && !trouble_) {
    try {
      std::rethrow_exception(trouble);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s; nothing is accepted until the disk takes this\n", e.what());
    }
  }
  if (!trouble && trouble_ && !giving_up_)
    std::fprintf(stderr, "[log] the disk takes what it is given again\n");
  trouble_ = std::move(trouble);
}

void Log::write_batch(std::vector<Pending>& batch) {
  const std::lock_guard file(file_mutex_);
  if (broken_) {
    for (auto& record : batch) record.refuse(broken_);
    return;
  }
  const std::vector<Pending*> written = write_records(batch);
  if (written.empty()) return;
  try {
    if (disk_.sync(fd_) != 0) disk_failed("make records durable", errno);
    durable_ = end_;
  } catch (...) {
    end_ = durable_;  // there all of it is written again
    for (Pending* record : written) record->hold(std::current_exception());
  }
  const std::lock_guard lock(mutex_);
  size_ = end_;
}

// Those that the disk took, if not for good yet. Others are refused or held.
std::vector<Log::Pending*> Log::write_records(std::vector<Pending>& batch) {
  std::vector<Pending*> written;
  std::exception_ptr trouble;
  for (auto& record : batch) {
    if (record.state == Pending::State::kRefused) continue;
    if (trouble) {  // it may not be there before another
      record.stays() ? record.hold(trouble) : record.refuse(trouble);
      continue;
    }
    try {
      write_at(disk_, fd_, framed(record.payload, end_, durable_), end_);
      end_ += static_cast<int64_t>(sizeof(RecordHead) + record.payload.size());
      record.state = Pending::State::kOpen;
      record.error = nullptr;
      written.push_back(&record);
    } catch (...) {
      const bool cut_off = disk_.truncate(fd_, end_) == 0;
      if (record.stays() || !cut_off)
        record.hold(trouble = std::current_exception());
      else
        record.refuse(std::current_exception());
    }
  }
  return written;
}

// Writing anew.

void Log::rewrite(const Keep& keep, const std::function<std::string()>& closing) {
  const std::string old = path(), next = path_of(folder_, number_ + 1), fresh = next + std::string(kNew);
  NewFile copy(disk_, fresh, old);
  const Descriptor folder(
      open_file(disk_, folder_, O_RDONLY | O_DIRECTORY));  // what can fail comes before the new name
  for (int64_t round = 0; round < kRounds; ++round) {
    int64_t until = 0;
    {
      const std::lock_guard file(file_mutex_);
      if (broken_) std::rethrow_exception(broken_);
      until = durable_;
    }
    if (round > 0 && until - copy.read() < kLastPiece) break;
    copy.take(until, keep);
  }
  copy.add(closing());
  copy.sync();  // most of it, before anybody has to wait
  Descriptor before;
  {
    const std::lock_guard file(file_mutex_);
    if (broken_) std::rethrow_exception(broken_);
    copy.take(durable_, nullptr);
    copy.sync();
    if (disk_.rename(fresh.c_str(), next.c_str()) != 0) disk_failed("name the new file", errno);
    before.reset(std::exchange(fd_, copy.release()));
    ++number_;
    end_ = durable_ = copy.end();
    {
      const std::lock_guard lock(mutex_);
      size_ = end_;
    }
    if (disk_.sync_folder(folder.get()) != 0) {
      // A start may take either file: nothing more goes to one of them.
      try {
        disk_failed("make the new file durable", errno);
      } catch (...) {
        broken_ = std::current_exception();
        throw;
      }
    }
  }
  disk_.remove(old.c_str());
}

}  // namespace twinkle::serve
