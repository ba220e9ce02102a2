// Which errors of many items come out never depends on the threads.
#include "twinkle/core/parallel_errors.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/thrown.h"
#include "twinkle/core/parallel.h"

namespace twinkle {
namespace {

class ParallelErrors : public ::testing::Test {
 protected:
  void TearDown() override { set_num_threads(before_); }
  int before_ = num_threads();
};

TEST_F(ParallelErrors, ComeByIndexOrOnlyTheFirst) {
  const auto fails = [](int64_t i) {
    if (i == 17) throw not_found("item 17");
    if (i == 40 || i == 93) throw invalid_argument("item " + std::to_string(i));
  };
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    for (const int64_t grain : {1, 8, 200}) {
      const auto all = errors_of_items(100, grain, BadItems::kAll, fails);
      ASSERT_EQ(all.size(), 3u);
      EXPECT_EQ(all.at(17).kind(), ErrorKind::kNotFound);
      EXPECT_STREQ(all.at(40).what(), "item 40");
      EXPECT_STREQ(all.at(93).what(), "item 93");
      const auto first = errors_of_items(100, grain, BadItems::kFirst, fails);
      ASSERT_EQ(first.size(), 1u);
      EXPECT_STREQ(first.at(17).what(), "item 17");
    }
  }
}

TEST_F(ParallelErrors, AllItemsAreVisitedWhereNoneIsBad) {
  set_num_threads(3);
  std::atomic<int64_t> sum{0};
  EXPECT_TRUE(errors_of_items(1000, 8, BadItems::kFirst, [&](int64_t i) { sum += i; }).empty());
  EXPECT_EQ(sum.load(), 499500);
  EXPECT_TRUE(errors_of_items(0, 8, BadItems::kAll, [](int64_t) { throw invalid_argument("none"); }).empty());
}

TEST_F(ParallelErrors, BugsAndOtherExceptionsAreThrownOn) {
  set_num_threads(2);
  EXPECT_EQ(test::thrown(
                [] { errors_of_items(9, 1, BadItems::kAll, [](int64_t) { throw internal_error("bug"); }); },
                ErrorKind::kInternal),
            "bug");
  EXPECT_THROW(errors_of_items(9, 1, BadItems::kAll, [](int64_t) { throw std::bad_alloc(); }),
               std::bad_alloc);
}

}  // namespace
}  // namespace twinkle
