// labels: quick bits
// Positions with several targets (distillation from the likeliest tokens of a teacher): a sum over the
// targets is what as many calls with one target a position give together.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/thrown.h"
#include "tests/train/train_model_testing.h"

namespace twinkle {
namespace {

using testing::features;
using testing::make_model;

// Column k of the targets of position t.
int32_t target(size_t t, size_t k) { return static_cast<int32_t>(3 + (t * 31 + k * 97) % 500); }
float weight(size_t t, size_t k) { return 0.25f * static_cast<float>((t + 2 * k) % 5) - 0.25f; }

InputFeature column(const InputFeature& of, size_t k) {
  InputFeature f{.input_ids = of.input_ids};
  for (size_t t = 0; t < of.input_ids.size(); ++t) {
    f.labels.push_back(target(t, k));
    f.weights.push_back(weight(t, k));
  }
  return f;
}

InputFeature table(const InputFeature& of, size_t columns) {
  InputFeature f{.input_ids = of.input_ids};
  for (size_t t = 0; t < of.input_ids.size(); ++t) {
    for (size_t k = 0; k < columns; ++k) {
      f.labels.push_back(target(t, k));
      f.weights.push_back(weight(t, k));
      f.label_positions.push_back(static_cast<int32_t>(t));
    }
  }
  return f;
}

std::vector<float> gradients(TransformersModel& model) {
  std::vector<float> out;
  for (const auto& t : model.group().trained()) {
    const at::Tensor grad = t.grad.contiguous();
    out.insert(out.end(), grad.const_data_ptr<float>(), grad.const_data_ptr<float>() + grad.numel());
  }
  return out;
}

std::unique_ptr<TransformersModel> trained_model(int64_t pass_tokens = 2048) {
  auto model = make_model({.options = {.micro_batch_tokens = pass_tokens}});
  model->set_loss("cross_entropy", {{"reduction", "sum"}});
  for (int step = 0; step < 3; ++step) {  // so that both factors of the adapter have a gradient
    model->forward_backward(features({9, 20}, 3));
    model->clip_grad_and_step();
  }
  return model;
}

TEST(SeveralTargets, AddUpAsOneAfterTheOther) {
  constexpr size_t kColumns = 3;
  const auto base = features({7, 1, 23, 12}, 5);
  std::vector<InputFeature> tables;
  for (const auto& f : base) tables.push_back(table(f, kColumns));

  const auto at_once = trained_model();
  const ModelOutput got = at_once->forward_backward(tables);
  const std::vector<float> got_gradient = gradients(*at_once);

  const auto apart = trained_model();
  apart->set_gradient_accumulation_steps(kColumns);
  double sum = 0;
  std::vector<std::vector<std::vector<float>>> logprobs;
  for (size_t k = 0; k < kColumns; ++k) {
    std::vector<InputFeature> columns;
    for (const auto& f : base) columns.push_back(column(f, k));
    const ModelOutput one = apart->forward_backward(columns);
    sum += *one.loss;
    logprobs.push_back(one.logprobs);
  }
  const std::vector<float> want = gradients(*apart);

  EXPECT_NEAR(*got.loss, sum, 1e-4 * std::abs(sum));
  for (size_t i = 0; i < base.size(); ++i) {
    ASSERT_EQ(got.logprobs[i].size(), base[i].input_ids.size() * kColumns);
    for (size_t j = 0; j < got.logprobs[i].size(); ++j)
      ASSERT_EQ(got.logprobs[i][j], logprobs[j % kColumns][i][j / kColumns]) << i << " " << j;
  }
  ASSERT_EQ(got_gradient.size(), want.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(got_gradient[i] - want[i], 2);
    size += std::pow(want[i], 2);
  }
  EXPECT_GT(size, 0);
  EXPECT_LT(std::sqrt(difference / size), 1e-5);

  // The split over passes changes no bit.
  const auto split = trained_model(16);
  EXPECT_EQ(*split->forward_backward(tables).loss, *got.loss);
  EXPECT_EQ(gradients(*split), got_gradient);
}

TEST(SeveralTargets, AreChecked) {
  const auto model = trained_model();
  InputFeature f = table(features({5}, 1)[0], 2);
  f.label_positions[3] = 0;
  EXPECT_EQ(test::thrown([&] { model->forward_backward(std::vector{f}); }),
            "[batch] sequence 0: label positions must ascend");
  f.label_positions[3] = 1;
  f.label_positions.back() = 5;
  EXPECT_EQ(test::thrown([&] { model->forward_backward(std::vector{f}); }),
            "[batch] sequence 0: label position 5 is not one of 5 tokens");
  f.label_positions.pop_back();
  EXPECT_EQ(test::thrown([&] { model->forward_backward(std::vector{f}); }),
            "[batch] sequence 0: has 10 labels for 9 label positions");
}

}  // namespace
}  // namespace twinkle
