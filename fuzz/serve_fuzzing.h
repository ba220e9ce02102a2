// A server's parts over an engine of plain numbers, for fuzzers.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "fuzz/fuzzing.h"
#include "tests/serve/fake_engine.h"
#include "twinkle/serve/core.h"

namespace twinkle::fuzz {

/// Of a disk that forgets at a loss of power.
inline serve::Disk disk_in_memory() {
  serve::Disk disk;
  disk.sync = disk.sync_folder = [](int) { return 0; };
  return disk;
}

/// One value that another thread gives.
template <class Value>
class Mailbox {
 public:
  void put(Value value) {
    {
      const std::lock_guard lock(mutex_);
      require(!value_);  // once
      value_ = std::move(value);
    }
    changed_.notify_all();
  }
  /// Nothing came within a minute: that ends the program too.
  const Value& wait() {
    std::unique_lock lock(mutex_);
    require(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return value_.has_value(); }));
    return *value_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Value> value_;
};

inline serve::Core::Outcome outcome_of(serve::Core& core, const std::string& request,
                                       const std::string& owner) {
  const auto box = std::make_shared<Mailbox<serve::Core::Outcome>>();
  core.wait(request, owner, [box](const serve::Core::Outcome& outcome) { box->put(outcome); });
  return box->wait();
}

}  // namespace twinkle::fuzz
