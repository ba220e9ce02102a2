// The sampling law: the distribution against hand-worked values, and draws against it by chi-square.
#include "twinkle/sample/pick.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/kernels/isa.h"

namespace twinkle {
namespace {

// Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625 at temperature 1.
const std::vector<float> kLogits = {std::log(0.25f), std::log(0.5f), std::log(0.0625f), std::log(0.125f),
                                    std::log(0.0625f)};

void expect_distribution(const SamplingParams& params, const std::vector<double>& want,
                         const PickPlace& place = {}) {
  const auto got = sampling_distribution(kLogits, params, place);
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
  expect_distribution({.top_p = 0.93}, {0.25 / 0.9375, 0.5 / 0.9375, 0.0625 / 0.9375, 0.125 / 0.9375, 0});
  expect_distribution({.min_p = 0.2}, {0.25 / 0.875, 0.5 / 0.875, 0, 0.125 / 0.875, 0});
  // top_k leaves 0.5, 0.25, 0.125; of these 6/7 are reached by the first two.
  expect_distribution({.top_k = 3, .top_p = 0.85}, {1.0 / 3, 2.0 / 3, 0, 0, 0});
  expect_distribution({.temperature = 0.5}, {0.0625 / 0.3359375, 0.25 / 0.3359375, 0.00390625 / 0.3359375,
                                             0.015625 / 0.3359375, 0.00390625 / 0.3359375});
  expect_distribution({.temperature = 0}, {0, 1, 0, 0, 0});
}

TEST(Pick, NucleusOfAWideVocabularyEqualsTheSortedOne) {
  std::vector<float> logits(5000);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>((i * 2654435761u) % 1000) * 0.004f;  // many ties
  std::vector<std::pair<double, size_t>> sorted;
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    sorted.emplace_back(-std::exp(static_cast<double>(logits[i])), i);
    total -= sorted.back().first;
  }
  std::sort(sorted.begin(), sorted.end());
  for (const double top_p : {0.001, 0.1, 0.5, 0.9, 0.999}) {
    const auto got = sampling_distribution(logits, {.top_p = top_p}, {});
    double reached = 0;
    size_t n = 0;
    while (reached < top_p * total) reached -= sorted[n++].first;
    for (size_t k = 0; k < sorted.size(); ++k) {
      const double want = k < n ? -sorted[k].first / reached : 0.0;
      ASSERT_NEAR(got[sorted[k].second], want, 1e-12) << "top_p " << top_p << ", place " << k << " of " << n;
    }
  }
}

// Logits 3, 2, 1 have log-probabilities -0.407606, -1.407606, -2.407606; cut at 0.9
// the first two are left with -0.313262 and -1.313262.
TEST(Pick, GivesTheLogprobOfWhatItDrewFrom) {
  const std::vector<float> logits = {3, 2, 1};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Picked all = pick_token(logits, {}, {.seed = seed});
    EXPECT_NEAR(all.logprob,
                std::vector<double>({-0.407606, -1.407606, -2.407606})[static_cast<size_t>(all.id)], 1e-6);
    const Picked cut = pick_token(logits, {.top_p = 0.9}, {.seed = seed});
    ASSERT_LT(cut.id, 2);
    EXPECT_NEAR(cut.logprob, cut.id == 0 ? -0.313262 : -1.313262, 1e-6);
  }
  EXPECT_EQ(pick_token(logits, {.temperature = 0}, {}).logprob, 0);
}

TEST(Pick, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  const std::vector<float> logits = {1.0f, -1.0f, 0.5f};
  const std::vector<int32_t> history = {0, 1, 0};
  const auto got =
      sampling_distribution(logits, {.repetition_penalty = 2}, {.history = history, .prompt_tokens = 2});
  const double e0 = std::exp(0.5), e1 = std::exp(-2.0), e2 = std::exp(0.5), sum = e0 + e1 + e2;
  EXPECT_NEAR(got[0], e0 / sum, 1e-9);
  EXPECT_NEAR(got[1], e1 / sum, 1e-9);
  EXPECT_NEAR(got[2], e2 / sum, 1e-9);
}

TEST(Pick, FrequencyAndPresencePenaltiesCountTheAnswerOnly) {
  const std::vector<float> logits = {1.0f, 1.0f, 1.0f};
  const std::vector<int32_t> history = {0, 0, 1, 1, 2};  // the first two are the prompt
  const auto got = sampling_distribution(logits, {.frequency_penalty = 0.5, .presence_penalty = 0.25},
                                         {.history = history, .prompt_tokens = 2});
  const double e0 = std::exp(1.0), e1 = std::exp(1.0 - 1.25), e2 = std::exp(1.0 - 0.75), sum = e0 + e1 + e2;
  EXPECT_NEAR(got[0], e0 / sum, 1e-9);
  EXPECT_NEAR(got[1], e1 / sum, 1e-9);
  EXPECT_NEAR(got[2], e2 / sum, 1e-9);
}

