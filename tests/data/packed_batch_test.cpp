#include "twinkle/data/packed_batch.h"

#include <gtest/gtest.h>

#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/rng.h"

namespace twinkle {
namespace {

constexpr int32_t kNone = kIgnoreIndex;

std::string error_of(const std::vector<InputFeature>& features) {
  return test::thrown([&] { pack(features); });
}

TEST(PackedBatch, LaysSequencesEndToEnd) {
  const std::vector<InputFeature> features = {
      {.input_ids = {5, 6, 7}, .labels = {kNone, 7, kNone}},
      {.input_ids = {8, 9}, .labels = {9, kNone}, .weights = {0.5f, 2.0f}}};
  const PackedBatch batch = pack(features, 10);
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{5, 6, 7, 8, 9}));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{0, 1, 2, 0, 1}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 3, 5}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{kNone, 7, kNone, 9, kNone}));
  EXPECT_EQ(batch.weights, (std::vector<float>{0, 1, 0, 0.5f, 0}));
  EXPECT_EQ(batch.adapter, (std::vector<int32_t>{-1, -1}));
  EXPECT_EQ(batch.order, (std::vector<int64_t>{10, 11}));
  EXPECT_EQ(batch.sequence_key, (std::vector<uint64_t>{10, 11}));
  EXPECT_EQ(batch.scored_rows(), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(batch.num_tokens(), 5);
  EXPECT_EQ(batch.num_sequences(), 2);
  EXPECT_EQ(pack({}).num_sequences(), 0);
  EXPECT_EQ(PackedBatch{}.num_sequences(), 0);
}

TEST(PackedBatch, RefusesMisshapenFeaturesByIndex) {
  EXPECT_EQ(error_of({{.input_ids = {1}, .labels = {1}}, {}}), "[batch] feature 1: has no tokens");
  EXPECT_EQ(error_of({{.input_ids = {1, 2}, .labels = {1}}}), "[batch] feature 0: has 1 labels for 2 tokens");
  EXPECT_EQ(error_of({{.input_ids = {1, 2}, .labels = {1, 2}, .weights = {1}}}),
            "[batch] feature 0: has 1 weights for 2 labels");
}

TEST(PackedBatch, ReductionOrderFollowsOrderNotPlace) {
  PackedBatch batch = pack(std::vector<InputFeature>(4, {.input_ids = {1}, .labels = {1}}));
  batch.order = {30, 10, 10, 5};
  EXPECT_EQ(batch.reduction_order(), (std::vector<int64_t>{3, 1, 2, 0}));  // equal orders keep their places
}

TEST(PackedBatch, SplitsIntoTheLongestGroupsThatFit) {
  const auto split = [](std::vector<size_t> lengths, int64_t max) {
    std::vector<InputFeature> features;
    for (const size_t n : lengths) features.push_back({.input_ids = std::vector<int32_t>(n)});
    return split_by_tokens(features, max);
  };
  EXPECT_EQ(split({3, 2, 1}, 4), (std::vector<int64_t>{1, 3}));  // as "keep the order" asks: [3], [2, 1]
  EXPECT_EQ(split({9, 1, 1}, 4), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(split({1, 9, 1}, 4), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(split({}, 4), (std::vector<int64_t>{}));
  CounterRng rng(3);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<size_t> lengths(rng.next_below(30));
    for (auto& n : lengths) n = 1 + rng.next_below(20);
    const auto max = static_cast<int64_t>(1 + rng.next_below(40));
    const auto ends = split(lengths, max);
    int64_t begin = 0;
    for (size_t g = 0; g < ends.size(); ++g) {
      ASSERT_GT(ends[g], begin);
      int64_t total = 0;
      for (int64_t i = begin; i < ends[g]; ++i)
        total += static_cast<int64_t>(lengths[static_cast<size_t>(i)]);
      ASSERT_TRUE(total <= max || ends[g] == begin + 1);
      // The next feature would not have fitted.
      if (g + 1 < ends.size()) {
        ASSERT_GT(total + static_cast<int64_t>(lengths[static_cast<size_t>(ends[g])]), max);
      }
      begin = ends[g];
    }
    ASSERT_EQ(begin, static_cast<int64_t>(lengths.size()));
  }
}

}  // namespace
}  // namespace twinkle
