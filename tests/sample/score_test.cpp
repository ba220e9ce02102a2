// labels: quick bits
#include "twinkle/sample/score.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/sample/sample_testing.h"
#include "twinkle/core/parallel.h"

namespace twinkle {
namespace {

using test::random_tokens;
using test::TinySampling;

// log softmax of the model's own logits, by ATen in fp64.
std::vector<double> by_logits(CausalLM& model, const std::vector<int32_t>& ids) {
  InputFeature feature;
  feature.input_ids = ids;
  feature.labels.assign(ids.size(), kIgnoreIndex);
  const at::Tensor hidden = model.forward(pack(std::span(&feature, 1)), nullptr, {}).clone();
  const at::Tensor all = at::log_softmax(model.logits(model.arena(), hidden, nullptr).to(at::kDouble), 1);
  std::vector<double> out;
  for (size_t t = 0; t + 1 < ids.size(); ++t)
    out.push_back(all[static_cast<int64_t>(t)][ids[t + 1]].item<double>());
  model.finish();
  return out;
}

TEST(ScoreSequences, GivesTheLogProbabilityOfEachNextToken) {
  const TinySampling tiny;
  const std::vector<int32_t> ids = random_tokens(37, 5);
  const auto got = score_sequences(*tiny.model, nullptr, {ids})[0];
  const auto want = by_logits(*tiny.model, ids);
  ASSERT_EQ(got.size(), 36u);
  for (size_t t = 0; t < got.size(); ++t) EXPECT_NEAR(got[t], want[t], 1e-5 * (1 + std::abs(want[t]))) << t;
}

TEST(ScoreSequences, DependsOnNoNeighbourPassOrThread) {
  const TinySampling tiny;
  const auto adapter = tiny.adapter(4, {"all-linear"}, 9);
  std::vector<std::vector<int32_t>> rows;
  for (const int64_t length : {5, 1, 64, 23, 2, 40})
    rows.push_back(random_tokens(length, 70 + static_cast<uint64_t>(length)));
  // Some begin alike: what they have in common is computed once.
  for (const int64_t common : {40, 17, 29, 40}) {
    rows.push_back(random_tokens(10, 90 + static_cast<uint64_t>(rows.size())));
    rows.back().insert(rows.back().begin(), rows[5].begin(), rows[5].begin() + common);
  }
  for (Adapter* with : {static_cast<Adapter*>(nullptr), adapter.get()}) {
    const auto all = score_sequences(*tiny.model, with, rows);
    ASSERT_EQ(all.size(), rows.size());
    EXPECT_TRUE(all[1].empty());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(score_sequences(*tiny.model, with, {rows[i]})[0], all[i]) << "alone " << i;
    }
    EXPECT_EQ(score_sequences(*tiny.model, with, rows, 30), all);
    EXPECT_EQ(score_sequences(*tiny.model, with, rows, 1), all);
    const int threads = num_threads();
    set_num_threads(threads == 1 ? 2 : 1);
    EXPECT_EQ(score_sequences(*tiny.model, with, rows), all);
    set_num_threads(threads);
  }
  EXPECT_NE(score_sequences(*tiny.model, adapter.get(), rows), score_sequences(*tiny.model, nullptr, rows));
}

TEST(ScoreSequences, NamesWhatItCannotScore) {
  const TinySampling tiny;
  const auto message = [&](const std::vector<std::vector<int32_t>>& rows) {
    return test::thrown([&] { score_sequences(*tiny.model, nullptr, rows); });
  };
  EXPECT_EQ(message({{1, 2}, {}}), "[score] sequence 1 has no tokens");
  EXPECT_EQ(message({{1, 2}, {3, 259}}),
            "[score] sequence 1, position 1: token 259 is not in the vocabulary of 259");
  EXPECT_EQ(message({{-1}}), "[score] sequence 0, position 0: token -1 is not in the vocabulary of 259");
  EXPECT_TRUE(score_sequences(*tiny.model, nullptr, {}).empty());
}

}  // namespace
}  // namespace twinkle
