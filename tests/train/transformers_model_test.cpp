#include "twinkle/train/transformers_model.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/train/train_model_testing.h"
#include "twinkle/train/cross_entropy.h"
#include "twinkle/train/lambda_loss.h"

namespace twinkle {
namespace {

using testing::batch;
using testing::Case;
using testing::features;
using testing::hash_of;
using testing::make_model;
using testing::message_of;
using testing::train_step;

class Both : public ::testing::TestWithParam<bool> {
 protected:
  Case setup(TransformersModelOptions options = {}) const { return {.full = GetParam(), .options = options}; }
};
INSTANTIATE_TEST_SUITE_P(Train, Both, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Full" : "Lora"; });

TEST_P(Both, LearnsAndReportsNumbers) {
  const auto model = make_model(setup());
  const auto data = batch(1);
  const double first = train_step(*model, data);
  EXPECT_GT(first, 4.0);  // random tokens
  double last = first;
  for (int i = 0; i < 12; ++i) last = train_step(*model, data);
  EXPECT_LT(last, first - 0.3);
  EXPECT_EQ(model->cur_step(), 13);
  const Json metrics = model->calculate_metric(true);
  EXPECT_EQ(metrics["iters"], 13);
  EXPECT_EQ(metrics["tokens_seen"], 13 * 98);
  EXPECT_GT(metrics["grad_norm"].get<double>(), 0.0);
  // The rate that step 13 used: 2 steps of warm-up, then 48 to zero; the schedule stood at 12.
  EXPECT_DOUBLE_EQ(metrics["learning_rate"].get<double>(), 1e-2 * 38.0 / 48.0);
  EXPECT_GT(metrics["accuracy"].get<double>(), 0.0);
  EXPECT_LT(metrics["loss"].get<double>(), first);
}

TEST_P(Both, SeparateCallsEqualForwardBackward) {
  const auto one = make_model(setup()), other = make_model(setup());
  for (int step = 0; step < 3; ++step) {
    const double a = train_step(*one, batch(step));
    other->forward(batch(step));
    const double b = other->calculate_loss();
    other->backward();
    other->clip_grad_norm();
    other->step();
    other->zero_grad();
    other->lr_step();
    EXPECT_EQ(a, b);
  }
  EXPECT_EQ(hash_of(*one), hash_of(*other));
}

// A loss over the whole call runs every pass twice when the call does not fit into one; the bits are the
// same.
TEST_P(Both, ALambdaEqualsCrossEntropyHoweverManyPasses) {
  for (const int64_t tokens : {4096, 30, 1}) {
    const auto theirs = make_model(setup({.micro_batch_tokens = tokens}));
    theirs->set_loss(std::make_unique<LambdaLoss>(
        [](const at::Tensor& lp, const LossInput& in) { return -(lp * in.weights_S).sum(); },
        LambdaLossOptions{.divide_by = DivideBy::kTokens}));
    const auto fresh = make_model(setup());
    for (int step = 0; step < 3; ++step) {
      const double a = train_step(*fresh, batch(step)), b = train_step(*theirs, batch(step));
      EXPECT_NEAR(a, b, 1e-5 * a);
    }
    EXPECT_EQ(hash_of(*fresh), hash_of(*theirs)) << tokens;
  }
}

TEST_P(Both, AccumulationEndsExactlyAtItsBoundary) {
  auto with_accumulation = setup();
  with_accumulation.options.gradient_accumulation_steps = 2;
  const auto model = make_model(with_accumulation);
  std::vector<bool> stepped;
  for (int call = 0; call < 4; ++call) {
    model->forward_backward(batch(call));
    const auto norm = model->clip_grad_norm();
    const StepResult result = model->step();
    EXPECT_EQ(norm.has_value(), result.stepped);
    model->zero_grad();
    model->lr_step();
    stepped.push_back(result.stepped);
    if (!result.stepped) {
      EXPECT_EQ(result.reason, "1 of 2 calls are accumulated");
    }
  }
  EXPECT_EQ(stepped, (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(model->cur_step(), 2);
  EXPECT_EQ(model->group().schedule_position(), 2);
}

// A mean over the whole accumulated batch: 2 scored tokens in one call and many in the next are one batch.
TEST_P(Both, AccumulatedCallsEqualOneBigCall) {
  for (const char* reduction : {"token_mean", "sequence_mean", "sum"}) {
    auto accumulated_setup = setup();
    accumulated_setup.options.gradient_accumulation_steps = 3;
    const auto accumulated = make_model(accumulated_setup), whole = make_model(setup());
    accumulated->set_loss("CrossEntropyLoss", {{"reduction", reduction}});
    whole->set_loss("CrossEntropyLoss", {{"reduction", reduction}});
    for (int step = 0; step < 3; ++step) {
      const auto all = batch(step);
      std::optional<double> norm;
      for (const auto& [from, to] : {std::pair{0, 1}, {1, 4}, {4, 6}}) {
        accumulated->forward_backward(std::vector<InputFeature>(all.begin() + from, all.begin() + to));
        norm = accumulated->clip_grad_norm();
        accumulated->step();
        accumulated->zero_grad();
        accumulated->lr_step();
      }
      whole->forward_backward(all);
      const auto expected = whole->clip_grad_norm();
      whole->step();
      whole->zero_grad();
      whole->lr_step();
      EXPECT_EQ(*norm, *expected) << reduction;
    }
    EXPECT_EQ(hash_of(*accumulated), hash_of(*whole)) << reduction;
  }
}

TEST_P(Both, ALastShortAccumulationCountsRight) {
  auto four = setup();
  four.options.gradient_accumulation_steps = 4;
  const auto shortened = make_model(four), whole = make_model(setup());
  shortened->forward_backward(batch(1));
  EXPECT_FALSE(shortened->step().stepped);
  shortened->flush_accumulation();
  EXPECT_TRUE(shortened->clip_grad_and_step().stepped);
  EXPECT_EQ(shortened->group().pending_calls(), 0);
  whole->forward_backward(batch(1));
  whole->clip_grad_and_step();
  EXPECT_EQ(hash_of(*shortened), hash_of(*whole));
  shortened->forward_backward(batch(2));  // counting begins anew
  EXPECT_EQ(shortened->step().reason, "1 of 4 calls are accumulated");
}

TEST_P(Both, AStepUsesItsOwnGradientsOnly) {
  const auto tidy = make_model(setup()), forgetful = make_model(setup());
  for (int step = 0; step < 3; ++step) {
    train_step(*tidy, batch(step));
    forgetful->forward_backward(batch(step));
    EXPECT_TRUE(forgetful->step().stepped);  // neither clipped nor zeroed
    EXPECT_EQ(forgetful->step().reason, "nothing has been accumulated since the last step");
    forgetful->lr_step();
    forgetful->lr_step();  // a second one does nothing
  }
  EXPECT_EQ(forgetful->group().schedule_position(), 3);
  EXPECT_EQ(forgetful->cur_step(), 3);
  const auto unclipped = make_model(setup());
  for (int step = 0; step < 3; ++step) {
    unclipped->forward_backward(batch(step));
    unclipped->clip_grad_and_step(0.0);
  }
  EXPECT_EQ(hash_of(*forgetful), hash_of(*unclipped));
}

TEST_P(Both, ClippingIsGlobalAndReportsTheNormBefore) {
  auto sgd = setup();
  const auto plain = make_model(sgd), clipped = make_model(sgd);
  for (auto* model : {plain.get(), clipped.get()}) {
    model->set_optimizer("SGD", {{"lr", 1.0}});
    model->set_lr_scheduler("ConstantWarmupScheduler");
  }
  const auto before = plain->get_state_dict();
  plain->forward_backward(batch(1));
  clipped->forward_backward(batch(1));
  const double norm = *plain->clip_grad_norm(0.0);
  EXPECT_EQ(*clipped->clip_grad_norm(norm / 4), norm);
  const double largest = *plain->clip_grad_norm(0.0, HUGE_VAL);
  EXPECT_LT(largest, norm);
  EXPECT_GT(largest, 0.0);
  plain->step();
  clipped->step();
  // The update of SGD is the gradient: its norm is the norm, and a quarter of it when clipped.
  const auto moved = [&](TransformersModel& model) {
    double sum = 0;
    for (const auto& [name, value] : model.get_state_dict()) {
      sum += (value - before.at(name)).to(at::kDouble).pow(2).sum().item<double>();
    }
    return std::sqrt(sum);
  };
  EXPECT_NEAR(moved(*plain), norm, 1e-4 * norm);
  EXPECT_NEAR(moved(*clipped), norm / 4, 1e-4 * norm);
  EXPECT_EQ(message_of([&] {
              plain->clip_grad_norm(1.0, 1.0);
            }).find("[clip_grad_norm] norm_type must be 2 or inf"),
            0u);
}

TEST_P(Both, NothingIsLeftBehindByABadCall) {
  const auto model = make_model(setup({.micro_batch_tokens = 16}));
  const auto check = [&](const std::string& expected,
                         const std::function<void(std::vector<InputFeature>&)>& spoil) {
    auto data = batch(1);
    spoil(data);
    EXPECT_EQ(message_of([&] { model->forward_backward(data); }), expected);
    EXPECT_EQ(model->step().reason, "nothing has been accumulated since the last step");
  };
  check("[batch] there are no sequences", [](auto& d) { d.clear(); });
  check("[batch] sequence 4 (rows.jsonl row 5): has no tokens", [](auto& d) { d[4].input_ids.clear(); });
  check("[batch] sequence 5 (rows.jsonl row 6): has 3 labels for 16 tokens",
        [](auto& d) { d[5].labels.resize(3); });
  check("[batch] sequence 3 (rows.jsonl row 4): has 1 weights for 40 labels",
        [](auto& d) { d[3].weights = {1.0f}; });
  check("[batch] sequence 5 (rows.jsonl row 6): token 512 at position 2 is not in the vocabulary of 512",
        [](auto& d) { d[5].input_ids[2] = 512; });
  check("[batch] sequence 5 (rows.jsonl row 6): label -1 at position 9 is not in the vocabulary of 512",
        [](auto& d) { d[5].labels[9] = -1; });
  ForwardArgs args;
  args.extras["advantages"] = {{1.0f}};
  EXPECT_EQ(message_of([&] { model->forward_backward(batch(1), args); }),
            "[batch] 'advantages' has values for 1 sequences, needed 6");
  EXPECT_EQ(message_of([&] { model->backward(); }), "[backward] there is no forward to go back through");
  EXPECT_EQ(message_of([&] { model->forward_backward(std::vector<Trajectory>(1)); }),
            "[model] conversations need a template: call set_template first");

  // An error of the loss in a later pass takes the gradients of the earlier ones with it.
  const auto other = make_model(setup({.micro_batch_tokens = 16}));
  auto negative = batch(1);
  negative[5].weights.assign(negative[5].input_ids.size(), -1.0f);
  EXPECT_NE(
      message_of([&] { other->forward_backward(negative); }).find("is negative; a mean needs weights >= 0"),
      std::string::npos);
  const double a = train_step(*model, batch(2)), b = train_step(*other, batch(2));
  EXPECT_EQ(a, b);
  EXPECT_EQ(hash_of(*model), hash_of(*other));
}

TEST_P(Both, SomethingNotFiniteSkipsTheStepAndNamesTheRow) {
  const auto model = make_model(setup()), calm = make_model(setup());
  train_step(*model, batch(0));
  train_step(*calm, batch(0));
  const std::string before = hash_of(*model);

  // A weight so large that the gradient overflows although the loss is finite.
  auto wild = batch(1);
  wild[3].weights.assign(wild[3].input_ids.size(), 3e38f);
  model->forward_backward(wild);
  EXPECT_FALSE(std::isfinite(*model->clip_grad_norm()));
  StepResult result = model->step();
  EXPECT_TRUE(result.skipped);
  EXPECT_FALSE(result.stepped);
  EXPECT_EQ(result.reason,
            "step skipped: the gradient of sequence 3 (rows.jsonl row 4) is not finite; "
            "weights, optimizer and step count are as before");
  model->zero_grad();
  model->lr_step();
  EXPECT_EQ(hash_of(*model), before);
  EXPECT_EQ(model->cur_step(), 1);
  EXPECT_EQ(model->group().schedule_position(), 1);

  // A loss that is not finite itself.
  auto infinite = batch(1);
  infinite[4].weights.assign(infinite[4].input_ids.size(), HUGE_VALF);
  model->forward_backward(infinite);
  result = model->clip_grad_and_step();
  EXPECT_TRUE(result.skipped);
  EXPECT_EQ(result.reason,
            "step skipped: the derivative of the loss for sequence 4 (rows.jsonl row 5) is not finite; "
            "weights, optimizer and step count are as before");
  const Json metrics = model->calculate_metric(true);
  EXPECT_EQ(metrics["skipped_steps"], 2);
  EXPECT_TRUE(metrics["grad_norm"].is_null() || metrics["grad_norm"].is_number());

  // The run goes on as if the bad batches had never been there.
  EXPECT_EQ(train_step(*model, batch(2)), train_step(*calm, batch(2)));
  EXPECT_EQ(hash_of(*model), hash_of(*calm));
}

TEST_P(Both, EvaluationLeavesTrainingAlone) {
  const auto model = make_model(setup()), other = make_model(setup());
  model->forward(batch(1));
  const ModelOutput eval = model->forward_only(batch(5));
  const double eval_loss = model->calculate_loss();
  model->backward();  // of the training forward, whose activations the evaluation took away
  model->clip_grad_and_step();
  train_step(*other, batch(1));
  EXPECT_EQ(hash_of(*model), hash_of(*other));
  ASSERT_EQ(eval.logprobs.size(), 6u);
  double sum = 0;
  int64_t count = 0;
  for (const auto& list : eval.logprobs) {
    for (const float lp : list) sum -= lp, ++count;
  }
  EXPECT_DOUBLE_EQ(eval_loss, sum / static_cast<double>(count));
  const Json metrics = model->calculate_metric(false);
  EXPECT_DOUBLE_EQ(metrics["loss"].get<double>(), eval_loss);
  EXPECT_EQ(metrics["total_tokens"], count);

  // The loss of a forward_backward is the loss that forward_only gives for the same weights.
  other->forward_only(batch(7));
  const double seen = other->calculate_loss();
  EXPECT_EQ(*other->forward_backward(batch(7)).loss, seen);
}

TEST_P(Both, UnscoredBatchesAreHarmless) {
  const auto model = make_model(setup());
  auto masked = batch(1);
  for (auto& f : masked) std::fill(f.labels.begin(), f.labels.end(), kIgnoreIndex);
  const ModelOutput out = model->forward_backward(masked);
  EXPECT_EQ(*out.loss, 0.0);
  EXPECT_EQ(*model->clip_grad_norm(), 0.0);
}

TEST_P(Both, RecomputationChangesNothing) {
  std::vector<std::string> hashes;
  for (const auto policy : {Recompute::kNever, Recompute::kAlways}) {
    auto with = setup({.gradient_checkpointing = policy});
    with.dropout = 0.1;
    const auto model = make_model(with);
    for (int step = 0; step < 3; ++step) train_step(*model, batch(step));
    hashes.push_back(hash_of(*model));
  }
  EXPECT_EQ(hashes[0], hashes[1]);
}

TEST(Facade, AdaptersAreKeptApart) {
  const auto alone = make_model({});
  TransformersModel model(testing::stories());
  model.add_adapter_to_model("a", testing::lora());
  model.add_adapter_to_model("b", testing::lora());
  for (const char* name : {"a", "b"}) {
    model.set_optimizer("AdamW", {{"lr", 1e-2}}, name);
    model.set_lr_scheduler("LinearWarmupScheduler", {{"num_warmup_steps", 2}, {"num_training_steps", 50}},
                           name);
  }
  for (int step = 0; step < 3; ++step) {
    model.forward_backward(batch(step + 10), {}, "b");
    EXPECT_EQ(*model.forward_backward(batch(step), {}, "a").loss, *alone->forward_backward(batch(step)).loss);
    model.clip_grad_and_step(1.0, 2.0, "b");
    model.clip_grad_and_step(1.0, 2.0, "a");
    alone->clip_grad_and_step();
  }
  EXPECT_EQ(weights_hash(model.group("a").trained()), hash_of(*alone));
  EXPECT_NE(weights_hash(model.group("b").trained()), hash_of(*alone));
  EXPECT_EQ(message_of([&] { model.step(); }), "[model] there are 2 adapters; say which by adapter_name");
  EXPECT_EQ(message_of([&] { model.step({}, "c"); }).find("[model] there is no adapter 'c'"), 0u);
  EXPECT_EQ(message_of([&] { model.add_adapter_to_model("a", testing::lora()); }),
            "[model] there is an adapter 'a' already");
}

TEST(Facade, ForwardOnlyWithoutLoraIsTheBaseModel) {
  const auto model = make_model({});
  const auto base = model->forward_only(batch(3)).logprobs;  // B is zero: the adapter changes nothing yet
  for (int step = 0; step < 3; ++step) train_step(*model, batch(step));
  EXPECT_EQ(model->forward_only(batch(3), {.disable_lora = true}).logprobs, base);
  EXPECT_NE(model->forward_only(batch(3)).logprobs, base);
}

TEST(Facade, TemperatureDividesTheLogits) {
  const auto model = make_model({});
  const auto cold = model->forward_only(batch(3), {.temperature = 0.5}).logprobs,
             warm = model->forward_only(batch(3)).logprobs;
  EXPECT_NE(cold, warm);
  EXPECT_EQ(message_of([&] {
              model->forward_only(batch(3), {.temperature = 0});
            }).find("[forward] temperature must be > 0"),
            0u);
}

TEST(Facade, OverridesReplaceTheRateOfOneStep) {
  const auto model = make_model({});
  model->forward_backward(batch(1));
  EXPECT_EQ(model->step({.lr = 0.125}).lr, 0.125);
  model->lr_step();
  EXPECT_EQ(model->current_lr(), 1e-2 / 2);  // the schedule's second step
}

TEST(Facade, TrainConfigsSayWhatIsTrained) {
  const auto model = make_model({});
  const Json configs = model->train_configs();
  EXPECT_EQ(configs["optimizer"]["name"], "AdamW");
  EXPECT_EQ(configs["adapter"]["r"], 4);
  EXPECT_EQ(configs["parameters"], 260032);
  EXPECT_LT(configs["trained_parameters"].get<int64_t>(), 260032);
  EXPECT_NE(model->get_train_configs().find("optimizer: {\"name\":\"AdamW\""), std::string::npos);
  EXPECT_EQ(message_of([&] {
              model->set_optimizer("AdamW", {{"learning_rate", 1}});
            }).find("[AdamW] unknown option 'learning_rate'"),
            0u);
}

}  // namespace
}  // namespace twinkle