TEST(Pick, BiasAndBansApplyBeforeTheDraw) {
  expect_distribution({.logit_bias = {{2, std::log(4.0)}}},
                      {0.25 / 1.1875, 0.5 / 1.1875, 0.25 / 1.1875, 0.125 / 1.1875, 0.0625 / 1.1875});
  expect_distribution({.allowed_token_ids = {3, 0}}, {2.0 / 3, 0, 0, 1.0 / 3, 0});
  expect_distribution({.forbidden_token_ids = {1}}, {0.5, 0, 0.125, 0.25, 0.125});
  const std::vector<int32_t> ends = {1, 0};
  expect_distribution({}, {0, 0, 0.25, 0.5, 0.25}, {.not_yet = ends});
  expect_distribution({}, {1.0 / 3, 2.0 / 3, 0, 0, 0}, {.drawable = 2});
  expect_distribution({.temperature = 0, .forbidden_token_ids = {1}}, {1, 0, 0, 0, 0});
  try {
    pick_token(kLogits, {.allowed_token_ids = {1}, .forbidden_token_ids = {1}}, {});
    FAIL() << "expected an error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kInvalidArgument);
  }
}

TEST(Pick, TinyTemperaturesTakeTheLikeliestAndHugeOnesAreUniform) {
  for (const double t : {5e-324, 1e-310, 1e-30}) expect_distribution({.temperature = t}, {0, 1, 0, 0, 0});
  expect_distribution({.temperature = 1e300}, {0.2, 0.2, 0.2, 0.2, 0.2});
  // Extreme penalties and biases leave numbers.
  const std::vector<int32_t> all = {0, 1, 2, 3, 4};
  for (const SamplingParams& p : {SamplingParams{.repetition_penalty = 1e-308, .logit_bias = {{1, 1e308}}},
                                  SamplingParams{.repetition_penalty = 1e308, .logit_bias = {{1, -1e308}}}}) {
    double sum = 0;
    for (const double x : sampling_distribution(kLogits, p, {.history = all})) sum += x;
    EXPECT_NEAR(sum, 1.0, 1e-12);
  }
  const std::vector<float> tie = {1, 7, 7, 0};
  EXPECT_EQ(pick_token(tie, {.temperature = 0}, {}).id, 1);
  EXPECT_EQ(pick_token(tie, {.top_k = 1, .seed = 3}, {}).id, 1);
}

