// Rows into files: all at once, or one after another while a run draws them (Dataset::save_as). A RowWriter
// may be used from many threads; the thread that writes is its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "twinkle/data/types.h"

namespace twinkle {

struct SaveRowsOptions {
  std::string format;              // "jsonl", "json", "csv" or "parquet"; "": by the extension of the path
  int64_t batch_size = 1000;       // of mode "training": rows written at once; four times as many may wait
  std::string mode = "immediate";  // or "training": rows as a DataLoader gives them out
};

/// The format that is meant; invalid_argument when it is none of the four, or other options are not sound.
std::string row_format(const std::string& path, const SaveRowsOptions& options);

/// The rows as a file of that format, whole or not at all.
void write_rows(const std::string& path, const std::string& format, std::span<const Row> rows);

/// Writes rows in the order in which it gets them. A .jsonl or .json file grows as rows come and is a whole
/// file after each write: a process that is killed leaves the first rows, at worst with a last line that is
/// cut. The columns of .csv and .parquet depend on all rows, so these are made by finish(), out of
/// PATH.jsonl, which a killed process leaves and a finished one does not.
///
/// What goes wrong (a full disk, a row that cannot be made) ends the writing and is thrown by whatever is
/// called next. A lock keeps a second writer, of any process, from the path; it ends with the process and
/// leaves no file. A file that was there is replaced, and who reads it goes on reading what it was.
class RowWriter {
 public:
  RowWriter(const std::string& path, const SaveRowsOptions& options);
  /// As finish(), but says no error.
  ~RowWriter();
  RowWriter(const RowWriter&) = delete;
  RowWriter& operator=(const RowWriter&) = delete;

  /// Makes the file, where write() has not: conflict when another writer has it.
  void start();
  /// `make` is called by the thread that writes. Waits while 4 * batch_size rows wait. Nothing after
  /// finish().
  void write(std::function<Row()> make);
  /// Waits until all rows are in the file.
  void flush();
  /// Writes all rows and closes the file. Once is enough.
  void finish();
  int64_t num_rows() const;  // in the file
  const std::string& path() const { return path_; }
  /// The file that grows: path(), or PATH.jsonl.
  const std::string& growing_path() const { return growing_; }

 private:
  void start_locked();
  void work();
  void append(std::span<const Row> rows);
  void put(const std::string& bytes);
  void make_from_lines() const;

  const std::string path_, format_, growing_;
  const size_t batch_size_;
  mutable std::mutex mutex_;
  std::condition_variable wake_, room_;
  std::deque<std::function<Row()>> queue_;
  std::exception_ptr error_;
  bool busy_ = false, finished_ = false;
  int fd_ = -1;
  int64_t end_ = 0;  // bytes that rows go behind
  int64_t num_rows_ = 0;
  std::thread thread_;
};

/// A row that goes to the writer when a loader gives it out.
std::shared_ptr<const FetchedRow> recorded_row(std::shared_ptr<RowWriter> writer, std::function<Row()> make);

/// Refuses a writer whose file is one of `paths`, which hold the rows themselves.
void check_writes_elsewhere(const RowWriter& writer, std::span<const std::string> paths);

}  // namespace twinkle
