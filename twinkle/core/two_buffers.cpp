#include "twinkle/core/two_buffers.h"

#include <utility>

namespace twinkle {

TwoBuffers::Buffer* TwoBuffers::to_fill() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return given_up_ || filled_ - emptied_ < buffers_.size(); });
  return given_up_ ? nullptr : &buffers_[filled_ % buffers_.size()];
}

void TwoBuffers::filled() {
  std::lock_guard lock(mutex_);
  ++filled_;
  changed_.notify_all();
}

void TwoBuffers::end(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  ended_ = true;
  error_ = std::move(error);
  changed_.notify_all();
}

const TwoBuffers::Buffer* TwoBuffers::to_empty() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || filled_ > emptied_; });
  if (filled_ > emptied_) return &buffers_[emptied_ % buffers_.size()];
  if (error_) std::rethrow_exception(error_);
  return nullptr;
}

void TwoBuffers::emptied() {
  std::lock_guard lock(mutex_);
  ++emptied_;
  changed_.notify_all();
}

void TwoBuffers::give_up() {
  std::lock_guard lock(mutex_);
  given_up_ = true;
  changed_.notify_all();
}

}  // namespace twinkle
