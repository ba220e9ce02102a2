// Two buffers between two threads: one is filled while the other is emptied, in order. Either side may end
// it; neither waits for ever while the other lives by this contract.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <vector>

namespace twinkle {

class TwoBuffers {
 public:
  using Buffer = std::vector<std::byte>;

  /// The filling side: a buffer that is free, waiting for it; null once the other side gave up.
  Buffer* to_fill();
  void filled();
  /// Nothing more comes; with an error, to_empty() throws it behind what was filled before.
  void end(std::exception_ptr error = nullptr);

  /// The emptying side: the next full buffer, waiting for it; null at the end.
  const Buffer* to_empty();
  void emptied();
  void give_up();

 private:
  std::array<Buffer, 2> buffers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t filled_ = 0, emptied_ = 0;  // how often
  bool ended_ = false, given_up_ = false;
  std::exception_ptr error_;
};

}  // namespace twinkle
