// The write-ahead log: records that are on the disk before anybody is told so. One file; many records share
// one fsync (group commit). Any thread may append; records are durable in the order of the calls.
//
// A file is a header and records. Each record says its length, its place in the file, and up to where the
// file was known to be durable when it was written, all under a CRC-32C with its payload. What is found at a
// start:
//   - a damaged end that no later record vouches for is a write that never was acknowledged: it is cut off;
//   - damage before a place that a later whole record calls durable is lost data that was acknowledged:
//     the log does not open, and says where (`unavailable`);
//   - another format or version does not open either.
// Nothing tells a torn last write from damage to the last group that was acknowledged, unless the log was
// closed in order: close() leaves a record that vouches for all before it.
//
// It is written anew, without what nobody needs any more, beside the work: a second file grows, appends go on
// into the first, and are held for a moment only, while the last of them are copied and the new file takes
// over.
//
// An append that the disk refuses fails alone, and what it wrote is cut off again. One that must be there, or
// of which nobody knows whether the disk has it because an fsync failed, is held: it is written again, at the
// same place and with all that were behind it, until the disk takes it, and only then is anybody told.
// Whatever else comes meanwhile is refused.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "twinkle/serve/disk.h"

namespace twinkle::serve {

class Log {
 public:
  using OnDurable = std::function<void(std::exception_ptr error)>;  // null: it is on the disk

  /// Opens or begins the log of a folder and gives every record to `on_record`, oldest first.
  Log(const std::string& folder, const std::function<void(std::string_view payload)>& on_record,
      Disk disk = {});
  /// Waits for what was appended; what is held is tried once more.
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  /// `on_durable` runs on the log's thread, after those of earlier records unless this one is refused; it
  /// must not wait for the log. `must`: it is held when it can not be written, and nothing is written behind
  /// it before.
  void append(std::string payload, OnDurable on_durable, bool must = false);
  /// Waits for everything that was appended, but for what is held.
  void flush();
  /// Holds nothing any more: what the disk does not take now fails. Before the end, so that flush() ends all.
  void give_up();
  /// What stands in a record's place: mostly itself, or nothing.
  using Keep = std::function<std::optional<std::string>(std::string_view payload)>;
  /// Writes the log anew. `keep` sees the records, oldest first, but for the last, which are taken as they
  /// are; what `closing` gives comes behind those that it saw. The old log stays in force until the new one
  /// is durable; an error leaves it so. By one thread at a time, while others append.
  void rewrite(const Keep& keep, const std::function<std::string()>& closing);
  /// Of the file.
  int64_t size_bytes() const;
  /// Records that nobody was told of yet.
  int64_t pending() const;
  /// The disk did not take something that is held: nothing more is accepted until it does.
  bool holds() const;
  /// After give_up(), and after a fault that leaves open which file a start takes: what failed may be there
  /// at the next start, and nothing more is accepted before.
  bool broken() const;

 private:
  struct Pending {
    std::string payload;
    OnDurable on_durable;
    bool must = false;
    enum class State { kOpen, kRefused, kHeld } state = State::kOpen;
    std::exception_ptr error = nullptr;  // why it is refused or held
    bool stays() const { return must || state == State::kHeld; }
    void refuse(const std::exception_ptr& why) {
      state = State::kRefused;
      error = why;
    }
    void hold(const std::exception_ptr& why) {
      state = State::kHeld;
      error = why;
    }
  };
  void open_newest(const std::function<void(std::string_view)>& on_record);
  int64_t read_all(std::string_view file, const std::function<void(std::string_view)>& on_record) const;
  std::string path() const;  // of the file in force
  void run();
  void write_batch(std::vector<Pending>& batch);
  std::vector<Pending*> write_records(std::vector<Pending>& batch);
  void say_whether(std::exception_ptr trouble);  // under mutex_

  std::string folder_;
  Disk disk_;
  int64_t number_ = 0;  // of the file
  int fd_ = -1;

  mutable std::mutex
      file_mutex_;       // guards fd_ and the four below while the log is written, or a new one takes over
  int64_t end_ = 0;      // where the next record begins
  int64_t durable_ = 0;  // up to here the disk has it
  std::exception_ptr broken_;

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::vector<Pending> pending_, held_;  // held: before all that are pending
  std::exception_ptr trouble_;           // why there are such
  bool stopping_ = false, giving_up_ = false;
  int64_t size_ = 0;
  uint64_t appended_ = 0, answered_ = 0;  // records
  std::thread thread_;
};

}  // namespace twinkle::serve
