#include "twinkle/data/row_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <utility>
#include <vector>

#include "twinkle/core/error.h"
#include "twinkle/core/file_errors.h"
#include "twinkle/core/suggest.h"
#include "twinkle/data/csv.h"
#include "twinkle/data/dataset_internal.h"
#include "twinkle/data/row_files.h"
#include "twinkle/data/table_file.h"

namespace twinkle {

using dataset_internal::dump;

namespace {

// How a list of rows ends.
constexpr std::string_view kListEnd = "\n]\n";

std::string csv_text(std::span<const Row> rows) {
  std::vector<std::string> names;
  for (const Row& row : rows) {
    for (const auto& [key, value] : row.items()) {
      if (std::find(names.begin(), names.end(), key) == names.end()) names.push_back(key);
    }
  }
  std::string out = csv::write(names, ',');
  for (const Row& row : rows) {
    std::vector<std::string> fields;
    for (const auto& name : names) {
      const auto found = row.find(name);
      if (found == row.end() || found->is_null()) {
        fields.emplace_back();
      } else {
        fields.push_back(found->is_string() ? found->get<std::string>() : dump(*found));
      }
    }
    out += csv::write(fields, ',');
  }
  return out;
}

// Rows as they stand in the file, behind `before` others.
std::string text_of_rows(const std::string& format, std::span<const Row> rows, int64_t before) {
  std::string out;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (format == "json") {
      out += (before == 0 && i == 0 ? "\n" : ",\n") + dump(rows[i]);
    } else {
      out += dump(rows[i]) + "\n";
    }
  }
  return out;
}

bool grows(const std::string& format) { return format == "jsonl" || format == "json"; }

Error cannot_write(const std::string& path, int code) {
  return file_error("[dataset] cannot write '" + path + "'", code);
}

int open_for_writing(const std::string& path, int more) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | more, 0644);
  if (fd < 0) throw cannot_write(path, errno);
  return fd;
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

// The path as an empty file that is locked by this descriptor. A file with something in it is replaced, not
// emptied: somebody may have it mapped.
int open_locked(const std::string& path) {
  static std::atomic<uint64_t> counter{0};
  for (;;) {
    const int fd = open_for_writing(path, 0);
    struct stat mine{}, there{};
    try {
      if (::fstat(fd, &mine) != 0) throw cannot_write(path, errno);
      if (!S_ISREG(mine.st_mode)) throw invalid_argument("[dataset] '" + path + "' is not a regular file");
      // A file system without locks is used unguarded.
      if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        throw conflict("[dataset] another run is writing rows to '" + path +
                       "'; give another file, or wait for it");
      if (::stat(path.c_str(), &there) != 0 || !same_file(mine, there)) {  // replaced meanwhile
        ::close(fd);
        continue;
      }
      if (mine.st_size == 0) return fd;
      const std::string fresh = path + ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
      const int replacement = open_for_writing(fresh, O_EXCL);
      ::flock(replacement, LOCK_EX | LOCK_NB);
      if (::rename(fresh.c_str(), path.c_str()) != 0) {
        const int code = errno;
        ::close(replacement);
        ::unlink(fresh.c_str());
        throw cannot_write(path, code);
      }
      ::close(fd);
      return replacement;
    } catch (...) {
      ::close(fd);
      throw;
    }
  }
}

// Links are followed.
std::string real_path(const std::string& path) {
  std::error_code code;
  const auto real = std::filesystem::canonical(path, code);
  return code ? path : real.string();
}

class RecordedRow final : public FetchedRow {
 public:
  RecordedRow(std::shared_ptr<RowWriter> writer, std::function<Row()> make)
      : writer_(std::move(writer)), make_(std::move(make)) {}
  void fetched() const override { writer_->write(make_); }

 private:
  std::shared_ptr<RowWriter> writer_;
  std::function<Row()> make_;
};

}  // namespace

std::string row_format(const std::string& path, const SaveRowsOptions& options) {
  static const std::vector<std::string> kFormats = {"jsonl", "json", "csv", "parquet"};
  static const std::vector<std::string> kModes = {"immediate", "training"};
  std::string format = options.format;
  if (format.empty() && path.rfind('.') != std::string::npos) format = path.substr(path.rfind('.') + 1);
  if (std::find(kFormats.begin(), kFormats.end(), format) == kFormats.end())
    throw invalid_argument("[dataset] save_as: unknown format '" + format + "'" +
                           did_you_mean(format, kFormats));
  if (std::find(kModes.begin(), kModes.end(), options.mode) == kModes.end())
    throw invalid_argument("[dataset] save_as: unknown mode '" + options.mode + "'" +
                           did_you_mean(options.mode, kModes));
  constexpr int64_t kMaxBatch = 1'000'000;
  if (options.batch_size < 1 || options.batch_size > kMaxBatch)
    throw invalid_argument("[dataset] save_as: batch_size must be from 1 to " + std::to_string(kMaxBatch) +
                           ", got " + std::to_string(options.batch_size));
  return format;
}

void write_rows(const std::string& path, const std::string& format, std::span<const Row> rows) {
  if (format == "parquet") return write_parquet_file(path, rows);
  if (format == "csv") return write_file_atomic(path, csv_text(rows));
  std::string text = text_of_rows(format, rows, 0);
  write_file_atomic(path, format == "json" ? "[" + text + std::string(kListEnd) : text);
}

