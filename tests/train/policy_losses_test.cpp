// The losses of policy gradients against their formulas worked by hand: lp = log 0.5, q = log 0.25, so r = 2;
// and lp = log 0.5, q = log 0.5, so r = 1.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/core/error.h"
#include "twinkle/train/loss.h"

namespace twinkle {
namespace {

const float kHalf = std::log(0.5f), kQuarter = std::log(0.25f);

LossInput input(std::vector<float> lp, std::vector<float> q, std::vector<float> a) {
  LossInput in;
  const auto tensor = [](const std::vector<float>& values) { return at::tensor(values, at::kFloat); };
  in.cu_scored = {0, static_cast<int64_t>(lp.size())};
  in.logprob_S = tensor(lp);
  in.weights_S = at::ones({static_cast<int64_t>(lp.size())});
  in.extras = {{"old_logprobs", tensor(q)}, {"advantages", tensor(a)}};
  return in;
}

void expect(const std::string& name, const Json& options, const LossInput& in, double value,
            const std::vector<float>& derivative) {
  const auto loss = Registry<Loss>::create(name, options);
  EXPECT_FALSE(loss->divides());
  const LossOutput out = (*loss)(in);
  EXPECT_NEAR(out.sum(), value, 1e-6) << name;
  for (size_t i = 0; i < derivative.size(); ++i)
    EXPECT_NEAR(out.dlogprob_S.const_data_ptr<float>()[i], derivative[i], 1e-6) << name << " " << i;
}

TEST(PolicyLosses, AreTheirFormulas) {
  const LossInput up = input({kHalf, kHalf}, {kQuarter, kHalf}, {3, 3});  // r = 2 and 1
  const LossInput down = input({kHalf, kHalf}, {kQuarter, kHalf}, {-3, -3});
  expect("importance_sampling", nullptr, up, -9, {-6, -3});
  expect("ppo", nullptr, up, -(1.2 * 3) - 3, {0, -3});  // clipped above: no derivative
  expect("ppo", nullptr, down, 6 + 3, {6, 3});          // the bound does not help a bad token
  expect("ppo", {{"clip_high_threshold", 3.0}}, up, -9, {-6, -3});
  expect("cispo", nullptr, up, -(1.2 * 3 + 3) * kHalf, {-3.6f, -3});
  const double pull = 0.5 * 0.1 * std::log(2.0) * std::log(2.0);
  expect("dro", {{"beta", 0.1}}, up, -(2 * 3.0 * kHalf - pull),
         {static_cast<float>(-(3 - 0.1 * std::log(2.0))), -3});
}

// One sequence ratio for both targets: exp((log 2 + 0) / 2) = sqrt 2, or 2 where the mask leaves out the
// second. Its derivative goes to the targets of the mask.
TEST(PolicyLosses, GspoClipsTheRatioOfASequence) {
  const double root = std::sqrt(2.0);
  const LossInput up = input({kHalf, kHalf}, {kQuarter, kHalf}, {3, 1});
  const auto each = static_cast<float>(-root * 4 / 2);
  expect("gspo", {{"clip_high_threshold", 3.0}}, up, -4 * root, {each, each});
  expect("gspo", nullptr, up, -4 * 1.2, {0, 0});
  // The bound holds the good target only: -min(s 3, 1.2 3) - min(-s, -1.2).
  const LossInput mixed = input({kHalf, kHalf}, {kQuarter, kHalf}, {3, -1});
  const auto half = static_cast<float>(root / 2);
  expect("gspo", nullptr, mixed, -3.6 + root, {half, half});
  LossInput masked = mixed;
  masked.extras["sequence_ratio_mask"] = at::tensor({1.0f, 0.0f});
  expect("gspo", nullptr, masked, -3.6 + 2, {2, 0});
  // Two sequences have a ratio each.
  LossInput two = up;
  two.cu_scored = {0, 1, 2};
  expect("gspo", {{"clip_high_threshold", 3.0}}, two, -2 * 3 - 1, {-6, -1});
  const LossInput idle = input({-1000, 90}, {0, -90}, {0, 0});
  expect("gspo", nullptr, idle, 0, {0, 0});
  EXPECT_THROW(Registry<Loss>::create("gspo", {{"clip_low_threshold", 1.5}}), Error);
}

// r = 2 and 1; x = -log 2 and 0, so the divergence is 1/2 - 1 + log 2 and 0, its derivative 1 - 1/2 and 0.
TEST(PolicyLosses, StableReinforceIsHeldNearTheSampler) {
  const LossInput in = input({kHalf, kHalf}, {kQuarter, kHalf}, {3, -1});
  const double divergence = 0.5 - 1 + std::log(2.0);
  expect("stable_reinforce", nullptr, in, -2 * 3 + 1 + 0.01 * divergence, {-6 + 0.005f, 1});
  expect("stable_reinforce", {{"kl_coeff", 2.0}}, in, -2 * 3 + 1 + 2 * divergence, {-6 + 1, 1});
  expect("stable_reinforce", {{"kl_coeff", 0.0}}, in, -5, {-6, 1});
  // Over a prompt, whose log-probability and advantage are 0, there is neither part, unless it was sampled.
  LossInput prompt = input({kHalf, -1000}, {0, 0}, {0, 0});
  expect("stable_reinforce", {{"kl_coeff", 2.0}}, prompt, 0, {0, 0});
  prompt.extras["sampled"] = at::tensor({1.0f, 0.0f});
  expect("stable_reinforce", {{"kl_coeff", 2.0}}, prompt, 2 * (2 - std::log(2.0) - 1), {-2, 0});
  EXPECT_THROW(Registry<Loss>::create("stable_reinforce", {{"kl_coeff", -1.0}}), Error);
}

TEST(PolicyLosses, TakeBoundsForEachTarget) {
  LossInput in = input({kHalf, kHalf}, {kQuarter, kQuarter}, {3, 3});  // r = 2
  in.extras["clip_high_threshold"] = at::tensor({1.5f, 3.0f});
  expect("ppo", nullptr, in, -4.5 - 6, {0, -6});
  expect("cispo", nullptr, in, -(4.5 + 6) * kHalf, {-4.5f, -6});
  in.extras["clip_low_threshold"] = at::tensor({1.75f, 0.0f});
  EXPECT_THROW((*Registry<Loss>::create("ppo", nullptr))(in), Error);
}

// Prompts come as logprob 0 and advantage 0; a target that is all but impossible there must add nothing.
TEST(PolicyLosses, AddNothingWhereTheAdvantageIsZero) {
  const LossInput in = input({-1000, 90}, {0, -90}, {0, 0});
  for (const char* name : {"importance_sampling", "ppo", "cispo"}) expect(name, nullptr, in, 0, {0, 0});
}

TEST(PolicyLosses, CheckTheirOptions) {
  EXPECT_THROW(Registry<Loss>::create("ppo", {{"clip_low_threshold", 1.5}}), Error);
  EXPECT_THROW(Registry<Loss>::create("ppo", {{"clip_low", 0.5}}), Error);
  EXPECT_THROW(Registry<Loss>::create("dro", {{"beta", -1}}), Error);
}

}  // namespace
}  // namespace twinkle
