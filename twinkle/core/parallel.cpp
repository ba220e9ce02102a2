#include "twinkle/core/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace twinkle {
namespace {

thread_local bool tls_inside = false;

struct Job {
  const std::function<void(int64_t, int64_t)>* fn = nullptr;
  int64_t count = 0;
  int64_t grain = 1;
  std::atomic<int64_t> next{0};
  std::atomic<int> finished{0};  // workers that joined and are done
  std::mutex error_mutex;
  std::exception_ptr error;

  void run() {
    for (;;) {
      const int64_t begin = next.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      try {
        (*fn)(begin, std::min(count, begin + grain));
      } catch (...) {
        std::lock_guard lock(error_mutex);
        if (!error) error = std::current_exception();
        next.store(count, std::memory_order_relaxed);
      }
    }
  }
};

int default_threads() {
  if (const char* value = std::getenv("TWINKLE_NUM_THREADS")) {
    const int n = std::atoi(value);
    if (n >= 1) return std::min(n, 1024);
  }
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) return std::max(1, CPU_COUNT(&mask));
  return std::max(1u, std::thread::hardware_concurrency());
}

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Workers spin briefly for the next job, since a training step issues thousands of short ones, then sleep. A
// job waits only for the workers that joined it: one that the system has not scheduled yet holds nobody up.
class Pool {
 public:
  explicit Pool(int size) : size_(size) {
    for (int i = 1; i < size; ++i) workers_.emplace_back([this] { work(); });
  }

  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int size() const { return size_; }

  void run(Job& job) {
    bool anyone_asleep = false;
    {
      std::lock_guard lock(mutex_);
      job_ = &job;
      joined_ = 0;
      generation_.fetch_add(1, std::memory_order_release);
      anyone_asleep = sleepers_ > 0;
    }
    if (anyone_asleep) wake_.notify_all();
    tls_inside = true;
    job.run();
    tls_inside = false;
    int joined = 0;
    {
      std::lock_guard lock(mutex_);
      job_ = nullptr;
      joined = joined_;
    }
    for (int spins = 0; job.finished.load(std::memory_order_acquire) != joined; ++spins) {
      if (spins < kSpins) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
  }

 private:
  static constexpr int kSpins = 3000;

  void work() {
    tls_inside = true;
    uint64_t seen = 0;
    for (;;) {
      for (int spins = 0; generation_.load(std::memory_order_acquire) == seen && spins < kSpins; ++spins)
        relax();
      Job* job = nullptr;
      {
        std::unique_lock lock(mutex_);
        ++sleepers_;
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
        --sleepers_;
        seen = generation_.load(std::memory_order_relaxed);
        if (stop_) return;
        job = job_;
        if (job != nullptr) ++joined_;
      }
      if (job == nullptr) continue;
      job->run();
      job->finished.fetch_add(1, std::memory_order_release);
    }
  }

  int size_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> generation_{0};
  int sleepers_ = 0;  // guarded by mutex_, as are the next three
  int joined_ = 0;
  Job* job_ = nullptr;
  bool stop_ = false;
};

std::mutex pool_mutex;
std::unique_ptr<Pool> pool;
std::atomic<int> wanted{0};

int wanted_threads() {
  int count = wanted.load(std::memory_order_relaxed);
  if (count == 0) {
    count = default_threads();
    int expected = 0;
    if (!wanted.compare_exchange_strong(expected, count)) count = expected;
  }
  return count;
}

}  // namespace

int num_threads() { return wanted_threads(); }

void set_num_threads(int count) { wanted.store(std::max(1, count)); }

void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& fn) {
  if (count <= 0) return;
  grain = std::max<int64_t>(1, grain);
  const int threads = wanted_threads();
  if (threads == 1 || tls_inside || count <= grain) {
    fn(0, count);
    return;
  }
  std::unique_lock lock(pool_mutex);  // callers from several threads take turns
  if (!pool || pool->size() != threads) {
    pool.reset();
    pool = std::make_unique<Pool>(threads);
  }
  Job job;
  job.fn = &fn;
  job.count = count;
  job.grain = grain;
  pool->run(job);
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace twinkle
