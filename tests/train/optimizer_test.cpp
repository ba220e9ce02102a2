#include "twinkle/train/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/thrown.h"
#include "twinkle/core/error.h"
#include "twinkle/core/parallel.h"
#include "twinkle/core/rng.h"

namespace twinkle {
namespace {

at::Tensor tensor_of(const Json& list) { return at::tensor(list.get<std::vector<float>>()); }

using test::thrown;

// Authority: torch.optim (tests/parity/make_optimizer_goldens.py).
TEST(Optimizer, EqualsTorchStepByStep) {
  const Json goldens = read_json_file(TWINKLE_SOURCE_DIR "/tests/train/goldens/optimizers.json");
  for (const auto& c : goldens["cases"]) {
    const auto optimizer = Registry<Optimizer>::create(c["name"].get<std::string>(), c["options"]);
    std::vector<TrainedTensor> params = {{.name = "w", .value = tensor_of(goldens["start"])}};
    for (size_t step = 0; step < c["after"].size(); ++step) {
      // The division by the batch's count is folded into the step: a doubled gradient at half scale is the
      // same.
      params[0].grad = tensor_of(goldens["gradients"][step]) * 2.0;
      optimizer->step(params, {.lr = optimizer->lr(), .grad_scale = 0.5});
      const at::Tensor expected = tensor_of(c["after"][step]);
      const double error = (params[0].value - expected).abs().max().item<double>();
      EXPECT_LE(error, 1e-6 * expected.abs().max().item<double>())
          << c["name"] << c["options"] << " step " << step;
    }
    EXPECT_EQ(optimizer->steps_taken(), 6);
  }
}

TEST(Optimizer, DecaysSmallRatesInFp32AndLeavesNormsAlone) {
  // lr 1e-4, decay 0.01, no gradient, 10 000 steps: (1 - 1e-6)^10000 = 0.990050; bf16 weights would not move.
  const auto optimizer = Registry<Optimizer>::create("AdamW", {{"lr", 1e-4}, {"weight_decay", 0.01}});
  std::vector<TrainedTensor> params = {{.name = "layers.0.mlp.up_proj.weight",
                                        .value = at::ones({3}),
                                        .grad = at::zeros({3}),
                                        .decay = decays("layers.0.mlp.up_proj.weight")},
                                       {.name = "norm.weight",
                                        .value = at::ones({3}),
                                        .grad = at::zeros({3}),
                                        .decay = decays("norm.weight")}};
  for (int i = 0; i < 10000; ++i) optimizer->step(params, {.lr = 1e-4});
  EXPECT_NEAR(params[0].value[1].item<double>(), 0.990050, 2e-4);
  EXPECT_LT(params[0].value[1].item<double>(), 0.9906);
  EXPECT_EQ(params[1].value[1].item<double>(), 1.0);
}

TEST(Optimizer, DecayRule) {
  EXPECT_TRUE(decays("model.layers.3.self_attn.q_proj.weight"));
  EXPECT_TRUE(decays("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"));
  EXPECT_TRUE(decays("model.embed_tokens.weight"));
  EXPECT_FALSE(decays("model.layers.3.self_attn.q_proj.bias"));
  EXPECT_FALSE(decays("model.layers.3.input_layernorm.weight"));
  EXPECT_FALSE(decays("model.layers.3.self_attn.q_norm.weight"));
  EXPECT_FALSE(decays("transformer.ln.LayerNorm.weight"));
}

TEST(Optimizer, OverridesHoldForOneStepOnly) {
  const auto make = [] { return Registry<Optimizer>::create("AdamW", {{"lr", 0.1}, {"weight_decay", 0.5}}); };
  const auto one = make(), other = make();
  std::vector<TrainedTensor> a = {{.name = "w", .value = at::ones({2}), .grad = at::zeros({2})}};
  std::vector<TrainedTensor> b = {{.name = "w", .value = at::ones({2}), .grad = at::zeros({2})}};
  one->step(a, {.lr = 0.1, .overrides = {.weight_decay = 0.0}});
  EXPECT_EQ(a[0].value[0].item<float>(), 1.0f);
  one->step(a, {.lr = 0.1});
  other->step(b, {.lr = 0.1});
  EXPECT_FLOAT_EQ(a[0].value[0].item<float>(), 0.95f);
  EXPECT_TRUE(at::equal(a[0].value, b[0].value));
  EXPECT_EQ(
      thrown([&] { Registry<Optimizer>::create("SGD")->step(a, {.lr = 0.1, .overrides = {.beta1 = 0.9}}); }),
      "[SGD] 'betas' and 'eps' are options of Adam; SGD has neither");
}

TEST(Optimizer, StateGoesOutAndComesBackExactly) {
  for (const char* name : {"AdamW", "Adam", "SGD"}) {
    const Json options = std::string(name) == "SGD" ? Json{{"momentum", 0.9}} : Json::object();
    const auto run = [&](Optimizer& optimizer, std::vector<TrainedTensor>& params, int from, int to) {
      for (int i = from; i < to; ++i) {
        for (size_t k = 0; k < params.size(); ++k) {
          fill_normal(params[k].grad.mutable_data_ptr<float>(), params[k].grad.numel(), mix_key(i, k), 1.0f);
        }
        optimizer.step(params, {.lr = 0.01});
      }
    };
    const auto fresh = [] {
      return std::vector<TrainedTensor>{{.name = "a", .value = at::ones({5}), .grad = at::zeros({5})},
                                        {.name = "b", .value = at::ones({2, 3}), .grad = at::zeros({2, 3})}};
    };
    auto straight = fresh();
    const auto whole = Registry<Optimizer>::create(name, options);
    run(*whole, straight, 0, 7);

    auto resumed = fresh();
    const auto first = Registry<Optimizer>::create(name, options);
    run(*first, resumed, 0, 4);
    std::vector<Optimizer::StateTensor> saved;
    for (const auto& s : first->state()) saved.push_back({s.name, s.value.clone()});
    const auto second = Registry<Optimizer>::create(name, options);
    second->attach(resumed);
    second->load_state(saved, first->steps_taken());
    run(*second, resumed, 4, 7);
    for (size_t k = 0; k < straight.size(); ++k)
      EXPECT_TRUE(at::equal(straight[k].value, resumed[k].value)) << name;

    EXPECT_EQ(saved[0].name, std::string(name) == "SGD" ? "momentum_buffer.a" : "exp_avg.a");
    auto torn = saved;
    torn.pop_back();
    EXPECT_NE(thrown([&] { second->load_state(torn, 4); }).find("[optimizer] state lacks '"),
              std::string::npos);
    auto misshapen = saved;
    misshapen[0].value = at::zeros({4});
    EXPECT_NE(thrown([&] { second->load_state(misshapen, 4); }).find("has 4 elements, needed 5"),
              std::string::npos);
    auto foreign = saved;
    foreign[0].name = "exp_avg.zz";
    EXPECT_NE(thrown([&] { second->load_state(foreign, 4); }).find("'exp_avg.zz', which"), std::string::npos);
  }
}

TEST(Optimizer, BitsDoNotDependOnThreads) {
  for (const char* name : {"AdamW", "SGD"}) {
    std::vector<at::Tensor> results;
    for (const int threads : {1, 2}) {
      set_num_threads(threads);
      const auto optimizer =
          Registry<Optimizer>::create(name, std::string(name) == "SGD" ? Json{{"momentum", 0.9}} : Json());
      std::vector<TrainedTensor> params = {
          {.name = "w", .value = at::empty({100003}), .grad = at::empty({100003})}};
      fill_normal(params[0].value.mutable_data_ptr<float>(), 100003, 1, 1.0f);
      fill_normal(params[0].grad.mutable_data_ptr<float>(), 100003, 2, 1.0f);
      for (int i = 0; i < 3; ++i) optimizer->step(params, {.lr = 0.01, .grad_scale = 0.37});
      results.push_back(params[0].value);
    }
    EXPECT_TRUE(at::equal(results[0], results[1])) << name;
  }
  set_num_threads(2);
}

TEST(Optimizer, NormsSeeInfinityAndNan) {
  std::vector<TrainedTensor> params = {{.name = "a", .grad = at::tensor({3.0f})},
                                       {.name = "b", .grad = at::tensor({-4.0f, 0.0f})}};
  EXPECT_DOUBLE_EQ(std::sqrt(gradient_sum_of_squares(params)), 5.0);
  EXPECT_DOUBLE_EQ(gradient_max_abs(params), 4.0);
  params[1].grad = at::tensor({std::nanf(""), 1.0f});
  EXPECT_TRUE(std::isnan(gradient_sum_of_squares(params)));
  EXPECT_TRUE(std::isnan(gradient_max_abs(params)));
  params[1].grad = at::tensor({HUGE_VALF, 1.0f});
  EXPECT_TRUE(std::isinf(gradient_sum_of_squares(params)));
  EXPECT_TRUE(std::isinf(gradient_max_abs(params)));
}

TEST(Optimizer, RefusesOptionsByName) {
  EXPECT_EQ(thrown([] { Registry<Optimizer>::create("AdamW", {{"lr", -1}}); }),
            "[AdamW] 'lr': must be >= 0, got -1");
  EXPECT_EQ(thrown([] { Registry<Optimizer>::create("AdamW", {{"betas", {0.9}}}); }),
            "[AdamW] 'betas': needs two numbers, got [0.9]");
  EXPECT_EQ(thrown([] {
              Registry<Optimizer>::create("Adam", {{"betas", {0.9, 1.0}}});
            }).find("[Adam] 'betas': each must be"),
            0u);
  EXPECT_EQ(thrown([] { Registry<Optimizer>::create("SGD", {{"nesterov", true}}); }),
            "[SGD] 'nesterov': needs momentum > 0 and dampening 0");
  EXPECT_EQ(thrown([] { Registry<Optimizer>::create("Adamw2"); }, ErrorKind::kNotFound)
                .find("[optimizer] there is no optimizer named 'Adamw2'"),
            0u);
}

}  // namespace
}  // namespace twinkle
