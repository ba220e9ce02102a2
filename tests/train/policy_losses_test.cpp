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
