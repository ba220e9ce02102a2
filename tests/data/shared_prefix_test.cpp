#include "twinkle/data/shared_prefix.h"

#include <gtest/gtest.h>

#include <numeric>

namespace twinkle {
namespace {

constexpr int32_t kNone = kIgnoreIndex;

// `prompt` tokens that count up from `start`, then the answer, which is scored.
InputFeature answer(int32_t start, int prompt, const std::vector<int32_t>& tokens) {
  InputFeature f;
  for (int i = 0; i < prompt; ++i) f.input_ids.push_back(start + i);
  f.input_ids.insert(f.input_ids.end(), tokens.begin(), tokens.end());
  f.labels.assign(f.input_ids.size(), kNone);
  for (size_t t = static_cast<size_t>(prompt) - 1; t + 1 < f.input_ids.size(); ++t)
    f.labels[t] = f.input_ids[t + 1];
  return f;
}

std::vector<std::pair<int32_t, int32_t>> prefixes(const std::vector<InputFeature>& features,
                                                  const std::vector<int64_t>& family,
                                                  int64_t max_length = 1000) {
  std::vector<std::pair<int32_t, int32_t>> out;
  for (const CommonPrefix& p : common_prefixes(pack(features), family, max_length))
    out.emplace_back(p.of, p.length);
  return out;
}

using Pairs = std::vector<std::pair<int32_t, int32_t>>;

TEST(SharedPrefix, TakesTheLongestBeginningOfAnEarlierSequence) {
  const auto a = answer(100, 20, {1, 2, 3}), b = answer(100, 20, {1, 2, 4, 5}), c = answer(100, 20, {9}),
             d = answer(500, 20, {1}), e = answer(100, 20, {1, 2, 4, 6});
  EXPECT_EQ(prefixes({a, b, c, d, e}, {0, 0, 0, 0, 0}), (Pairs{{-1, 0}, {0, 22}, {0, 20}, {-1, 0}, {1, 23}}));
  // Only within a family, and -1 is in none.
  EXPECT_EQ(prefixes({a, b, c, e}, {0, 1, 0, 1}), (Pairs{{-1, 0}, {-1, 0}, {0, 20}, {1, 23}}));
  EXPECT_EQ(prefixes({a, a, a}, {-1, -1, 3}), (Pairs{{-1, 0}, {-1, 0}, {-1, 0}}));
  // A sequence that is all there already takes everything; a beginning of an earlier one too.
  EXPECT_EQ(prefixes({b, b, answer(100, 20, {1})}, {0, 0, 0}), (Pairs{{-1, 0}, {0, 24}, {0, 21}}));
  EXPECT_EQ(prefixes({a, b, c}, {0, 0, 0}, 23), (Pairs{{-1, 0}, {-1, 0}, {0, 20}}));
}

TEST(SharedPrefix, FewTokensAreNotShared) {
  EXPECT_EQ(prefixes({answer(1, 15, {7, 7}), answer(1, 15, {8, 8})}, {0, 0}), (Pairs{{-1, 0}, {-1, 0}}));
  EXPECT_EQ(prefixes({answer(1, 16, {7, 7}), answer(1, 16, {8, 8})}, {0, 0}), (Pairs{{-1, 0}, {0, 16}}));
  EXPECT_FALSE(share_prefixes(std::vector<InputFeature>{answer(1, 15, {7, 7}), answer(1, 15, {8, 8})}));
  EXPECT_TRUE(share_prefixes(
      std::vector<InputFeature>{answer(1, 16, {7}), answer(9, 30, {1}), answer(1, 16, {8, 8})}));
}

TEST(SharedPrefix, PromptEndsWhereTheFirstTargetIsPredicted) {
  EXPECT_EQ(prompt_rows(answer(1, 5, {7, 8})), 5);
  EXPECT_EQ(prompt_rows({.input_ids = {1, 2}, .labels = {2, kNone}}), 1);
  EXPECT_EQ(prompt_rows({.input_ids = {1, 2}, .labels = {kNone, kNone}}), 0);
}

using Ends = std::vector<int64_t>;

TEST(SharedPrefix, RunsAreWhatStaysTogether) {
  std::vector<InputFeature> list = {answer(1, 20, {7, 8}), answer(1, 20, {9}),  answer(1, 20, {7, 8}),
                                    answer(1, 19, {7}),    answer(50, 20, {1}), answer(1, 20, {3})};
  const auto runs = [&](PrefixSharing sharing, bool backward, int64_t max) {
    Pairs out;
    for (const FeatureRun& run : feature_runs(list, sharing, backward, max))
      out.emplace_back(static_cast<int32_t>(run.end), static_cast<int32_t>(run.rows));
    return out;
  };
  const Pairs each = {{1, 22}, {2, 21}, {3, 22}, {4, 20}, {5, 21}, {6, 21}};
  EXPECT_EQ(runs(PrefixSharing::kOff, true, 1000), each);
  EXPECT_EQ(runs(PrefixSharing::kOff, false, 1000), each);
  EXPECT_EQ(runs(PrefixSharing::kExact, true, 1000), each);
  // Groups of one prompt, of whatever size: 20 + 2 + 1 + 2 rows.
  EXPECT_EQ(runs(PrefixSharing::kGroups, true, 10), (Pairs{{3, 25}, {4, 20}, {5, 21}, {6, 21}}));
  // Scoring: 22, then 1, 2 and 1 more; cut where a pass is full.
  EXPECT_EQ(runs(PrefixSharing::kExact, false, 1000), (Pairs{{4, 26}, {5, 21}, {6, 21}}));
  EXPECT_EQ(runs(PrefixSharing::kGroups, false, 24), (Pairs{{2, 23}, {4, 23}, {5, 21}, {6, 21}}));
  EXPECT_EQ(split_runs(feature_runs(list, PrefixSharing::kGroups, true, 46), 46), (Ends{4, 6}));
  // A sequence with nothing to learn is in no group.
  std::fill(list[1].labels.begin(), list[1].labels.end(), kNone);
  EXPECT_EQ(runs(PrefixSharing::kGroups, true, 10),
            (Pairs{{1, 22}, {2, 21}, {3, 22}, {4, 20}, {5, 21}, {6, 21}}));
}

}  // namespace
}  // namespace twinkle
