// What the tests of the hand-over share: a trainer that is the same in every process that makes it, its model
// on disk, and what its sampler is asked.
#pragma once

#include <functional>
#include <string>
#include <thread>

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

inline const SamplingParams kParams{.max_tokens = 20, .seed = 3, .ignore_eos = true};
inline const Json kEngine = {{"kv_cache_memory_mb", 4}};

inline std::vector<InputFeature> prompts() {
  std::vector<InputFeature> out(2);
  out[0].input_ids = random_tokens(70, 1);
  out[1].input_ids = random_tokens(5, 2);
  return out;
}

inline void wait_until(const std::function<bool()>& done) {
  for (int i = 0; i < 10000 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(done());
}

}  // namespace twinkle::test
