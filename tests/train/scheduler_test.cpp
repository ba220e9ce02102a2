#include "twinkle/train/scheduler.h"

#include <gtest/gtest.h>

#include "tests/thrown.h"
#include "twinkle/core/error.h"

namespace twinkle {
namespace {

// Authority: torch.optim.lr_scheduler and transformers.optimization (tests/parity/make_scheduler_goldens.py).
TEST(Scheduler, EqualsTorchAndTransformersStepByStep) {
  const Json goldens = read_json_file(TWINKLE_SOURCE_DIR "/tests/train/goldens/schedulers.json");
  const double base = goldens["base_lr"].get<double>();
  ASSERT_GE(goldens["cases"].size(), 20u);
  for (const auto& c : goldens["cases"]) {
    const auto schedule = Registry<LRScheduler>::create(c["name"].get<std::string>(), c["options"]);
    int64_t t = 0;
    for (const auto& expected : c["lr"]) {
      EXPECT_NEAR(schedule->lr(base, t), expected.get<double>(), 1e-12 * base)
          << c["name"] << c["options"] << " step " << t;
      ++t;
    }
    EXPECT_EQ(t, 24);
  }
}

TEST(Scheduler, CosineStaysAtItsFloorOnceEnded) {
  // Warm-up 2 of 6 steps: upstream's cosine is back at 0.146 at step 7.
  const Json options = {{"num_warmup_steps", 2}, {"num_training_steps", 6}};
  const auto hold = Registry<LRScheduler>::create("CosineWarmupScheduler", options);
  EXPECT_DOUBLE_EQ(hold->lr(1.0, 0), 0.0);
  EXPECT_DOUBLE_EQ(hold->lr(1.0, 1), 0.5);
  EXPECT_DOUBLE_EQ(hold->lr(1.0, 2), 1.0);
  EXPECT_NEAR(hold->lr(1.0, 4), 0.5, 1e-15);
  EXPECT_EQ(hold->lr(1.0, 6), 0.0);
  EXPECT_EQ(hold->lr(1.0, 7), 0.0);
  Json theirs = options;
  theirs["after_end"] = "rebound";
  EXPECT_NEAR(Registry<LRScheduler>::create("CosineWarmupScheduler", theirs)->lr(1.0, 7), 0.146447, 1e-6);

  const auto annealing =
      Registry<LRScheduler>::create("CosineAnnealingLR", {{"T_max", 4}, {"eta_min", 0.25}});
  EXPECT_EQ(annealing->lr(1.0, 4), 0.25);
  EXPECT_EQ(annealing->lr(1.0, 6), 0.25);
}

TEST(Scheduler, RefusesOptionsByName) {
  const auto message = [](const std::string& name, const Json& options,
                          ErrorKind kind = ErrorKind::kInvalidArgument) {
    return test::thrown([&] { Registry<LRScheduler>::create(name, options); }, kind);
  };
  EXPECT_EQ(message("CosineAnnealingLR", Json::object()), "[CosineAnnealingLR] 'T_max': is required");
  EXPECT_EQ(message("StepLR", {{"step_size", 0}}), "[StepLR] 'step_size': must be >= 1, got 0");
  EXPECT_EQ(message("LinearWarmupScheduler", {{"num_warmup_steps", 9}, {"num_training_steps", 3}}),
            "[scheduler] 'num_warmup_steps' (9) is more than 'num_training_steps' (3)");
  EXPECT_EQ(message("polynomial", {{"num_warmup_steps", 9}, {"num_training_steps", 3}}),
            "[scheduler] 'num_warmup_steps' (9) is more than 'num_training_steps' (3)");
  // As transformers' get_polynomial_decay_schedule_with_warmup.
  const auto climbs =
      Registry<LRScheduler>::create("polynomial", {{"num_training_steps", 3}, {"lr_end", 0.5}});
  EXPECT_EQ(climbs->lr(1.0, 3), 0.5);
  EXPECT_THROW(climbs->lr(0.5, 0), Error);
  EXPECT_EQ(message("CosineWarmup", {{"num_training_steps", 3}}, ErrorKind::kNotFound)
                .find("[scheduler] there is no scheduler named 'CosineWarmup'"),
            0u);
}

}  // namespace
}  // namespace twinkle
