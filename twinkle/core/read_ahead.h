// Reads mapped files into the page cache ahead of whoever walks through them in order, so that the disk works
// while bytes are converted. A thread of its own; advice only.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace twinkle {

class ReadAhead {
 public:
  /// Pieces of maps in the order in which they will be read.
  explicit ReadAhead(std::vector<std::span<const std::byte>> pieces);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// So many more bytes have been read.
  void advance(size_t bytes);

 private:
  void work();

  std::vector<std::span<const std::byte>> pieces_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t consumed_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace twinkle
