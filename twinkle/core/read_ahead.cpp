#include "twinkle/core/read_ahead.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace twinkle {
namespace {

constexpr size_t kStep = size_t{4} << 20;
constexpr size_t kWindow = size_t{128} << 20;  // how far ahead; the cache is not filled with what comes last

}  // namespace

ReadAhead::ReadAhead(std::vector<std::span<const std::byte>> pieces) : pieces_(std::move(pieces)) {
  if (!pieces_.empty()) thread_ = std::thread([this] { work(); });
}

ReadAhead::~ReadAhead() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void ReadAhead::advance(size_t bytes) {
  {
    std::lock_guard lock(mutex_);
    consumed_ += bytes;
  }
  changed_.notify_all();
}

void ReadAhead::work() {
  constexpr uintptr_t kPage = 4096;
  size_t asked = 0;
  for (const auto& piece : pieces_) {
    for (size_t at = 0; at < piece.size(); at += kStep) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || asked < consumed_ + kWindow; });
        if (stop_) return;
      }
      const size_t length = std::min(kStep, piece.size() - at);
      const uintptr_t first = (reinterpret_cast<uintptr_t>(piece.data()) + at) / kPage * kPage;
      const uintptr_t last = reinterpret_cast<uintptr_t>(piece.data()) + at + length;
      // Maps the pages as well, once they are there; older systems only start the reading.
      void* address = reinterpret_cast<void*>(first);
#ifdef MADV_POPULATE_READ
      if (madvise(address, last - first, MADV_POPULATE_READ) != 0)
#endif
        madvise(address, last - first, MADV_WILLNEED);
      asked += length;
    }
  }
}

}  // namespace twinkle
