#include "twinkle/sample/job.h"

namespace twinkle {

std::optional<SamplePiece> SampleJob::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !pieces_.empty() || done_; });
  if (pieces_.empty()) {
    if (error_) std::rethrow_exception(error_);
    return std::nullopt;
  }
  SamplePiece out = std::move(pieces_.front());
  pieces_.pop_front();
  return out;
}

std::optional<SamplePiece> SampleJob::poll() {
  std::lock_guard lock(mutex_);
  if (pieces_.empty()) return std::nullopt;
  SamplePiece out = std::move(pieces_.front());
  pieces_.pop_front();
  return out;
}

SampleResult SampleJob::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_; });
  if (error_) std::rethrow_exception(error_);
  return result_;
}

bool SampleJob::done() const {
  std::lock_guard lock(mutex_);
  return done_;
}

void SampleJob::cancel() {
  if (!done()) on_cancel_(shared_from_this());
}

}  // namespace twinkle
