// Jobs carried out one after the other on a thread of its own, so that who adds one need not wait. A job's
// error goes to stderr. Thread-safe; a job may add others.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace twinkle::serve {

/// Lets the calling thread, and those it starts, step back so far behind others (nice(1)). Where that is
/// refused it runs like the others.
void step_back(int niceness);

class Background {
 public:
  using Job = std::function<void()>;

  /// `name` stands before its errors. `niceness`: step_back() of its thread.
  explicit Background(std::string name, int niceness = 0);
  /// Carries out what is left.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  void add(Job job);
  /// Jobs that are not done.
  size_t size() const;
  /// Until there are none.
  void wait();

 private:
  void run();

  const std::string name_;
  const int niceness_;
  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::deque<Job> jobs_;  // the first is being carried out
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace twinkle::serve
