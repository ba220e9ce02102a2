// Tenants of every kind for the tests of shared passes: what each trains, and what a run of it leaves.
#pragma once

#include <ATen/ATen.h>

#include "tests/train/train_model_testing.h"
#include "twinkle/core/files.h"
#include "twinkle/train/lambda_loss.h"
#include "twinkle/train/multi_lora_transformers_model.h"

namespace twinkle::testing {

struct Tenant {
  std::string name;
  LoraConfig lora;
  std::string loss = "CrossEntropyLoss";  // "entropy": a loss of our own over the whole batch
  Json loss_options = nullptr;
  std::string optimizer = "AdamW";
  Json optimizer_options = {{"lr", 1e-2}};
  bool warmup = false;
  int64_t accumulation = 1;
  double temperature = 1.0;
  double max_grad_norm = 1.0;
  uint64_t seed = 0;
};

inline LoraConfig lora_of(int64_t r, std::vector<std::string> targets, uint64_t seed, double dropout = 0) {
  LoraConfig config;
  config.r = r;
  config.lora_alpha = 2.0 * static_cast<double>(r);
  config.target_modules = std::move(targets);
  config.lora_dropout = dropout;
  config.seed = seed;
  return config;
}

/// Eight tenants that differ in all that a tenant can choose.
inline std::vector<Tenant> mixed_tenants() {
  std::vector<Tenant> list;
  list.push_back({.name = "plain", .lora = lora_of(4, {"q_proj", "v_proj"}, 1)});
  list.push_back(
      {.name = "wide",
       .lora = lora_of(64, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}, 2),
       .warmup = true,
       .accumulation = 2});
  list.push_back({.name = "dropped",
                  .lora = lora_of(8, {"q_proj", "o_proj", "down_proj"}, 3, 0.25),
                  .optimizer = "SGD",
                  .optimizer_options = {{"lr", 0.05}, {"momentum", 0.9}, {"state_dtype", "bf16"}}});
  list.push_back({.name = "mlp",
                  .lora = lora_of(1, {"gate_proj", "up_proj"}, 4),
                  .loss_options = {{"reduction", "sequence_mean"}},
                  .temperature = 0.7});
  list.push_back({.name = "head",
                  .lora = lora_of(6, {"lm_head", "q_proj"}, 5),
                  .loss_options = {{"reduction", "sum"}},
                  .optimizer_options = {{"lr", 1e-3}, {"weight_decay", 0.1}},
                  .max_grad_norm = 0});
  list.push_back({.name = "embedding",
                  .lora = lora_of(5, {"embed_tokens", "v_proj"}, 6),
                  .optimizer = "Adam",
                  .optimizer_options = {{"lr", 1e-2}, {"state_dtype", "bf16"}},
                  .accumulation = 3});
  list.push_back({.name = "own loss",
                  .lora = lora_of(16, {"k_proj", "down_proj"}, 7, 0.1),
                  .loss = "entropy",
                  .temperature = 1.5});
  list.push_back({.name = "dft", .lora = lora_of(12, {"o_proj"}, 8), .loss_options = {{"dft", true}}});
  list.back().lora.use_rslora = true;
  for (size_t i = 0; i < list.size(); ++i) list[i].seed = 1000 * (i + 1);
  return list;
}

inline void set_up(TransformersModel& model, const Tenant& t) {
  model.add_adapter_to_model(t.name, t.lora);
  if (t.loss == "entropy") {
    model.set_loss(std::make_unique<LambdaLoss>(
                       [](const at::Tensor& logprob_S, const LossInput& in) {
                         return -(logprob_S * in.weights_S).mean() - 0.1 * in.entropy_S.mean();
                       },
                       LambdaLossOptions{.divide_by = DivideBy::kSequences, .needs_entropy = true}),
                   t.name);
  } else {
    model.set_loss(t.loss, t.loss_options, t.name);
  }
  model.set_optimizer(t.optimizer, t.optimizer_options, t.name);
  if (t.warmup)
    model.set_lr_scheduler("LinearWarmupScheduler", {{"num_warmup_steps", 3}, {"num_training_steps", 60}},
                           t.name);
  model.set_gradient_accumulation_steps(t.accumulation, t.name);
}

