#include "twinkle/train/loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/train/cross_entropy.h"
#include "twinkle/train/lambda_loss.h"

namespace twinkle {
namespace {

LossInput input(std::vector<float> logprobs, std::vector<float> weights, std::vector<int64_t> cu_scored) {
  return {.logprob_S = at::tensor(logprobs),
          .targets_S = at::zeros({static_cast<int64_t>(logprobs.size())}, at::kInt),
          .weights_S = at::tensor(weights),
          .cu_scored = std::move(cu_scored)};
}

std::vector<float> list(const at::Tensor& x) {
  return {x.const_data_ptr<float>(), x.const_data_ptr<float>() + x.numel()};
}

using test::thrown;

// One token of loss 1 and three of loss 2, in two sequences: sum 7; by tokens 7/4; by sequences (1 + 2)/2.
TEST(CrossEntropy, ReductionsByHand) {
  const auto in = input({-1, -2, -2, -2}, {1, 1, 1, 1}, {0, 1, 4});
  const auto value = [&](const char* reduction) {
    const auto loss = Registry<Loss>::create("CrossEntropyLoss", {{"reduction", reduction}});
    const auto out = (*loss)(in);
    return loss->divides() ? mean_or_zero(out.sum(), out.denominator()) : out.sum();
  };
  EXPECT_DOUBLE_EQ(value("sum"), 7.0);
  EXPECT_DOUBLE_EQ(value("token_mean"), 1.75);
  EXPECT_DOUBLE_EQ(value("mean"), 1.75);
  EXPECT_DOUBLE_EQ(value("sequence_mean"), 1.5);

  const auto out = CrossEntropyLoss(Reduction::kSequenceMean)(in);
  EXPECT_EQ(list(out.dlogprob_S), (std::vector<float>{-1.0f, -1.0f / 3, -1.0f / 3, -1.0f / 3}));
  EXPECT_EQ(out.denominator_B, (std::vector<double>{1, 1}));
  EXPECT_EQ(list(CrossEntropyLoss(Reduction::kTokenMean)(in).dlogprob_S),
            (std::vector<float>{-1, -1, -1, -1}));
}

TEST(CrossEntropy, WeightsAndEmptySequences) {
  // Weights 2 and 1; the second sequence has no scored token, the third only an unweighted one of probability
  // 0.
  const auto in = input({-1, -4, -HUGE_VALF}, {2, 1, 0}, {0, 2, 2, 3});
  const auto tokens = CrossEntropyLoss(Reduction::kTokenMean)(in);
  EXPECT_DOUBLE_EQ(mean_or_zero(tokens.sum(), tokens.denominator()), 2.0);
  EXPECT_EQ(tokens.denominator_B, (std::vector<double>{3, 0, 0}));
  const auto sequences = CrossEntropyLoss(Reduction::kSequenceMean)(in);
  EXPECT_DOUBLE_EQ(mean_or_zero(sequences.sum(), sequences.denominator()), 2.0);
  EXPECT_EQ(sequences.denominator_B, (std::vector<double>{1, 0, 0}));
  const auto nothing = CrossEntropyLoss(Reduction::kTokenMean)(input({}, {}, {0, 0}));
  EXPECT_EQ(mean_or_zero(nothing.sum(), nothing.denominator()), 0.0);
}

TEST(CrossEntropy, CoefficientsAreKnownBeforehand) {
  const auto in = input({-1, -2, -2, -2}, {1, 0.5, 1, 3}, {0, 1, 4});
  LossInput before = in;
  before.logprob_S = at::Tensor();
  for (const auto reduction : {Reduction::kSum, Reduction::kTokenMean, Reduction::kSequenceMean}) {
    const CrossEntropyLoss loss(reduction);
    EXPECT_TRUE(at::equal(loss.known_dlogprob(before), loss(in).dlogprob_S));
  }
  EXPECT_FALSE(CrossEntropyLoss(Reduction::kSum, true).known_dlogprob(before).defined());
}

// Dynamic fine-tuning: -p lp with p in the derivative, d/dlp = -p (1 + lp). p = 0.5: loss 0.346574, slope
// -0.153426.
TEST(CrossEntropy, Dft) {
  const auto out = CrossEntropyLoss(Reduction::kSum, true)(input({std::log(0.5f)}, {1}, {0, 1}));
  EXPECT_NEAR(out.sum(), 0.346574, 1e-6);
  EXPECT_NEAR(out.dlogprob_S[0].item<float>(), -0.153426, 1e-6);
}

TEST(CrossEntropy, RefusesByName) {
  EXPECT_EQ(
      thrown([] {
        Registry<Loss>::create("CrossEntropyLoss", {{"label_smoothing", 0.1}});
      }).find("[CrossEntropyLoss] 'label_smoothing': only 0 is supported: smoothing spreads the target"),
      0u);
  EXPECT_EQ(thrown([] {
              Registry<Loss>::create("CrossEntropyLoss", {{"ignore_index", 0}});
            }).find("[CrossEntropyLoss] 'ignore_index': only -100"),
            0u);
  const auto in = input({-1, -2}, {1, -1}, {0, 1, 2});
  EXPECT_EQ(thrown([&] {
              CrossEntropyLoss(Reduction::kTokenMean)(in);
            }).find("[CrossEntropyLoss] sequence 1: weight -1.0"),
            0u);
  EXPECT_DOUBLE_EQ(CrossEntropyLoss(Reduction::kSum)(in).sum(), -1.0);
}

TEST(LambdaLoss, EqualsTheClosedFormThroughAutograd) {
  const auto in = input({-1, -2, -0.5, -3}, {1, 1, 2, 1}, {0, 1, 4});
  const LambdaLoss cross_entropy(
      [](const at::Tensor& lp, const LossInput& x) { return -(lp * x.weights_S).sum(); },
      {.divide_by = DivideBy::kTokens});
  const auto mine = cross_entropy(in), ours = CrossEntropyLoss(Reduction::kTokenMean)(in);
  EXPECT_DOUBLE_EQ(mine.sum(), ours.sum());
  EXPECT_DOUBLE_EQ(mine.denominator(), ours.denominator());
  EXPECT_TRUE(at::equal(mine.dlogprob_S, ours.dlogprob_S));

  // Importance sampling: -sum r A with r = exp(lp - q); the numbers of bug report RL-01.
  LossInput policy = input({0.2f, -0.5f, 0.0f, 0.5f, -0.5f}, {1, 1, 1, 1, 1}, {0, 5});
  policy.extras["old_logprobs"] = at::zeros({5});
  policy.extras["advantages"] = at::tensor(std::vector<float>{1, 1, -2, -1, -1});
  const LambdaLoss importance([](const at::Tensor& lp, const LossInput& x) {
    return -((lp - x.extra("old_logprobs", "mine")).exp() * x.extra("advantages", "mine")).sum();
  });
  const auto out = importance(policy);
  EXPECT_NEAR(out.sum(), 2.427319, 1e-5);
  const std::vector<float> slope = {-1.221403f, -0.606531f, 2.0f, 1.648721f, 0.606531f};
  for (size_t i = 0; i < slope.size(); ++i)
    EXPECT_NEAR(out.dlogprob_S[static_cast<int64_t>(i)].item<float>(), slope[i], 1e-5);
  EXPECT_TRUE(importance.needs_whole_batch());
  EXPECT_FALSE(importance.divides());
}

TEST(LambdaLoss, EntropyIsDifferentiatedToo) {
  LossInput in = input({-1, -2}, {1, 1}, {0, 2});
  in.entropy_S = at::tensor({0.5f, 0.25f});
  const LambdaLoss loss(
      [](const at::Tensor& lp, const LossInput& x) { return -lp.sum() - 0.1 * x.entropy_S.sum(); },
      {.needs_entropy = true});
  const auto out = loss(in);
  EXPECT_NEAR(out.sum(), 3.0 - 0.075, 1e-6);
  EXPECT_EQ(list(out.dentropy_S), (std::vector<float>{-0.1f, -0.1f}));
}

TEST(LambdaLoss, RefusesWhatCannotBeTrained) {
  const auto in = input({-1, -2}, {1, 1}, {0, 2});
  EXPECT_EQ(thrown([&] { LambdaLoss([](const at::Tensor& lp, const LossInput&) { return -lp; })(in); }),
            "[LambdaLoss] the function must return one number, got a tensor of shape [2]");
  EXPECT_EQ(thrown([&] {
              LambdaLoss([](const at::Tensor& lp, const LossInput&) { return lp.detach().sum(); })(in);
            }),
            "[LambdaLoss] the result does not depend on the log-probabilities, so nothing can be trained");
  EXPECT_EQ(thrown([&] {
              LambdaLoss([](const at::Tensor& lp, const LossInput& x) {
                return (lp * x.extra("advantages", "mine")).sum();
              })(in);
            }),
            "[mine] needs 'advantages' for every sequence, none was given");
}

}  // namespace
}  // namespace twinkle
