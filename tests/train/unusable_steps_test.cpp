// Steps that cannot be taken: those skipped for a loss that is no number, and those that destroy the weights.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/train/train_model_testing.h"
#include "twinkle/train/lambda_loss.h"

namespace twinkle {
namespace {

using testing::batch;
using testing::hash_of;
using testing::make_model;
using testing::message_of;
using testing::TempDir;
using testing::train_step;

class Unusable : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Train, Unusable, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Full" : "Lora"; });

TEST_P(Unusable, WeightsThatAreNoNumbersAreNamedAndNeverSaved) {
  TempDir dir;
  const auto model = make_model({.full = GetParam()});
  train_step(*model, batch(0));
  train_step(*model, batch(1));
  model->save({.output_dir = dir.path()});
  model->wait_for_save();
  const std::string good = hash_of(*model);
  model->forward_backward(batch(2));
  model->clip_grad_norm();
  const std::string message = message_of([&] { model->step({.lr = 1e30}); });
  EXPECT_EQ(message.find("[step] step 3 with learning rate 1e+30 made numbers of '"), 0u) << message;
  EXPECT_NE(message.find("these weights are lost"), std::string::npos) << message;
  EXPECT_EQ(message_of([&] { model->save({.name = "bad", .output_dir = dir.path()}); }).find("[save] '"), 0u);
  EXPECT_EQ(list_checkpoints(dir.path()).size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(dir / "bad"));
  // The checkpoint goes on.
  model->resume_from_checkpoint(dir / "checkpoint-step-2");
  EXPECT_EQ(hash_of(*model), good);
  train_step(*model, batch(2));
  EXPECT_EQ(model->cur_step(), 3);
}

TEST_P(Unusable, ABadStepIsUndoneWhereThatIsAskedFor) {
  const auto model = make_model({.full = GetParam()}), other = make_model({.full = GetParam()});
  for (const auto& m : {model.get(), other.get()}) train_step(*m, batch(0));
  const std::string before = hash_of(*model);
  model->group().undo_bad_steps(true);
  for (const double lr : {1e30, 3e38}) {
    model->forward_backward(batch(1));
    const StepResult result = model->step({.lr = lr, .eps = 1e-12});
    EXPECT_TRUE(result.skipped);
    EXPECT_FALSE(result.stepped);
    EXPECT_EQ(result.reason.find("step skipped: learning rate "), 0u) << result.reason;
    model->zero_grad();
    EXPECT_EQ(hash_of(*model), before);
    EXPECT_EQ(model->cur_step(), 1);
  }
  // What looks as if it could be too much and is not changes nothing either.
  for (const auto& m : {model.get(), other.get()}) {
    m->forward_backward(batch(2));
    EXPECT_TRUE(m->step({.lr = 1e-3, .eps = 1e-36}).stepped);
    m->zero_grad();
    train_step(*m, batch(3));
  }
  EXPECT_EQ(hash_of(*model), hash_of(*other));
}

// Where a gradient is 0 the step is 0 / eps, whatever the learning rate.
TEST_P(Unusable, AnEpsilonOfZeroIsNamed) {
  const auto model = make_model({.full = GetParam()});
  model->group().undo_bad_steps(true);
  model->forward_backward(batch(0));
  EXPECT_EQ(model->step({.eps = 0}).reason.find("step skipped: eps (adam_epsilon) 0.0 would make numbers of"),
            0u);
  model->zero_grad();
  model->group().undo_bad_steps(false);
  model->forward_backward(batch(0));
  const std::string message = message_of([&] { model->step({.eps = 0}); });
  EXPECT_EQ(message.find("[step] step 1 with eps (adam_epsilon) 0.0 made numbers of '"), 0u) << message;
  EXPECT_TRUE(message.ends_with("go on from a checkpoint with an eps (adam_epsilon) above 0, such as 1e-8"))
      << message;
}

TEST_P(Unusable, SkippedStepsAreCountedOverAResume) {
  TempDir dir;
  bool broken = false;
  const auto loss = [&] {
    return std::make_unique<LambdaLoss>([&broken](const at::Tensor& logprob_S, const LossInput&) {
      return -logprob_S.sum() * (broken ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
    });
  };
  const auto model = make_model({.full = GetParam()});
  model->set_loss(loss());
  train_step(*model, batch(0));
  broken = true;
  model->forward_backward(batch(1));
  EXPECT_TRUE(model->clip_grad_and_step().skipped);
  EXPECT_EQ(model->calculate_metric(true).at("skipped_steps"), 1);
  broken = false;
  train_step(*model, batch(2));
  EXPECT_EQ(model->cur_step(), 2);
  model->save({.output_dir = dir.path()});
  model->wait_for_save();
  const auto resumed = make_model({.full = GetParam()});
  resumed->set_loss(loss());
  const ResumeInfo info = resumed->resume_from_checkpoint(dir / "checkpoint-step-2");
  EXPECT_EQ(info.cur_step, 2);
  EXPECT_EQ(info.skipped_steps, 1);
  EXPECT_EQ(resumed->group().skipped_steps(), 1);
}

}  // namespace
}  // namespace twinkle
