#include "twinkle/serve/background.h"

#include <sys/resource.h>

#include <cstdio>
#include <exception>

namespace twinkle::serve {

// On Linux this sets the calling thread only.
void step_back(int niceness) { ::setpriority(PRIO_PROCESS, 0, niceness); }

Background::Background(std::string name, int niceness)
    : name_(std::move(name)), niceness_(niceness), thread_([this] { run(); }) {}

Background::~Background() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Background::add(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

size_t Background::size() const {
  const std::lock_guard lock(mutex_);
  return jobs_.size();
}

void Background::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty(); });
}

void Background::run() {
  if (niceness_ != 0) step_back(niceness_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job job = std::move(jobs_.front());
    lock.unlock();
    try {
      job();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s: %s\n", name_.c_str(), e.what());
    }
    job = nullptr;  // what it holds may be large
    lock.lock();
    jobs_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace twinkle::serve
