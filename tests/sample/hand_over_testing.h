// A trainer that is the same in every process that makes it, and its model on disk.
#pragma once

#include <string>

#include "tests/sample/sample_testing.h"
#include "twinkle/model/save.h"
#include "twinkle/train/transformers_model.h"

namespace twinkle::test {

/// The tiny model with these weights, its tokenizer and template.
inline void write_model(const std::string& directory, uint64_t seed) {
  write_tiny_model(directory);
  Json json = tiny_config();
  json["initializer_range"] = 0.4;
  const ModelConfig config = model_config_from_json(json, "test");
  save_model(*CausalLM::build(config, *random_weights(config, seed)), directory);
}

/// `what`: "adapter", "merged" (both train an adapter) or "full".
inline std::unique_ptr<TransformersModel> make_trainer(const std::string& what,
                                                       const std::string& directory) {
  auto model = std::make_unique<TransformersModel>(directory);
  model->set_template();
  if (what != "full")
    model->add_adapter_to_model("nova", LoraConfig{.r = 4, .target_modules = {"q_proj", "down_proj"}});
  model->set_optimizer("AdamW", {{"lr", 0.02}});
  return model;
}

inline void train_step(TransformersModel& model) {
  Trajectory t;
  t.messages = Json::array(
      {{{"role", "user"}, {"content", "who?"}}, {{"role", "assistant"}, {"content", "Nova, of course."}}});
  model.forward_backward(model.get_template()->encode(t));
  model.clip_grad_and_step();
}

}  // namespace twinkle::test
