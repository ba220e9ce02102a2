#include "twinkle/core/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace twinkle {
namespace {

class Parallel : public ::testing::Test {
 protected:
  void TearDown() override { set_num_threads(before_); }
  int before_ = num_threads();
};

TEST_F(Parallel, VisitsEveryIndexOnce) {
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    for (const int64_t count : {0, 1, 7, 1000}) {
      for (const int64_t grain : {1, 3, 64}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
        parallel_for(count, grain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        for (const auto& n : seen) ASSERT_EQ(n.load(), 1);
      }
    }
  }
}

TEST_F(Parallel, ManyShortJobsInARow) {
  set_num_threads(4);
  std::atomic<int64_t> sum{0};
  for (int i = 0; i < 5000; ++i) {
    parallel_for(8, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  }
  EXPECT_EQ(sum.load(), 40000);
}

TEST_F(Parallel, NestedCallsRunInline) {
  set_num_threads(3);
  std::atomic<int64_t> sum{0};
  parallel_for(10, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      parallel_for(10, 1, [&](int64_t b, int64_t e) { sum += e - b; });
    }
  });
  EXPECT_EQ(sum.load(), 100);
}

TEST_F(Parallel, TheFirstExceptionComesOut) {
  set_num_threads(2);
  EXPECT_THROW(parallel_for(100, 1,
                            [](int64_t begin, int64_t) {
                              if (begin == 50) throw std::runtime_error("row 50");
                            }),
               std::runtime_error);
  std::atomic<int64_t> sum{0};
  parallel_for(100, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  EXPECT_EQ(sum.load(), 100);
}

TEST_F(Parallel, CallersFromSeveralThreadsTakeTurns) {
  set_num_threads(2);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        parallel_for(16, 2, [&](int64_t begin, int64_t end) { sum += end - begin; });
      }
    });
  }
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(sum.load(), 4 * 500 * 16);
}

}  // namespace
}  // namespace twinkle
