// labels: parity
// LoRA against PEFT: PEFT's adapter files read by us give PEFT's logits, gradients, AdamW step and twenty
// training steps, and merged weights the same logits. What we write is left in build/parity/ours for
// check_peft_roundtrip.py.
#include "twinkle/lora/adapter.h"
#include "tests/parity/reference_case.h"
#include "twinkle/model/save.h"
#include "twinkle/train/transformers_model.h"

namespace twinkle::parity {
namespace {

class AdapterParity : public testing::TestWithParam<std::string> {
 protected:
  AdapterParity()
      : reference_(GetParam()), model_(reference_.model_path(), {.dtype = "fp32", .micro_batch_tokens = 64}) {
    model_.add_adapter_to_model("default", reference_.adapter_path());
    const Json& settings = reference_.json()["optimizer"];
    model_.set_optimizer(
        "AdamW",
        {{"lr", settings["lr"]}, {"eps", settings["eps"]}, {"weight_decay", settings["weight_decay"]}});
  }

  Adapter& adapter() { return *model_.group().adapter(); }

  /// Logits of every sequence, with the adapter or without.
  std::vector<at::Tensor> logits(bool with_adapter) {
    std::vector<at::Tensor> found;
    for (const InputFeature& feature : reference_.features()) {
      const PackedBatch batch = pack({&feature, 1});
      const nn::LoraBinding binding = bind_adapter(model_.model(), adapter(), batch, /*training=*/false);
      const nn::LoraBinding* used = with_adapter ? &binding : nullptr;
      CausalLM& model = model_.model();
      found.push_back(model.logits(model.arena(), model.forward(batch, used, {}), used).clone());
      model.finish();
    }
    return found;
  }

  void expect_logits(const std::vector<at::Tensor>& got, const std::string& name) {
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(relative_error(got[i], reference_.value(name + "." + std::to_string(i))), kTolerance)
          << name << " of sequence " << i;
    }
  }

  /// Weights after the first step. AdamW's first update is lr times the gradient's sign, so where the
  /// gradient is smaller than what gradients may differ by, the sign is anybody's.
  void expect_first_step() {
    const auto lr = reference_.json()["optimizer"]["lr"].get<double>();
    for (const auto& [name, value] : state()) {
      const at::Tensor expected = reference_.value("step." + name),
                       grad = reference_.value("grad." + name).abs();
      const at::Tensor undecided = grad.le(kTolerance * grad.max().item<double>()).logical_and(grad.gt(0));
      const at::Tensor allowed = kTolerance * expected.abs().max() + undecided.to(at::kFloat) * (2.01 * lr);
      EXPECT_TRUE(at::all((value - expected).abs().le(allowed)).item<bool>()) << name;
      EXPECT_LE(undecided.to(at::kFloat).mean().item<double>(), 0.25) << name;
    }
  }

  void expect_trained() {
    for (const auto& [name, value] : state()) {
      EXPECT_LE(relative_norm_error(value, reference_.value("trained." + name)), kTrainTolerance) << name;
    }
  }

  std::map<std::string, at::Tensor> state() {
    auto found = model_.get_state_dict();
    EXPECT_EQ(found.size(), reference_.names("trained.").size());
    return found;
  }

  ReferenceCase reference_;
  TransformersModel model_;
};

TEST_P(AdapterParity, Logits) { expect_logits(logits(true), "adapter_logits"); }

TEST_P(AdapterParity, MergedLogitsAndBack) {
  const std::vector<at::Tensor> before = logits(false);
  MergedAdapter merged(model_.model(), adapter());
  expect_logits(logits(false), "merged_logits");
  merged.unmerge();
  const std::vector<at::Tensor> after = logits(false);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i]));
}

TEST_P(AdapterParity, LossGradientsAndOneStep) {
  const ModelOutput out = model_.forward_backward(reference_.features());
  const auto loss = reference_.json()["loss"].get<double>();
  EXPECT_NEAR(out.loss.value(), loss, kTolerance * loss);
  int64_t count = 0;
  for (const InputFeature& feature : reference_.features()) count += feature.num_trained();
  const std::vector<Adapter::Trained> trained = adapter().trained();
  EXPECT_EQ(trained.size(), reference_.names("grad.").size());
  model_.step();
  // The accumulated gradient is that of the sum; it stays until zero_grad.
  for (const Adapter::Trained& tensor : trained) {
    const at::Tensor expected = reference_.value("grad." + tensor.name);
    ASSERT_EQ(tensor.grad.numel(), tensor.value.numel()) << tensor.name;
    if (tensor.grad.sizes() != expected.sizes()) continue;  // a packed matrix: its step is compared below
    EXPECT_LE(relative_error(tensor.grad / static_cast<double>(count), expected), kTolerance) << tensor.name;
  }
  expect_first_step();
}

TEST_P(AdapterParity, TwentyStepsAndWhatIsWritten) {
  std::vector<double> losses, norms;
  for (int64_t step = 0; step < reference_.json()["steps"].get<int64_t>(); ++step) {
    losses.push_back(model_.forward_backward(reference_.step_features(step)).loss.value());
    const StepResult result =
        model_.clip_grad_and_step(reference_.json()["optimizer"]["max_grad_norm"].get<double>());
    ASSERT_TRUE(result.stepped) << result.reason;
    norms.push_back(result.grad_norm.value());
  }
  expect_losses(losses, reference_.json()["losses"], "loss");
  expect_losses(norms, reference_.json()["grad_norms"], "gradient norm");
  expect_trained();

  const fs::path ours = references() / "ours" / reference_.name();
  fs::remove_all(ours);
  fs::create_directories(ours / "adapter");
  fs::create_directories(ours / "merged");
  adapter().save((ours / "adapter").string());
  std::vector<at::Tensor> kept = logits(true);
  MergedAdapter(model_.model(), adapter()).commit();
  for (const at::Tensor& tensor : logits(false)) kept.push_back(tensor);
  save_model(model_.model(), (ours / "merged").string());
  std::vector<TensorToWrite> tensors;
  for (size_t i = 0; i < kept.size(); ++i) {
    const at::Tensor tensor = kept[i].contiguous();
    const size_t n = reference_.features().size();
    tensors.push_back({.name = (i < n ? "adapter_logits." : "merged_logits.") + std::to_string(i % n),
                       .dtype = "F32",
                       .shape = tensor.sizes().vec(),
                       .fill = [tensor](int64_t offset, std::span<std::byte> out) {
                         std::memcpy(out.data(), static_cast<const std::byte*>(tensor.data_ptr()) + offset,
                                     out.size());
                       }});
  }
  write_safetensors((ours / "ours.safetensors").string(), tensors, {});
}

INSTANTIATE_TEST_SUITE_P(Cases, AdapterParity, testing::ValuesIn(all_cases()), case_name);

TEST(AdapterParitySuite, HasEveryCase) { EXPECT_EQ(all_cases().size(), 27u); }

}  // namespace
}  // namespace twinkle::parity
