// The sampling law: the distribution against hand-worked values, and draws against it by chi-square.
#include "twinkle/sample/pick.h"

#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/core/error.h"

namespace twinkle {
namespace {

// Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 at temperature 1.
const std::vector<float> kLogits = {std::log(0.25f), std::log(0.5f), std::log(0.0625f), std::log(0.125f),
                                    std::log(0.0625f)};

void expect_distribution(const SamplingParams& params, const std::vector<double>& want,
                         std::vector<int32_t> history = {}) {
  const auto got = sampling_distribution(kLogits, params, history);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6) << i;
}

TEST(Pick, CutOffsAreExact) {
  expect_distribution({}, {0.25, 0.5, 0.0625, 0.125, 0.0625});
  expect_distribution({.top_k = 2}, {1.0 / 3, 2.0 / 3, 0, 0, 0});
  // 0.5 + 0.25 reaches 0.7; the nucleus is the fewest tokens that reach p.
  expect_distribution({.top_p = 0.7}, {1.0 / 3, 2.0 / 3, 0, 0, 0});
  expect_distribution({.top_p = 0.5}, {0, 1, 0, 0, 0});
  expect_distribution({.top_p = 0.51}, {1.0 / 3, 2.0 / 3, 0, 0, 0});
  // Of two equal tokens the lower id is taken first.
  expect_distribution({.top_k = 4}, {0.25 / 0.9375, 0.5 / 0.9375, 0.0625 / 0.9375, 0.125 / 0.9375, 0});
  expect_distribution({.min_p = 0.2}, {0.25 / 0.875, 0.5 / 0.875, 0, 0.125 / 0.875, 0});
  expect_distribution({.temperature = 0.5}, {0.0625 / 0.3359375, 0.25 / 0.3359375, 0.00390625 / 0.3359375,
                                             0.015625 / 0.3359375, 0.00390625 / 0.3359375});
  expect_distribution({.temperature = 0}, {0, 1, 0, 0, 0});
}

TEST(Pick, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  SamplingParams params;
  params.repetition_penalty = 2;
  const std::vector<float> logits = {1.0f, -1.0f, 0.5f};
  const auto got = sampling_distribution(logits, params, std::vector<int32_t>{0, 1, 0});
  const double e0 = std::exp(0.5), e1 = std::exp(-2.0), e2 = std::exp(0.5), sum = e0 + e1 + e2;
  EXPECT_NEAR(got[0], e0 / sum, 1e-9);
  EXPECT_NEAR(got[1], e1 / sum, 1e-9);
  EXPECT_NEAR(got[2], e2 / sum, 1e-9);
}

TEST(Pick, DrawsFollowTheDistribution) {
  const std::vector<SamplingParams> cases = {{.seed = 1},
                                             {.temperature = 0.7, .seed = 2},
                                             {.top_k = 3, .seed = 3},
                                             {.top_p = 0.8, .seed = 4},
                                             {.min_p = 0.13, .seed = 5}};
  for (const auto& params : cases) {
    const auto want = sampling_distribution(kLogits, params, {});
    std::vector<int64_t> counts(want.size(), 0);
    constexpr int64_t kDraws = 20000;
    for (int64_t i = 0; i < kDraws; ++i) {
      const Picked picked = pick_token(kLogits, params, {}, 9, static_cast<uint64_t>(i));
      EXPECT_NEAR(picked.logprob, std::log(want[static_cast<size_t>(picked.id)]), 1e-9);
      ++counts[static_cast<size_t>(picked.id)];
    }
    double chi2 = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      if (want[i] == 0) {
        EXPECT_EQ(counts[i], 0);
        continue;
      }
      const double expected = want[i] * kDraws;
      chi2 += (static_cast<double>(counts[i]) - expected) * (static_cast<double>(counts[i]) - expected) /
              expected;
    }
    EXPECT_LT(chi2, 18.47) << "p < 0.001 at 4 degrees of freedom";
  }
}

TEST(Pick, DependsOnSeedStreamAndPositionOnly) {
  SamplingParams params{.seed = 7};
  const int32_t first = pick_token(kLogits, params, {}, 1, 5).id;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(pick_token(kLogits, params, {}, 1, 5).id, first);
}

TEST(Pick, RefusesLogitsThatAreNotNumbers) {
  const std::vector<float> bad = {0.0f, NAN};
  EXPECT_THROW(pick_token(bad, {}, {}, 0, 0), Error);
}

TEST(Params, RefuseWhatIsOutOfRange) {
  for (const Json& bad :
       {Json{{"temperature", -1}}, Json{{"top_p", 0}}, Json{{"top_p", 1.5}}, Json{{"min_p", 2}},
        Json{{"repetition_penalty", 0}}, Json{{"max_tokens", -1}}, Json{{"tempeature", 1}}}) {
    EXPECT_THROW(check_options(sampling_param_specs(), bad, "sample"), Error) << bad.dump();
  }
}

}  // namespace
}  // namespace twinkle
