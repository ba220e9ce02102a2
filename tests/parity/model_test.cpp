// labels: parity
// The base model against transformers: logits of every family, alone and packed together; and full training,
// its gradients and twenty AdamW steps.
#include <cmath>
#include <numeric>

#include "tests/parity/reference_case.h"
#include "twinkle/model/causal_lm.h"
#include "twinkle/train/optimizer.h"

namespace twinkle::parity {
namespace {

class ModelParity : public testing::TestWithParam<std::string> {};

std::unique_ptr<CausalLM> load(const ReferenceCase& reference) {
  return CausalLM::load(reference.model_path(), {.dtype = "fp32"});
}

TEST_P(ModelParity, LogitsOfEachSequenceAlone) {
  const ReferenceCase reference(GetParam());
  const auto model = load(reference);
  for (size_t i = 0; i < reference.features().size(); ++i) {
    const PackedBatch batch = pack({&reference.features()[i], 1});
    const at::Tensor hidden = model->forward(batch, nullptr, {});
    const at::Tensor logits = model->logits(model->arena(), hidden, nullptr);
    model->finish();
    EXPECT_LE(relative_error(logits, reference.value("logits." + std::to_string(i))), kTolerance)
        << "sequence " << i;
  }
}

TEST_P(ModelParity, LogitsOfAllSequencesPacked) {
  const ReferenceCase reference(GetParam());
  const auto model = load(reference);
  const PackedBatch batch = pack(reference.features());
  const at::Tensor logits = model->logits(model->arena(), model->forward(batch, nullptr, {}), nullptr);
  model->finish();
  for (size_t i = 0; i < reference.features().size(); ++i) {
    EXPECT_LE(relative_error(logits.slice(0, batch.cu_seqlens[i], batch.cu_seqlens[i + 1]),
                             reference.value("logits." + std::to_string(i))),
              kTolerance)
        << "sequence " << i;
  }
}

/// One forward and backward of the token mean; gradients are those of the mean. Returns the loss.
double mean_loss_backward(CausalLM& model, const std::vector<InputFeature>& features) {
  const PackedBatch batch = pack(features);
  const std::vector<int32_t> rows = batch.scored_rows();
  std::vector<int32_t> targets;
  for (const int32_t row : rows) targets.push_back(batch.targets[static_cast<size_t>(row)]);
  const auto count = static_cast<int64_t>(rows.size());
  model.forward(batch, nullptr, {.for_backward = true});
  ops::HeadOutputs out;
  out.logprob_S = at::empty({count}, at::kFloat);
  out.lse_S = at::empty({count}, at::kFloat);
  model.score(rows, targets, 1.0, out);
  const double loss = -out.logprob_S.to(at::kDouble).sum().item<double>() / static_cast<double>(count);
  model.backward(at::full({count}, -1.0 / static_cast<double>(count), at::kFloat));
  model.finish();
  return loss;
}

at::Tensor gradient_of(Parameter& parameter) {
  const at::Tensor flat = parameter.flat_grad();  // adds a tied head's share in
  return parameter.is_matrix() ? parameter.matrix_grad.unpack() : flat;
}

at::Tensor value_of(const Parameter& parameter) {
  return parameter.is_matrix() ? parameter.matrix.unpack() : parameter.vector;
}

class FullTrainingParity : public testing::TestWithParam<std::string> {};

TEST_P(FullTrainingParity, GradientsAndTwentySteps) {
  const ReferenceCase reference(GetParam());
  const auto model = load(reference);
  model->make_trainable();
  mean_loss_backward(*model, reference.features());
  size_t compared = 0;
  for (Parameter& parameter : model->parameters()) {
    EXPECT_LE(relative_error(gradient_of(parameter), reference.value("full_grad." + parameter.name)),
              kTolerance)
        << parameter.name;
    ++compared;
  }
  EXPECT_EQ(compared, reference.names("full_grad.").size());

  const Json& settings = reference.json()["optimizer"];
  const auto lr = settings["lr"].get<double>();
  const auto optimizer = Registry<Optimizer>::create(
      "AdamW", {{"lr", lr}, {"eps", settings["eps"]}, {"weight_decay", settings["weight_decay"]}});
  std::vector<double> losses, norms;
  for (int64_t step = 0; step < reference.json()["steps"].get<int64_t>(); ++step) {
    model->zero_grad();
    losses.push_back(mean_loss_backward(*model, reference.step_features(step)));
    std::vector<TrainedTensor> trained;  // torch's AdamW decays every parameter it is given
    for (Parameter& parameter : model->parameters()) {
      trained.push_back({.name = parameter.name, .value = parameter.flat(), .grad = parameter.flat_grad()});
    }
    norms.push_back(std::sqrt(gradient_sum_of_squares(trained)));
    const double scale = std::min(1.0, settings["max_grad_norm"].get<double>() / (norms.back() + 1e-6));
    optimizer->step(trained, {.lr = lr, .grad_scale = scale});
  }
  expect_losses(losses, reference.json()["full_losses"], "loss");
  expect_losses(norms, reference.json()["full_grad_norms"], "gradient norm");
  for (const Parameter& parameter : model->parameters()) {
    EXPECT_LE(relative_error(value_of(parameter), reference.value("full_trained." + parameter.name)),
              kTrainTolerance)
        << parameter.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ModelParity, testing::ValuesIn(all_cases()), case_name);

INSTANTIATE_TEST_SUITE_P(Cases, FullTrainingParity, testing::ValuesIn(full_training_cases()), case_name);

TEST(ModelParitySuite, HasEveryCase) {
  EXPECT_EQ(all_cases().size(), 27u);
  EXPECT_EQ(full_training_cases().size(), 6u);
}

}  // namespace
}  // namespace twinkle::parity
