#include "twinkle/core/parallel_errors.h"

#include <atomic>
#include <mutex>

#include "twinkle/core/parallel.h"

namespace twinkle {

std::map<int64_t, Error> errors_of_items(int64_t count, int64_t grain, BadItems which,
                                         const std::function<void(int64_t)>& fn) {
  std::map<int64_t, Error> errors;
  std::mutex mutex;
  std::atomic<int64_t> first_bad{count};
  parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (which == BadItems::kFirst && i > first_bad.load(std::memory_order_relaxed)) return;
      try {
        fn(i);
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::kInternal) throw;
        const std::lock_guard lock(mutex);
        errors.emplace(i, error);
        if (i < first_bad.load()) first_bad.store(i);
      }
    }
  });
  if (which == BadItems::kFirst && !errors.empty()) errors.erase(std::next(errors.begin()), errors.end());
  return errors;
}

}  // namespace twinkle
