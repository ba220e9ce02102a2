// Optimizer state kept in bf16: steps by the formula in fp32, state rounded to nearest even between them.
#include <ATen/ATen.h>

#include "tests/train/train_model_testing.h"
#include "twinkle/core/files.h"
#include "twinkle/core/parallel.h"
#include "twinkle/lora/adapter_pool.h"
#include "twinkle/train/multi_lora_transformers_model.h"

namespace twinkle::testing {
namespace {

at::Tensor normal(int64_t n, uint64_t seed, float scale = 1.0f) {
  at::Tensor out = at::empty({n});
  fill_normal(out.mutable_data_ptr<float>(), n, seed, scale);
  return out;
}

at::Tensor state_of(const Optimizer& optimizer, const std::string& name) {
  for (const auto& entry : optimizer.state()) {
    if (entry.name == name) return entry.value.clone();
  }
  ADD_FAILURE() << "no state " << name;
  return {};
}

// The stored value is the wide one rounded to nearest even; the wide one may differ from torch's in its last
// bit (more where terms cancel), which can tip what lies halfway between two.
void expect_rounded(const at::Tensor& stored, const at::Tensor& wide, const std::string& what) {
  ASSERT_EQ(stored.scalar_type(), at::kBFloat16) << what;
  const at::Tensor want = wide.to(at::kBFloat16);
  const int64_t equal = (stored == want).sum().item<int64_t>();
  EXPECT_LE(stored.numel() - equal, stored.numel() / 10000) << what;
  const at::Tensor off = (stored.to(at::kFloat) - wide).abs();
  EXPECT_TRUE((off <= wide.abs() * (1.0 / 256) + 1e-8).all().item<bool>()) << what;
}

TEST(StateDtype, AdamComputesInFp32AndRoundsWhatItKeeps) {
  // More elements than one piece of the step.
  const int64_t n = (1 << 17) + 77;
  const double lr = 1e-2, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1;
  const auto optimizer = Registry<Optimizer>::create("AdamW", {{"lr", lr},
                                                               {"betas", {beta1, beta2}},
                                                               {"eps", eps},
                                                               {"weight_decay", decay},
                                                               {"state_dtype", "bf16"}});
  EXPECT_EQ(optimizer->state_bytes_per_element(), 4);
  std::vector<TrainedTensor> params = {{.name = "w", .value = normal(n, 1), .grad = at::zeros({n})}};
  optimizer->attach(params);
  for (int64_t step = 1; step <= 5; ++step) {
    const at::Tensor m0 = state_of(*optimizer, "exp_avg.w").to(at::kFloat),
                     v0 = state_of(*optimizer, "exp_avg_sq.w").to(at::kFloat);
    const at::Tensor p0 = params[0].value.clone(), g = normal(n, 10 + static_cast<uint64_t>(step), 0.1f);
    params[0].grad.copy_(g);
    optimizer->step(params, {.lr = lr});
    // By the formula of Loshchilov & Hutter, from the state as it was kept.
    const at::Tensor m = m0 + (g - m0) * (1.0 - beta1), v = v0 * beta2 + g * g * (1.0 - beta2);
    const double t = static_cast<double>(step);
    const at::Tensor m_hat = m / (1.0 - std::pow(beta1, t)), v_hat = v / (1.0 - std::pow(beta2, t));
    const at::Tensor p = p0 * (1.0 - lr * decay) - lr * m_hat / (v_hat.sqrt() + eps);
    EXPECT_LE((params[0].value - p).abs().max().item<double>(), 1e-6) << "the weights see it unrounded";
    expect_rounded(state_of(*optimizer, "exp_avg.w"), m, "first moment");
    expect_rounded(state_of(*optimizer, "exp_avg_sq.w"), v, "second moment");
  }
}

TEST(StateDtype, SgdGivesTheBitsOfTheFormula) {
  const int64_t n = 1003;
  const auto optimizer =
      Registry<Optimizer>::create("SGD", {{"lr", 0.1}, {"momentum", 0.9}, {"state_dtype", "bf16"}});
  EXPECT_EQ(optimizer->state_bytes_per_element(), 2);
  std::vector<TrainedTensor> params = {{.name = "w", .value = normal(n, 1), .grad = at::zeros({n})}};
  at::Tensor p = params[0].value.clone(), kept;
  for (int64_t step = 1; step <= 4; ++step) {
    const at::Tensor g = normal(n, 20 + static_cast<uint64_t>(step));
    params[0].grad.copy_(g);
    optimizer->step(params, {.lr = 0.1});
    const at::Tensor momentum = step == 1 ? g : kept.to(at::kFloat) * 0.9f + g;
    p = p - momentum * 0.1f;
    kept = momentum.to(at::kBFloat16);
    EXPECT_TRUE(at::equal(params[0].value, p)) << "step " << step;
    EXPECT_TRUE(at::equal(state_of(*optimizer, "momentum_buffer.w"), kept)) << "step " << step;
  }
  EXPECT_EQ(Registry<Optimizer>::create("SGD", {{"state_dtype", "bf16"}})->state_bytes_per_element(), 0);
}

TEST(StateDtype, RoundsHalfwayCasesToEven) {
  // bf16 has 7 bits behind the point: 1 + 1/256 lies halfway between 1 and 1 + 1/128, and so on.
  const std::vector<float> given = {1.0f + 1.0f / 256, 1.0f + 3.0f / 256, 1.0f + 1.0f / 256 + 1e-6f,
                                    -1.0f - 1.0f / 256, 1.0f + 1.0f / 512},
                           want = {1.0f, 1.0f + 2.0f / 128, 1.0f + 1.0f / 128, -1.0f, 1.0f};
  const auto optimizer = Registry<Optimizer>::create("SGD", {{"momentum", 0.5}, {"state_dtype", "bf16"}});
  std::vector<TrainedTensor> params = {{.name = "w", .value = at::zeros({5}), .grad = at::tensor(given)}};
  optimizer->step(params, {.lr = 1.0});
  const at::Tensor kept = state_of(*optimizer, "momentum_buffer.w").to(at::kFloat);
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(kept[i].item<float>(), want[static_cast<size_t>(i)]) << i;
    EXPECT_EQ(params[0].value[i].item<float>(), -given[static_cast<size_t>(i)]) << "the step itself is exact";
  }
}

// What the help says of Adam's second decay.
TEST(StateDtype, TheSecondMomentFallsOnlyWhereADecayIsMoreThanHalfAPlace) {
  for (const double beta2 : {0.999, 0.99}) {
    const auto optimizer =
        Registry<Optimizer>::create("Adam", {{"betas", {0.9, beta2}}, {"state_dtype", "bf16"}});
    std::vector<TrainedTensor> params = {{.name = "w", .value = at::zeros({1}), .grad = at::ones({1})}};
    optimizer->step(params, {.lr = 1e-3});
    const float first = state_of(*optimizer, "exp_avg_sq.w").item<float>();
    params[0].grad.zero_();
    for (int i = 0; i < 100; ++i) optimizer->step(params, {.lr = 1e-3});
    const float later = state_of(*optimizer, "exp_avg_sq.w").item<float>();
    if (beta2 == 0.999) {
      EXPECT_EQ(later, first);
    } else {
      EXPECT_NEAR(later / first, std::pow(0.99, 100), 0.1);
    }
  }
}

TEST(StateDtype, BitsDoNotDependOnThreads) {
  std::vector<at::Tensor> values, states;
  const int threads = num_threads();
  for (const int count : {1, 2, 3}) {
    set_num_threads(count);
    const auto optimizer = Registry<Optimizer>::create("AdamW", {{"state_dtype", "bf16"}});
    std::vector<TrainedTensor> params = {
        {.name = "w", .value = normal(200'000, 1), .grad = normal(200'000, 2)}};
    for (int i = 0; i < 3; ++i) optimizer->step(params, {.lr = 1e-2});
    values.push_back(params[0].value);
    states.push_back(state_of(*optimizer, "exp_avg_sq.w"));
  }
  set_num_threads(threads);
  for (size_t i = 1; i < values.size(); ++i) {
    EXPECT_TRUE(at::equal(values[0], values[i]));
    EXPECT_TRUE(at::equal(states[0], states[i]));
  }
}

TEST(StateDtype, ACheckpointKeepsItAndTheNextStepsBits) {
  for (const bool full : {false, true}) {
    const Case setup{.full = full, .optimizer = {{"lr", 1e-2}, {"state_dtype", "bf16"}}};
    TempDir dir;
    const auto straight = make_model(setup);
    for (int64_t step = 0; step < 6; ++step) {
      train_step(*straight, batch(step));
      if (step == 2) straight->save({.output_dir = dir.path()});
    }
    straight->wait_for_save();
    EXPECT_EQ(straight->group().optimizer_storage()[0].scalar_type(), at::kBFloat16);
    const std::string path = dir / "checkpoint-step-3";
    // The optimizer comes from the checkpoint when none is set.
    TransformersModel resumed(stories());
    if (!full) resumed.add_adapter_to_model("default", lora());
    resumed.resume_from_checkpoint(path);
    for (int64_t step = 3; step < 6; ++step) train_step(resumed, batch(step));
    EXPECT_EQ(hash_of(resumed), hash_of(*straight)) << (full ? "full" : "adapter");
    const auto a = resumed.group().optimizer().state(), b = straight->group().optimizer().state();
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i].value, b[i].value)) << a[i].name;
    // Another precision is another run.
    const auto other = make_model({.full = full});
    EXPECT_NE(message_of([&] {
                other->resume_from_checkpoint(path);
              }).find("is bf16, this optimizer keeps fp32; set state_dtype as it was"),
              std::string::npos);
    EXPECT_NE(hash_of(*other), "");
  }
}

TEST(StateDtype, HalvesTheMomentsMemory) {
  std::vector<int64_t> bytes;
  for (const char* type : {"fp32", "bf16"}) {
    MultiLoraTransformersModel model(stories());
    model.add_adapter_to_model("a", lora());
    model.set_optimizer("AdamW", {{"state_dtype", type}}, "a");
    model.forward_backward(batch(1), {}, "a");
    model.clip_grad_and_step(1.0, 2.0, "a");
    bytes.push_back(model.pool().resident_bytes());
  }
  // Weights and two moments: 12 and 8 bytes an element, up to where each tensor ends.
  EXPECT_NEAR(static_cast<double>(bytes[1]) / static_cast<double>(bytes[0]), 8.0 / 12.0, 0.02);
  EXPECT_EQ(message_of([] { Registry<Optimizer>::create("Adam", {{"state_dtype", "fp16"}}); }),
            "[Adam] 'state_dtype': must be one of fp32, bf16, got 'fp16'");
}

}  // namespace
}  // namespace twinkle::testing
