// GRPOLoss: values worked by hand from the formula of the paper, derivatives against torch's autograd.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>

#include "tests/thrown.h"
#include "tests/train/train_testing.h"
#include "twinkle/train/loss.h"

namespace twinkle {
namespace {

using testing::message_of;

struct Case {
  std::vector<float> logprobs, old, ref, advantages, entropy, weights;
  std::vector<int64_t> cu_scored;

  LossInput input() const {
    LossInput in{.logprob_S = at::tensor(logprobs),
                 .targets_S = at::zeros({static_cast<int64_t>(logprobs.size())}, at::kInt),
                 .weights_S = weights.empty() ? at::ones_like(at::tensor(logprobs)) : at::tensor(weights),
                 .cu_scored = cu_scored};
    if (!entropy.empty()) in.entropy_S = at::tensor(entropy);
    if (!old.empty()) in.extras["old_logps"] = at::tensor(old);
    if (!ref.empty()) in.extras["ref_logps"] = at::tensor(ref);
    if (!advantages.empty()) in.extras["advantages"] = at::tensor(advantages);
    return in;
  }
};

double mean(const LossOutput& out) { return mean_or_zero(out.sum(), out.denominator()); }

LossOutput grpo(const LossInput& in, const Json& options = nullptr) {
  return (*Registry<Loss>::create("GRPOLoss", options))(in);
}

// Ratios 1.5, 0.5 and 1 with advantages 1, -1 and 2. The first is clipped to 1.2, the second to 0.8 (for a
// negative advantage the smaller value is -0.8), the third is free: answers (-1.2 + 0.8) / 2 and -2.
TEST(GRPOLoss, ValuesByHand) {
  const auto l = [](double x) { return static_cast<float>(std::log(x)); };
  const Case c{.logprobs = {l(0.3), l(0.2), l(0.5)},
               .old = {l(0.2), l(0.4), l(0.5)},
               .advantages = {1, -1, 2},
               .cu_scored = {0, 2, 3}};
  const LossOutput out = grpo(c.input());
  EXPECT_NEAR(out.sum_B[0], -0.2, 1e-6);
  EXPECT_NEAR(out.sum_B[1], -2.0, 1e-6);
  EXPECT_EQ(out.denominator_B, (std::vector<double>{1, 1}));
  EXPECT_NEAR(mean(out), -1.1, 1e-6);
  const float* d = out.dlogprob_S.const_data_ptr<float>();
  EXPECT_EQ(d[0], 0.0f);
  EXPECT_EQ(d[1], 0.0f);
  EXPECT_NEAR(d[2], -2.0, 1e-6);
  // epsilon_high 0.6 frees the first: -1.5.
  EXPECT_NEAR(grpo(c.input(), {{"epsilon_high", 0.6}}).sum_B[0], (-1.5 + 0.8) / 2, 1e-6);
}

// x = ref - logprob = ln 2: 2 - ln 2 - 1; the derivative is 1 - 2.
TEST(GRPOLoss, DivergenceByHand) {
  Case c{.logprobs = {-2.0f}, .ref = {-2.0f + static_cast<float>(std::log(2.0))}, .advantages = {0}};
  c.cu_scored = {0, 1};
  const LossOutput out = grpo(c.input(), {{"beta", 0.5}});
  EXPECT_NEAR(mean(out), 0.5 * (1.0 - std::log(2.0)), 1e-6);
  EXPECT_NEAR(out.dlogprob_S.item<float>(), -0.5, 1e-6);
  EXPECT_EQ(mean(grpo(c.input())), 0.0);
}

TEST(GRPOLoss, DerivativesAreThoseOfAutograd) {
  at::manual_seed(3);
  const int64_t S = 40;
  const auto list = [](const at::Tensor& x) {
    return std::vector<float>(x.const_data_ptr<float>(), x.const_data_ptr<float>() + x.numel());
  };
  const at::Tensor lp = -at::rand({S}) * 3, old = lp + at::randn({S}) * 0.4, ref = lp + at::randn({S}) * 0.4,
                   advantages = at::randn({S}), entropy = at::rand({S}) * 2;
  const Case c{.logprobs = list(lp),
               .old = list(old),
               .ref = list(ref),
               .advantages = list(advantages),
               .entropy = list(entropy),
               .cu_scored = {0, 13, 14, 40}};
  const LossOutput out =
      grpo(c.input(), {{"epsilon", 0.1}, {"epsilon_high", 0.3}, {"beta", 0.2}, {"entropy_coef", 0.05}});

  const auto wide = [](const at::Tensor& x) { return x.to(at::kDouble); };
  const at::Tensor x = wide(lp).requires_grad_(true), h = wide(entropy).requires_grad_(true);
  const at::Tensor ratio = (x - wide(old)).clamp(-20, 20).exp(), a = wide(advantages);
  const at::Tensor away = wide(ref) - x;
  const at::Tensor tokens =
      -at::minimum(ratio * a, ratio.clamp(0.9, 1.3) * a) + 0.2 * (away.exp() - away - 1) - 0.05 * h;
  const at::Tensor answers =
      at::stack({tokens.slice(0, 0, 13).mean(), tokens.slice(0, 13, 14).mean(), tokens.slice(0, 14).mean()});
  answers.sum().backward();
  EXPECT_NEAR(out.sum(), answers.sum().item<double>(), 1e-6);
  EXPECT_LT((wide(out.dlogprob_S) - x.grad()).abs().max().item<double>(), 1e-6);
  EXPECT_LT((wide(out.dentropy_S) - h.grad()).abs().max().item<double>(), 1e-8);
}

TEST(GRPOLoss, TokensAndAnswersThatDoNotCount) {
  Case c{.logprobs = {-1, -2, -3}, .advantages = {1, 5, 3}, .weights = {1, 0, 1}};
  c.cu_scored = {0, 2, 2, 3};  // the second answer has no tokens; it counts as one of three
  const LossOutput out = grpo(c.input());
  EXPECT_EQ(out.sum_B, (std::vector<double>{-1, 0, -3}));
  EXPECT_DOUBLE_EQ(mean(out), -4.0 / 3);
  EXPECT_EQ(out.dlogprob_S.const_data_ptr<float>()[1], 0.0f);
}

TEST(GRPOLoss, SaysWhatIsMissing) {
  Case c{.logprobs = {-1}, .cu_scored = {0, 1}};
  EXPECT_NE(message_of([&] { grpo(c.input()); }).find("'advantages'"), std::string::npos);
  c.advantages = {1};
  EXPECT_NE(message_of([&] { grpo(c.input(), {{"beta", 0.1}}); }).find("'ref_logps'"), std::string::npos);
  EXPECT_NE(message_of([&] { grpo(c.input(), {{"epsilon", -1.0}}); }).find("epsilon"), std::string::npos);
}

TEST(GRPOLoss, KnowsTheNamesOfWhatItReads) {
  const Case c{.logprobs = {-1, -2}, .old = {-2, -1}, .advantages = {1, -1}, .cu_scored = {0, 2}};
  LossInput in = c.input();
  const double want = grpo(in).sum();
  in.extras["old_logprobs"] = in.extras["old_logps"];
  EXPECT_EQ(test::thrown([&] { grpo(in); }),
            "[GRPOLoss] 'old_logps' and 'old_logprobs' are two names of one thing; give one");
  in.extras.erase("old_logps");
  EXPECT_EQ(grpo(in).sum(), want);
  in.extras["ref_logpz"] = in.extras["advantages"];
  EXPECT_HAS(test::thrown([&] { grpo(in); }), "got 'ref_logpz' (did you mean 'ref_logps'?)");
}

}  // namespace
}  // namespace twinkle