/// The sequences of a tenant's call.
inline std::vector<InputFeature> call_of(const Tenant& t, int64_t call) {
  CounterRng rng(t.seed, static_cast<uint64_t>(call));
  std::vector<int> lengths;
  const auto count = 1 + rng.next_below(4);
  for (uint64_t i = 0; i < count; ++i) lengths.push_back(static_cast<int>(2 + rng.next_below(24)));
  auto list = features(lengths, t.seed + static_cast<uint64_t>(call));
  // Some targets weigh less, some sequences have nothing to learn.
  if (call % 3 == 1) {
    for (auto& f : list) f.weights.assign(f.input_ids.size(), 0.5f);
    list[0].weights[0] = 2.0f;
  }
  if (call % 5 == 2) std::fill(list[0].labels.begin(), list[0].labels.end(), kIgnoreIndex);
  return list;
}

inline std::string bits(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%a", x);
  return text;
}

inline std::string bits(const ModelOutput& out) {
  std::string all = out.loss ? bits(*out.loss) : "-";
  std::string bytes;
  for (const auto* lists : {&out.logprobs, &out.entropies}) {
    for (const auto& list : *lists)
      bytes.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(float)) += '|';
  }
  return all + " " + sha256_hex(bytes).substr(0, 16);
}

inline std::string bits(const StepResult& step) {
  return std::string(step.stepped   ? "stepped "
                     : step.skipped ? "skipped "
                                    : "waits ") +
         std::to_string(step.step) + " " + bits(step.lr) + " " + bits(step.grad_norm.value_or(-1));
}

/// Weights and optimizer state.
inline std::string state_of(TransformersModel& model, const std::string& name) {
  TrainGroup& g = model.group(name);
  std::string bytes = weights_hash(g.trained());
  for (const auto& entry : g.optimizer().state()) {
    const at::Tensor x = entry.value.contiguous();
    bytes += entry.name +
             sha256_hex({static_cast<const char*>(x.const_data_ptr()), static_cast<size_t>(x.nbytes())});
  }
  return sha256_hex(bytes).substr(0, 16) + " " + std::to_string(g.cur_step()) + " " +
         std::to_string(g.tokens_seen());
}

/// What one tenant sees of `calls` calls, each followed by an attempted step, with the model for itself.
inline std::vector<std::string> alone(const Tenant& t, int64_t calls, const std::string& model_id = stories(),
                                      const std::string& dtype = "auto") {
  TransformersModel model(model_id, {.dtype = dtype});
  set_up(model, t);
  std::vector<std::string> record;
  for (int64_t call = 0; call < calls; ++call) {
    const ForwardArgs args{.temperature = t.temperature};
    if (call % 4 == 3) record.push_back(bits(model.forward_only(call_of(t, call), args, t.name)));
    record.push_back(bits(model.forward_backward(call_of(t, call), args, t.name)));
    if (t.max_grad_norm > 0) model.clip_grad_norm(t.max_grad_norm, 2.0, t.name);
    record.push_back(bits(model.step({}, t.name)));
    model.zero_grad(t.name);
    model.lr_step(t.name);
  }
  record.push_back(state_of(model, t.name));
  return record;
}

/// The same work as requests.
inline std::vector<TenantRequest> requests_of(const Tenant& t, int64_t call) {
  std::vector<TenantRequest> list;
  const ForwardArgs args{.temperature = t.temperature};
  if (call % 4 == 3) {
    list.push_back(
        {.adapter_name = t.name, .kind = WorkKind::kForward, .features = call_of(t, call), .args = args});
  }
  list.push_back({.adapter_name = t.name, .features = call_of(t, call), .args = args});
  list.push_back({.adapter_name = t.name, .kind = WorkKind::kStep, .max_grad_norm = t.max_grad_norm});
  return list;
}

inline void note(std::vector<std::string>& record, const TenantRequest& request, const TenantResult& result) {
  EXPECT_TRUE(result.ok()) << request.adapter_name << ": " << result.error->what();
  record.push_back(request.kind == WorkKind::kStep ? bits(result.step) : bits(result.output));
}

}  // namespace twinkle::testing