TEST(Pick, DrawsFollowTheDistribution) {
  const std::vector<int32_t> history = {1, 3, 1, 0};
  const PickPlace told{.history = history, .prompt_tokens = 1};
  const std::vector<std::pair<SamplingParams, PickPlace>> cases = {
      {{}, {}},
      {{.temperature = 0.7}, {}},
      {{.temperature = 1.7}, {}},
      {{.top_k = 3}, {}},
      {{.top_p = 0.8}, {}},
      {{.min_p = 0.13}, {}},
      {{.repetition_penalty = 1.3}, told},
      {{.frequency_penalty = 0.6, .presence_penalty = -0.4}, told},
      {{.temperature = 0.8, .top_k = 4, .top_p = 0.95, .min_p = 0.05, .frequency_penalty = 0.2}, told}};
  uint64_t seed = 0;
  for (const auto& [params, where] : cases) {
    PickPlace place = where;
    place.seed = ++seed;
    const auto want = sampling_distribution(kLogits, params, place);
    std::vector<int64_t> counts(want.size(), 0);
    constexpr int64_t kDraws = 20000;
    for (int64_t i = 0; i < kDraws; ++i) {
      place.stream = static_cast<uint64_t>(i);
      const Picked picked = pick_token(kLogits, params, place);
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
    EXPECT_LT(chi2, 18.47) << "p < 0.001 at 4 degrees of freedom, case " << seed;
  }
}

// The places of one answer draw from one stream, each independent of the one before.
TEST(Pick, DrawsOfAnAnswerFollowTheDistribution) {
  std::vector<int32_t> history;
  std::vector<int64_t> pairs(4, 0);
  const std::vector<float> even = {0, 0};
  constexpr int64_t kDraws = 20000;
  for (int64_t i = 0; i < kDraws; ++i)
    history.push_back(pick_token(even, {}, {.history = history, .seed = 11, .stream = 5}).id);
  for (size_t i = 1; i < history.size(); ++i) ++pairs[static_cast<size_t>(2 * history[i - 1] + history[i])];
  double chi2 = 0;
  for (const int64_t n : pairs) {
    const double expected = (kDraws - 1) / 4.0, d = static_cast<double>(n) - expected;
    chi2 += d * d / expected;
  }
  EXPECT_LT(chi2, 16.27) << "p < 0.001 at 3 degrees of freedom";
}

TEST(Pick, DependsOnSeedStreamAndPositionOnly) {
  const std::vector<int32_t> history = {4, 4, 4, 4, 4};
  const PickPlace place{.history = history, .seed = 7, .stream = 1};
  const int32_t first = pick_token(kLogits, {}, place).id;
  for (int i = 0; i < 10; ++i) EXPECT_EQ(pick_token(kLogits, {}, place).id, first);
}

TEST(Pick, SeveralStreamsDrawAsEachAlone) {
  const std::vector<uint64_t> streams = {0, 1, 2, 3, ~uint64_t{0}, 77};
  for (const SamplingParams& params :
       {SamplingParams{}, SamplingParams{.temperature = 0.5, .top_k = 3}, SamplingParams{.temperature = 0}}) {
    PickPlace place{.seed = 9};
    const std::vector<Picked> together = pick_tokens(kLogits, params, place, streams);
    ASSERT_EQ(together.size(), streams.size());
    for (size_t i = 0; i < streams.size(); ++i) {
      place.stream = streams[i];
      const Picked alone = pick_token(kLogits, params, place);
      EXPECT_EQ(together[i].id, alone.id);
      EXPECT_EQ(together[i].logprob, alone.logprob);
    }
  }
}

TEST(Pick, RefusesLogitsThatAreNotNumbers) {
  for (const float bad : {NAN, INFINITY}) {
    const std::vector<float> logits = {0.0f, bad};
    EXPECT_THROW(pick_token(logits, {}, {}), Error);
  }
}

TEST(Pick, EveryInstructionSetGivesTheSameLaw) {
  std::vector<float> logits(5003);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>((i * 2654435761u) % 100003) * 3e-4f - 17.0f;
  const Isa before = active_isa();
  for (const double temperature : {1.0, 0.7, 3.0, 0.004}) {
    // Against the C library's exponential.
    const double top = *std::ranges::max_element(logits);
    std::vector<double> want(logits.size());
    double total = 0;
    for (size_t i = 0; i < logits.size(); ++i)
      total += want[i] = std::exp((static_cast<double>(logits[i]) - top) / temperature);
    for (const Isa isa : available_isas()) {
      force_isa(isa);
      const auto got = sampling_distribution(logits, {.temperature = temperature}, {});
      static std::vector<double> first;
      if (isa == available_isas().front()) first = got;
      EXPECT_EQ(got, first) << isa_name(isa) << " at " << temperature;
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i] * total, want[i], 1e-14 * want[i] + 1e-300) << isa_name(isa) << ", token " << i;
    }
  }
  force_isa(before);
}

TEST(Params, RefuseWhatIsOutOfRange) {
  for (const Json& bad : {Json{{"temperature", -1}}, Json{{"top_p", 0}}, Json{{"top_p", 1.5}},
                          Json{{"min_p", 2}}, Json{{"repetition_penalty", 0}}, Json{{"max_tokens", -1}},
                          Json{{"presence_penalty", 3}}, Json{{"num_samples", 0}}, Json{{"tempeature", 1}}}) {
    EXPECT_THROW(check_options(sampling_param_specs(), bad, "sample"), Error) << bad.dump();
  }
}

TEST(Params, AreCheckedAgainstTheVocabulary) {
  const auto message = [](const SamplingParams& p) {
    return test::thrown([&] { check_sampling_params(p, 10, "[sample] "); });
  };
  EXPECT_EQ(message({}), "");
  EXPECT_EQ(message({.stop_token_ids = {10}}),
            "[sample] 'stop_token_ids' must be of tokens below 10, got 10");
  EXPECT_EQ(message({.logit_bias = {{-1, 2.0}}}), "[sample] 'logit_bias' must be of tokens below 10, got -1");
  EXPECT_EQ(message({.temperature = -0.5}), "[sample] 'temperature' must be a number from 0, got -0.5");
  EXPECT_EQ(message({.top_p = 0}), "[sample] 'top_p' must be above 0 and at most 1, got 0.0");
  EXPECT_EQ(message({.max_tokens = 4, .min_tokens = 5}), "[sample] 'min_tokens' must be from 0 to 4, got 5");
  EXPECT_EQ(message({.stop = {"a", ""}}), "[sample] 'stop' has an empty string");
  EXPECT_NE(message({.temperature = NAN}), "");
}

}  // namespace
}  // namespace twinkle
