// The real small model of the tests (stories260k) and batches for it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/train/train_testing.h"
#include "twinkle/core/rng.h"
#include "twinkle/train/manifest.h"
#include "twinkle/train/transformers_model.h"

namespace twinkle::testing {

using test::stories;

/// Features of given lengths with tokens from `seed`; the first third of each is prompt.
inline std::vector<InputFeature> features(const std::vector<int>& lengths, uint64_t seed) {
  std::vector<InputFeature> list;
  CounterRng rng(seed, 7);
  for (const int length : lengths) {
    InputFeature f;
    for (int t = 0; t < length; ++t) f.input_ids.push_back(static_cast<int32_t>(3 + rng.next_below(500)));
    for (int t = 0; t + 1 < length; ++t)
      f.labels.push_back(t < length / 3 ? kIgnoreIndex : f.input_ids[static_cast<size_t>(t) + 1]);
    f.labels.push_back(kIgnoreIndex);
    f.origin = "rows.jsonl row " + std::to_string(list.size() + 1);
    list.push_back(std::move(f));
  }
  return list;
}

/// The batch of a step: mixed lengths, the same for a step number.
inline std::vector<InputFeature> batch(int64_t step) {
  return features({5 + static_cast<int>(step % 7), 23, 2, 40, 11, 17 - static_cast<int>(step % 3)},
                  100 + static_cast<uint64_t>(step));
}

inline LoraConfig lora(double dropout = 0.0) {
  LoraConfig config;
  config.r = 4;
  config.lora_alpha = 8;
  config.lora_dropout = dropout;
  config.target_modules = {"all-linear"};
  config.target_is_pattern = true;
  return config;
}

struct Case {
  bool full = false;
  double dropout = 0.0;
  Json optimizer = {{"lr", 1e-2}};
  TransformersModelOptions options = {};
};

inline std::unique_ptr<TransformersModel> make_model(const Case& setup) {
  auto model = std::make_unique<TransformersModel>(stories(), setup.options);
  if (!setup.full) model->add_adapter_to_model("default", lora(setup.dropout));
  model->set_optimizer("AdamW", setup.optimizer);
  model->set_lr_scheduler("LinearWarmupScheduler", {{"num_warmup_steps", 2}, {"num_training_steps", 50}});
  return model;
}

/// One optimizer step on one batch; returns the loss.
inline double train_step(TransformersModel& model, const std::vector<InputFeature>& features) {
  const ModelOutput out = model.forward_backward(features);
  model.clip_grad_and_step();
  return *out.loss;
}

/// Hash of everything that is trained.
inline std::string hash_of(TransformersModel& model) { return weights_hash(model.group().trained()); }

/// Losses and the final weights of a run.
inline std::vector<std::string> run_of(const Case& setup, int64_t steps, int64_t from = 0,
                                       TransformersModel* given = nullptr) {
  std::unique_ptr<TransformersModel> made;
  if (given == nullptr) made = make_model(setup), given = made.get();
  std::vector<std::string> record;
  for (int64_t step = from; step < from + steps; ++step) {
    char text[40];
    std::snprintf(text, sizeof text, "%a", train_step(*given, batch(step)));
    record.emplace_back(text);
  }
  record.push_back(hash_of(*given));
  return record;
}

/// What the exactness tests train: with dropout where there is an adapter.
inline Case exact_case(bool full, TransformersModelOptions options = {}) {
  return {.full = full, .dropout = full ? 0.0 : 0.1, .options = std::move(options)};
}

}  // namespace twinkle::testing