RowWriter::RowWriter(const std::string& path, const SaveRowsOptions& options)
    : path_(real_path(path)),
      format_(row_format(path, options)),
      growing_(grows(format_) ? path_ : path_ + ".jsonl"),
      batch_size_(static_cast<size_t>(options.batch_size)) {}

RowWriter::~RowWriter() {
  if (fd_ < 0) return;
  try {
    finish();
  } catch (...) {  // who wants to know calls finish()
  }
}

void RowWriter::start() {
  const std::lock_guard lock(mutex_);
  start_locked();
}

void RowWriter::start_locked() {
  if (fd_ >= 0 || finished_) return;
  const int fd = open_locked(growing_);
  if (format_ == "json") {
    const std::string empty = "[" + std::string(kListEnd);
    if (::pwrite(fd, empty.data(), empty.size(), 0) != static_cast<ssize_t>(empty.size())) {
      const int code = errno;
      ::close(fd);
      throw cannot_write(growing_, code);
    }
    end_ = 1;
  }
  fd_ = fd;
  thread_ = std::thread([this] { work(); });
}

void RowWriter::write(std::function<Row()> make) {
  std::unique_lock lock(mutex_);
  if (finished_) return;
  start_locked();
  room_.wait(lock, [&] { return error_ || finished_ || queue_.size() < 4 * batch_size_; });
  if (error_) std::rethrow_exception(error_);
  if (finished_) return;
  queue_.push_back(std::move(make));
  wake_.notify_one();
}

void RowWriter::flush() {
  std::unique_lock lock(mutex_);
  room_.wait(lock, [&] { return error_ || fd_ < 0 || (queue_.empty() && !busy_); });
  if (error_) std::rethrow_exception(error_);
}

int64_t RowWriter::num_rows() const {
  const std::lock_guard lock(mutex_);
  return num_rows_;
}

void RowWriter::finish() {
  {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    start_locked();
    finished_ = true;
  }
  wake_.notify_all();
  room_.notify_all();
  thread_.join();
  std::exception_ptr error = error_;
  if (!error) {
    try {
      if (::fsync(fd_) != 0 && errno != EINVAL) throw cannot_write(growing_, errno);
      if (growing_ != path_) make_from_lines();
    } catch (...) {
      error = std::current_exception();
    }
  }
  {
    const std::lock_guard lock(mutex_);
    ::close(fd_);
    fd_ = -1;
  }
  room_.notify_all();
  if (error) std::rethrow_exception(error);
}

void RowWriter::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return finished_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const size_t count = std::min(queue_.size(), batch_size_);
    std::vector<std::function<Row()>> batch(
        std::make_move_iterator(queue_.begin()),
        std::make_move_iterator(queue_.begin() + static_cast<std::ptrdiff_t>(count)));
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(count));
    busy_ = true;
    lock.unlock();
    room_.notify_all();
    std::exception_ptr error;
    std::vector<Row> rows;
    try {
      for (const auto& make : batch) rows.push_back(make());
    } catch (...) {
      error = std::current_exception();  // those before it are written
    }
    try {
      append(rows);
    } catch (...) {
      error = std::current_exception();
      rows.clear();
    }
    batch.clear();
    lock.lock();
    busy_ = false;
    num_rows_ += static_cast<int64_t>(rows.size());
    if (error) {
      error_ = error;
      queue_.clear();
    }
    room_.notify_all();
    if (error) return;
  }
}

void RowWriter::append(std::span<const Row> rows) {
  if (rows.empty()) return;
  const std::string text = text_of_rows(growing_ == path_ ? format_ : "jsonl", rows, num_rows());
  try {
    put(format_ == "json" ? text + std::string(kListEnd) : text);
  } catch (...) {
    // The file ends with the last whole row again.
    if (::ftruncate(fd_, end_) == 0 && format_ == "json")
      static_cast<void>(::pwrite(fd_, kListEnd.data(), kListEnd.size(), end_) == 0);
    throw;
  }
  end_ += static_cast<int64_t>(text.size());
}

void RowWriter::put(const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n =
        ::pwrite(fd_, bytes.data() + done, bytes.size() - done, end_ + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw cannot_write(growing_, errno);
    done += static_cast<size_t>(n);
  }
}

void RowWriter::make_from_lines() const {
  try {
    std::vector<Row> rows;
    const auto lines = RowFiles::open(growing_, {.text_split = "file", .columns = {}, .may_be_empty = true});
    for (const RowRef& ref : lines->rows()) rows.push_back(lines->parse(ref));
    if (!rows.empty()) write_rows(path_, format_, rows);  // a table without rows has no columns
  } catch (const Error& e) {
    throw Error(e.kind(), std::string(e.what()) + "; the rows are in '" + growing_ + "'");
  }
  ::unlink(growing_.c_str());
}

std::shared_ptr<const FetchedRow> recorded_row(std::shared_ptr<RowWriter> writer, std::function<Row()> make) {
  return std::make_shared<RecordedRow>(std::move(writer), std::move(make));
}

void check_writes_elsewhere(const RowWriter& writer, std::span<const std::string> paths) {
  for (const std::string& target : {writer.path(), writer.growing_path()}) {
    for (const std::string& path : paths) {
      std::error_code ignored;
      if (std::filesystem::equivalent(path, target, ignored))
        throw invalid_argument("[dataset] '" + target +
                               "' holds the rows that are read; record them in another file");
    }
  }
}

}  // namespace twinkle
