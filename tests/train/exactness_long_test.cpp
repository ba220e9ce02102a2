// labels: slow bits
// Fifty steps with dropout: the same losses and weights however the batches are split, laid out and threaded.
#include <gtest/gtest.h>

#include <set>

#include "tests/train/train_model_testing.h"
#include "twinkle/core/parallel.h"

namespace twinkle {
namespace {

using testing::exact_case;
using testing::run_of;

class ExactLong : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Train, ExactLong, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Full" : "Lora"; });

TEST_P(ExactLong, FiftySteps) {
  const auto expected = run_of(exact_case(GetParam()), 50);
  EXPECT_EQ(std::set<std::string>(expected.begin(), expected.end()).size(), 51u);
  const int threads = num_threads();
  set_num_threads(threads == 1 ? 2 : 1);
  EXPECT_EQ(
      run_of(exact_case(GetParam(), {.micro_batch_tokens = 45, .packing = PackingOrder::kReversed}), 50),
      expected);
  set_num_threads(threads);
  EXPECT_EQ(
      run_of(exact_case(GetParam(), {.micro_batch_tokens = 1, .gradient_checkpointing = Recompute::kAlways}),
             50),
      expected);
}

}  // namespace
}  // namespace twinkle
